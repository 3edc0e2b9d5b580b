#include <limpid/tensor/creation.h>

#include <cmath>
#include <cstring>

#include <limpid/tensor/backend.h>
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

// Where elements are written before they go to `device`: the CPU, or a dry device itself, where nothing is written.
Device host_of(Device device) { return device.is_dry() ? device : kCpu; }

// A tensor of T whose i-th element is value(i), cast and moved as `options` ask.
template <class T, class Value>
Tensor generated(Tensor out, const TensorOptions& options, Value value) {
  if (!out.device().is_dry()) {
    T* data = out.mutable_data<T>();
    for (std::int64_t i = 0; i < out.numel(); i++) data[i] = value(i);
  }
  out = raw::to_device(out, options.device);
  if (out.dtype() != options.dtype) {
    Tensor cast = empty(out.shape(), without_grad(options));
    raw::copy(cast, out);
    out = cast;
  }
  return finish(out, options);
}
template <class T, class Value>
Tensor generated(std::int64_t count, const TensorOptions& options, Value value) {
  return generated<T>(empty({count}, {.dtype = dtype_of<T>, .device = host_of(options.device), .role = options.role}), options, value);
}

void check_floating(const char* op, DType dtype) {
  LIMPID_CHECK(is_floating(dtype), DTypeError, "[", op, "] expects a floating dtype, got ", dtype);
}

}  // namespace

const Kernels& kernels_for(Device device) {
  if (device.is_dry()) return device == kDryCuda ? dry_cuda_kernels() : dry_kernels();
  if (device.type == DeviceType::cpu) return cpu_kernels();
  const Kernels* kernels = backend_of(device).kernels();
  LIMPID_CHECK(kernels, DeviceError, "[kernels] this build cannot compute on ", device, ": it has kernels for cpu only");
  return *kernels;
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
  Tensor out = empty(shape, {.dtype = kSource, .device = host_of(options.device), .role = options.role});
  return generated<T>(out, options, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
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
  return generated<double>(count > 0 ? static_cast<std::int64_t>(count) : 0, options,
                           [&](std::int64_t i) { return start + static_cast<double>(i) * step; });
}

Tensor arange(std::int64_t count, const TensorOptions& options) {
  LIMPID_CHECK(count >= 0, ArgumentError, "[arange] count must not be negative, got ", count);
  return generated<std::int64_t>(count, options, [](std::int64_t i) { return i; });
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
  std::int64_t range = 0;
  LIMPID_CHECK(low < high && !__builtin_sub_overflow(high, low, &range), ArgumentError,
               "[randint] expects low < high, less than 2^63 apart, got ", low, " and ", high);
  LIMPID_CHECK(is_floating(options.dtype) || (Scalar(low).fits(options.dtype) && Scalar(high - 1).fits(options.dtype)),
               ArgumentError, "[randint] integers in [", low, ", ", high, ") are not all values of ", options.dtype);
  return generated<std::int64_t>(empty(shape, {.dtype = DType::int64, .device = host_of(options.device), .role = options.role}), options,
                                 [&](std::int64_t) { return low + generator.below(range); });
}

Tensor randperm(std::int64_t n, Generator& generator) {
  LIMPID_CHECK(n >= 0, ArgumentError, "[randperm] n must not be negative, got ", n);
  Tensor out = arange(n);
  if (out.device().is_dry()) return out;
  auto* values = out.mutable_data<std::int64_t>();
  for (std::int64_t i = n - 1; i > 0; i--) std::swap(values[i], values[generator.below(i + 1)]);  // Fisher-Yates
  return out;
}

}  // namespace limpid
