// Reductions and their gradients.
#include <limpid/autograd/record.h>

namespace limpid {
namespace {

// The shape with the reduced dims kept as 1, which broadcasts against the input.
Shape keepdim_shape(const char* op, const Tensor& x, const std::vector<std::int64_t>& dims) {
  if (dims.empty()) return Shape::filled(x.dim(), 1);
  Shape shape = x.shape();
  for (std::int64_t d : dims) {
    if (x.dim() > 0) shape[normalize_dim(op, d, x.dim())] = 1;
  }
  return shape;
}

struct SumBack {  // every element receives scale * g
  Shape kept, shape;
  double scale;
  Tensor operator()(const Tensor& g) const {
    Tensor scaled = scale == 1.0 ? g : raw::unary(UnaryOp::mul_scalar, g, {scale, 0});
    return raw::expand("sum", raw::reshape(scaled, kept), shape);
  }
};

// Max and min: the gradient is shared evenly by the elements that attain the extreme (as PyTorch's amax).
class ExtremeNode final : public Node {
 public:
  ExtremeNode(NameId name, const std::vector<std::int64_t>& dims, const Shape& kept) : Node(name), dims_(dims), kept_(kept) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& xv = x.unpack(*this);
    Tensor extreme = raw::reshape(y.unpack(*this), kept_);
    Tensor mask = raw::cast(raw::compare(CompareOp::eq, xv, extreme), xv.dtype());
    Tensor count = raw::reduce(ReduceOp::sum, "sum", mask, dims_, true);
    Tensor share = raw::binary(BinaryOp::div, raw::reshape(grads[0], kept_), count);
    input_grads[0] = raw::binary(BinaryOp::mul, mask, share);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("x", x), visit("y", y); }
  void release_saved() override { x.reset(), y.reset(); }
  SavedTensor x, y;

 private:
  std::vector<std::int64_t> dims_;
  Shape kept_;
};

// prod: dx_i = g * product of the others. Without zeros that is g y / x_i. With one zero only that element receives
// g * product of the rest; with more, nobody does.
class ProdNode final : public Node {
 public:
  ProdNode(const std::vector<std::int64_t>& dims, const Shape& kept) : Node(LIMPID_OP("prod")), dims_(dims), kept_(kept) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& xv = x.unpack(*this);
    DType dtype = xv.dtype();
    auto number = [&](double v) { return full(Shape(), v, {.dtype = dtype, .device = xv.device(), .role = op_role()}); };
    Tensor is_zero = raw::compare(CompareOp::eq, xv, number(0));
    Tensor safe = raw::where(is_zero, number(1), xv);
    Tensor zeros = raw::reduce(ReduceOp::sum, "sum", raw::cast(is_zero, dtype), dims_, true);
    Tensor rest = raw::reduce(ReduceOp::prod, "prod", safe, dims_, true);  // product of the non-zero elements
    Tensor none = raw::binary(BinaryOp::div, rest, safe);
    Tensor one = raw::where(is_zero, rest, number(0));
    Tensor others = raw::where(raw::compare(CompareOp::eq, zeros, number(0)), none,
                               raw::where(raw::compare(CompareOp::eq, zeros, number(1)), one, number(0)));
    input_grads[0] = raw::binary(BinaryOp::mul, others, raw::reshape(grads[0], kept_));
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("x", x); }
  void release_saved() override { x.reset(); }
  SavedTensor x;

 private:
  std::vector<std::int64_t> dims_;
  Shape kept_;
};

Tensor extreme(ReduceOp op, NameId name, const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  OpScope scope(name);
  const char* text = op == ReduceOp::max ? "max" : "min";
  Tensor y = raw::reduce(op, text, x, dims, keepdim);
  if (any_requires_grad({&x})) {
    auto node = make_ref<ExtremeNode>(name, dims, keepdim_shape(text, x, dims));
    node->add_input(x);
    node->add_output(y);
    node->x = SavedTensor(x);
    node->y = SavedTensor(y);
  }
  return checked(std::move(y), x);
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  LIMPID_AUTOCAST(sum, x, dims, keepdim);
  OpScope scope(LIMPID_OP("sum"));
  Tensor y = raw::reduce(ReduceOp::sum, "sum", x, dims, keepdim);
  return record_simple(LIMPID_OP("sum"), x, std::move(y), SumBack{keepdim_shape("sum", x, dims), x.shape(), 1.0});
}

Tensor mean(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  LIMPID_CHECK(is_floating(x.dtype()), DTypeError, "[mean] expects a floating dtype, got ", x.dtype());
  OpScope scope(LIMPID_OP("mean"));
  Tensor y = raw::mean(x, dims, keepdim);
  Shape kept = keepdim_shape("mean", x, dims);
  double count = static_cast<double>(x.numel()) / static_cast<double>(std::max<std::int64_t>(kept.numel(), 1));
  return record_simple(LIMPID_OP("mean"), x, std::move(y), SumBack{kept, x.shape(), 1.0 / count});
}

// var = sum (x - mean)^2 / (n - correction), composed.
Tensor var(const Tensor& x, const std::vector<std::int64_t>& dims, std::int64_t correction, bool keepdim) {
  LIMPID_AUTOCAST(var, x, dims, correction, keepdim);
  LIMPID_CHECK(is_floating(x.dtype()), DTypeError, "[var] expects a floating dtype, got ", x.dtype());
  LIMPID_CHECK(correction >= 0, ArgumentError, "[var] correction must not be negative, got ", correction);
  Shape kept = keepdim_shape("var", x, dims);
  std::int64_t count = x.numel() / std::max<std::int64_t>(kept.numel(), 1);
  Tensor centred = sub(x, mean(x, dims, true));
  double divisor = static_cast<double>(std::max<std::int64_t>(count - correction, 0));
  return div(sum(square(centred), dims, keepdim), divisor);
}

Tensor prod(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  LIMPID_AUTOCAST(prod, x, dims, keepdim);
  OpScope scope(LIMPID_OP("prod"));
  Tensor y = raw::reduce(ReduceOp::prod, "prod", x, dims, keepdim);
  if (any_requires_grad({&x})) {
    auto node = make_ref<ProdNode>(dims, keepdim_shape("prod", x, dims));
    node->add_input(x);
    node->add_output(y);
    node->x = SavedTensor(x);
  }
  return checked(std::move(y), x);
}

Tensor max(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  return extreme(ReduceOp::max, LIMPID_OP("max"), x, dims, keepdim);
}
Tensor min(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  return extreme(ReduceOp::min, LIMPID_OP("min"), x, dims, keepdim);
}
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) { return raw::arg_reduce(true, x, dim, keepdim); }
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) { return raw::arg_reduce(false, x, dim, keepdim); }
Tensor any(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  return raw::reduce(ReduceOp::any, "any", x, dims, keepdim);
}
Tensor all(const Tensor& x, const std::vector<std::int64_t>& dims, bool keepdim) {
  return raw::reduce(ReduceOp::all, "all", x, dims, keepdim);
}

}  // namespace limpid
