// LossWeights: what every sample really weighs. While one is in scope, each backward of a cross-entropy notes the gradient
// that flows into the loss of every row (a sample; a token where logits are [N,C,...]): d(total) / d(loss of the row). So
// the weight is measured where it acts, whatever divisions, means and scale factors made it. Not a hook on gradients:
// other losses note nothing, and neither does a dry run.
#pragma once

#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid {

class LossWeights {
 public:
  LossWeights() : former_(current_) { current_ = this; }
  ~LossWeights() { current_ = former_; }
  LossWeights(const LossWeights&) = delete;
  LossWeights& operator=(const LossWeights&) = delete;

  // In the order of the backward passes, row by row.
  const std::vector<double>& rows() const { return rows_; }
  void clear() { rows_.clear(); }

  // For the losses. `row_scale`: [rows], contiguous.
  static void note(const Tensor& row_scale);

 private:
  static inline thread_local LossWeights* current_ = nullptr;
  LossWeights* former_;
  std::vector<double> rows_;
};

}  // namespace limpid
