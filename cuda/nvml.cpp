#include <limpid/cuda/nvml.h>

#include <algorithm>
#include <fstream>

#include <limpid/base/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/runtime.h>

namespace limpid::cu {
namespace {

struct NvmlDevice;
// nvmlProcessInfo_t as of version 3 of the call, nvmlUtilization_t, nvmlMemory_t
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;
};
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ull;

struct Api {
  int (*init)() = nullptr;
  int (*device_by_bus)(const char* bus, NvmlDevice** device) = nullptr;
  int (*processes)(NvmlDevice* device, unsigned* count, ProcessInfo* infos) = nullptr;
  int (*utilization)(NvmlDevice* device, Utilization* use) = nullptr;
  int (*memory)(NvmlDevice* device, Memory* memory) = nullptr;
};

const Api* nvml() {
  static const Api* const api = []() -> const Api* {
    Library& library = nvml_library();
    auto* a = new Api;
    library.bind("nvmlInit_v2", a->init);
    library.bind("nvmlDeviceGetHandleByPciBusId_v2", a->device_by_bus);
    library.bind("nvmlDeviceGetComputeRunningProcesses_v3", a->processes);
    library.bind("nvmlDeviceGetUtilizationRates", a->utilization);
    library.bind("nvmlDeviceGetMemoryInfo", a->memory);
    if (library.usable() && a->init() != kSuccess) library.refuse("it cannot be initialised");
    if (library.usable()) return a;
    delete a;
    return nullptr;
  }();
  return api;
}

// CUDA and NVML count devices differently; the bus is the same.
NvmlDevice* nvml_device(int device) {
  NvmlDevice* found = nullptr;
  if (!nvml() || nvml()->device_by_bus(device_properties(device).pci_bus_id.c_str(), &found) != kSuccess)
    return nullptr;
  return found;
}

std::string program_name(unsigned pid) {
  std::ifstream file(concat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

std::vector<memory::DeviceProcess> gpu_processes(int device) noexcept {
  try {
    NvmlDevice* handle = nvml_device(device);
    if (!handle) return {};
    std::vector<ProcessInfo> infos(16);
    unsigned count = 0;
    int status = kInsufficientSize;
    for (int tries = 0; status == kInsufficientSize && tries < 4; tries++) {
      count = static_cast<unsigned>(infos.size());
      status = nvml()->processes(handle, &count, infos.data());
      if (status == kInsufficientSize) infos.resize(count + 16);
    }
    if (status != kSuccess) return {};
    std::vector<memory::DeviceProcess> out;
    for (unsigned i = 0; i < count; i++) {
      if (infos[i].used_bytes == kNotAvailable) continue;  // of another user's container
      out.push_back({infos[i].pid, program_name(infos[i].pid), infos[i].used_bytes});
    }
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    return out;
  } catch (...) {
    return {};
  }
}

std::optional<GpuUse> gpu_use(int device) noexcept {
  try {
    NvmlDevice* handle = nvml_device(device);
    Utilization use{};
    Memory memory{};
    if (!handle || nvml()->utilization(handle, &use) != kSuccess || nvml()->memory(handle, &memory) != kSuccess)
      return {};
    return GpuUse{use.gpu / 100.0, memory.used, memory.total};
  } catch (...) {
    return {};
  }
}

}  // namespace limpid::cu
