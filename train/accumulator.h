// Accumulator: gradient accumulation with the right weights, for a loop of your own. The gradient of one optimizer step is
// sum(gradients of the losses' sums) / (what they counted), however the effective batch was cut: a short tail, micro-batches
// of unequal sizes, a window that crosses an epoch, losses that count tokens or class weights instead of samples.
//
//   train::Accumulator accumulator(optimizer);
//   for (const Tensor& part : parts)
//     accumulator.add(cross_entropy(model(part), y, {.reduction = Reduction::sum}), y.numel());
//   accumulator.step();
//
// Not a transaction and no loop: train::Step (step.h) is what `limpid train` uses, on top of this.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <limpid/optim/grad_scaler.h>
#include <limpid/optim/optimizer.h>

namespace limpid::train {

struct AccumulatedStep {
  double count = 0;               // samples, tokens or class weights: what the gradient was divided by
  std::int64_t micro_batches = 0;
  std::optional<double> grad_norm;  // L2 norm of the gradient before clipping; only with clipping
  double clip_coefficient = 1;      // what the gradient was multiplied by
  double scale = 1;                 // of the loss, undone before clipping
  optim::StepTicket ticket;         // whether the optimizer stepped
};

class Accumulator {
 public:
  // With a scaler, every backward starts from its scale, one for the whole window; step() undoes it before it clips, and
  // a window with a gradient that is not finite changes nothing.
  explicit Accumulator(optim::Optimizer& optimizer, optim::GradScaler* scaler = nullptr);

  // Drops the gradients and opens a window. `expected`: what the window will count in all, when it is known beforehand:
  // every backward then starts from 1/expected and no pass over the gradients follows. 0: not known. A window that
  // counted something else than expected is corrected at the end.
  void begin(double expected = 0);
  // Backward of one micro-batch. `sum`: the sum of its losses, one element; `count`: what a mean would have divided by
  // (samples; tokens that are not ignored; the sum of their class weights). 0 with a loss of 0 is fine: an empty part.
  void add(const Tensor& sum, double count);
  // The same for a loss that is a mean already.
  void add_mean(const Tensor& mean, double count);
  // Divides by the true count, clips the joint L2 norm to `clip` (0: not at all), updates and closes the window; the
  // gradients stay to be looked at until the next begin() or add(). ArgumentError when nothing was counted.
  AccumulatedStep step(double clip = 0);

  double count() const { return count_; }
  std::int64_t micro_batches() const { return micro_batches_; }

 private:
  void backward(const Tensor& loss, double seed, double count);
  optim::Optimizer& optimizer_;
  optim::GradScaler* scaler_;
  std::vector<Tensor> parameters_;
  double expected_ = 0, count_ = 0;
  std::int64_t micro_batches_ = 0;
  bool open_ = false;
};

}  // namespace limpid::train
