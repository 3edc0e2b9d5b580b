// Convolution and linear with what follows them.
#include <limpid/autograd/fused.h>
#include <limpid/autograd/fused_shared.h>
#include <limpid/autograd/record.h>
#include <limpid/tensor/raw_fused.h>
#include <limpid/tensor/raw_nn.h>
#include <limpid/tensor/workspace_cap.h>

namespace limpid {
namespace {

NameId name_of_tail(ConvTail tail) {
  if (tail == ConvTail::relu) return LIMPID_OP("conv2d_relu");
  return tail == ConvTail::relu_max_pool ? LIMPID_OP("conv2d_relu_max_pool2d") : LIMPID_OP("conv2d_relu_mean");
}

class Conv2dReluNode final : public Node {
 public:
  Conv2dReluNode(ConvTail tail, const Conv2dDesc& desc) : Node(name_of_tail(tail)), tail_(tail), desc_(desc) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const bool wants_bias = edges().size() > 2 && needs_input_grad(2);
    if (!needs_input_grad(0) && needs_input_grad(1)) {
      if (auto direct = raw::conv2d_tail_weight(tail_, desc_, x.unpack(*this), grads[0], bits.unpack(*this), wants_bias)) {
        input_grads[1] = std::move(direct->dw);
        if (wants_bias) input_grads[2] = std::move(direct->db);
        return;
      }
    }
    conv2d_gradients(*this, desc_, output_gradient(grads[0]), x, weight, input_grads);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("x", x), visit("weight", weight), visit("bits", bits); }
  void release_saved() override { x.reset(), weight.reset(), bits.reset(); }
  SavedTensor x, weight, bits;

 private:
  // That of the convolution's output.
  Tensor output_gradient(const Tensor& grad) const {
    if (tail_ != ConvTail::relu) return raw::conv2d_tail_backward(tail_, desc_, grad, bits.unpack(*this));
    const Tensor rows = raw::channel_rows(grad);
    return raw::from_channel_rows(raw::relu_rows_backward(rows, bits.unpack(*this), may_overwrite(grad, rows)),
                                  grad.shape());
  }
  ConvTail tail_;
  Conv2dDesc desc_;
};

class LinearReluNode final : public Node {
 public:
  LinearReluNode(const Shape& x_shape) : Node(LIMPID_OP("linear_relu")), x_shape_(x_shape) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor rows = raw::reshape(grads[0], {-1, grads[0].shape().back()});
    linear_gradients(*this, x_shape_, raw::relu_rows_backward(rows, bits.unpack(*this), may_overwrite(grads[0], rows)), x, weight, input_grads);
  }
  void visit_saved(const SavedVisitor& visit) const override { visit("x", x), visit("weight", weight), visit("bits", bits); }
  void release_saved() override { x.reset(), weight.reset(), bits.reset(); }
  SavedTensor x, weight, bits;

 private:
  Shape x_shape_;
};

}  // namespace

bool is_composed(const Tensor& x) {
  return autocast_enabled() || (x.dtype() != DType::float32 && x.dtype() != DType::float64) ||
         fused_kernels_for(x.device()) == nullptr;
}

std::string composed_because(Device device, DType dtype) {
  if (autocast_enabled()) return "autocast casts each function by a rule of its own";
  if (dtype != DType::float32 && dtype != DType::float64) return concat("fused kernels are for f32 and f64, not ", dtype);
  if (fused_kernels_for(device) == nullptr) return concat(device, " has no fused kernels");
  return "";
}

Tensor conv2d_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options,
                   ConvTail tail) {
  const auto composed = [&] {
    Tensor y = relu(conv2d(x, weight, bias, options));
    if (tail == ConvTail::relu_max_pool) return max_pool2d(y, {.kernel_size = 2});
    return tail == ConvTail::relu_mean ? adaptive_avg_pool2d(y, 1) : y;
  };
  if (is_composed(x)) return composed();
  OpScope scope(name_of_tail(tail));
  const Conv2dDesc desc = check_conv2d(x, weight, bias, options);
  if (tail == ConvTail::relu_max_pool && (desc.oh() < 2 || desc.ow() < 2)) return composed();  // the pool's own error
  const OpPlan plan = fused_kernels_for(x.device())->plan_conv2d_tail(tail, desc);
  if (workspace_cap() > 0 && plan.workspace_bytes > workspace_cap()) return composed();  // it needs less at a time
  const Tensor input = raw::packed(x);
  const bool record = any_requires_grad({&x, &weight, &bias});
  auto [y, bits] = raw::conv2d_tail(tail, desc, plan, input, weight, bias, record);
  if (record) {
    auto node = make_ref<Conv2dReluNode>(tail, desc);
    add_weighted_inputs(*node, x, input, weight, bias);
    node->add_output(y);
    node->bits = SavedTensor(bits);
  }
  return checked(std::move(y), x, weight, bias);
}

Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (is_composed(x)) return relu(linear(x, weight, bias));
  check_linear(x, weight, bias);
  OpScope scope(LIMPID_OP("linear_relu"));
  const bool record = any_requires_grad({&x, &weight, &bias});
  auto [y, bits] = raw::relu_rows(raw::linear(linear_rows(x, weight), weight, bias), record);
  if (x.dim() != 2) {
    Shape shape = x.shape();
    shape[x.dim() - 1] = weight.size(0);
    y = raw::reshape(y, shape);
  }
  if (record) {
    auto node = make_ref<LinearReluNode>(x.shape());
    add_weighted_inputs(*node, x, x, weight, bias);
    node->add_output(y);
    node->bits = SavedTensor(bits);
  }
  return checked(std::move(y), x, weight, bias);
}

}  // namespace limpid
