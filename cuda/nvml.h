// What NVML, the driver's monitoring library, says about a GPU. Where it is missing or refuses, there is no answer:
// these never throw.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <limpid/memory/device.h>

namespace limpid::cu {

// Programs that compute on the GPU and the memory that they hold, largest first.
std::vector<memory::DeviceProcess> gpu_processes(int device) noexcept;

struct GpuUse {
  double busy = 0;               // share of the last sampling period (up to a second) in which a kernel ran, in [0, 1]
  std::uint64_t used_bytes = 0;  // memory, of all programs
  std::uint64_t total_bytes = 0;
};
std::optional<GpuUse> gpu_use(int device) noexcept;

}  // namespace limpid::cu
