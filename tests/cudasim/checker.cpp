#include <cudasim/checker.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <link.h>

#include <cudasim/block.h>
#include <cudasim/memory_map.h>
#include <cudasim/shadow.h>
#include <cudasim/symbols.h>

namespace limpid::cudasim {
namespace {

// A thread made its block's earlier writes visible to the grid (fence, then an atomic), or took others' in (an atomic).
struct Exchange {
  std::uint64_t time;
  unsigned thread, interval;
};
// By block, for one grid. An exchange stands for its own thread and for what barriers of its block put before or after it.
struct GridOrder {
  std::uint64_t time = 0;
  std::unordered_map<unsigned, std::vector<Exchange>> published, acquired;
  std::unordered_map<unsigned, bool> fenced;  // by block * 1024 + thread

  void atomic(unsigned block, unsigned thread, unsigned interval) {
    time++;
    keep(acquired[block], {time, thread, interval});
    if (fenced.contains(block * 1024 + thread)) keep(published[block], {time, thread, interval});
  }
  bool ordered(const Access& before, const Access& after) const {
    const auto out = published.find(static_cast<unsigned>(before.block)), in = acquired.find(static_cast<unsigned>(after.block));
    if (out == published.end() || in == acquired.end()) return false;
    std::uint64_t from = ~std::uint64_t(0), to = 0;
    for (const Exchange& e : out->second) {
      if (e.thread == before.thread || e.interval > before.interval) from = std::min(from, e.time);
    }
    for (const Exchange& e : in->second) {
      if (e.thread == after.thread || e.interval < after.interval) to = std::max(to, e.time);
    }
    return from < to;
  }

 private:
  // A thread's later exchange in the same interval takes the place of the earlier one: many atomics in a loop stay one row.
  static void keep(std::vector<Exchange>& all, Exchange e) {
    for (Exchange& known : all) {
      if (known.thread == e.thread && known.interval == e.interval) {
        known.time = e.time;
        return;
      }
    }
    all.push_back(e);
  }
};

struct Checker {
  unsigned launch = 0;
  GridOrder order;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> image;  // the program's own code and data
};
Checker& checker() {
  static Checker* checker = new Checker;
  return *checker;
}

// Constants that the compiler placed in the program are read there by emulated code.
bool in_program(std::uintptr_t address) {
  auto& image = checker().image;
  if (image.empty()) {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* out) {
          for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto& part = info->dlpi_phdr[i];
            const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
            if (part.p_type == PT_LOAD) static_cast<decltype(checker().image)*>(out)->push_back({begin, begin + part.p_memsz});
          }
          return 0;
        },
        &image);
  }
  return std::any_of(image.begin(), image.end(), [&](auto& part) { return address >= part.first && address < part.second; });
}

// Whoever notes a finding leaves with leave_failed() after it.
void note(const AccessPlace& place, cudaError_t code, const std::string& what) {
  if (!place.code) return the_block().note_failure(place.site, code, what);
  // One byte back: the return address belongs to the instruction behind the access.
  const SourceLine line = source_line(static_cast<const char*>(place.code) - 1);
  the_block().note_failure({line.file.c_str(), line.line, 0}, code, what);
}

std::string describe(const AccessKind& kind, std::size_t bytes) {
  return std::string(kind.atomic ? "atomic " : "") + (kind.write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes";
}

void note_outside(std::uintptr_t address, std::size_t bytes, AccessKind kind, const AccessPlace& place) {
  const Region* before = region_before(address);
  if (before && address - before->end < 4096) {
    return note(place, cudaErrorIllegalAddress, describe(kind, bytes) + ", " + std::to_string(address - before->end) +
           " bytes past the end of " + std::to_string(before->end - before->begin) + " bytes of " + name_of(before->space) +
           " memory (" + before->what + ")");
  }
  note(place, cudaErrorIllegalAddress, describe(kind, bytes) + " outside of device memory");
}

// May two accesses of one launch meet in either order?
bool unordered(const Access& before, const Access& now) {
  if (before.block != now.block) return !checker().order.ordered(before, now);
  if (before.interval != now.interval) return false;
  if (before.thread / 32 != now.thread / 32) return true;
  if (before.clock == kMaxClock) return false;  // no longer counted
  // `clock` operations were behind the earlier access; this lane has seen the end of a later one, or it has not.
  return the_block().clocks()[now.thread % 32][before.thread % 32] <= before.clock;
}

void check_races(const Granule& granule, const Access& now, const Region& region, std::uintptr_t address, AccessKind kind,
                 const AccessPlace& place) {
  auto check = [&](const Access& before, const char* was) {
    const bool meets = before.launch == now.launch && (before.bytes & now.bytes) && !before.by_same_thread(now);
    if (!meets || (before.atomic && now.atomic) || !unordered(before, now)) return;
    note(place, cudaErrorLaunchFailure, std::string("race in ") + name_of(region.space) + " memory at byte " +
           std::to_string(address - region.begin) + " (" + region.what + "): " + (kind.atomic ? "atomic " : "") +
           (kind.write ? "write" : "read") + " by this thread, " + (before.atomic ? "atomic " : "") + was + " by block " +
           std::to_string(before.block) + " thread " + std::to_string(before.thread) +
           (before.block == now.block ? ", no barrier between" : ", nothing orders the blocks"));
    the_block().leave_failed();
  };
  for (const Access& write : granule.writes) check(write, "write");
  if (kind.write) {
    for (const Access& read : granule.reads) check(read, "read");
  }
}

// A plain access stays known beside the same thread's atomic: an atomic of another thread races with the plain one only.
void remember(std::array<Access, 2>& last, const Access& now) {
  const bool same = last[0].by_same_thread(now) && last[0].atomic == now.atomic;
  if (last[0].launch == now.launch && !same) last[1] = last[0];
  last[0] = now;
}

}  // namespace

void check_begin_grid() {
  Checker& c = checker();
  if (++c.launch > kMaxLaunch) {
    c.launch = 1;
    forget_accesses();
  }
  c.order = GridOrder{};
}

void check_fence() {
  Block& block = the_block();
  if (block.is_running()) checker().order.fenced[block.linear_index() * 1024 + static_cast<unsigned>(block.current())] = true;
}

void check_access(const void* pointer, std::size_t bytes, AccessKind kind, AccessPlace place) {
  Block& block = the_block();
  if (!block.is_running()) return;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const Fiber& fiber = block.running_fiber();
  if (address - reinterpret_cast<std::uintptr_t>(fiber.stack_low()) < fiber.stack_bytes()) return;  // its own variables
  if (address - reinterpret_cast<std::uintptr_t>(&registers) < sizeof registers) return;

  const Region* region = find_region(address);
  if (!region) {
    if (!kind.write && in_program(address)) return;
    note_outside(address, bytes, kind, place);
    block.leave_failed();
  }
  if (address + bytes > region->end) {
    note(place, cudaErrorIllegalAddress, describe(kind, bytes) + " at byte " + std::to_string(address - region->begin) + " of " +
           std::to_string(region->end - region->begin) + " bytes of " + name_of(region->space) + " memory (" + region->what + ")");
    the_block().leave_failed();
  }
  if (address % kind.align != 0) {
    note(place, cudaErrorMisalignedAddress, describe(kind, bytes) + " at an address that is " +
           std::to_string(address % kind.align) + " more than a multiple of " + std::to_string(kind.align));
    the_block().leave_failed();
  }
  if (region->space == Space::parameter) {
    if (kind.write) {
      note(place, cudaErrorIllegalAddress, "write to the kernel's arguments");
      the_block().leave_failed();
    }
    return;
  }
  const auto thread = static_cast<unsigned>(block.current());
  if (kind.atomic) checker().order.atomic(block.linear_index(), thread, block.barriers_passed());
  Access now{};
  now.thread = thread;
  now.block = block.linear_index() & ((1u << 18) - 1);
  now.interval = block.barriers_passed() & ((1u << 14) - 1);
  now.clock = std::min<std::uint64_t>(kMaxClock, block.clocks()[thread % 32][thread % 32]);
  now.atomic = kind.atomic;
  now.launch = checker().launch & kMaxLaunch;
  bool some_byte = false;
  if (!kind.every_byte) {
    for_each_granule(address, bytes, [&](ShadowPage& page, std::size_t i, std::uint8_t mask) {
      some_byte = some_byte || (page.initialised[i] & mask) != 0;
    });
  }
  std::uintptr_t at = address;
  for_each_granule(address, bytes, [&](ShadowPage& page, std::size_t i, std::uint8_t mask) {
    now.bytes = mask & 0xf;
    if ((!kind.write || kind.atomic) && !some_byte && (page.initialised[i] & mask) != mask) {
      note(place, cudaErrorLaunchFailure, std::string("read of uninitialised ") + name_of(region->space) + " memory at byte " +
             std::to_string(at - region->begin) + " (" + region->what + ")");
      the_block().leave_failed();
    }
    if (kind.write) page.initialised[i] |= mask;
    check_races(page.granules[i], now, *region, at, kind, place);
    remember(kind.write ? page.granules[i].writes : page.granules[i].reads, now);
    at += 4 - at % 4;
  });
}

}  // namespace limpid::cudasim
