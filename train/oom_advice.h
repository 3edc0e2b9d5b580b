// What would have made a training run fit. Each line of advice is the same run with one change, made dry to its end
// (plan.h), and it fitted; nothing is printed that was not run.
#pragma once

#include <functional>

#include <limpid/train/plan.h>

namespace limpid::train {

// `failed`: the run that ended with `info`, with its capacity in run.train.memory_cap. First the run itself is made dry:
// when that fits, the failure lies outside the training loop, and `info.advice_note` says so instead of advice.
// Tried: every other policy; validation before training; the largest batch below this one that
// fits; the same batch in micro-batches. `progress` is called before each kind.
void advise(memory::OutOfMemoryInfo& info, const PlanSettings& failed, const std::string& policy,
            const std::function<void(const std::string& trying)>& progress = {});

}  // namespace limpid::train
