// LARS (You, Gitman and Ginsburg 2017), timm's variant: the trust ratio multiplies the gradient before it enters the
// momentum buffer. The paper's buffer holds lr times that; they differ when lr changes.
#pragma once

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

struct LarsOptions {
  double lr = 1;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  double trust_coefficient = 1e-3;
  double eps = 1e-8;
  bool always_adapt = false;  // a trust ratio also where weight_decay is 0
  bool trust_clip = false;    // LARC: min(trust / lr, 1)
};

// trust = trust_coefficient ||p|| / (||g|| + weight_decay ||p|| + eps), 1 when either norm is 0 or the group has no weight
// decay (unless always_adapt): biases and norms in such a group learn by plain SGD.
// d = trust (g + weight_decay p), then SGD with momentum: buf = d at the first step, then momentum buf + (1 - dampening) d;
// p -= lr buf (nesterov: d + momentum buf). Source: timm/optim/lars.py. Parameters are f32 or f64. The ratios of a step
// are in trust_ratios().
class Lars : public Optimizer {
 public:
  explicit Lars(const std::vector<Tensor>& params, const LarsOptions& options = {});
  explicit Lars(const std::vector<ParamGroup<LarsOptions>>& groups);
  const char* name() const override { return "LARS"; }
  bool has_trust_ratios() const override { return true; }
  const LarsOptions& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  void update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) override;
  void visit_options(std::size_t group, const OptionVisitor& visit) override;
  void check_options(std::size_t group) const override;

 private:
  void add(const std::vector<Tensor>& params, const LarsOptions& options);
  std::vector<LarsOptions> options_;
};

}  // namespace limpid::optim
