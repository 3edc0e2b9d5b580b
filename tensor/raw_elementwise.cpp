// Elementwise operations: promotion, broadcasting, output layout.
#include <limpid/tensor/raw.h>

namespace limpid::raw {
namespace {

constexpr const char* kUnaryNames[] = {
#define V(name, saves, types) #name,
    LIMPID_UNARY_OPS(V)
#undef V
};
constexpr const char* kBinaryNames[] = {
#define V(name, types) #name,
    LIMPID_BINARY_OPS(V)
#undef V
};
constexpr const char* kCompareNames[] = {
#define V(name) #name,
    LIMPID_COMPARE_OPS(V)
#undef V
};

enum class Types : std::uint8_t { F, A };  // floating only, any number
constexpr Types kUnaryTypes[] = {
#define V(name, saves, types) Types::types,
    LIMPID_UNARY_OPS(V)
#undef V
};
constexpr Types kBinaryTypes[] = {
#define V(name, types) Types::types,
    LIMPID_BINARY_OPS(V)
#undef V
};

constexpr Reads N = Reads::neither, X = Reads::input, Y = Reads::output;
constexpr Reads kReads[] = {
#define V(name, saves, types) saves,
    LIMPID_UNARY_OPS(V)
#undef V
};

void check_defined(const char* op, const Tensor& t) {
  LIMPID_CHECK(t.defined(), ArgumentError, "[", op, "] got an undefined tensor");
}

void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  LIMPID_CHECK(a.device() == b.device(), DeviceError, "[", op, "] operands are on different devices: ", a, " and ", b);
}

// PyTorch's result_type of two tensors: a 0-d tensor counts only by its category.
DType result_dtype(const Tensor& a, const Tensor& b) {
  if (a.dtype() == b.dtype()) return a.dtype();
  if ((a.dim() == 0) == (b.dim() == 0)) return promote(a.dtype(), b.dtype());
  DType full = a.dim() == 0 ? b.dtype() : a.dtype();
  DType single = a.dim() == 0 ? a.dtype() : b.dtype();
  if (is_floating(full)) return full;
  if (full == DType::boolean || is_floating(single)) return promote(full, single);
  return full;
}

Tensor expanded(const char* op, const Tensor& x, const Shape& shape) {
  return x.shape() == shape ? x : expand(op, x, shape);
}

// An output of `shape` in the layout of the first operand that has this shape and is dense.
Tensor output_for(const Shape& shape, DType dtype, std::initializer_list<const Tensor*> operands) {
  const Tensor* first = *operands.begin();
  for (const Tensor* t : operands) {
    if (t->defined() && t->shape() == shape && t->is_dense()) return empty_like(*t, dtype);
  }
  return empty(shape, dtype, first->device());
}

}  // namespace

const char* op_name(UnaryOp op) { return kUnaryNames[static_cast<int>(op)]; }
const char* op_name(BinaryOp op) { return kBinaryNames[static_cast<int>(op)]; }
const char* op_name(CompareOp op) { return kCompareNames[static_cast<int>(op)]; }
Reads grad_reads(UnaryOp op) { return kReads[static_cast<int>(op)]; }

Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params) {
  const char* name = op_name(op);
  check_defined(name, x);
  if (kUnaryTypes[static_cast<int>(op)] == Types::F && !is_floating(x.dtype())) {
    bool rounding = op == UnaryOp::floor || op == UnaryOp::ceil || op == UnaryOp::round;
    if (rounding) return clone(x);
    return unary(op, cast(x, DType::float32), params);
  }
  LIMPID_CHECK(x.dtype() != DType::boolean, DTypeError, "[", name, "] does not take bool, got ", x);
  Tensor out = empty_like(x);
  kernels_for(x.device()).unary(op, out, x, params);
  return out;
}

Tensor unary_grad(UnaryOp op, const Tensor& x, const Tensor& y, const Tensor& grad, UnaryParams params) {
  const char* name = op_name(op);
  check_defined(name, grad);
  Reads reads = grad_reads(op);
  const Tensor& read = reads == Reads::output ? y : x;
  if (reads == Reads::neither) {
    Tensor out = empty_like(grad);
    kernels_for(grad.device()).unary_grad(op, out, Tensor(), Tensor(), grad, params);
    return out;
  }
  check_defined(name, read);
  LIMPID_CHECK(read.shape() == grad.shape(), ShapeError, "[", name, "] gradient has shape ", grad.shape(),
               ", expected ", read.shape());
  LIMPID_CHECK(read.dtype() == grad.dtype() && is_floating(grad.dtype()), DTypeError, "[", name, "] gradient is ", grad,
               ", expected the dtype of ", read);
  check_same_device(name, read, grad);
  Tensor out = output_for(grad.shape(), grad.dtype(), {&read, &grad});
  kernels_for(grad.device())
      .unary_grad(op, out, reads == Reads::input ? x : Tensor(), reads == Reads::output ? y : Tensor(), grad, params);
  return out;
}

Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  const char* name = op_name(op);
  check_defined(name, a);
  check_defined(name, b);
  check_same_device(name, a, b);
  DType dtype = result_dtype(a, b);
  if (kBinaryTypes[static_cast<int>(op)] == Types::F && !is_floating(dtype)) dtype = DType::float32;
  LIMPID_CHECK(dtype != DType::boolean || op != BinaryOp::sub, DTypeError, "[sub] does not take bool, got ", a, " and ",
               b);
  const Kernels& kernels = kernels_for(a.device());
  if (a.shape() == b.shape() && a.dtype() == dtype && b.dtype() == dtype) {
    Tensor out = output_for(a.shape(), dtype, {&a, &b});
    kernels.binary(op, out, a, b);
    return out;
  }
  Shape shape = broadcast_shapes(name, a.shape(), b.shape());
  Tensor out = output_for(shape, dtype, {&a, &b});
  kernels.binary(op, out, expanded(name, cast(a, dtype), shape), expanded(name, cast(b, dtype), shape));
  return out;
}

Tensor binary_grad(BinaryOp op, bool of_b, const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& grad) {
  const char* name = op_name(op);
  check_defined(name, grad);
  LIMPID_CHECK(is_floating(grad.dtype()), DTypeError, "[", name, "] gradient must be floating, got ", grad);
  auto prepared = [&](const Tensor& t) {
    return t.defined() ? expanded(name, cast(t, grad.dtype()), grad.shape()) : t;
  };
  Tensor out = empty_like(grad);
  kernels_for(grad.device()).binary_grad(op, of_b, out, prepared(a), prepared(b), prepared(y), grad);
  return out;
}

Tensor compare(CompareOp op, const Tensor& a, const Tensor& b) {
  const char* name = op_name(op);
  check_defined(name, a);
  check_defined(name, b);
  check_same_device(name, a, b);
  bool logical = op == CompareOp::logical_and || op == CompareOp::logical_or;
  DType dtype = logical ? promote(a.dtype(), b.dtype()) : result_dtype(a, b);
  Shape shape = broadcast_shapes(name, a.shape(), b.shape());
  Tensor out = output_for(shape, DType::boolean, {&a, &b});
  kernels_for(a.device())
      .compare(op, out, expanded(name, cast(a, dtype), shape), expanded(name, cast(b, dtype), shape));
  return out;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  for (const Tensor* t : {&condition, &a, &b}) check_defined("where", *t);
  LIMPID_CHECK(condition.dtype() == DType::boolean, DTypeError, "[where] condition must be bool, got ", condition);
  check_same_device("where", condition, a);
  check_same_device("where", a, b);
  DType dtype = result_dtype(a, b);
  Shape shape = broadcast_shapes("where", broadcast_shapes("where", condition.shape(), a.shape()), b.shape());
  Tensor out = output_for(shape, dtype, {&a, &b, &condition});
  kernels_for(a.device())
      .where(out, expanded("where", condition, shape), expanded("where", cast(a, dtype), shape),
             expanded("where", cast(b, dtype), shape));
  return out;
}

Tensor is_finite(const Tensor& x) {
  check_defined("is_finite", x);
  Tensor out = empty_like(x, DType::boolean);
  kernels_for(x.device()).is_finite(out, x);
  return out;
}

void add_scaled(Tensor& out, const Tensor& x, double alpha) {
  check_defined("add_scaled", out);
  check_defined("add_scaled", x);
  check_same_device("add_scaled", out, x);
  LIMPID_CHECK(out.shape() == x.shape(), ShapeError, "[add_scaled] shapes differ: ", out, " and ", x);
  LIMPID_CHECK(out.dtype() != DType::boolean, DTypeError, "[add_scaled] does not take bool, got ", out);
  kernels_for(out.device()).add_scaled(out, is_overwritten_by(x, out) ? clone(x) : cast(x, out.dtype()), alpha);
}

bool all_finite(const Tensor& x) {
  check_defined("all_finite", x);
  return kernels_for(x.device()).all_finite(x);
}

}  // namespace limpid::raw
