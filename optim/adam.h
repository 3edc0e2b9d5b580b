// Adam (Kingma and Ba 2015, with amsgrad) and AdamW (Loshchilov and Hutter 2019).
#pragma once

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;  // added after the bias correction
  double weight_decay = 0;
  bool amsgrad = false;  // the largest second moment so far instead of the current one
};

// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps). Source: torch/optim/adam.py.
// Adam adds weight_decay p to the gradient; AdamW multiplies p by 1 - lr weight_decay first.
class Adam : public Optimizer {
 public:
  explicit Adam(const std::vector<Tensor>& params, const AdamOptions& options = {});
  explicit Adam(const std::vector<ParamGroup<AdamOptions>>& groups);
  const char* name() const override { return decoupled_ ? "AdamW" : "Adam"; }
  const AdamOptions& options(std::size_t group = 0) const { return options_.at(group); }

 protected:
  Adam(bool decoupled, const std::vector<ParamGroup<AdamOptions>>& groups);
  void update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) override;
  bool skips_on_device() const override { return true; }
  void visit_options(std::size_t group, const OptionVisitor& visit) override;
  void check_options(std::size_t group) const override;

 private:
  void add(const std::vector<Tensor>& params, const AdamOptions& options);
  bool decoupled_ = false;
  std::vector<AdamOptions> options_;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
};

class AdamW : public Adam {
 public:
  explicit AdamW(const std::vector<Tensor>& params, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups);
};

}  // namespace limpid::optim
