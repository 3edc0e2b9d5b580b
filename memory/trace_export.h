// Traces for other tools. Where a format wants addresses, the trace is replayed under a policy and the addresses are
// those of the replay: the file shows what that policy would do.
#pragma once

#include <limpid/memory/replay.h>
#include <limpid/memory/trace_file.h>
#include <limpid/memory/trace_log.h>

namespace limpid::memory {

// A pickle like torch.cuda.memory._snapshot()'s, for PyTorch's viewers (memory_viz): protocol 2, plain data. Events are
// numbered in time_us; an event's frames are its tensor or operation, layer and step; category is the role. After an
// event that could not be served the trace ends with `oom`; the result says so.
ReplayResult print_torch_snapshot(const TraceLog& log, const ReplayOptions& options, const ByteSink& out);

// RMM's log, for its REPLAY benchmark; the time of event n is n microseconds, names and roles are lost.
ReplayResult print_rmm_csv(const TraceLog& log, const ReplayOptions& options, const ByteSink& out);

// MiniMalloc's "id,lower,upper,size". Times count the changes from freeing to allocating and back, so that buffers
// overlap in time exactly if they do in the trace. Blocks that are never freed live to the end.
void print_minimalloc_csv(const TraceLog& log, const ByteSink& out);

}  // namespace limpid::memory
