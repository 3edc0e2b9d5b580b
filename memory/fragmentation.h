// Every figure for fragmentation that people use, side by side, computed from one run. They disagree by design: each
// answers another question, and the comment beside it says which.
#pragma once

#include <cstdint>
#include <vector>

#include <limpid/memory/block.h>
#include <limpid/memory/ledger.h>

namespace limpid::memory {

class Allocator;

// The bytes of all segments at one instant.
struct Layout {
  std::uint64_t reserved = 0, requested = 0;
  std::uint64_t allocated = 0;  // sizes of allocated and of pending blocks
  std::uint64_t internal = 0;   // allocated - requested: rounding and rests that were not split off
  std::uint64_t external = 0;   // free blocks; reserved = requested + internal + external
  std::uint64_t largest_free = 0, free_blocks = 0, segments = 0;
  double sum_of_squares = 0;  // sum of (free block)^2 / reserved^2: the higher, the less split (PyTorch's viewer)
  // (free - largest free) / free: how little of the free memory one request can get (TensorFlow's BFC).
  double bfc() const {
    return external == 0 ? 0 : static_cast<double>(external - largest_free) / static_cast<double>(external);
  }
  // allocated / reserved (a recipe of users of memory snapshots).
  double snapshot_ratio() const {
    return reserved == 0 ? 1 : static_cast<double>(allocated) / static_cast<double>(reserved);
  }
};

Layout layout_of(const Allocator& allocator);

// `at_peak` is the instant at which reserved bytes first reach their highest value.
struct Fragmentation {
  double utilisation = 1;  // peak active / peak reserved, at different instants (GMLake)
  Layout at_peak;
  std::uint64_t peak_non_releasable = 0;  // highest inactive_split_bytes (PyTorch); 0 where pages can be given back
  std::uint64_t excess = 0;               // peak reserved - lower bound: what a perfect plan would save (XLA)
  std::uint64_t peak_gap = 0;             // highest reserved - live, over all operations
  double mean_gap = 0;                    // its mean over operations
  std::uint64_t misses = 0;               // operations that called the device for memory
  std::uint64_t mean_gap_at_miss = 0;     // reserved - live just before those: what was there and did not help
};

}  // namespace limpid::memory
