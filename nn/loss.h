// Losses as small objects: nn::CrossEntropyLoss criterion; Tensor loss = criterion(model(x), y). They have no
// parameters and are not modules; the class weights live in the options.
#pragma once

#include <limpid/autograd/functions.h>

namespace limpid::nn {

// logits [N,C] or [N,C,...], labels i64.
class CrossEntropyLoss {
 public:
  explicit CrossEntropyLoss(CrossEntropyOptions options = {});
  Tensor operator()(const Tensor& logits, const Tensor& labels) const {
    return cross_entropy(logits, labels, options_);
  }

 private:
  CrossEntropyOptions options_;
};

struct NLLLossOptions {
  Tensor weight = {};
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};
// Log-probabilities [N,C] or [N,C,...], labels i64.
class NLLLoss {
 public:
  explicit NLLLoss(NLLLossOptions options = {});
  Tensor operator()(const Tensor& log_probabilities, const Tensor& labels) const {
    return nll_loss(log_probabilities, labels, options_);
  }

 private:
  CrossEntropyOptions options_;
};

struct LossOptions {
  Reduction reduction = Reduction::mean;
};
class MSELoss {
 public:
  explicit MSELoss(LossOptions options = {}) : options_(options) {}
  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return mse_loss(input, target, options_.reduction);
  }

 private:
  LossOptions options_;
};

class L1Loss {
 public:
  explicit L1Loss(LossOptions options = {}) : options_(options) {}
  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return l1_loss(input, target, options_.reduction);
  }

 private:
  LossOptions options_;
};

struct SmoothL1LossOptions {
  double beta = 1.0;  // quadratic below, linear above
  Reduction reduction = Reduction::mean;
};
class SmoothL1Loss {
 public:
  explicit SmoothL1Loss(SmoothL1LossOptions options = {});
  Tensor operator()(const Tensor& input, const Tensor& target) const {
    return smooth_l1_loss(input, target, options_.beta, options_.reduction);
  }

 private:
  SmoothL1LossOptions options_;
};

// Targets are probabilities in [0,1] with the shape of the logits.
class BCEWithLogitsLoss {
 public:
  explicit BCEWithLogitsLoss(LossOptions options = {}) : options_(options) {}
  Tensor operator()(const Tensor& logits, const Tensor& target) const {
    return binary_cross_entropy_with_logits(logits, target, options_.reduction);
  }

 private:
  LossOptions options_;
};

}  // namespace limpid::nn
