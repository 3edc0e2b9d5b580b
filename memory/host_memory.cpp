#include <limpid/memory/host_memory.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_to_page(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// An anonymous mapping whose start is a multiple of the huge page: map one page more and give back the ends. nullptr when
// the system has no such room.
void* map_aligned(const std::string& device, std::size_t bytes, int protection) {
  std::size_t whole = bytes + kHugePage;
  void* raw = mmap(nullptr, whole, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    LIMPID_CHECK(errno == ENOMEM, DeviceError, "[memory] ", device, " cannot reserve ", format_bytes(bytes), ": ",
                 std::strerror(errno));
    return nullptr;
  }
  char* begin = static_cast<char*>(raw);
  std::size_t misaligned = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  std::size_t head = misaligned == 0 ? 0 : kHugePage - misaligned;
  if (head > 0) munmap(begin, head);
  char* aligned = begin + head;
  if (kHugePage - head > 0) munmap(aligned + bytes, kHugePage - head);
  return aligned;
}

}  // namespace

HostMemory::HostMemory(std::string name, std::uint64_t capacity) : name_(std::move(name)), capacity_(capacity) {}

MemoryInfo HostMemory::mem_info() const {
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  const std::uint64_t total = std::max(limit(), used);
  return {total - used, total};
}

void HostMemory::set_capacity(std::uint64_t bytes) {
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  LIMPID_CHECK(bytes == 0 || used <= bytes, ArgumentError, "[memory] ", name_, " has handed out ", format_bytes(used),
               ", more than the capacity asked for, ", format_bytes(bytes));
  capacity_.store(bytes, std::memory_order_relaxed);
}

// More than the machine has is refused here: the system would grant it, and kill the program when it is used.
std::uint64_t HostMemory::limit() const {
  static const std::uint64_t physical =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t capacity = capacity_.load(std::memory_order_relaxed);
  return capacity > 0 ? capacity : physical;
}

bool HostMemory::fits(std::uint64_t bytes) const {
  const std::uint64_t most = limit(), used = used_.load(std::memory_order_relaxed);
  return used <= most && bytes <= most - used;
}

// A wish; what comes of it does not matter.
void HostMemory::advise(void* at, std::size_t bytes) const {
  madvise(at, bytes, huge_pages() ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

void* HostMemory::reserve(std::size_t bytes) {
  bytes = round_to_page(bytes);
  if (!fits(bytes)) return nullptr;
  void* segment = map_aligned(name_, bytes, PROT_READ | PROT_WRITE);
  if (!segment) return nullptr;
  advise(segment, bytes);
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return segment;
}

void HostMemory::release(void* segment, std::size_t bytes) {
  bytes = round_to_page(bytes);
  LIMPID_CHECK(munmap(segment, bytes) == 0, DeviceError, "[memory] ", name_, " cannot release ", format_bytes(bytes),
               ": ", std::strerror(errno));
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

void* HostMemory::range_reserve(std::size_t bytes) {
  return map_aligned(name_, round_to_page(bytes), PROT_NONE);
}

void HostMemory::range_release(void* range, std::size_t bytes) {
  LIMPID_CHECK(munmap(range, round_to_page(bytes)) == 0, DeviceError, "[memory] ", name_, " cannot release a range of ",
               format_bytes(bytes), ": ", std::strerror(errno));
}

bool HostMemory::map(void* at, std::size_t bytes) {
  if (!fits(bytes)) return false;
  if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) {
    LIMPID_CHECK(errno == ENOMEM, DeviceError, "[memory] ", name_, " cannot map ", format_bytes(bytes), ": ",
                 std::strerror(errno));
    return false;
  }
  advise(at, bytes);
  used_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

void HostMemory::unmap(void* at, std::size_t bytes) {
  bool ok = madvise(at, bytes, MADV_DONTNEED) == 0 && mprotect(at, bytes, PROT_NONE) == 0;
  LIMPID_CHECK(ok, DeviceError, "[memory] ", name_, " cannot unmap ", format_bytes(bytes), ": ", std::strerror(errno));
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace limpid::memory
