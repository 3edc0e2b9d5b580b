// The knobs of the allocator and its native policy, with PyTorch's names, defaults and ranges (torch.cuda notes,
// "Optimizing memory usage"); those below the line are limpid's own. Plain data: nothing here reads the environment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <limpid/memory/role.h>

namespace limpid::memory {

struct AllocatorSettings {
  static constexpr std::size_t kNoSplitLimit = SIZE_MAX;
  static constexpr std::size_t kRetainAll = SIZE_MAX;

  std::size_t max_split_size = kNoSplitLimit;  // bytes; blocks of this size and more are never split ("oversize")
  // Slack allowed when a cached oversize block serves a request; at least large_segment_size, and by default the same.
  std::size_t max_non_split_rounding = std::size_t{20} << 20;
  // Sizes are rounded to equal divisions between powers of two; one number an interval [2^k, 2^(k+1)) MiB, the first
  // also for everything below 1 MiB, the last for everything above. 0 and 1: rounding to 512 bytes.
  std::array<std::size_t, 16> roundup_power2_divisions{};
  double garbage_collection_threshold = 0;                 // 0 = off; works only with a memory fraction
  std::size_t large_segment_size = std::size_t{20} << 20;  // segment for requests between 1 and 10 MiB
  double per_process_memory_fraction = 1.0;
  // Grow virtual ranges page by page instead of asking for segments. Together with max_split_size the reserved bytes
  // may grow without end, as they do in PyTorch.
  bool expandable_segments = false;

  // ---- not PyTorch's
  // Of the policy `stitch` only: requests from here on are stitched together from free blocks.
  std::size_t stitch_limit = std::size_t{2} << 20;
  // The pool of each role. Blocks of different pools never share a segment; each pool is a policy of its own over the
  // same device. Pool 0 has the roles that were not named.
  std::array<std::uint8_t, kRoleCount> role_pools{};
  // When a step ends, cached segments go back to the device as long as the reserved bytes do not fall below this: the
  // release threshold of cudaMallocAsync. Whole MiB.
  std::size_t retain = kRetainAll;

  std::size_t divisions_for(std::size_t bytes) const;
  std::size_t pool_count() const;
  std::string pool_name(std::size_t pool) const;  // "param+optimizer"; "others" for pool 0
  void validate() const;  // ArgumentError names the knob, its value and its range
  bool operator==(const AllocatorSettings&) const = default;
};

// "max_split_size_mb:64,roundup_power2_divisions:[64:8,256:4,>:1],role_pools:[param+optimizer,grad],retain_mb:256" ->
// settings; absent keys have their defaults. An unknown key, one given twice, a bad value or form is an ArgumentError.
AllocatorSettings parse_allocator_settings(std::string_view text);
// The keys that differ from their defaults, in the same form; "" for the defaults.
std::string to_string(const AllocatorSettings& settings);

}  // namespace limpid::memory
