// Where a tensor lives. `dry` devices hold shapes and allocations only, no numbers.
#pragma once

#include <cstdint>
#include <string>

namespace limpid {

enum class DeviceType : std::uint8_t { cpu, cuda, dry };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr Device kCpu{};

std::string to_string(Device device);  // "cpu", "cuda:0"
// "cpu", "cuda", "cuda:1"; ArgumentError otherwise.
Device parse_device(const std::string& text);

}  // namespace limpid
