#include <limpid/cuda/cuda_memory.h>

#include <algorithm>

#include <limpid/base/format.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/nvml.h>
#include <limpid/cuda/runtime.h>

namespace limpid::cu {
namespace {

// What the policies of virtual ranges are made for (memory/device.h), and what every GPU's driver gives.
constexpr std::size_t kPage = std::size_t{2} << 20;

DevicePointer address(void* p) { return reinterpret_cast<std::uintptr_t>(p); }
EventHandle event_of(memory::EventId id) { return reinterpret_cast<EventHandle>(static_cast<std::uintptr_t>(id)); }
StreamHandle stream_of(memory::StreamId id) { return reinterpret_cast<StreamHandle>(static_cast<std::uintptr_t>(id)); }

MemoryProperties properties_on(int device) {
  MemoryProperties p;
  p.location.device = device;
  return p;
}

std::size_t page_size_of(int device) {
  int supported = 0;
  LIMPID_DRIVER(cuInit(0));
  LIMPID_DRIVER(cuDeviceGetAttribute(&supported, kVirtualMemorySupported, device));
  if (!supported) return 0;
  std::size_t granularity = 0;
  const MemoryProperties p = properties_on(device);
  LIMPID_DRIVER(cuMemGetAllocationGranularity(&granularity, &p, 0));
  return granularity > 0 && kPage % granularity == 0 ? kPage : 0;
}

}  // namespace

CudaMemory::CudaMemory(int device, std::uint64_t capacity)
    : device_(device), name_("cuda:" + std::to_string(device)), capacity_(capacity) {
  check_device(device);
  page_size_ = page_size_of(device);
}

CudaMemory::~CudaMemory() {
  for (EventHandle event : idle_events_) runtime().cudaEventDestroy(event);  // nobody is left to tell
}

memory::MemoryInfo CudaMemory::mem_info() const {
  DeviceGuard guard(device_);
  std::size_t free = 0, total = 0;
  LIMPID_CUDA(cudaMemGetInfo(&free, &total));
  const std::uint64_t capacity = capacity_.load(std::memory_order_relaxed);
  if (capacity == 0) return {free, total};
  return {std::min<std::uint64_t>(free, capacity - std::min(capacity, used())),
          std::min<std::uint64_t>(total, capacity)};
}

void CudaMemory::set_capacity(std::uint64_t bytes) {
  LIMPID_CHECK(bytes == 0 || used() <= bytes, ArgumentError, "[memory] ", name_, " has handed out ",
               format_bytes(used()), ", more than the capacity asked for, ", format_bytes(bytes));
  capacity_.store(bytes, std::memory_order_relaxed);
}

std::vector<memory::DeviceProcess> CudaMemory::processes() const { return gpu_processes(device_); }

bool CudaMemory::fits(std::uint64_t bytes) const {
  const std::uint64_t capacity = capacity_.load(std::memory_order_relaxed);
  return capacity == 0 || (used() <= capacity && bytes <= capacity - used());
}

// ---- segments

void* CudaMemory::reserve(std::size_t bytes) {
  if (!fits(bytes)) return nullptr;
  DeviceGuard guard(device_);
  void* segment = nullptr;
  const int status = runtime().cudaMalloc(&segment, bytes);
  if (status == kMemoryAllocation) {
    runtime().cudaGetLastError();
    return nullptr;
  }
  check_runtime(status, "cudaMalloc", __FILE__, __LINE__);
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return segment;
}

void CudaMemory::release(void* segment, std::size_t bytes) {
  DeviceGuard guard(device_);
  LIMPID_CUDA(cudaFree(segment));
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

// ---- events

memory::EventId CudaMemory::event_record(memory::StreamId stream) {
  DeviceGuard guard(device_);
  if (idle_events_.empty()) {
    idle_events_.reserve(events_made_ + 1);  // event_release() then cannot fail
    EventHandle fresh = nullptr;
    LIMPID_CUDA(cudaEventCreateWithFlags(&fresh, kEventDisableTiming));
    events_made_++;
    idle_events_.push_back(fresh);
  }
  EventHandle event = idle_events_.back();
  LIMPID_CUDA(cudaEventRecord(event, stream_of(stream)));
  idle_events_.pop_back();
  return reinterpret_cast<std::uintptr_t>(event);
}

bool CudaMemory::event_query(memory::EventId event) {
  const int status = runtime().cudaEventQuery(event_of(event));
  if (status == kNotReady) {
    runtime().cudaGetLastError();
    return false;
  }
  check_runtime(status, "cudaEventQuery", __FILE__, __LINE__);
  return true;
}

void CudaMemory::event_wait(memory::EventId event) { LIMPID_CUDA(cudaEventSynchronize(event_of(event))); }

void CudaMemory::event_release(memory::EventId event) noexcept { idle_events_.push_back(event_of(event)); }

// ---- virtual ranges

void* CudaMemory::range_reserve(std::size_t bytes) {
  DeviceGuard guard(device_);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  DevicePointer at = 0;
  const int status = driver().cuMemAddressReserve(&at, bytes, kPage, 0, 0);
  if (status == kDriverOutOfMemory) return nullptr;
  check_driver(status, "cuMemAddressReserve", __FILE__, __LINE__);
  return reinterpret_cast<void*>(at);
}

void CudaMemory::range_release(void* range, std::size_t bytes) {
  DeviceGuard guard(device_);
  LIMPID_DRIVER(cuMemAddressFree(address(range), (bytes + kPage - 1) / kPage * kPage));
}

// One page of memory at `at`. Its handle is given back at once: the memory then lives as long as the mapping. false
// when the device is out of memory.
bool CudaMemory::map_page(DevicePointer at) {
  MemoryHandle handle = 0;
  const MemoryProperties properties = properties_on(device_);
  int status = driver().cuMemCreate(&handle, kPage, &properties, 0);
  if (status == kDriverOutOfMemory) return false;
  check_driver(status, "cuMemCreate", __FILE__, __LINE__);
  const int mapped = driver().cuMemMap(at, kPage, 0, handle, 0);
  int released = driver().cuMemRelease(handle);
  if (released != kSuccess) {
    if (mapped == kSuccess) driver().cuMemUnmap(at, kPage);
    driver().cuMemRelease(handle);  // once more: else the page would be lost
  }
  if (mapped == kDriverOutOfMemory) return false;
  check_driver(mapped, "cuMemMap", __FILE__, __LINE__);
  check_driver(released, "cuMemRelease", __FILE__, __LINE__);
  return true;
}

// Nobody would know of pages that stay mapped, so a failure is answered by trying once more.
void CudaMemory::unmap_again(void* at, std::size_t bytes) noexcept {
  if (bytes > 0 && driver().cuMemUnmap(address(at), bytes) != kSuccess) driver().cuMemUnmap(address(at), bytes);
}

// Page by page, so that any run of pages can be unmapped.
bool CudaMemory::map(void* at, std::size_t bytes) {
  if (!fits(bytes)) return false;
  DeviceGuard guard(device_);
  std::size_t mapped = 0;
  bool room = true;
  try {
    for (; mapped < bytes && room; mapped += room ? kPage : 0) room = map_page(address(at) + mapped);
    if (room) {
      MemoryAccess access;
      access.location.device = device_;
      const int status = driver().cuMemSetAccess(address(at), bytes, &access, 1);
      room = status != kDriverOutOfMemory;
      if (room) check_driver(status, "cuMemSetAccess", __FILE__, __LINE__);
    }
  } catch (...) {
    unmap_again(at, mapped);
    throw;
  }
  if (!room) {
    unmap_again(at, mapped);
    return false;
  }
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

// The policy has waited for the streams that used the pages.
void CudaMemory::unmap(void* at, std::size_t bytes) {
  DeviceGuard guard(device_);
  LIMPID_DRIVER(cuMemUnmap(address(at), bytes));
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace limpid::cu
