// Statistics under PyTorch's names (torch.cuda.memory_stats) and its summary table (torch.cuda.memory_summary).
// Plain copies taken at one instant; nothing here is live.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace limpid::memory {

struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;  // sum of all increases
  std::int64_t freed = 0;      // sum of all decreases
};

enum class Metric : std::uint8_t {
  allocation,            // blocks that the user holds
  segment,               // segments from the device
  active,                // blocks held by the user or waiting for an event
  inactive_split,        // free blocks inside segments that are partly used
  allocated_bytes,       // block sizes
  reserved_bytes,        // segment sizes
  active_bytes,          // block sizes
  inactive_split_bytes,  // block sizes
  requested_bytes,       // what was asked for, of active blocks
};
inline constexpr int kMetricCount = 9;
const char* to_string(Metric metric);

struct Stats {
  enum Scope { all, small_pool, large_pool };
  std::array<std::array<Stat, 3>, kMetricCount> metrics;  // [metric][scope]
  Stat oversize_allocations;
  Stat oversize_segments;
  std::int64_t num_alloc_retries = 0;     // device calls made again after the cache was given back
  std::int64_t num_ooms = 0;              // requests that failed
  std::int64_t num_sync_all_streams = 0;  // waits for every pending event
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;
  std::int64_t max_split_size = 0;

  const Stat& get(Metric metric, Scope scope = all) const { return metrics[static_cast<std::size_t>(metric)][scope]; }
};

// "allocated_bytes.all.peak" and so on, all of PyTorch's keys but those of private pools.
std::map<std::string, std::int64_t> memory_stats(const Stats& stats);
// PyTorch's table; the title names the device. abbreviated: without the rows of each pool.
std::string memory_summary(const Stats& stats, const std::string& device, bool abbreviated = false);

}  // namespace limpid::memory
