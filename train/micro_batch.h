// One micro-batch: forward, cross-entropy, backward. The part of a step that decides its memory, shared by the trainer
// and by rehearsals (rehearsal.h), so that a dry run makes the very calls of a training run.
#pragma once

#include <cstdint>

#include <limpid/data/loader.h>
#include <limpid/nn/module.h>

namespace limpid::train {

struct MicroBatchResult {
  double loss = 0;  // mean over the samples, times the weight
  std::int64_t correct = 0;
};

// Gradients are added to those that are there. `weight` is the share of the effective batch, samples / all samples; 1
// adds no operation.
MicroBatchResult run_micro_batch(nn::Module& model, const data::Batch& batch, double label_smoothing,
                                 double weight = 1);

}  // namespace limpid::train
