#include <limpid/autograd/gradcheck.h>

#include <cmath>

#include <limpid/autograd/engine.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/tensor/raw.h>

namespace limpid {
namespace {

// Address of the logical element i of a strided tensor.
double* element(const Tensor& t, std::int64_t i) {
  std::int64_t at = 0;
  for (int d = t.dim() - 1; d >= 0; d--) {
    at += i % t.shape()[d] * t.strides()[d];
    i /= t.shape()[d];
  }
  return const_cast<double*>(t.data<double>()) + at;
}

}  // namespace

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  GradcheckResult result;
  std::vector<std::size_t> checked;
  std::vector<Tensor> wanted;
  for (std::size_t i = 0; i < inputs.size(); i++) {
    if (!inputs[i].requires_grad()) continue;
    LIMPID_CHECK(inputs[i].dtype() == DType::float64, DTypeError, "[gradcheck] input ", i, " must be f64, got ", inputs[i]);
    checked.push_back(i);
    wanted.push_back(inputs[i]);
  }
  LIMPID_CHECK(!checked.empty(), AutogradError, "[gradcheck] no input requires a gradient");
  Tensor output = function(inputs);
  LIMPID_CHECK(output.dtype() == DType::float64, DTypeError, "[gradcheck] the output must be f64, got ", output);
  LIMPID_CHECK(output.requires_grad(), AutogradError, "[gradcheck] the output does not depend on an input that requires a gradient");

  // Row o of the Jacobian by backward: the gradient of output element o.
  std::int64_t outputs = output.numel();
  std::vector<std::vector<std::vector<double>>> analytic(checked.size());
  for (std::int64_t o = 0; o < outputs; o++) {
    Tensor seed = zeros(output.shape(), {.dtype = DType::float64});
    *element(seed, o) = 1;
    std::vector<Tensor> grads = gradients(output, wanted, seed, true);
    for (std::size_t k = 0; k < checked.size(); k++) {
      analytic[k].push_back(grads[k].defined() ? grads[k].to_vector<double>()
                                               : std::vector<double>(static_cast<std::size_t>(wanted[k].numel())));
    }
  }
  NoGradGuard no_grad;
  result.worst = -1;
  for (std::size_t k = 0; k < checked.size(); k++) {
    const Tensor& input = wanted[k];
    for (std::int64_t j = 0; j < input.numel(); j++) {
      double* slot = element(input, j);
      double kept = *slot;
      *slot = kept + options.eps;
      std::vector<double> above = function(inputs).to_vector<double>();
      *slot = kept - options.eps;
      std::vector<double> below = function(inputs).to_vector<double>();
      *slot = kept;
      for (std::int64_t o = 0; o < outputs; o++) {
        std::size_t at = static_cast<std::size_t>(o);
        double numeric = (above[at] - below[at]) / (2 * options.eps);
        double backward = analytic[k][at][static_cast<std::size_t>(j)];
        double excess = std::fabs(numeric - backward) - (options.atol + options.rtol * std::fabs(numeric));
        if (std::isnan(excess)) excess = std::isnan(numeric) && std::isnan(backward) ? -1 : INFINITY;
        result.checked++;
        if (excess <= result.worst) continue;
        result.worst = excess;
        result.message = concat("input ", checked[k], ", output element ", o, ", input element ", j, ": backward ", backward,
                                ", finite difference ", numeric);
      }
    }
  }
  result.ok = result.worst <= 0;
  return result;
}

}  // namespace limpid
