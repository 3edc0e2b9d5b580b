#include <limpid/memory/device.h>

#include <limpid/base/error.h>

namespace limpid::memory {

void* MemoryDevice::range_reserve(std::size_t) {
  LIMPID_THROW(DeviceError, "[memory] ", name(), " has no virtual ranges");
}
void MemoryDevice::range_release(void*, std::size_t) {
  LIMPID_THROW(DeviceError, "[memory] ", name(), " has no virtual ranges");
}
bool MemoryDevice::map(void*, std::size_t) { LIMPID_THROW(DeviceError, "[memory] ", name(), " has no virtual ranges"); }
void MemoryDevice::unmap(void*, std::size_t) {
  LIMPID_THROW(DeviceError, "[memory] ", name(), " has no virtual ranges");
}

}  // namespace limpid::memory
