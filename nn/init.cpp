#include <limpid/nn/init.h>

#include <Eigen/QR>
#include <cmath>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>

namespace limpid::nn::init {
namespace {

void check(const char* op, const Tensor& tensor) {
  LIMPID_CHECK(tensor.defined() && is_floating(tensor.dtype()), DTypeError, "[", op,
               "] expects a floating tensor, got ", tensor);
}

// The type in which numbers are drawn: halves are rounded from single precision.
DType draw_type(const Tensor& tensor) { return tensor.dtype() == float64 ? float64 : float32; }

double fan(const Tensor& weight, FanMode mode) {
  Fans both = fans(weight);
  return static_cast<double>(mode == FanMode::fan_in ? both.in : both.out);
}

double kaiming_std(const Tensor& weight, const KaimingOptions& options) {
  return gain(options.nonlinearity, options.a) / std::sqrt(fan(weight, options.mode));
}

double xavier_std(const Tensor& weight, double gain_value) {
  Fans both = fans(weight);
  return gain_value * std::sqrt(2.0 / static_cast<double>(both.in + both.out));
}

}  // namespace

Fans fans(const Tensor& weight) {
  LIMPID_CHECK(weight.defined() && weight.dim() >= 2, ShapeError,
               "[init] fan in and fan out need at least 2 dims, got ", weight);
  std::int64_t field = 1;
  for (int i = 2; i < weight.dim(); i++) field *= weight.size(i);
  return {.in = weight.size(1) * field, .out = weight.size(0) * field};
}

double gain(Nonlinearity nonlinearity, double negative_slope) {
  switch (nonlinearity) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid:
      return 1;
    case Nonlinearity::tanh:
      return 5.0 / 3;
    case Nonlinearity::relu:
      return std::sqrt(2.0);
    case Nonlinearity::leaky_relu:
      return std::sqrt(2.0 / (1 + negative_slope * negative_slope));
    case Nonlinearity::selu:
      return 0.75;
  }
  LIMPID_THROW(ArgumentError, "[gain] unknown nonlinearity ", static_cast<int>(nonlinearity));
}

void constant(Tensor tensor, double value) {
  LIMPID_CHECK(tensor.defined(), DTypeError, "[constant] expects a tensor, got an undefined one");
  NoGradGuard guard;
  tensor.fill_(value);
}

void uniform(Tensor tensor, double low, double high, Generator& generator) {
  check("uniform", tensor);
  LIMPID_CHECK(low <= high, ArgumentError, "[uniform] expects low <= high, got ", low, " and ", high);
  NoGradGuard guard;
  Tensor values = rand(tensor.shape(), {.dtype = draw_type(tensor), .device = tensor.device()}, generator);
  tensor.copy_(add(mul(values, high - low), low));
}

void normal(Tensor tensor, double mean, double std, Generator& generator) {
  check("normal", tensor);
  LIMPID_CHECK(std >= 0, ArgumentError, "[normal] std must not be negative, got ", std);
  NoGradGuard guard;
  Tensor values = randn(tensor.shape(), {.dtype = draw_type(tensor), .device = tensor.device()}, generator);
  tensor.copy_(add(mul(values, std), mean));
}

void kaiming_uniform(Tensor tensor, const KaimingOptions& options, Generator& generator) {
  double bound = std::sqrt(3.0) * kaiming_std(tensor, options);
  uniform(tensor, -bound, bound, generator);
}

void kaiming_normal(Tensor tensor, const KaimingOptions& options, Generator& generator) {
  normal(tensor, 0, kaiming_std(tensor, options), generator);
}

void xavier_uniform(Tensor tensor, double gain_value, Generator& generator) {
  double bound = std::sqrt(3.0) * xavier_std(tensor, gain_value);
  uniform(tensor, -bound, bound, generator);
}

void xavier_normal(Tensor tensor, double gain_value, Generator& generator) {
  normal(tensor, 0, xavier_std(tensor, gain_value), generator);
}

void orthogonal(Tensor tensor, double gain_value, Generator& generator) {
  check("orthogonal", tensor);
  LIMPID_CHECK(tensor.dim() >= 2, ShapeError, "[orthogonal] needs at least 2 dims, got ", tensor);
  if (tensor.numel() == 0) return;
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Index rows = tensor.size(0), cols = tensor.numel() / rows;
  Eigen::Index large = std::max(rows, cols), small = std::min(rows, cols);
  Matrix gaussian(large, small);
  for (Eigen::Index i = 0; i < gaussian.size(); i++) gaussian.data()[i] = generator.normal();
  Eigen::HouseholderQR<Matrix> qr(gaussian);
  Matrix q = qr.householderQ() * Matrix::Identity(large, small);
  // Signs from R's diagonal make the distribution uniform (Mezzadri 2007).
  for (Eigen::Index j = 0; j < small; j++)
    if (qr.matrixQR()(j, j) < 0) q.col(j) *= -1;
  if (rows < cols) q = Matrix(q.transpose());
  q *= gain_value;
  NoGradGuard guard;
  Tensor values = from_vector(std::vector<double>(q.data(), q.data() + q.size()), tensor.shape(), {.dtype = float64});
  tensor.copy_(values);
}

}  // namespace limpid::nn::init
