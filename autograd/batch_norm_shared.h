// BatchNormShared: one layer's part in normalising a batch that is computed in pieces. The pieces pass the layer one after
// the other; what the whole batch needs of them (statistics on the way there, the sums of the gradient on the way back)
// is collected and merged, and only then can any piece go on behind the layer. So a pass that reaches a layer which still
// collects ends there, by Stop. Who runs the passes: train/batch_norm_modes.h.
#pragma once

#include <memory>
#include <vector>

#include <limpid/tensor/raw_nn.h>

namespace limpid {

class BatchNormShared {
 public:
  // Thrown through forward or backward of a piece that gave its part; no error, and never seen outside of the passes.
  struct Stop {
    BatchNormShared* at;
  };

  bool has_statistics() const { return statistics_.mean.defined(); }
  bool has_sums() const { return sums_.defined(); }
  double count() const { return count_; }  // values a channel, of all pieces

  // ---- for the passes
  // While collecting, each pass is announced, so that a layer that normalises twice in one of them is noticed.
  void begin_pass() { uses_ = 0, collecting_ = true; }
  void end_passes() { collecting_ = false; }
  // Merges what the pieces left: first the statistics, the next time the sums of the backward pass.
  void merge(double eps);
  // Moves running statistics as a batch of all pieces would (the variance unbiased); either may be undefined.
  void update(Tensor running_mean, Tensor running_var, double momentum) const;

  // ---- for the operation; both throw Stop while they collect
  const raw::BatchStatistics& whole_statistics(const Tensor& rows);
  const Tensor& whole_sums(const Tensor& part);

 private:
  std::vector<Tensor> parts_;  // [3,C] or [2,C], one a piece
  double count_ = 0;
  raw::BatchStatistics statistics_;
  Tensor sums_;
  int uses_ = 0;
  bool collecting_ = false;
};

// Training mode with the statistics of the whole batch: y and dx are those that the piece would have in it; the
// gradients of weight and bias are the piece's share.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const std::shared_ptr<BatchNormShared>& shared,
                  double eps = 1e-5);
// The same, then + residual (unless undefined) and ReLU, as one operation (fused.h).
Tensor batch_norm_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                       const std::shared_ptr<BatchNormShared>& shared, double eps = 1e-5);

}  // namespace limpid
