#include <limpid/tensor/backend.h>

#include <limpid/base/error.h>

namespace limpid {

const Backend& backend_of(Device device) {
  LIMPID_ASSERT(device.type == DeviceType::cuda);
  const Backend& backend = cuda_backend();
  backend.check_device(device);
  return backend;
}

bool computes(Device device) noexcept {
  if (device.type != DeviceType::cuda) return true;
  try {
    return backend_of(device).kernels() != nullptr;
  } catch (const Error&) {
    return false;
  }
}

Device best_device() noexcept {
  const Device gpu{DeviceType::cuda, 0};
  return computes(gpu) ? gpu : kCpu;
}

}  // namespace limpid
