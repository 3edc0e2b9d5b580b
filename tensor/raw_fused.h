// Raw fused operations: outputs, bits and workspaces allocated, kernels called (tensor/fused_kernels.h). The device must
// have the kernels, and the dtype be f32 or f64: autograd/fused.cpp asks first.
#pragma once

#include <optional>

#include <limpid/tensor/fused_kernels.h>
#include <limpid/tensor/raw.h>

namespace limpid::raw {

struct WithBits {
  Tensor y, bits;  // bits undefined when they were not asked for
};
// x channels_last; plan: that of the kernels' plan_conv2d_tail.
WithBits conv2d_tail(ConvTail tail, const Conv2dDesc& desc, const OpPlan& plan, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, bool want_bits);
// Gradient of the convolution's output, channels_last.
Tensor conv2d_tail_backward(ConvTail tail, const Conv2dDesc& desc, const Tensor& dy, const Tensor& bits);
// Gradients of weight and bias without the one before; nothing when the convolution has them only from that.
struct WeightGradients {
  Tensor dw, db;
};
std::optional<WeightGradients> conv2d_tail_weight(ConvTail tail, const Conv2dDesc& desc, const Tensor& x,
                                                  const Tensor& dy, const Tensor& bits, bool want_bias);

// rows [P, C]; residual [P, C] or undefined.
WithBits batch_norm_relu_apply(const Tensor& rows, const Tensor& residual, const Tensor& mean, const Tensor& invstd,
                               const Tensor& weight, const Tensor& bias, bool want_bits);

// rows [R, C], which nobody else reads: overwritten.
WithBits relu_rows(Tensor rows, bool want_bits);
// dy [R, C] where the bit is set. With `reuse`, dy's own memory may be overwritten for it: nobody else reads it.
Tensor relu_rows_backward(const Tensor& dy, const Tensor& bits, bool reuse);

}  // namespace limpid::raw
