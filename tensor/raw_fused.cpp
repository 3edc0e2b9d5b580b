#include <limpid/tensor/raw_fused.h>

#include <limpid/tensor/raw_nn.h>

namespace limpid::raw {
namespace {

Tensor empty_bits(std::int64_t rows, std::int64_t channels, Device device) {
  return empty({rows, bit_bytes(channels)}, DType::uint8, device);
}

}  // namespace

WithBits conv2d_tail(ConvTail tail, const Conv2dDesc& desc, const OpPlan& plan, const Tensor& x, const Tensor& weight,
                     const Tensor& bias, bool want_bits) {
  const FusedKernels& kernels = *fused_kernels_for(x.device());
  WithBits out;
  out.y = empty(conv_tail_shape(tail, desc), x.dtype(), x.device(), MemoryFormat::channels_last);
  if (want_bits) out.bits = empty_bits(desc.n * desc.oh() * desc.ow(), desc.k, x.device());
  Tensor work = workspace(plan.workspace_bytes, x.device());
  kernels.conv2d_tail(tail, desc, plan, out.y, out.bits, x, contiguous(weight),
                      bias.defined() ? contiguous(bias) : bias, work);
  return out;
}

Tensor conv2d_tail_backward(ConvTail tail, const Conv2dDesc& desc, const Tensor& dy, const Tensor& bits) {
  Tensor dz = empty({desc.n, desc.k, desc.oh(), desc.ow()}, dy.dtype(), dy.device(), MemoryFormat::channels_last);
  fused_kernels_for(dy.device())->conv2d_tail_backward(tail, desc, dz, packed(dy), bits);
  return dz;
}

std::optional<WeightGradients> conv2d_tail_weight(ConvTail tail, const Conv2dDesc& desc, const Tensor& x,
                                                  const Tensor& dy, const Tensor& bits, bool want_bias) {
  const FusedKernels& kernels = *fused_kernels_for(dy.device());
  const OpPlan plan = kernels.plan_conv2d_tail_weight(tail, desc);
  if (plan.algorithm == nullptr) return std::nullopt;
  WeightGradients out;
  out.dw = empty({desc.k, desc.c / desc.groups, desc.r, desc.s}, dy.dtype(), dy.device());
  if (want_bias) out.db = empty({desc.k}, dy.dtype(), dy.device());
  Tensor work = workspace(plan.workspace_bytes, dy.device());
  kernels.conv2d_tail_weight(tail, desc, plan, out.dw, out.db, packed(x), packed(dy), bits, work);
  return out;
}

WithBits batch_norm_relu_apply(const Tensor& rows, const Tensor& residual, const Tensor& mean, const Tensor& invstd,
                               const Tensor& weight, const Tensor& bias, bool want_bits) {
  WithBits out{empty(rows.shape(), rows.dtype(), rows.device()), Tensor()};
  if (want_bits) out.bits = empty_bits(rows.shape()[0], rows.shape()[1], rows.device());
  fused_kernels_for(rows.device())->batch_norm_relu_apply(out.y, out.bits, rows, residual, mean, invstd, weight, bias);
  return out;
}

WithBits relu_rows(Tensor rows, bool want_bits) {
  WithBits out{std::move(rows), Tensor()};
  if (want_bits) out.bits = empty_bits(out.y.shape()[0], out.y.shape()[1], out.y.device());
  fused_kernels_for(out.y.device())->relu_rows(out.y, out.bits);
  return out;
}

Tensor relu_rows_backward(const Tensor& dy, const Tensor& bits, bool reuse) {
  const Tensor rows = contiguous(dy);
  Tensor dz = reuse || rows.storage() != dy.storage() ? rows : empty(dy.shape(), dy.dtype(), dy.device());
  fused_kernels_for(dy.device())->relu_rows_backward(dz, rows, bits);
  return dz;
}

}  // namespace limpid::raw
