// The fake's NVML: this program and those that the test named hold memory.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "fake_state.h"

using namespace limpid::cudasim::fake;

namespace {
struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
  unsigned instance, compute_instance;
};
int device_of(void* handle) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(handle)) - 1; }
}  // namespace

extern "C" {

int nvmlInit_v2() {
  const Lock guard = lock();
  return gate({.api = "nvmlInit_v2"});
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "nvmlDeviceGetHandleByPciBusId_v2"})) return failure;
  *handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(std::atoi(bus + 5)));
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessInfo* infos) {
  const Lock guard = lock();
  if (int failure = gate({.api = "nvmlDeviceGetComputeRunningProcesses_v3"})) return failure;
  auto list = state().processes[device_of(handle)];
  list.emplace_back(static_cast<unsigned>(::getpid()), used_bytes(device_of(handle)));
  const unsigned room = *count;
  *count = static_cast<unsigned>(list.size());
  if (room < list.size()) return 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  for (std::size_t i = 0; i < list.size(); i++) infos[i] = {list[i].first, list[i].second, ~0u, ~0u};
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* percent) {
  const Lock guard = lock();
  if (int failure = gate({.api = "nvmlDeviceGetUtilizationRates"})) return failure;
  percent[0] = 75, percent[1] = 50;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, unsigned long long* bytes) {
  const Lock guard = lock();
  if (int failure = gate({.api = "nvmlDeviceGetMemoryInfo"})) return failure;
  const std::uint64_t used = used_bytes(device_of(handle));
  bytes[0] = config().capacity, bytes[1] = config().capacity - used, bytes[2] = used;
  return 0;
}

}  // extern "C"
