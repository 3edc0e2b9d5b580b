// The trace that --reserve-plan prepares the compute pool for: that of an earlier run, or of a dry rehearsal of the
// run to come (rehearsal.h). Playing it is memory/reserve_plan.h.
#pragma once

#include <limpid/memory/trace_log.h>
#include <limpid/train/parts.h>
#include <limpid/train/settings.h>

namespace limpid::train {

// settings.reserve_plan: "dry", a trace file or a run folder. "dry" needs the model's name in the card.
memory::TraceLog reserve_trace(const TrainSettings& settings, const TrainParts& parts);

}  // namespace limpid::train
