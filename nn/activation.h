// Activations as modules: no parameters, one function each.
#pragma once

#include <limpid/nn/module.h>

namespace limpid::nn {

class ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
  std::string type_name() const override { return "ReLU"; }
};

struct LeakyReLUOptions {
  double negative_slope = 0.01;
};
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(const LeakyReLUOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return leaky_relu(x, options_.negative_slope); }
  std::string type_name() const override { return "LeakyReLU"; }
  std::string describe() const override { return concat("LeakyReLU(negative_slope=", options_.negative_slope, ")"); }

 private:
  LeakyReLUOptions options_;
};

struct ELUOptions {
  double alpha = 1.0;
};
class ELU : public Module {
 public:
  explicit ELU(const ELUOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return elu(x, options_.alpha); }
  std::string type_name() const override { return "ELU"; }
  std::string describe() const override { return concat("ELU(alpha=", options_.alpha, ")"); }

 private:
  ELUOptions options_;
};

struct GELUOptions {
  bool tanh_approximation = false;
};
class GELU : public Module {
 public:
  explicit GELU(const GELUOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return options_.tanh_approximation ? gelu_tanh(x) : gelu(x); }
  std::string type_name() const override { return "GELU"; }
  std::string describe() const override {
    return concat("GELU(approximate='", options_.tanh_approximation ? "tanh" : "none", "')");
  }

 private:
  GELUOptions options_;
};

class SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return silu(x); }
  std::string type_name() const override { return "SiLU"; }
};

class Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override { return sigmoid(x); }
  std::string type_name() const override { return "Sigmoid"; }
};

class Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override { return tanh(x); }
  std::string type_name() const override { return "Tanh"; }
};

struct SoftmaxOptions {
  std::int64_t dim = -1;
};
class Softmax : public Module {
 public:
  explicit Softmax(const SoftmaxOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return softmax(x, options_.dim); }
  std::string type_name() const override { return "Softmax"; }
  std::string describe() const override { return concat("Softmax(dim=", options_.dim, ")"); }

 private:
  SoftmaxOptions options_;
};

}  // namespace limpid::nn
