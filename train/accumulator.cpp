#include <limpid/train/accumulator.h>

#include <cmath>

#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/optim/clip_grad.h>
#include <limpid/tensor/creation.h>

namespace limpid::train {
namespace {

void check_count(double count) {
  LIMPID_CHECK(count >= 0 && std::isfinite(count), ArgumentError,
               "[accumulator] a micro-batch counts a finite number >= 0, got ", count);
}

}  // namespace

Accumulator::Accumulator(optim::Optimizer& optimizer, optim::GradScaler* scaler)
    : optimizer_(optimizer), scaler_(scaler), parameters_(optimizer.parameters()) {
  if (scaler_) scaler_->prepare(parameters_[0].device());
}

void Accumulator::begin(double expected) {
  LIMPID_CHECK(expected >= 0 && std::isfinite(expected), ArgumentError,
               "[accumulator] the expected count is a finite number >= 0, got ", expected);
  optimizer_.zero_grad();
  if (scaler_) scaler_->abandon();
  expected_ = expected;
  count_ = 0;
  micro_batches_ = 0;
  open_ = true;
}

void Accumulator::backward(const Tensor& loss, double seed, double count) {
  LIMPID_CHECK(loss.defined() && loss.numel() == 1, ShapeError, "[accumulator] a loss has one element, got ", loss);
  {
    PhaseScope phase(Phase::backward);
    Tensor gradient =
        full(loss.shape(), seed, {.dtype = loss.dtype(), .device = loss.device(), .role = memory::Role::temp});
    if (scaler_) gradient = scaler_->scale(gradient);
    loss.backward(gradient);
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
  AccumulatedStep result;
  result.count = count_;
  result.micro_batches = micro_batches_;
  PhaseScope phase(Phase::optimizer);
  if (scaler_) {
    result.scale = scaler_->get_scale();
    scaler_->unscale_(optimizer_);
  }
  const double correction = expected_ > 0 ? expected_ / count_ : 1 / count_;
  if (correction != 1) optim::scale_grad_(parameters_, correction);
  if (clip > 0) {
    result.grad_norm = optim::clip_grad_norm_(parameters_, clip);
    result.clip_coefficient = optim::clip_coefficient(*result.grad_norm, clip);
  }
  if (scaler_) {
    result.ticket = scaler_->step(optimizer_);
    scaler_->update();
  } else {
    optimizer_.step();
  }
  open_ = false;
  return result;
}

}  // namespace limpid::train
