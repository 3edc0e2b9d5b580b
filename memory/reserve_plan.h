// reserve_plan: makes an allocator's cache ready for a run that is known from a trace, so that the run then asks the
// device for nothing. The trace's allocations and frees run on this allocator, pass after pass, until a pass makes no
// device call and leaves every segment as it found it: from there on the same run finds all it needs. Memory is
// reserved, not touched. Nobody else may use the allocator meanwhile; its peaks start anew at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <limpid/memory/trace_log.h>

namespace limpid::memory {

class Allocator;

struct ReservePlanResult {
  struct Pass {
    std::int64_t device_calls = 0;  // segments or pages taken and given back
    std::uint64_t reserved = 0;     // at its end
  };
  std::uint64_t operations = 0;  // of a pass
  std::uint64_t peak_live = 0;   // requested bytes of a pass, without what was live before
  std::uint64_t live_before = 0;
  std::uint64_t reserved_before = 0, reserved_after = 0;
  std::int64_t segments_before = 0, segments_after = 0;  // runs of mapped pages count as segments
  std::vector<Pass> passes;                              // the last one made no call
};

// Plays the records from `first` on; what they free without having allocated it is taken for present already. The
// trace's own empty_cache and failed requests are left out: the point is to keep the cache. OutOfMemoryError when the
// run does not fit, ArgumentError when `max_passes` passes do not come to rest (the policy async moves pages all the
// time; under a tight capacity every pass gives back and asks again); all it allocated is freed then.
ReservePlanResult reserve_plan(Allocator& allocator, const TraceLog& log, std::uint64_t first = 0, int max_passes = 16);

// Where the steps begin in the trace of a training run: behind what was there before the recording, and behind the last
// parameter, the last state of the optimizer and the last time the cache was emptied before the first forward pass. That
// is, behind the making of the model and the optimizer: whoever reserves has both already.
std::uint64_t first_of_steps(const TraceLog& log);

std::string to_string(const ReservePlanResult& result);  // one line for people
std::string to_json(const ReservePlanResult& result);

}  // namespace limpid::memory
