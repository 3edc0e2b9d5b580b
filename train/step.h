// Step: one optimizer step over one effective batch, as a transaction. Its micro-batches are added one after the other;
// when the memory runs out in between, parameters, optimizer, running statistics, random numbers and the live memory
// are as before the step, and the step can be made again with smaller micro-batches. The part of a run that decides its
// memory: the trainer and rehearsals (rehearsal.h) share it, so that a dry run makes the very calls of a training run.
// Not here: where the batches come from, the schedule, the run's records.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <limpid/data/loader.h>
#include <limpid/memory/oom.h>
#include <limpid/nn/module.h>
#include <limpid/tensor/random.h>
#include <limpid/train/accumulator.h>
#include <limpid/train/batch_norm_modes.h>

namespace limpid::train {

// As it was computed: with a retry, smaller than the loader's.
struct MicroBatchRecord {
  std::int64_t samples = 0;
  double loss_sum = 0;  // over its samples
  // Smallest and largest weight of its samples, measured (autograd/loss_weights.h); 0 in a dry run.
  double weight_min = 0, weight_max = 0;
};

// One attempt that ran out of memory and was taken back.
struct OomRetry {
  std::int64_t micro_batch = 0;        // samples of the largest micro-batch so far
  std::int64_t next_micro_batch = 0;   // with which it is tried again
  std::uint64_t requested = 0;         // bytes that could not be had
  std::string where;                   // "backward, conv2d in conv2"
  std::int64_t released_segments = 0;  // cached segments given back on the way, which no retry restores
  std::uint64_t released_bytes = 0;
};

// Parameters by name, in the optimizer's order, and what LAMB or LARS multiplied their updates by.
using TrustRatios = std::vector<std::pair<std::string, double>>;

struct StepOutcome {
  std::int64_t samples = 0;
  double loss_sum = 0;
  std::int64_t correct = 0;
  std::vector<MicroBatchRecord> micro_batches;
  AccumulatedStep update;
  std::vector<OomRetry> retries;
  std::int64_t batch_norm_updates = 0;  // times that running statistics moved
  bool applied = true;  // false: a gradient was not finite, and nothing changed, running statistics included
  // Then, if the samples could be loaded again: where the first value that is not finite came from.
  std::string found_inf_layer, found_inf_what;  // "conv2"; "gradient 1 of conv2d"
  std::int64_t found_inf_micro_batch = -1;
  TrustRatios trust_ratios;  // of an applied step of a rule that has them; else empty
};

struct StepOptions {
  double label_smoothing = 0;
  std::string precision = "fp32";  // of the forward pass: fp32, bf16, fp16 (amp.h)
  double clip = 0;                 // L2 norm of all gradients together; 0 = off
  // Under `exact` the inputs are kept until finish(), which then computes everything.
  BatchNormMode batch_norm = BatchNormMode::micro;
  // All micro-batches of a step together move the running statistics as one batch would; else each one does.
  bool adjust_momentum = true;
  // Not 0: the samples are always computed in pieces of this many, counted from the step's first one, so that the bits
  // do not depend on how they arrive. There is nothing smaller to retry with then.
  std::int64_t quantum = 0;
  // Makes the step again with smaller micro-batches when the memory runs out, as long as there is a smaller one. Needs
  // `load`.
  bool retry = false;
  // The samples of these ids again, as the loader made them.
  std::function<data::Batch(const std::vector<std::int64_t>& ids, std::int64_t epoch)> load = {};
};

struct TrainSettings;
// What the settings say about a step; `load` is left empty.
StepOptions step_options(const TrainSettings& settings);

class Step {
 public:
  // Allocates a copy of the model's buffers (running statistics), which a failed step is undone with.
  // `scaler`: null, or what scales the loss; it must outlive the step.
  Step(nn::Module& model, optim::Optimizer& optimizer, StepOptions options = {}, optim::GradScaler* scaler = nullptr);

  // Opens step number `step` over `samples` samples: drops the gradients of the last one, and remembers. `batches`: sizes
  // of the batches that add() will get, which the momentum of batch norm is adjusted to; empty: not known, not adjusted.
  void begin(std::int64_t step, std::int64_t samples, std::vector<std::int64_t> batches = {});
  // Forward and backward of one micro-batch; the batches of a step come in order. OutOfMemoryError: the step is undone
  // and closed, no smaller micro-batch would help or none was wanted. With a quantum, every batch but the last of a
  // step is a multiple of it.
  void add(const data::Batch& batch);
  // Clips and updates. OutOfMemoryError as add().
  StepOutcome finish();

  // Largest micro-batch that will be computed at once: 0 = whatever comes. A retry lowers it for good. A quantum rules
  // it out: ArgumentError.
  std::int64_t micro_batch_limit() const { return limit_; }
  void set_micro_batch_limit(std::int64_t limit);

 private:
  struct Part {  // of the effective batch, as it was added
    std::vector<std::int64_t> ids;
    std::int64_t epoch = 0;
  };
  std::vector<std::int64_t> cut(std::int64_t samples) const;  // a batch, into pieces
  void compute(const data::Batch& batch);                     // piece by piece
  void compute_exact();                                       // what was kept, with exact batch norm
  void compute_piece(const Tensor& x, const Tensor& y);
  // Loss and logits of the piece that begins with sample `first` of the step.
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& y, std::size_t index, std::int64_t first);
  void open();             // the state that an attempt starts from
  void adjust_momentum();  // to the pieces to come
  void undo();
  // After a failure: undone; true when a smaller micro-batch can be tried, which is then set.
  bool prepare_retry(const memory::OutOfMemoryError& error);
  template <class Attempt>
  void with_retries(Attempt&& attempt);
  void close();
  void copy_buffers(bool back);
  void recompute();  // the parts added so far, loaded again
  void find_non_finite();
  TrustRatios trust_ratios() const;

  nn::Module& model_;
  optim::Optimizer& optimizer_;
  Accumulator accumulator_;
  StepOptions options_;
  std::vector<Tensor> buffers_;        // of the model
  std::vector<Tensor> saved_buffers_;  // views into one allocation a dtype
  optim::GradScaler* scaler_;
  std::vector<nn::BatchNorm*> norms_;
  bool exact_ = false;  // with layers that it concerns
  std::int64_t limit_ = 0;
  double scale_before_ = 1;  // of the loss, in this step

  std::int64_t step_ = 0, samples_ = 0, done_ = 0;
  std::int64_t largest_piece_ = 0;
  std::vector<std::int64_t> batches_;              // to come, as announced
  std::vector<Part> parts_;
  std::vector<std::pair<Tensor, Tensor>> kept_;    // inputs and classes, under exact batch norm
  StepOutcome outcome_;
  RandomState random_;
  std::uint64_t generator_seed_ = 0, generator_position_ = 0;
  std::int64_t released_segments_ = 0, released_bytes_ = 0;  // the pool's counters when the attempt began
};

}  // namespace limpid::train
