// A build without CUDA (LIMPID_CUDA=OFF): every use of a GPU says so, and nothing looks for a driver. In place of the
// other files of this room.
#include <limpid/tensor/backend.h>

#include <limpid/base/error.h>
#include <limpid/cuda/copies.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/nvml.h>
#include <limpid/cuda/runtime.h>

namespace limpid {
namespace {

constexpr const char* kWhy = "limpid was built without CUDA";
[[noreturn]] void absent(int index) {
  LIMPID_THROW(DeviceError, "[device] cuda:", index, ": no CUDA device (", kWhy, ")");
}

}  // namespace

const Backend& cuda_backend() {
  static constexpr Backend backend{
      .check_device = [](Device device) { absent(device.index); },
      .kernels = []() -> const Kernels* { return nullptr; },
      .memory = [](int index) -> std::shared_ptr<memory::MemoryDevice> { absent(index); },
      .allocator = [](int index) -> memory::Allocator& { absent(index); },
      .current_stream = [](int index) -> memory::StreamId { absent(index); },
      .copy = [](Tensor&, const Tensor&, bool) { absent(0); },
      .pinned_allocator = []() -> memory::Allocator& { absent(0); },
      .wait_for_copies = [](const Storage&) {},
  };
  return backend;
}

namespace cu {

bool is_available() { return false; }
int device_count() { return 0; }
void check_device(int device) { absent(device); }
std::string device_name(int device) { absent(device); }
const DeviceProperties& device_properties(int device) { absent(device); }
void set_launch_sync(bool) {}
bool launch_sync() { return false; }
void set_memory_policy(int device, memory::PolicyFactory, const memory::AllocatorSettings&) { absent(device); }
bool pool_exists(int) { return false; }
Tensor upload(const Tensor&, int device) { absent(device); }
void synchronize(int device) { absent(device); }
std::optional<GpuUse> gpu_use(int) noexcept { return {}; }
std::vector<LibraryReport> library_reports() { return {}; }
std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }
const Availability& availability() {
  static const auto* const none = new Availability{.problem = kWhy};
  return *none;
}

}  // namespace cu
}  // namespace limpid
