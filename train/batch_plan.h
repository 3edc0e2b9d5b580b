// The batch plan: what an epoch will be cut into, told before training, and the choice of a micro-batch that fits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <limpid/data/loader.h>
#include <limpid/nn/module.h>
#include <limpid/train/batch_norm_modes.h>

namespace limpid::train {

// An epoch of optimizer steps. All steps but the last are alike.
struct EpochPlan {
  std::int64_t samples = 0;  // of the training set
  std::int64_t effective_batch = 0;
  std::int64_t steps = 0;
  std::vector<std::int64_t> micro_batches;       // of a full step; empty when there is none
  std::int64_t tail = 0;                         // samples of a short last step; 0: there is none
  std::vector<std::int64_t> tail_micro_batches;  // of it
  std::vector<std::int64_t> dropped;             // ids that drop_last leaves out in this epoch
};

// Of epoch `epoch` as the loader will make it.
EpochPlan epoch_plan(const data::DataLoader& loader, std::int64_t epoch = 0);
std::string to_string(const EpochPlan& plan);
// A sentence when no step can have as many samples as the effective batch; else empty.
std::string batch_warning(const EpochPlan& plan);
std::string to_json(const EpochPlan& plan);

struct MicroBatchChoice {
  std::int64_t micro_batch = 0;  // 0: nothing fits
  std::vector<std::int64_t> sizes;
  std::int64_t tried = 0;  // micro-batch sizes asked for
};
// Cuts `effective` samples into as few micro-batches as fit: each one costs the same fixed time (calls, a pass over the
// gradients), so fewer take less time. `fits` says whether a micro-batch of that size runs: by a dry run (plan.h), or by
// trial. Sizes below `least` are not asked for.
MicroBatchChoice choose_micro_batch(std::int64_t effective, const std::function<bool(std::int64_t micro_batch)>& fits,
                                    std::int64_t least = 1);

}  // namespace limpid::train
