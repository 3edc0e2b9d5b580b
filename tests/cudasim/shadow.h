// What is remembered about every 4 bytes that emulated kernels touch: which are initialised, and the last accesses.
#pragma once

#include <array>
#include <cstdint>

namespace limpid::cudasim {

// One access to a granule of 4 bytes, packed.
struct Access {
  std::uint64_t thread : 10;    // within the block
  std::uint64_t block : 18;     // linear index
  std::uint64_t interval : 14;  // barriers of the block passed before
  std::uint64_t clock : 10;     // warp operations of the lane passed since the last barrier; the largest value stands for more
  std::uint64_t bytes : 4;      // which of the four
  std::uint64_t atomic : 1;
  std::uint64_t launch : 7;     // 0: no access

  bool by_same_thread(const Access& other) const { return thread == other.thread && block == other.block; }
};
static_assert(sizeof(Access) == 8);
constexpr std::uint64_t kMaxClock = (1 << 10) - 1;
constexpr unsigned kMaxLaunch = (1 << 7) - 1;

// The last two writes and the last two reads, each pair by different threads.
struct Granule {
  std::array<Access, 2> writes{}, reads{};
};

constexpr std::uintptr_t kShadowPage = 4096;  // bytes of memory that one page of shadow describes
struct ShadowPage {
  std::array<Granule, kShadowPage / 4> granules;
  std::array<std::uint8_t, kShadowPage / 4> initialised{};  // a bit a byte
};

ShadowPage& shadow_page(std::uintptr_t address);
inline std::size_t granule_index(std::uintptr_t address) { return address / 4 % (kShadowPage / 4); }

// Calls fn(page, index, mask) for every granule of [address, address + bytes); mask has a bit for each byte in the range.
template <class Fn>
void for_each_granule(std::uintptr_t address, std::size_t bytes, const Fn& fn) {
  while (bytes > 0) {
    const unsigned offset = address % 4;
    const std::size_t here = bytes < 4 - offset ? bytes : 4 - offset;
    fn(shadow_page(address), granule_index(address), static_cast<std::uint8_t>(((1u << here) - 1) << offset));
    address += here;
    bytes -= here;
  }
}

// Forgets all accesses, not what is initialised: launch numbers start again.
void forget_accesses();

}  // namespace limpid::cudasim
