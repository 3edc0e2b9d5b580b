#include <limpid/optim/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/optim/gradients_private.h>
#include <limpid/tensor/kernels.h>
#include <limpid/tensor/raw.h>

namespace limpid::optim {

std::vector<std::vector<Tensor>> gradients_of(const char* op, const std::vector<Tensor>& params) {
  std::vector<std::vector<Tensor>> runs;
  for (Tensor param : params) {
    if (!param.defined() || !param.grad().defined() || param.grad().numel() == 0) continue;
    LIMPID_CHECK(is_floating(param.grad().dtype()), DTypeError, "[", op, "] gradients are floating, got ", param.grad());
    if (!param.grad().is_dense()) {
      Tensor dense = raw::clone(raw::contiguous(param.grad()));
      dense.storage()->set_role(memory::Role::grad);
      param.set_grad(dense);
    }
    const Tensor& grad = param.grad();
    auto same = [&](const std::vector<Tensor>& run) {
      return run[0].dtype() == grad.dtype() && run[0].device() == grad.device();
    };
    auto run = std::find_if(runs.begin(), runs.end(), same);
    if (run == runs.end()) run = runs.insert(run, std::vector<Tensor>());
    run->push_back(grad);
  }
  return runs;
}

void scale_grad_(const std::vector<Tensor>& params, double factor) {
  NoGradGuard guard;
  PhaseScope phase(Phase::optimizer);
  OpScope op(intern("scale_grad_"));
  for (auto& run : gradients_of("scale_grad_", params)) kernels_for(run[0].device()).scale(run, factor);
}

double clip_coefficient(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 ? 1 : factor;  // NaN stays NaN
}

namespace {

double norm_of(const std::vector<std::vector<Tensor>>& runs) {
  double squares = 0;
  for (const std::vector<Tensor>& run : runs) squares += kernels_for(run[0].device()).sum_of_squares(run);
  return std::sqrt(squares);
}

}  // namespace

double grad_norm(const std::vector<Tensor>& params) {
  NoGradGuard guard;
  return norm_of(gradients_of("grad_norm", params));
}

double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, bool error_if_nonfinite) {
  LIMPID_CHECK(max_norm >= 0, ArgumentError, "[clip_grad_norm_] max_norm must not be negative, got ", max_norm);
  NoGradGuard guard;
  PhaseScope phase(Phase::optimizer);
  OpScope op(intern("clip_grad_norm_"));
  auto runs = gradients_of("clip_grad_norm_", params);
  const double norm = norm_of(runs);
  LIMPID_CHECK(!error_if_nonfinite || std::isfinite(norm), ArgumentError,
               "[clip_grad_norm_] the norm of the gradients is ", norm);
  const double factor = clip_coefficient(norm, max_norm);
  if (factor != 1)  // NaN included
    for (auto& run : runs) kernels_for(run[0].device()).scale(run, factor);
  return norm;
}

void clip_grad_value_(const std::vector<Tensor>& params, double limit) {
  LIMPID_CHECK(limit >= 0, ArgumentError, "[clip_grad_value_] the limit must not be negative, got ", limit);
  NoGradGuard guard;
  PhaseScope phase(Phase::optimizer);
  OpScope op(intern("clip_grad_value_"));
  for (auto& run : gradients_of("clip_grad_value_", params))
    for (Tensor& grad : run) kernels_for(grad.device()).unary(UnaryOp::clamp, grad, grad, {.p0 = -limit, .p1 = limit});
}

}  // namespace limpid::optim
