// Flatten and Identity.
#pragma once

#include <limpid/nn/module.h>

namespace limpid::nn {

struct FlattenOptions {
  std::int64_t start_dim = 1;
  std::int64_t end_dim = -1;
};
// Joins the dims start_dim..end_dim. A channels_last image is copied, because the order of elements is the logical one.
class Flatten : public Module {
 public:
  explicit Flatten(const FlattenOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return flatten(x, options_.start_dim, options_.end_dim); }
  std::string type_name() const override { return "Flatten"; }
  std::string describe() const override {
    return concat("Flatten(start_dim=", options_.start_dim, ", end_dim=", options_.end_dim, ")");
  }

 private:
  FlattenOptions options_;
};

class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
  std::string type_name() const override { return "Identity"; }
};

}  // namespace limpid::nn
