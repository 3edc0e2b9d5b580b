// Rehearsal: a training run cut down to what its memory needs: the calls of `limpid train` in the same order (model,
// loaders, optimizer, steps, short last batch, validation, a second epoch) on samples of the right size. On a dry
// device it predicts (plan.h); on the CPU or a GPU it is the measurement that the prediction is compared with.
// Not a training loop: it learns nothing and keeps no record of losses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <limpid/memory/allocator.h>
#include <limpid/nn/module.h>
#include <limpid/train/memory_report.h>
#include <limpid/train/parts.h>
#include <limpid/train/settings.h>

namespace limpid::train {

struct RehearsalSettings {
  // What the memory depends on: model, input and classes (both required), batch, micro_batch, quantum, bn_mode, amp,
  // drop_last, optimizer with its options,
  // clip, label_smoothing, workers (0 or more: the ring), epochs (two are run at most), and memory_cap: the capacity of
  // both pools together, as `limpid train --memory-cap`.
  TrainSettings train;
  // Micro-batches of `train.batch` samples a step: train.batch is then the micro-batch, and train.micro_batch 0.
  std::int64_t accumulate = 1;
  std::int64_t samples = 0;     // of an epoch; 0: no short last batch
  std::int64_t validation = 0;  // samples evaluated after each epoch
  std::int64_t test = 0;  // samples of the test set, whose loader has a ring too; evaluated after the peak is read
  std::vector<std::uint64_t> resident;  // bytes of the blocks that the data set keeps in the io pool
  bool evaluate_first = false;          // the validation samples are evaluated before the first step too
  bool checkpoints = false;             // a checkpoint is written after each epoch
  // An epoch's full steps beyond these change nothing and are left out. 1 at least.
  std::int64_t full_steps = 3;
  std::function<std::shared_ptr<nn::Module>()> model;  // empty: the model that `train` names
};

struct RehearsalStep {
  std::int64_t step = 0, epoch = 0;
  std::int64_t samples = 0;
  bool full = false;            // all of its micro-batches are whole
  std::uint64_t allocated = 0;  // after the step
  std::uint64_t reserved = 0;
  std::int64_t device_calls = 0;  // segments asked for and given back during the step
  std::uint64_t layout = 0;       // hash of all segments and blocks after the step, addresses aside
};

struct RehearsalResult {
  std::vector<RehearsalStep> steps;
  MemoryReport memory;          // at the instant of the peak, as the trainer reports it
  memory::Stats stats;          // of the compute pool, since the first step
  std::uint64_t live_peak = 0;  // requested bytes of the compute pool
  std::int64_t parameters = 0;
  // The first full step after which the pool looks as after every later full step of its epoch, and which called the
  // device no more; nothing when the run has no two such steps.
  std::optional<std::int64_t> steady_step;
};

// The model is made on this thread's default device, the host, and computes on `device`, whose tensors come from `pool`
// (on a real device, put a PoolScope around the call). Data set and loader are the host's: from `io_pool`, or pinned for
// a GPU; there they are no part of the result. OutOfMemoryError. The thread's scope and random state are put back.
RehearsalResult rehearse(const RehearsalSettings& settings, memory::Allocator& pool, memory::Allocator& io_pool,
                         Device device = default_device());

// A run of the trainer with these parts, as far as its memory goes; the blocks that are live in the io pool now are its
// resident ones.
RehearsalSettings rehearsal_of(const TrainSettings& settings, const TrainParts& parts);

// The memory of `pool` and `io` together gets `cap` bytes (0 = no cap): the compute pool what the io pool leaves. `io` is
// empty where the data lies in other memory than the tensors. OutOfMemoryError when what they hold already is more.
void apply_cap(std::uint64_t cap, memory::Allocator& pool, const memory::Ledger& io);

// ArgumentError names the first setting outside its range.
void check(const RehearsalSettings& settings);

}  // namespace limpid::train
