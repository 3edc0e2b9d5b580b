// RMSprop (Tieleman and Hinton 2012), PyTorch's form: eps outside the root.
#pragma once

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;  // decay of the mean square
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  double momentum = 0;
  bool centered = false;  // subtracts the square of the mean gradient
};

// s = alpha s + (1 - alpha) g^2; avg = sqrt(s - mean^2 if centered) + eps; p -= lr g / avg, or with momentum
// buf = momentum buf + g / avg; p -= lr buf. Source: torch/optim/rmsprop.py.
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(const std::vector<Tensor>& params, const RMSpropOptions& options = {});
  explicit RMSprop(const std::vector<ParamGroup<RMSpropOptions>>& groups);
  const char* name() const override { return "RMSprop"; }
  const RMSpropOptions& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  void update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) override;
  bool skips_on_device() const override { return true; }
  void visit_options(std::size_t group, const OptionVisitor& visit) override;
  void check_options(std::size_t group) const override;

 private:
  void add(const std::vector<Tensor>& params, const RMSpropOptions& options);
  std::vector<RMSpropOptions> options_;
};

}  // namespace limpid::optim
