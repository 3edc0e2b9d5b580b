// The fake's memory: segments in an arena a device, pinned host memory, virtual ranges with pages.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "fake_state.h"

namespace limpid::cudasim::fake {
namespace {

constexpr std::size_t kArena = std::size_t{128} << 30;  // addresses, a device
constexpr std::size_t kUnit = 512;                      // alignment of segments
std::size_t rounded(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

char* addresses(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}

std::map<char*, std::size_t>& gaps_of(int device) {
  State& s = state();
  if (!s.arenas.count(device)) {
    s.arenas[device] = addresses(kArena);
    s.gaps[device][s.arenas[device]] = kArena;
  }
  return s.gaps[device];
}

// The whole pages of segments and of accessible mappings.
void protect(int protection) {
  State& s = state();
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [device, arena] : s.arenas) {
    // Up to the last segment: behind it nothing is in use.
    auto last = s.blocks.lower_bound(arena + kArena);
    if (last == s.blocks.begin()) continue;
    --last;
    if (last->first < arena) continue;
    const std::size_t bytes = static_cast<std::size_t>(last->first - arena) + last->second.bytes;
    mprotect(arena, (bytes + page - 1) / page * page, protection);
  }
  for (auto at = s.mappings.begin(); at != s.mappings.end();) {
    char* const begin = at->first;
    char* end = begin;
    if (!at->second.accessible) {
      ++at;
      continue;
    }
    for (; at != s.mappings.end() && at->first == end && at->second.accessible; ++at) end += at->second.bytes;
    mprotect(begin, static_cast<std::size_t>(end - begin), protection);
  }
}

void fill(char* at, std::size_t bytes) {
  if (!state().config.fill) return;
  device_begins();
  std::memset(at, 0xFF, bytes);
  device_ends();
}

}  // namespace

void device_begins() {
  State& s = state();
  if (s.device_depth++ == 0 && !s.readable) protect(PROT_READ | PROT_WRITE);
  s.readable = true;
}
void device_ends() {
  State& s = state();
  if (--s.device_depth > 0 || !s.config.protect) return;
  protect(PROT_NONE);
  s.readable = false;
}
bool host_may_read() { return state().readable; }

bool is_device(const void* at, std::size_t bytes) {
  State& s = state();
  char* const begin = static_cast<char*>(const_cast<void*>(at));
  auto block = s.blocks.upper_bound(begin);
  if (block != s.blocks.begin() && begin + bytes <= std::prev(block)->first + std::prev(block)->second.bytes)
    return true;
  auto page = s.mappings.upper_bound(begin);
  if (page == s.mappings.begin()) return false;
  --page;
  char* covered = page->first;
  for (; page != s.mappings.end() && page->first == covered && page->second.accessible; ++page) {
    covered += page->second.bytes;
    if (begin < covered && begin + bytes <= covered) return true;
  }
  return false;
}

bool is_pinned(const void* at) {
  State& s = state();
  char* const begin = static_cast<char*>(const_cast<void*>(at));
  auto found = s.pinned.upper_bound(begin);
  return found != s.pinned.begin() && begin < std::prev(found)->first + std::prev(found)->second;
}

std::uint64_t used_bytes(int device) { return state().used[device]; }
std::size_t allocations() { return state().blocks.size(); }
std::size_t ranges() { return state().reserved.size(); }
std::size_t mapped_pages() { return state().mappings.size(); }
std::size_t memory_handles() {
  std::size_t n = 0;
  for (const auto& [handle, memory] : state().physical) n += memory.handle;
  return n;
}
std::uint64_t pinned_bytes() {
  std::uint64_t bytes = 0;
  for (const auto& [at, size] : state().pinned) bytes += size;
  return bytes;
}

void peek(void* to, const void* from, std::size_t bytes) {
  const Lock guard = lock();
  device_begins();
  std::memcpy(to, from, bytes);
  device_ends();
}

}  // namespace limpid::cudasim::fake

using namespace limpid::cudasim::fake;
namespace cu = limpid::cu;

extern "C" {

// ---- the runtime's

int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaMemGetInfo"})) return finish(failure);
  *total = config().capacity;
  *free = *total - used_bytes(current_device());
  return finish(0);
}

// First fit, with a gap of kUnit behind each segment.
int cudaMalloc(void** out, std::size_t bytes) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaMalloc", .bytes = bytes})) return finish(failure);
  State& s = state();
  const int device = current_device();
  if (bytes > config().capacity || rounded(bytes) > config().capacity - s.used[device])
    return finish(cu::kMemoryAllocation);
  const std::size_t need = rounded(bytes) + kUnit;
  auto& gaps = gaps_of(device);
  auto gap = gaps.begin();
  while (gap != gaps.end() && gap->second < need) ++gap;
  if (gap == gaps.end()) return finish(cu::kMemoryAllocation);
  char* const at = gap->first;
  const std::size_t left = gap->second - need;
  gaps.erase(gap);
  if (left > 0) gaps[at + need] = left;
  s.blocks[at] = {bytes, device};
  s.readable = false;  // not all of it any more
  s.used[device] += rounded(bytes);
  fill(at, bytes);
  if (s.observer.added) s.observer.added(at, bytes, "cudaMalloc");
  *out = at;
  return finish(0);
}

// As the real one, it waits for the device.
int cudaFree(void* p) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaFree"})) return finish(failure);
  State& s = state();
  if (!p) return finish(0);
  auto found = s.blocks.find(static_cast<char*>(p));
  if (found == s.blocks.end()) return finish(1);  // cudaErrorInvalidValue
  const auto [bytes, device] = found->second;
  run_all_of(device);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(p) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(p) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  if (s.observer.removed) s.observer.removed(p);
  s.blocks.erase(found);
  s.used[device] -= rounded(bytes);
  auto& gaps = s.gaps[device];
  auto gap = gaps.emplace(static_cast<char*>(p), rounded(bytes) + kUnit).first;
  if (auto next = std::next(gap); next != gaps.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    gaps.erase(next);
  }
  if (gap != gaps.begin()) {
    if (auto before = std::prev(gap); before->first + before->second == gap->first) {
      before->second += gap->second;
      gaps.erase(gap);
    }
  }
  return finish(s.sticky);
}

int cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaHostAlloc", .bytes = bytes})) return finish(failure);
  void* const at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!at) return finish(cu::kMemoryAllocation);
  state().pinned[static_cast<char*>(at)] = bytes;
  *out = at;
  return finish(0);
}

int cudaFreeHost(void* p) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaFreeHost"})) return finish(failure);
  if (!p) return finish(0);
  auto found = state().pinned.find(static_cast<char*>(p));
  if (found == state().pinned.end()) return finish(1);  // cudaErrorInvalidValue
  run_all();
  state().pinned.erase(found);
  std::free(p);
  return finish(0);
}

// ---- the driver's virtual memory. CUDA_ERROR_INVALID_VALUE is 1.

int cuMemGetAllocationGranularity(std::size_t* bytes, const cu::MemoryProperties*, int) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemGetAllocationGranularity"})) return failure;
  *bytes = kPage;
  return 0;
}

int cuMemAddressReserve(cu::DevicePointer* out, std::size_t bytes, std::size_t, cu::DevicePointer, unsigned long long) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemAddressReserve", .bytes = bytes})) return failure;
  if (bytes == 0 || bytes % kPage != 0) return 1;
  char* const raw = bytes > (std::size_t{1} << 46) ? nullptr : addresses(bytes + kPage);
  if (!raw) return cu::kDriverOutOfMemory;
  char* const at = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(raw) + kPage - 1) / kPage * kPage);
  if (at != raw) munmap(raw, static_cast<std::size_t>(at - raw));
  munmap(at + bytes, static_cast<std::size_t>(raw + kPage - at));
  state().reserved[at] = bytes;
  *out = reinterpret_cast<std::uintptr_t>(at);
  return 0;
}

int cuMemAddressFree(cu::DevicePointer at, std::size_t bytes) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemAddressFree", .bytes = bytes})) return failure;
  State& s = state();
  char* const begin = reinterpret_cast<char*>(at);
  auto found = s.reserved.find(begin);
  if (found == s.reserved.end() || found->second != bytes) return 1;
  auto page = s.mappings.lower_bound(begin);
  if (page != s.mappings.end() && page->first < begin + bytes) return 1;  // still mapped
  munmap(begin, bytes);
  s.reserved.erase(found);
  return 0;
}

int cuMemCreate(cu::MemoryHandle* out, std::size_t bytes, const cu::MemoryProperties* properties, unsigned long long) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemCreate", .bytes = bytes})) return failure;
  State& s = state();
  const int device = properties->location.device;
  if (bytes == 0 || bytes % kPage != 0 || device < 0 || device >= config().devices) return 1;
  if (bytes > config().capacity - s.used[device]) return cu::kDriverOutOfMemory;
  s.used[device] += bytes;
  *out = s.next_handle++;
  s.physical[*out] = {bytes, device};
  return 0;
}

// The memory goes when neither handle nor mapping is left.
static void drop_unused(std::map<cu::MemoryHandle, Physical>::iterator memory) {
  if (memory->second.handle || memory->second.mappings > 0) return;
  state().used[memory->second.device] -= memory->second.bytes;
  state().physical.erase(memory);
}

int cuMemRelease(cu::MemoryHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemRelease"})) return failure;
  auto found = state().physical.find(handle);
  if (found == state().physical.end() || !found->second.handle) return 1;
  found->second.handle = false;
  drop_unused(found);
  return 0;
}

int cuMemMap(cu::DevicePointer at, std::size_t bytes, std::size_t offset, cu::MemoryHandle handle, unsigned long long) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemMap", .bytes = bytes})) return failure;
  State& s = state();
  char* const begin = reinterpret_cast<char*>(at);
  auto memory = s.physical.find(handle);
  if (memory == s.physical.end() || offset != 0 || bytes != memory->second.bytes || at % kPage != 0) return 1;
  auto range = s.reserved.upper_bound(begin);
  if (range == s.reserved.begin() || begin + bytes > std::prev(range)->first + std::prev(range)->second) return 1;
  auto behind = s.mappings.lower_bound(begin + bytes);
  if (behind != s.mappings.begin() && std::prev(behind)->first + std::prev(behind)->second.bytes > begin) return 1;
  s.mappings[begin] = {bytes, handle};
  memory->second.mappings++;
  return 0;
}

int cuMemSetAccess(cu::DevicePointer at, std::size_t bytes, const cu::MemoryAccess* access, std::size_t count) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemSetAccess", .bytes = bytes})) return failure;
  State& s = state();
  if (count != 1 || access->flags != 3) return 1;
  char* const begin = reinterpret_cast<char*>(at);
  char* end = begin;
  for (auto page = s.mappings.find(begin); page != s.mappings.end() && page->first == end && end < begin + bytes;
       ++page) {
    end += page->second.bytes;
  }
  if (end != begin + bytes) return 1;  // not mapped throughout
  for (char* p = begin; p < end; p += s.mappings[p].bytes) s.mappings[p].accessible = true;
  s.readable = false;  // not all of it any more
  fill(begin, bytes);
  if (s.observer.added) s.observer.added(begin, bytes, "virtual memory");
  return 0;
}

// Whole mappings only. It waits for nothing: work that still uses the pages is the caller's fault.
int cuMemUnmap(cu::DevicePointer at, std::size_t bytes) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cuMemUnmap", .bytes = bytes})) return failure;
  State& s = state();
  char* const begin = reinterpret_cast<char*>(at);
  std::size_t covered = 0;
  for (auto page = s.mappings.find(begin);
       page != s.mappings.end() && page->first == begin + covered && covered < bytes; ++page) {
    covered += page->second.bytes;
  }
  if (bytes == 0 || covered != bytes) return 1;
  madvise(begin, bytes, MADV_DONTNEED);
  mprotect(begin, bytes, PROT_NONE);
  if (s.observer.removed) s.observer.removed(begin);
  for (auto page = s.mappings.find(begin); page != s.mappings.end() && page->first < begin + bytes;) {
    auto memory = s.physical.find(page->second.memory);
    memory->second.mappings--;
    drop_unused(memory);
    page = s.mappings.erase(page);
  }
  return 0;
}

}  // extern "C"
