// LAMB (You et al. 2020) in the variant of NVIDIA and timm ("NVLAMB"): the gradients are first clipped to a joint norm, and
// the trust ratio is ||p|| / ||update|| without bounds. The paper has no such clipping, and bounds ||p|| by a function phi.
#pragma once

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;  // added after the bias correction
  double weight_decay = 0.01;
  double max_grad_norm = 1;   // all gradients, of all groups, together; the first group's counts. 0 = no clipping
  bool always_adapt = false;  // a trust ratio also where weight_decay is 0
  bool trust_clip = false;    // at most 1
};

// g = gradient min(1, max_grad_norm / norm); m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay p;
// trust = ||p|| / ||u||, 1 when either is 0 or the group has no weight decay (unless always_adapt); p -= lr trust u.
// Source: timm/optim/lamb.py. Parameters are f32 or f64. The ratios of a step are in trust_ratios().
class Lamb : public Optimizer {
 public:
  explicit Lamb(const std::vector<Tensor>& params, const LambOptions& options = {});
  explicit Lamb(const std::vector<ParamGroup<LambOptions>>& groups);
  const char* name() const override { return "LAMB"; }
  bool has_trust_ratios() const override { return true; }
  const LambOptions& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  void prepare() override;
  void update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) override;
  void visit_options(std::size_t group, const OptionVisitor& visit) override;
  void check_options(std::size_t group) const override;

 private:
  void add(const std::vector<Tensor>& params, const LambOptions& options);
  std::vector<LambOptions> options_;
  double grad_scale_ = 1;  // of the step under way
};

}  // namespace limpid::optim
