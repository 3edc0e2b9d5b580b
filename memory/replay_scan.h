// The smallest capacity at which a trace runs (C*), and the smallest at which it runs without a retry. Found by trying
// capacities upward one after the other: best fit is not monotone, more memory can fail where less was enough, so a
// bisection would prove nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <limpid/memory/replay.h>

namespace limpid::memory {

struct CapacityScanOptions {
  // Steps of the scan in bytes, a multiple of 2 MiB; 0 = the finest that keeps the work within `budget`. The simulated
  // device hands out multiples of 2 MiB, so with steps of 2 MiB nothing lies between two tries. ArgumentError when the
  // steps are more than kMostTries.
  static constexpr std::uint64_t kMostTries = 1'000'000;
  std::uint64_t granularity = 0;
  std::uint64_t budget = 100'000'000;                                          // operations replayed, about
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // tries
};

struct CapacityScan {
  std::optional<std::uint64_t> smallest;           // C*: the run completes
  std::optional<std::uint64_t> smallest_no_retry;  // and never gives its cache back to make room
  std::uint64_t granularity = 0;  // steps of 2 MiB: exact. Larger: then [C* - granularity, C*] was scanned by ever
                                  // finer steps down to 2 MiB, and a lucky capacity between two coarse steps may have
                                  // been missed.
  std::uint64_t from = 0, to = 0;  // bounds: the lower bound of the trace, and what it takes without a limit
  std::uint64_t tries = 0;
  std::uint64_t failures_above = 0;  // tries above C* that failed: where the policy is not monotone
  bool exact() const { return granularity == std::uint64_t{2} << 20; }
};

CapacityScan scan_capacity(const ReplayScript& script, const ReplayOptions& options,
                           const CapacityScanOptions& scan = {});

}  // namespace limpid::memory
