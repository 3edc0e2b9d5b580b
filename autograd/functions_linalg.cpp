// Products of matrices. With y = a b:  grad_a = g b^T,  grad_b = a^T g, summed over broadcast batches.
#include <limpid/autograd/fused_shared.h>
#include <limpid/autograd/record.h>

namespace limpid {
namespace {

class MatmulNode final : public Node {
 public:
  MatmulNode(const Tensor& left, const Tensor& right)
      : Node(LIMPID_OP("matmul")), a_shape_(left.shape()), b_shape_(right.shape()), a_dtype_(left.dtype()), b_dtype_(right.dtype()) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    if (needs_input_grad(0)) {
      Tensor grad = raw::matmul(grads[0], raw::transpose(b.unpack(*this), -1, -2));
      input_grads[0] = raw::cast(raw::sum_to(grad, a_shape_), a_dtype_);
    }
    if (needs_input_grad(1)) {
      Tensor grad = raw::matmul(raw::transpose(a.unpack(*this), -1, -2), grads[0]);
      input_grads[1] = raw::cast(raw::sum_to(grad, b_shape_), b_dtype_);
    }
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("a", a), visit("b", b); }
  void release_saved() override { a.reset(), b.reset(); }
  SavedTensor a, b;

 private:
  Shape a_shape_, b_shape_;
  DType a_dtype_, b_dtype_;
};

class LinearNode final : public Node {
 public:
  LinearNode(const Shape& x_shape) : Node(LIMPID_OP("linear")), x_shape_(x_shape) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& g = grads[0];
    linear_gradients(*this, x_shape_, raw::reshape(g, {-1, g.shape().back()}), x, weight, input_grads);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("x", x), visit("weight", weight); }
  void release_saved() override { x.reset(), weight.reset(); }
  SavedTensor x, weight;

 private:
  Shape x_shape_;
};

Tensor matmul_matrices(const Tensor& a, const Tensor& b) {
  OpScope scope(LIMPID_OP("matmul"));
  Tensor y = raw::matmul(a, b);
  if (any_requires_grad({&a, &b})) {
    auto node = make_ref<MatmulNode>(a, b);
    node->add_input(a);
    node->add_input(b);
    node->add_output(y);
    if (node->needs_input_grad(1)) node->a = SavedTensor(a);
    if (node->needs_input_grad(0)) node->b = SavedTensor(b);
  }
  return checked(std::move(y), a, b);
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  LIMPID_AUTOCAST(matmul, a, b);
  LIMPID_CHECK(a.dim() >= 1 && b.dim() >= 1, ShapeError, "[matmul] expects at least 1 dim, got ", a, " and ", b);
  Tensor left = a.dim() == 1 ? unsqueeze(a, 0) : a;
  Tensor right = b.dim() == 1 ? unsqueeze(b, 1) : b;
  LIMPID_CHECK(left.shape().back() == right.size(-2), ShapeError, "[matmul] inner dims differ: ", a, " and ", b);
  Tensor y = matmul_matrices(left, right);
  if (b.dim() == 1) y = squeeze(y, -1);
  if (a.dim() == 1) y = squeeze(y, b.dim() == 1 ? -1 : -2);
  return y;
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  LIMPID_AUTOCAST(bmm, a, b);
  LIMPID_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0), ShapeError,
               "[bmm] expects [B,m,k] and [B,k,n] with one B, got ", a, " and ", b);
  return matmul(a, b);
}

void linear_gradients(const Node& node, const Shape& x_shape, const Tensor& g, const SavedTensor& x,
                      const SavedTensor& weight, std::span<Tensor> input_grads) {
  if (node.needs_input_grad(0)) input_grads[0] = raw::reshape(raw::matmul(g, weight.unpack(node)), x_shape);
  if (node.needs_input_grad(1)) {
    Tensor x_rows = raw::reshape(x.unpack(node), {-1, x_shape.back()});
    input_grads[1] = raw::matmul(raw::transpose(g, 0, 1), x_rows);
  }
  if (node.edges().size() > 2 && node.needs_input_grad(2))
    input_grads[2] = raw::reduce(ReduceOp::sum, "sum", g, {0}, false);
}

void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  LIMPID_CHECK(weight.dim() == 2, ShapeError, "[linear] weight must be [out, in], got ", weight);
  LIMPID_CHECK(x.dim() >= 1 && x.shape().back() == weight.size(1), ShapeError, "[linear] weight expects ", weight.size(1),
               " input features, input has ", x.dim() ? x.shape().back() : 0, " (input ", x, ")");
  LIMPID_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), ShapeError, "[linear] bias must be [",
               weight.size(0), "], got ", bias);
  LIMPID_CHECK(x.dtype() == weight.dtype() && (!bias.defined() || bias.dtype() == x.dtype()), DTypeError,
               "[linear] dtypes differ: input ", x, ", weight ", weight, ", bias ", bias);
}

Tensor linear_rows(const Tensor& x, const Tensor& weight) {
  if (x.dim() == 2) return x;
  return raw::reshape(x, {x.numel() / std::max<std::int64_t>(weight.size(1), 1), weight.size(1)});
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  LIMPID_AUTOCAST(linear, x, weight, bias);
  check_linear(x, weight, bias);
  OpScope scope(LIMPID_OP("linear"));
  Shape out_shape = x.shape();
  out_shape[x.dim() - 1] = weight.size(0);
  Tensor y = raw::linear(linear_rows(x, weight), weight, bias);
  if (x.dim() != 2) y = raw::reshape(y, out_shape);
  if (any_requires_grad({&x, &weight, &bias})) {
    auto node = make_ref<LinearNode>(x.shape());
    add_weighted_inputs(*node, x, x, weight, bias);
    node->add_output(y);
  }
  return checked(std::move(y), x, weight, bias);
}

}  // namespace limpid
