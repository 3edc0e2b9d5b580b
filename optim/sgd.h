// Stochastic gradient descent with momentum, Nesterov and coupled weight decay.
#pragma once

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient
  bool nesterov = false;    // needs momentum > 0 and dampening 0
};

// g += wd p; buf = g at the first step, then buf = momentum buf + (1 - dampening) g; d = g + momentum buf (nesterov) or
// buf; p -= lr d. Source: torch/optim/sgd.py.
class SGD : public Optimizer {
 public:
  explicit SGD(const std::vector<Tensor>& params, const SGDOptions& options = {});
  explicit SGD(const std::vector<ParamGroup<SGDOptions>>& groups);
  const char* name() const override { return "SGD"; }
  const SGDOptions& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  void update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) override;
  bool skips_on_device() const override { return true; }
  void visit_options(std::size_t group, const OptionVisitor& visit) override;
  void check_options(std::size_t group) const override;

 private:
  void add(const std::vector<Tensor>& params, const SGDOptions& options);
  std::vector<SGDOptions> options_;
};

}  // namespace limpid::optim
