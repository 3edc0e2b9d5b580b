// Dropout: in training, zeroes elements with probability p and scales the rest by 1/(1-p); nothing in eval mode.
// The mask depends on (seed, step, layer path, occurrence, sample, element), not on threads or on how a batch was cut.
#pragma once

#include <limpid/nn/module.h>

namespace limpid::nn {

struct DropoutOptions {
  double p = 0.5;
};
class Dropout : public Module {
 public:
  explicit Dropout(const DropoutOptions& options = {});
  explicit Dropout(double p) : Dropout(DropoutOptions{.p = p}) {}
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "Dropout"; }
  std::string describe() const override { return concat("Dropout(p=", options_.p, ")"); }
  const DropoutOptions& options() const { return options_; }

 private:
  DropoutOptions options_;
};

}  // namespace limpid::nn
