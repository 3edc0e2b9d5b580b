// Kernels of operations that are computed as one: an optional table beside the kernel table (kernels.h), with the same
// contract: plans are pure, outputs and workspaces are allocated by the caller. A device without it runs the composition
// (autograd/fused.h), and nn::chain_runs() says so. f32 and f64 only.
#pragma once

#include <limpid/tensor/conv_tail.h>
#include <limpid/tensor/kernels.h>

namespace limpid {

struct FusedKernels {
  const char* device;

  // ---- y = tail(conv2d(x, w) + bias), images channels_last. bits: u8 [N*OH*OW, bit_bytes(K)] (conv_tail.h), or undefined
  // when no gradient will be asked for. Shapes of y: conv_tail_shape(). The smallest plan may exceed the workspace cap.
  OpPlan (*plan_conv2d_tail)(ConvTail tail, const Conv2dDesc& desc);
  void (*conv2d_tail)(ConvTail tail, const Conv2dDesc& desc, const OpPlan& plan, Tensor& y, Tensor& bits,
                      const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& workspace);
  // dz = gradient of the convolution's output, from that of y.
  void (*conv2d_tail_backward)(ConvTail tail, const Conv2dDesc& desc, Tensor& dz, const Tensor& dy, const Tensor& bits);
  // Gradients of weight and (unless undefined) bias straight from that of y, x channels_last. A plan whose algorithm is
  // null: this convolution has them only from dz.
  OpPlan (*plan_conv2d_tail_weight)(ConvTail tail, const Conv2dDesc& desc);
  void (*conv2d_tail_weight)(ConvTail tail, const Conv2dDesc& desc, const OpPlan& plan, Tensor& dw, Tensor& db,
                             const Tensor& x, const Tensor& dy, const Tensor& bits, Tensor& workspace);

  // ---- y = max(batch_norm_apply(x) [+ residual], 0) over rows [P,C] (kernels.h); residual [P,C] or undefined; bits as below.
  void (*batch_norm_relu_apply)(Tensor& y, Tensor& bits, const Tensor& x, const Tensor& residual, const Tensor& mean,
                                const Tensor& invstd, const Tensor& weight, const Tensor& bias);

  // ---- ReLU of dense rows [R, C]; bits u8 [R, bit_bytes(C)]. y = max(y, 0) in place; dz = dy where the bit is set;
  // dz may be dy.
  void (*relu_rows)(Tensor& y, Tensor& bits);
  void (*relu_rows_backward)(Tensor& dz, const Tensor& dy, const Tensor& bits);
};

// Null when the device has none.
const FusedKernels* fused_kernels_for(Device device);
const FusedKernels& cpu_fused_kernels();
const FusedKernels& dry_fused_kernels();

inline Shape conv_tail_shape(ConvTail tail, const Conv2dDesc& d) {
  if (tail == ConvTail::relu) return {d.n, d.k, d.oh(), d.ow()};
  if (tail == ConvTail::relu_max_pool) return {d.n, d.k, d.oh() / 2, d.ow() / 2};
  return {d.n, d.k, 1, 1};
}

}  // namespace limpid
