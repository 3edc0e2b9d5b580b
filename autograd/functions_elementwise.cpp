// Elementwise functions. The mathematics and the gradients stand in tensor/functors.h, one row an op.
#include <limpid/autograd/record.h>

namespace limpid {
namespace {

NameId op_id(UnaryOp op) {
  static const std::vector<NameId>* ids = new std::vector<NameId>{
#define V(name, saves, types) intern(#name),
      LIMPID_UNARY_OPS(V)
#undef V
  };
  return (*ids)[static_cast<std::size_t>(op)];
}
NameId op_id(BinaryOp op) {
  static const std::vector<NameId>* ids = new std::vector<NameId>{
#define V(name, types) intern(#name),
      LIMPID_BINARY_OPS(V)
#undef V
  };
  return (*ids)[static_cast<std::size_t>(op)];
}

class UnaryNode final : public Node {
 public:
  UnaryNode(UnaryOp op, UnaryParams params) : Node(op_id(op)), op_(op), params_(params) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    input_grads[0] = raw::unary_grad(op_, x.unpack(*this), y.unpack(*this), grads[0], params_);
  }
  void visit_saved(const SavedVisitor& visit) const override {
    visit("x", x);
    visit("y", y);
  }
  void release_saved() override { x.reset(), y.reset(); }
  SavedTensor x, y;

 private:
  UnaryOp op_;
  UnaryParams params_;
};

Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params = {}) {
  OpScope scope(op_id(op));
  Tensor y = raw::unary(op, x, params);
  if (any_requires_grad({&x})) {
    auto node = make_ref<UnaryNode>(op, params);
    node->add_input(x);
    node->add_output(y);
    raw::Reads reads = raw::grad_reads(op);
    if (reads == raw::Reads::input) node->x = SavedTensor(x);
    if (reads == raw::Reads::output) node->y = SavedTensor(y);
  }
  return checked(std::move(y), x);
}

class BinaryNode final : public Node {
 public:
  BinaryNode(BinaryOp op, const Shape& a_shape, const Shape& b_shape, DType a_dtype, DType b_dtype)
      : Node(op_id(op)), op_(op), a_shape_(a_shape), b_shape_(b_shape), a_dtype_(a_dtype), b_dtype_(b_dtype) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& g = grads[0];
    bool plain = op_ == BinaryOp::add || op_ == BinaryOp::sub;  // reads nothing: the gradient itself, or its negative
    for (int i = 0; i < 2; i++) {
      if (!needs_input_grad(i)) continue;
      Tensor grad;
      if (plain) {
        grad = i == 1 && op_ == BinaryOp::sub ? raw::unary(UnaryOp::neg, g) : g;
      } else {
        grad = raw::binary_grad(op_, i == 1, a.unpack(*this), b.unpack(*this), y.unpack(*this), g);
      }
      grad = raw::sum_to(grad, i == 0 ? a_shape_ : b_shape_);
      input_grads[static_cast<std::size_t>(i)] = raw::cast(grad, i == 0 ? a_dtype_ : b_dtype_);
    }
  }
  void visit_saved(const SavedVisitor& visit) const override {
    visit("a", a);
    visit("b", b);
    visit("y", y);
  }
  void release_saved() override { a.reset(), b.reset(), y.reset(); }
  SavedTensor a, b, y;

 private:
  BinaryOp op_;
  Shape a_shape_, b_shape_;
  DType a_dtype_, b_dtype_;
};

Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  OpScope scope(op_id(op));
  Tensor y = raw::binary(op, a, b);
  if (any_requires_grad({&a, &b})) {
    auto node = make_ref<BinaryNode>(op, a.shape(), b.shape(), a.dtype(), b.dtype());
    node->add_input(a);
    node->add_input(b);
    node->add_output(y);
    bool ga = node->needs_input_grad(0), gb = node->needs_input_grad(1);
    switch (op) {
      case BinaryOp::add:
      case BinaryOp::sub: break;
      case BinaryOp::mul:  // grad_a = g b, grad_b = g a
        if (gb) node->a = SavedTensor(a);
        if (ga) node->b = SavedTensor(b);
        break;
      case BinaryOp::div:  // grad_a = g / b, grad_b = -g a / b^2
        if (gb) node->a = SavedTensor(a);
        node->b = SavedTensor(b);
        break;
      case BinaryOp::pow:
        node->a = SavedTensor(a);
        node->b = SavedTensor(b);
        if (gb) node->y = SavedTensor(y);
        break;
      case BinaryOp::maximum:
      case BinaryOp::minimum:
        node->a = SavedTensor(a);
        node->b = SavedTensor(b);
        break;
    }
  }
  return checked(std::move(y), a, b);
}

// The tensor as `tensor op scalar` sees it: an int tensor with a float scalar becomes float32.
Tensor widened(const Tensor& x, const Scalar& scalar) { return cast(x, promote(x.dtype(), scalar)); }

Tensor with_scalar(UnaryOp op, const Tensor& x, const Scalar& s, double p0) { return unary(op, widened(x, s), {p0, 0}); }

Tensor floating(const Tensor& x) { return is_floating(x.dtype()) ? x : cast(x, DType::float32); }

Tensor compare(CompareOp op, const Tensor& a, const Tensor& b) { return raw::compare(op, a, b); }
Tensor compare(CompareOp op, const Tensor& a, const Scalar& b) {
  DType dtype = promote(a.dtype(), b);
  return raw::compare(op, raw::cast(a, dtype), full(Shape(), b, {.dtype = dtype, .device = a.device()}));
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary(BinaryOp::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary(BinaryOp::sub, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary(BinaryOp::mul, a, b); }
Tensor div(const Tensor& a, const Tensor& b) {
  bool integers = !is_floating(a.dtype()) && !is_floating(b.dtype());
  return integers ? binary(BinaryOp::div, floating(a), floating(b)) : binary(BinaryOp::div, a, b);
}
Tensor pow(const Tensor& a, const Tensor& b) {
  LIMPID_AUTOCAST(pow, a, b);
  bool integers = !is_floating(a.dtype()) && !is_floating(b.dtype());
  return integers ? binary(BinaryOp::pow, floating(a), floating(b)) : binary(BinaryOp::pow, a, b);
}
Tensor maximum(const Tensor& a, const Tensor& b) { return binary(BinaryOp::maximum, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary(BinaryOp::minimum, a, b); }

Tensor add(const Tensor& a, const Scalar& b) { return with_scalar(UnaryOp::add_scalar, a, b, b.floating); }
Tensor sub(const Tensor& a, const Scalar& b) { return with_scalar(UnaryOp::add_scalar, a, b, -b.floating); }
Tensor rsub(const Scalar& a, const Tensor& b) { return with_scalar(UnaryOp::rsub_scalar, b, a, a.floating); }
Tensor mul(const Tensor& a, const Scalar& b) { return with_scalar(UnaryOp::mul_scalar, a, b, b.floating); }
Tensor div(const Tensor& a, const Scalar& b) {
  // x / s and not x * (1/s): the quotient is rounded once, as in PyTorch.
  Tensor x = floating(widened(a, b));
  return binary(BinaryOp::div, x, full(Shape(), b, {.dtype = x.dtype(), .device = x.device(), .role = op_role()}));
}
Tensor rdiv(const Scalar& a, const Tensor& b) {
  LIMPID_AUTOCAST(rdiv, a, b);
  return unary(UnaryOp::rdiv_scalar, floating(widened(b, a)), {a.floating, 0});
}
Tensor pow(const Tensor& a, const Scalar& exponent) {
  LIMPID_AUTOCAST(pow, a, exponent);
  return unary(UnaryOp::pow_scalar, floating(a), {exponent.floating, 0});
}

Tensor eq(const Tensor& a, const Tensor& b) { return compare(CompareOp::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare(CompareOp::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare(CompareOp::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare(CompareOp::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare(CompareOp::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare(CompareOp::ge, a, b); }
Tensor eq(const Tensor& a, const Scalar& b) { return compare(CompareOp::eq, a, b); }
Tensor ne(const Tensor& a, const Scalar& b) { return compare(CompareOp::ne, a, b); }
Tensor lt(const Tensor& a, const Scalar& b) { return compare(CompareOp::lt, a, b); }
Tensor le(const Tensor& a, const Scalar& b) { return compare(CompareOp::le, a, b); }
Tensor gt(const Tensor& a, const Scalar& b) { return compare(CompareOp::gt, a, b); }
Tensor ge(const Tensor& a, const Scalar& b) { return compare(CompareOp::ge, a, b); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return compare(CompareOp::logical_and, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return compare(CompareOp::logical_or, a, b); }
Tensor logical_not(const Tensor& a) { return compare(CompareOp::eq, a, 0); }

namespace {
class WhereNode final : public Node {
 public:
  WhereNode(const Tensor& a, const Tensor& b)
      : Node(LIMPID_OP("where")), shapes_{a.shape(), b.shape()}, dtypes_{a.dtype(), b.dtype()} {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& g = grads[0];
    const Tensor& c = condition.unpack(*this);
    Tensor zero = raw::zeros(Shape(), g.dtype(), g.device());
    for (int i = 0; i < 2; i++) {
      if (!needs_input_grad(i)) continue;
      Tensor grad = i == 0 ? raw::where(c, g, zero) : raw::where(c, zero, g);
      input_grads[static_cast<std::size_t>(i)] = raw::cast(raw::sum_to(grad, shapes_[i]), dtypes_[i]);
    }
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("condition", condition); }
  void release_saved() override { condition.reset(); }
  SavedTensor condition;

 private:
  Shape shapes_[2];
  DType dtypes_[2];
};
}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  OpScope scope(LIMPID_OP("where"));
  Tensor y = raw::where(condition, a, b);
  if (any_requires_grad({&a, &b})) {
    auto node = make_ref<WhereNode>(a, b);
    node->add_input(a);
    node->add_input(b);
    node->add_output(y);
    node->condition = SavedTensor(condition);
  }
  return checked(std::move(y), condition, a, b);
}

Tensor neg(const Tensor& x) { return unary(UnaryOp::neg, x); }
Tensor abs(const Tensor& x) { return unary(UnaryOp::abs, x); }
Tensor sign(const Tensor& x) { return unary(UnaryOp::sign, x); }
Tensor square(const Tensor& x) {
  LIMPID_AUTOCAST(square, x);
  return unary(UnaryOp::square, x);
}
Tensor sqrt(const Tensor& x) { return unary(UnaryOp::sqrt, floating(x)); }
Tensor rsqrt(const Tensor& x) {
  LIMPID_AUTOCAST(rsqrt, x);
  return unary(UnaryOp::rsqrt, floating(x));
}
Tensor reciprocal(const Tensor& x) {
  LIMPID_AUTOCAST(reciprocal, x);
  return unary(UnaryOp::reciprocal, floating(x));
}
Tensor exp(const Tensor& x) {
  LIMPID_AUTOCAST(exp, x);
  return unary(UnaryOp::exp, floating(x));
}
Tensor expm1(const Tensor& x) {
  LIMPID_AUTOCAST(expm1, x);
  return unary(UnaryOp::expm1, floating(x));
}
Tensor log(const Tensor& x) {
  LIMPID_AUTOCAST(log, x);
  return unary(UnaryOp::log, floating(x));
}
Tensor log1p(const Tensor& x) {
  LIMPID_AUTOCAST(log1p, x);
  return unary(UnaryOp::log1p, floating(x));
}
Tensor sin(const Tensor& x) { return unary(UnaryOp::sin, floating(x)); }
Tensor cos(const Tensor& x) { return unary(UnaryOp::cos, floating(x)); }
Tensor floor(const Tensor& x) { return unary(UnaryOp::floor, x); }
Tensor ceil(const Tensor& x) { return unary(UnaryOp::ceil, x); }
Tensor round(const Tensor& x) { return unary(UnaryOp::round, x); }
Tensor clamp(const Tensor& x, double low, double high) {
  LIMPID_CHECK(low <= high, ArgumentError, "[clamp] expects low <= high, got ", low, " and ", high);
  return unary(UnaryOp::clamp, x, {low, high});
}
Tensor relu(const Tensor& x) { return unary(UnaryOp::relu, x); }
Tensor leaky_relu(const Tensor& x, double slope) { return unary(UnaryOp::leaky_relu, x, {slope, 0}); }
Tensor elu(const Tensor& x, double alpha) { return unary(UnaryOp::elu, x, {alpha, 0}); }
Tensor gelu(const Tensor& x) { return unary(UnaryOp::gelu, x); }
Tensor gelu_tanh(const Tensor& x) { return unary(UnaryOp::gelu_tanh, x); }
Tensor silu(const Tensor& x) { return unary(UnaryOp::silu, x); }
Tensor sigmoid(const Tensor& x) { return unary(UnaryOp::sigmoid, floating(x)); }
Tensor tanh(const Tensor& x) { return unary(UnaryOp::tanh, floating(x)); }
Tensor softplus(const Tensor& x) {
  LIMPID_AUTOCAST(softplus, x);
  return unary(UnaryOp::softplus, x);
}
Tensor isfinite(const Tensor& x) { return raw::is_finite(x); }
Tensor isnan(const Tensor& x) { return raw::compare(CompareOp::ne, x, x); }  // NaN differs from itself

namespace {
struct CastBack {
  DType dtype;
  Tensor operator()(const Tensor& g) const { return raw::cast(g, dtype); }
};
}  // namespace

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  OpScope scope(LIMPID_OP("cast"));
  Tensor y = raw::cast(x, dtype);
  if (!is_floating(dtype)) return y;
  return record_simple(LIMPID_OP("cast"), x, std::move(y), CastBack{x.dtype()});
}

}  // namespace limpid
