// Linear: y = x W^T + b over the last dim.
#pragma once

#include <limpid/nn/module.h>

namespace limpid::nn {

struct LinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = true;
};

// x [..., in_features] -> [..., out_features]. weight [out, in] and bias [out] start uniform in +-1/sqrt(in_features),
// PyTorch's default (kaiming_uniform with a = sqrt(5)), drawn from default_generator().
class Linear : public Module {
 public:
  explicit Linear(const LinearOptions& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "Linear"; }
  std::string describe() const override;
  const LinearOptions& options() const { return options_; }
  void check_input(const Tensor& x) const;  // ShapeError
  // Draws the start values again.
  void reset_parameters(Generator& generator = default_generator());

  Tensor weight, bias;

 private:
  LinearOptions options_;
};

}  // namespace limpid::nn
