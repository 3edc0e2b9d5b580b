#include <limpid/tensor/creation.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include <limpid/tensor/raw.h>

namespace limpid {
namespace {

Tensor finish(Tensor t, const TensorOptions& options) {
  if (options.requires_grad) t.requires_grad_();
  return t;
}

TensorOptions without_grad(TensorOptions options) {
  options.requires_grad = false;
  return options;
}

// Blocks of four numbers that `numel` elements take from a generator.
std::uint64_t blocks_for(std::int64_t numel) { return (static_cast<std::uint64_t>(numel) + 3) / 4; }

void check_floating(const char* op, DType dtype) {
  LIMPID_CHECK(is_floating(dtype), DTypeError, "[", op, "] expects a floating dtype, got ", dtype);
}

}  // namespace

const Kernels& kernels_for(Device device) {
  LIMPID_CHECK(device.type == DeviceType::cpu, DeviceError, "[kernels] device ", device, " is not in this build; it has cpu");
  return cpu_kernels();
}

Tensor full(const Shape& shape, const Scalar& value, const TensorOptions& options) {
  Tensor out = empty(shape, without_grad(options));
  raw::fill(out, value);
  return finish(out, options);
}
Tensor zeros(const Shape& shape, const TensorOptions& options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, const TensorOptions& options) { return full(shape, 1, options); }
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options) { return full(Shape(), value, options); }

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, const TensorOptions& options) {
  LIMPID_CHECK(static_cast<std::int64_t>(values.size()) == shape.numel(), ShapeError, "[from_vector] shape ", shape,
               " holds ", shape.numel(), " elements, the vector has ", values.size());
  constexpr DType kSource = std::is_same_v<T, bool> ? DType::boolean : dtype_of<T>;
  Tensor out = empty(shape, {.dtype = kSource, .device = {}, .role = options.role});
  T* data = static_cast<T*>(out.raw_mutable_data());
  std::copy(values.begin(), values.end(), data);
  out = raw::to_device(out, options.device);
  if (options.dtype != kSource) {
    Tensor cast = empty(shape, without_grad(options));
    raw::copy(cast, out);
    out = cast;
  }
  return finish(out, options);
}
template Tensor from_vector(const std::vector<double>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<float>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<std::int64_t>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<std::int32_t>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<std::uint8_t>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<bool>&, const Shape&, const TensorOptions&);

Tensor arange(double start, double end, double step, const TensorOptions& options) {
  LIMPID_CHECK(step != 0 && std::isfinite(start) && std::isfinite(end) && std::isfinite(step), ArgumentError,
               "[arange] expects finite bounds and a step other than 0, got start ", start, ", end ", end, ", step ", step);
  double count = std::ceil((end - start) / step);
  LIMPID_CHECK(count < 9e15, ArgumentError, "[arange] would have ", count, " elements");
  std::vector<double> values(count > 0 ? static_cast<std::size_t>(count) : 0);
  for (std::size_t i = 0; i < values.size(); i++) values[i] = start + static_cast<double>(i) * step;
  return from_vector(values, {static_cast<std::int64_t>(values.size())}, options);
}

Tensor arange(std::int64_t count, const TensorOptions& options) {
  LIMPID_CHECK(count >= 0, ArgumentError, "[arange] count must not be negative, got ", count);
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  return from_vector(values, {count}, options);
}

Tensor rand(const Shape& shape, const TensorOptions& options, Generator& generator) {
  check_floating("rand", options.dtype);
  Tensor out = empty(shape, without_grad(options));
  kernels_for(options.device).uniform(out, generator.seed(), generator.advance(blocks_for(out.numel())));
  return finish(out, options);
}

Tensor randn(const Shape& shape, const TensorOptions& options, Generator& generator) {
  check_floating("randn", options.dtype);
  Tensor out = empty(shape, without_grad(options));
  kernels_for(options.device).normal(out, generator.seed(), generator.advance(blocks_for(out.numel())));
  return finish(out, options);
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options, Generator& generator) {
  LIMPID_CHECK(low < high, ArgumentError, "[randint] expects low < high, got ", low, " and ", high);
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.numel()));
  for (std::int64_t& v : values) v = low + generator.below(high - low);
  return from_vector(values, shape, options);
}

Tensor randperm(std::int64_t n, Generator& generator) {
  LIMPID_CHECK(n >= 0, ArgumentError, "[randperm] n must not be negative, got ", n);
  std::vector<std::int64_t> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  for (std::int64_t i = n - 1; i > 0; i--) {  // Fisher-Yates
    std::swap(values[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(generator.below(i + 1))]);
  }
  return from_vector(values, {n});
}

}  // namespace limpid
