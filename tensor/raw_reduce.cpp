// Reductions: dims, result dtypes, empty inputs.
#include <limpid/tensor/raw.h>

namespace limpid::raw {
namespace {

std::uint32_t mask_of(const char* op, const Tensor& x, const std::vector<std::int64_t>& dims) {
  if (dims.empty()) return (1u << x.dim()) - 1u;
  std::uint32_t mask = 0;
  for (std::int64_t dim : dims) {
    int d = normalize_dim(op, dim, x.dim());
    if (x.dim() == 0) continue;
    LIMPID_CHECK(!(mask >> d & 1u), ArgumentError, "[", op, "] dim ", d, " is given twice");
    mask |= 1u << d;
  }
  return mask;
}

Shape kept_shape(const Tensor& x, std::uint32_t mask) {
  Shape shape = x.shape();
  for (int d = 0; d < shape.size(); d++) {
    if (mask >> d & 1u) shape[d] = 1;
  }
  return shape;
}

// The keepdim form without its reduced dims: a view of the contiguous result.
Tensor without_dims(const Tensor& kept, std::uint32_t mask) {
  Shape shape;
  for (int d = 0; d < kept.dim(); d++) {
    if (!(mask >> d & 1u)) shape.push_back(kept.shape()[d]);
  }
  return as_strided(kept, shape, strides_for(shape), kept.impl()->offset);
}

DType dtype_of_result(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::any:
    case ReduceOp::all: return DType::boolean;
    case ReduceOp::max:
    case ReduceOp::min: return dtype;
    default: return is_floating(dtype) ? dtype : DType::int64;
  }
}

Tensor reduce_into(ReduceOp op, const Tensor& x, std::uint32_t mask, DType dtype, bool keepdim) {
  Tensor out = empty(kept_shape(x, mask), dtype, x.device());
  kernels_for(x.device()).reduce(op, out, x, mask);
  return keepdim ? out : without_dims(out, mask);
}

}  // namespace

Tensor reduce(ReduceOp op, const char* name, const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  LIMPID_CHECK(x.defined(), ArgumentError, "[", name, "] got an undefined tensor");
  std::uint32_t mask = mask_of(name, x, dims);
  if (op == ReduceOp::max || op == ReduceOp::min) {
    LIMPID_CHECK(x.numel() > 0 || kept_shape(x, mask).numel() == 0, ShapeError, "[", name,
                 "] has no value for an empty tensor, got ", x);
  }
  return reduce_into(op, x, mask, dtype_of_result(op, x.dtype()), keepdim);
}

Tensor mean(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  LIMPID_CHECK(x.defined(), ArgumentError, "[mean] got an undefined tensor");
  LIMPID_CHECK(is_floating(x.dtype()), DTypeError, "[mean] expects a floating dtype, got ", x);
  std::uint32_t mask = mask_of("mean", x, dims);
  std::int64_t count = 1;
  for (int d = 0; d < x.dim(); d++) {
    if (mask >> d & 1u) count *= x.shape()[d];
  }
  // The sum stays in f64, so that one rounding is left and f16 cannot overflow before the division.
  Tensor sum = reduce_into(ReduceOp::sum, x, mask, DType::float64, keepdim);
  return cast(unary(UnaryOp::mul_scalar, sum, {1.0 / static_cast<double>(count), 0}), x.dtype());
}

Tensor arg_reduce(bool maximum, const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  const char* name = maximum ? "argmax" : "argmin";
  LIMPID_CHECK(x.defined(), ArgumentError, "[", name, "] got an undefined tensor");
  const Kernels& kernels = kernels_for(x.device());
  if (!dim) {
    LIMPID_CHECK(x.numel() > 0, ShapeError, "[", name, "] has no value for an empty tensor, got ", x);
    Tensor flat = reshape(x, {x.numel()});
    Tensor out = empty({1}, DType::int64, x.device());
    kernels.arg_reduce(maximum, out, flat, 0);
    Shape shape = keepdim ? Shape::filled(x.dim(), 1) : Shape();
    return as_strided(out, shape, strides_for(shape), out.impl()->offset);
  }
  int d = normalize_dim(name, *dim, x.dim());
  std::uint32_t mask = x.dim() == 0 ? 0u : 1u << d;
  Shape kept = kept_shape(x, mask);
  LIMPID_CHECK(x.numel() > 0 || kept.numel() == 0, ShapeError, "[", name, "] has no value for an empty dim, got ", x);
  Tensor out = empty(kept, DType::int64, x.device());
  kernels.arg_reduce(maximum, out, x, d);
  return keepdim ? out : without_dims(out, mask);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  int extra = x.dim() - shape.size();
  LIMPID_CHECK(extra >= 0, ShapeError, "[sum_to] cannot sum ", x.shape(), " to ", shape);
  std::uint32_t mask = 0;
  for (int d = 0; d < x.dim(); d++) {
    std::int64_t wanted = d < extra ? 1 : shape[d - extra];
    LIMPID_CHECK(wanted == x.shape()[d] || wanted == 1, ShapeError, "[sum_to] cannot sum ", x.shape(), " to ", shape);
    if (d < extra || (wanted == 1 && x.shape()[d] != 1)) mask |= 1u << d;
  }
  Tensor out = reduce_into(ReduceOp::sum, x, mask, dtype_of_result(ReduceOp::sum, x.dtype()), true);
  return as_strided(out, shape, strides_for(shape), out.impl()->offset);
}

}  // namespace limpid::raw
