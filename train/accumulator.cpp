#include <limpid/train/accumulator.h>

#include <cmath>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/optim/clip_grad.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/kernels.h>

namespace limpid::train {
namespace {

void check_count(double count) {
  LIMPID_CHECK(count >= 0 && std::isfinite(count), ArgumentError,
               "[accumulator] a micro-batch counts a finite number >= 0, got ", count);
}

// grad *= factor for all of them, one kernel call a dtype.
void scale_gradients(const std::vector<Tensor>& parameters, double factor) {
  NoGradGuard guard;
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    std::vector<Tensor> grads;
    for (const Tensor& p : parameters)
      if (Tensor grad = p.grad(); grad.defined() && grad.dtype() == dtype) grads.push_back(std::move(grad));
    if (!grads.empty()) kernels_for(grads[0].device()).scale(grads, factor);
  }
}

}  // namespace

Accumulator::Accumulator(optim::Optimizer& optimizer) : optimizer_(optimizer), parameters_(optimizer.parameters()) {}

void Accumulator::begin(double expected) {
  LIMPID_CHECK(expected >= 0 && std::isfinite(expected), ArgumentError,
               "[accumulator] the expected count is a finite number >= 0, got ", expected);
  optimizer_.zero_grad();
  expected_ = expected;
  count_ = 0;
  micro_batches_ = 0;
  open_ = true;
}

void Accumulator::backward(const Tensor& loss, double seed, double count) {
  LIMPID_CHECK(loss.defined() && loss.numel() == 1, ShapeError, "[accumulator] a loss has one element, got ", loss);
  {
    PhaseScope phase(Phase::backward);
    loss.backward(full(loss.shape(), seed, {.dtype = loss.dtype(), .device = loss.device(), .role = memory::Role::temp}));
  }
  count_ += count;
  micro_batches_++;
}

void Accumulator::add(const Tensor& sum, double count) {
  check_count(count);
  if (!open_) begin();
  backward(sum, expected_ > 0 ? 1 / expected_ : 1, count);
}

void Accumulator::add_mean(const Tensor& mean, double count) {
  check_count(count);
  if (!open_) begin();
  if (count == 0) return;  // the mean of nothing is no number
  backward(mean, expected_ > 0 ? count / expected_ : count, count);
}

AccumulatedStep Accumulator::step(double clip) {
  LIMPID_CHECK(count_ > 0, ArgumentError, "[accumulator] a step needs something counted, got a count of ", count_,
               " after ", micro_batches_, " micro-batches");
  AccumulatedStep result{.count = count_, .micro_batches = micro_batches_, .grad_norm = {}, .clip_coefficient = 1};
  PhaseScope phase(Phase::optimizer);
  const double correction = expected_ > 0 ? expected_ / count_ : 1 / count_;
  if (correction != 1) scale_gradients(parameters_, correction);
  if (clip > 0) {
    result.grad_norm = optim::clip_grad_norm_(parameters_, clip);
    result.clip_coefficient = optim::clip_coefficient(*result.grad_norm, clip);
  }
  optimizer_.step();
  open_ = false;
  return result;
}

}  // namespace limpid::train
