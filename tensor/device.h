// Where a tensor lives. `dry:cpu` and `dry:cuda` hold shapes and allocations only, no numbers: they stand in for the CPU
// and for a GPU in a dry run (tensor/dry.h).
#pragma once

#include <cstdint>
#include <string>

namespace limpid {

enum class DeviceType : std::uint8_t { cpu, cuda, dry };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int8_t index = 0;
  bool operator==(const Device&) const = default;
  bool is_dry() const { return type == DeviceType::dry; }
};

inline constexpr Device kCpu{};
inline constexpr Device kDryCpu{DeviceType::dry, 0};
inline constexpr Device kDryCuda{DeviceType::dry, 1};

std::string to_string(Device device);  // "cpu", "cuda:0", "dry:cpu", "dry:cuda"
// "cpu", "cuda", "cuda:1", "dry:cpu", "dry:cuda"; ArgumentError otherwise.
Device parse_device(const std::string& text);

namespace detail {
inline thread_local Device default_device;
}
// Where this thread makes tensors for which no device is named: the CPU, unless a DeviceScope says otherwise.
inline Device default_device() { return detail::default_device; }

class DeviceScope {
 public:
  explicit DeviceScope(Device device) : former_(detail::default_device) { detail::default_device = device; }
  ~DeviceScope() { detail::default_device = former_; }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Device former_;
};

}  // namespace limpid
