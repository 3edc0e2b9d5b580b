// Batch norm when one optimizer step is computed in micro-batches. Its statistics then are those of a micro-batch, which
// is another function than the big batch's. Three ways to go about it:
//   micro   each micro-batch's own statistics; the running ones move as fast as with one batch (momentum adjusted)
//   frozen  the running statistics, as constants, in training too
//   exact   the statistics of the whole effective batch, forward and backward, at the memory of one micro-batch; paid for
//           with one sweep over the micro-batches per layer each way
// Besides: what is too small for batch norm, in words. Layers that replace batch norm: nn/replace_norm.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <limpid/nn/norm.h>

namespace limpid::train {

enum class BatchNormMode : std::uint8_t { micro, frozen, exact };
const char* to_string(BatchNormMode mode);
BatchNormMode batch_norm_mode_named(const std::string& name);  // ArgumentError lists the names

// The model's batch norm layers with their paths.
std::vector<std::pair<std::string, nn::BatchNorm*>> batch_norm_layers(nn::Module& model);
bool has_batch_norm(nn::Module& model);  // frozen layers aside
// Sets what a layer does by itself: frozen or not. `exact` needs ExactBatchNorm around each step besides.
void set_batch_norm_mode(nn::Module& model, BatchNormMode mode);
// The next step has this many micro-batches: sets the momentum of the layers.
void set_micro_batches(nn::Module& model, std::int64_t count);

// What exact batch norm takes, known beforehand. With L layers, every sample goes forward 2L+1 times and backward L+1
// times at most; all but the last sweep end at a layer.
struct ExactCost {
  std::int64_t layers = 0;
  std::int64_t micro_batches = 0;
  std::int64_t samples = 0;
  std::int64_t forward_sweeps = 1, backward_sweeps = 1;  // the last one, which gives the gradient, included
  std::int64_t forward_samples = 0, backward_samples = 0;
};
std::string to_string(const ExactCost& cost);  // one sentence

// Exact batch norm for one step:
//
//   ExactBatchNorm exact(model);
//   exact.collect(micro_batches, forward_backward);
//   for (std::size_t i = 0; i < micro_batches; i++) forward_backward(i);   // the usual loop: now its gradients are exact
//   exact.finish();
//
// forward_backward(i) runs micro-batch i with its final weight in the effective batch: the same numbers each time, random
// layers included (begin_micro_batch() before each). Only collect() leaves it early, by an exception that it must let
// pass. Layers that are frozen, in eval mode or not reached are left alone.
class ExactBatchNorm {
 public:
  using Pass = std::function<void(std::size_t micro_batch)>;

  explicit ExactBatchNorm(nn::Module& model) : model_(model) {}
  ~ExactBatchNorm() { release(); }
  ExactBatchNorm(const ExactBatchNorm&) = delete;
  ExactBatchNorm& operator=(const ExactBatchNorm&) = delete;

  ExactCost cost(const std::vector<std::int64_t>& micro_batches) const;
  // Statistics and backward sums of all layers. Gradients that are there stay as they are. After an exception the layers
  // are as before.
  void collect(std::size_t micro_batches, const Pass& forward_backward);
  // Moves the running statistics, once, and lets the layers go. Without it they have not moved: a step that failed.
  void finish();

 private:
  void release();
  nn::Module& model_;
  std::vector<nn::BatchNorm*> open_;  // layers that share, between collect() and finish()
};

// One batch norm layer and the smallest micro-batch that it will see.
struct BatchNormFinding {
  enum class Severity : std::uint8_t { error, warning };
  std::string layer;
  std::int64_t samples = 0;  // of that micro-batch
  std::int64_t values = 0;   // per statistic: samples times pixels
  Severity severity = Severity::warning;
  std::string text;  // a sentence
};
// Statistics of fewer samples are called noisy.
inline constexpr std::int64_t kSmallBatchNorm = 8;
// What is wrong with these micro-batch sizes for a model fed with samples of shape `input`, layer by layer in the order
// of the forward pass; empty: nothing. One value per statistic is an error (training throws); one sample, or fewer than
// kSmallBatchNorm, a warning. Runs two samples of zeros forward, in eval mode.
std::vector<BatchNormFinding> lint_batch_norm(nn::Module& model, const std::vector<std::int64_t>& micro_batches,
                                              const Shape& input);

}  // namespace limpid::train
