// An out-of-memory failure looked at after the fact, from a trace: the verdict (verdict.h) with the names of the trace,
// and advice. Every line of advice is a replay that was made and that fitted: of the whole trace, or of the trace up to
// the failure when it ends there. Works on the trace of a run
// that failed (its last `oom` record) and on the trace of a run that did not, under a smaller capacity.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <limpid/memory/oom.h>
#include <limpid/memory/replay.h>
#include <limpid/memory/trace_log.h>

namespace limpid::memory {

struct Explanation {
  std::uint32_t record = 0;  // of the request that failed
  bool recorded = false;     // it failed in the recorded run too
  OutOfMemoryInfo info;      // with advice, and with pins that were replayed
};

// Nothing when the trace runs to its end under `options`. With `advice` off only the verdict is made.
std::optional<Explanation> explain(const TraceLog& log, const ReplayOptions& options, bool advice = true,
                                   const std::function<void(const char* trying)>& progress = {});

// The same for an allocator that has just thrown `info`: replays what its trace still holds. When the trace's beginning
// is gone, the advice stays empty and the note says so.
void advise(OutOfMemoryInfo& info, Allocator& allocator);

}  // namespace limpid::memory
