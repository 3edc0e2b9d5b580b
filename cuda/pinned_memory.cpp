#include <limpid/cuda/pinned_memory.h>

#include <unistd.h>

#include <algorithm>

#include <limpid/base/format.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>

namespace limpid::cu {
namespace {

constexpr unsigned kPortable = 1;  // cudaHostAllocPortable: pinned for every GPU
constexpr int kDeviceShift = 56;   // user addresses have 47 bits, 56 with five-level page tables

Event* event_of(memory::EventId id) { return reinterpret_cast<Event*>(static_cast<std::uintptr_t>(id)); }

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

PinnedMemory::PinnedMemory(std::uint64_t capacity) : capacity_(capacity) {}

// Device + 1 above the address, so that the default stream of the first GPU is not 0.
memory::StreamId PinnedMemory::stream_id(Stream stream) {
  return (static_cast<memory::StreamId>(stream.device + 1) << kDeviceShift) | stream.id();
}

memory::MemoryInfo PinnedMemory::mem_info() const {
  const std::uint64_t capacity = capacity_.load(std::memory_order_relaxed),
                      used = used_.load(std::memory_order_relaxed);
  const std::uint64_t total = std::max(capacity > 0 ? capacity : physical_memory(), used);
  return {total - used, total};
}

void PinnedMemory::set_capacity(std::uint64_t bytes) {
  const std::uint64_t used = used_.load(std::memory_order_relaxed);
  LIMPID_CHECK(bytes == 0 || used <= bytes, ArgumentError, "[memory] ", name_, " has handed out ", format_bytes(used),
               ", more than the capacity asked for, ", format_bytes(bytes));
  capacity_.store(bytes, std::memory_order_relaxed);
}

void* PinnedMemory::reserve(std::size_t bytes) {
  if (bytes > mem_info().free) return nullptr;
  void* segment = nullptr;
  const int status = runtime().cudaHostAlloc(&segment, bytes, kPortable);
  if (status == kMemoryAllocation) {
    runtime().cudaGetLastError();
    return nullptr;
  }
  check_runtime(status, "cudaHostAlloc", __FILE__, __LINE__);
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return segment;
}

void PinnedMemory::release(void* segment, std::size_t bytes) {
  LIMPID_CUDA(cudaFreeHost(segment));
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

memory::EventId PinnedMemory::event_record(memory::StreamId id) {
  const int device = static_cast<int>(id >> kDeviceShift) - 1;
  Event event(std::max(device, 0));
  if (device >= 0) {
    const auto handle = static_cast<std::uintptr_t>(id & ((memory::StreamId{1} << kDeviceShift) - 1));
    event.record({device, reinterpret_cast<StreamHandle>(handle)});
  }  // else the host's, which is never behind
  return reinterpret_cast<std::uintptr_t>(new Event(std::move(event)));
}

bool PinnedMemory::event_query(memory::EventId event) { return event_of(event)->query(); }
void PinnedMemory::event_wait(memory::EventId event) { event_of(event)->synchronize(); }
void PinnedMemory::event_release(memory::EventId event) noexcept { delete event_of(event); }

}  // namespace limpid::cu
