#include <limpid/memory/replay_scan.h>

#include <algorithm>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
std::uint64_t round_up(std::uint64_t bytes, std::uint64_t step) { return (bytes + step - 1) / step * step; }

// What a try costs besides its operations, in operations: the making of device and allocator.
constexpr std::uint64_t kTryOverhead = 1000;
// A coarse step is searched by steps of a 64th, and so on: a few tries, however wide it is.
constexpr std::uint64_t kFiner = 64;

}  // namespace

CapacityScan scan_capacity(const ReplayScript& script, const ReplayOptions& options, const CapacityScanOptions& scan) {
  LIMPID_CHECK(scan.granularity % kPage == 0, ArgumentError,
               "[replay] the granularity must be a multiple of 2 MiB, got ", scan.granularity);
  ReplayOptions one = options;
  one.layouts = false;
  one.capacity = ReplayOptions::kUnlimited;
  CapacityScan out;
  const ReplayResult free_run = replay(script, one);
  out.tries = 1;
  // Segments are rounded to pages, so the device needs no less than whole pages, and at least one.
  out.from = std::max(round_up(script.peak_live, kPage), kPage);
  out.to = std::max(round_up(free_run.peak_reserved, kPage), out.from);
  out.granularity = scan.granularity;
  if (out.granularity == 0) {
    const std::uint64_t tries = std::max<std::uint64_t>(scan.budget / (script.ops.size() + kTryOverhead), 8);
    out.granularity = kPage;
    while ((out.to - out.from) / out.granularity > tries) out.granularity *= 2;
  }
  const std::uint64_t steps = (out.to - out.from) / out.granularity;
  LIMPID_CHECK(steps <= CapacityScanOptions::kMostTries, ArgumentError, "[replay] steps of ", format_bytes(out.granularity),
               " from ", format_bytes(out.from), " to ", format_bytes(out.to), " are ", steps, " tries, at most ",
               CapacityScanOptions::kMostTries, " are made: give larger steps");
  auto run = [&](std::uint64_t capacity) {
    one.capacity = capacity;
    out.tries++;
    ReplayResult result = replay(script, one);
    if (scan.progress) scan.progress(out.tries, steps + 2);
    return result;
  };
  // Searches (after, until] by steps; `until` is always tried.
  auto search = [&](std::uint64_t first, std::uint64_t until, std::uint64_t step) {
    for (std::uint64_t c = first; c <= until; c = c < until ? std::min(c + step, until) : until + 1) {
      const ReplayResult result = run(c);
      if (result.completed) {
        if (!out.smallest || c < *out.smallest) out.smallest = c;
        if (result.retries == 0 && (!out.smallest_no_retry || c < *out.smallest_no_retry)) {
          out.smallest_no_retry = c;
        }
        if (out.smallest_no_retry) return;
      } else if (out.smallest && c > *out.smallest) {
        out.failures_above++;
      }
    }
  };
  search(out.from, out.to, out.granularity);
  if (out.granularity > kPage && out.smallest) {
    // The interval below the coarse answers.
    auto refine = [&](std::uint64_t found, auto&& good) {
      for (std::uint64_t step = out.granularity; step > kPage;) {
        std::uint64_t c = std::max(out.from, found - std::min(found, step));
        step = std::max(kPage, step / kFiner / kPage * kPage);
        for (c += step; c < found && !good(run(c));) c += step;
        found = std::min(c, found);
      }
      return found;
    };
    out.smallest = refine(*out.smallest, [](const ReplayResult& r) { return r.completed; });
    if (out.smallest_no_retry) {
      out.smallest_no_retry =
          refine(*out.smallest_no_retry, [](const ReplayResult& r) { return r.completed && r.retries == 0; });
    }
  }
  return out;
}

}  // namespace limpid::memory
