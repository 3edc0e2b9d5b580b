// Start values, written in place into a tensor of floating dtype. Names and formulas are PyTorch's torch.nn.init.
// The numbers come from a Generator only: the same seed gives the same values on every machine and thread count.
#pragma once

#include <limpid/tensor/creation.h>

namespace limpid::nn::init {

// Fan of a weight [out, in, ...]: in * receptive field, out * receptive field. ShapeError below rank 2.
struct Fans {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
Fans fans(const Tensor& weight);
enum class FanMode : std::uint8_t { fan_in, fan_out };
// The gains of PyTorch's calculate_gain.
enum class Nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };
double gain(Nonlinearity nonlinearity, double negative_slope = 0.01);

struct KaimingOptions {
  double a = 0;  // negative slope of leaky_relu
  FanMode mode = FanMode::fan_in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};

void constant(Tensor tensor, double value);
void uniform(Tensor tensor, double low = 0, double high = 1, Generator& generator = default_generator());
void normal(Tensor tensor, double mean = 0, double std = 1, Generator& generator = default_generator());
// U(-b, b), b = gain sqrt(3 / fan).
void kaiming_uniform(Tensor tensor, const KaimingOptions& options = {}, Generator& generator = default_generator());
// N(0, gain^2 / fan).
void kaiming_normal(Tensor tensor, const KaimingOptions& options = {}, Generator& generator = default_generator());
// U(-b, b), b = gain sqrt(6 / (fan_in + fan_out)).
void xavier_uniform(Tensor tensor, double gain = 1, Generator& generator = default_generator());
// N(0, gain^2 2 / (fan_in + fan_out)).
void xavier_normal(Tensor tensor, double gain = 1, Generator& generator = default_generator());
// Rows (or columns, whichever are fewer) of the tensor flattened to [dim 0, rest] are orthonormal, times gain.
void orthogonal(Tensor tensor, double gain = 1, Generator& generator = default_generator());

}  // namespace limpid::nn::init
