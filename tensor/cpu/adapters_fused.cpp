// Fused operations from tensors to the kernels of conv_tail.h, and their table.
#include <limpid/tensor/cpu/conv_desc.h>
#include <limpid/tensor/cpu/conv_tail.h>
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/math_kernels.h>
#include <limpid/tensor/cpu/norm.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/fused_kernels.h>
#include <limpid/tensor/workspace_cap.h>

namespace limpid {
namespace cpu {
namespace {

ConvTailPlan tail_plan(ConvTail tail, const Conv2dDesc& d, std::size_t cap) {
  return cpu::plan_conv2d_tail(tail, direct(d), size_of(d.dtype), cap);
}

OpPlan plan_conv2d_tail(ConvTail tail, const Conv2dDesc& desc) {
  const ConvTailPlan plan = tail_plan(tail, desc, workspace_cap() > 0 ? workspace_cap() : SIZE_MAX);
  return {plan.algorithm, plan.workspace_bytes};
}

// fn.operator()<T>() for the two dtypes that fused kernels have.
template <class Fn>
void visit_full_floats(DType dtype, Fn fn) {
  if (dtype == DType::float32) return fn.template operator()<float>();
  LIMPID_CHECK(dtype == DType::float64, InternalError, "fused kernel called with ", dtype);
  fn.template operator()<double>();
}

void conv2d_tail(ConvTail tail, const Conv2dDesc& desc, const OpPlan& plan, Tensor& y, Tensor& bits, const Tensor& x,
                 const Tensor& w, const Tensor& bias, Tensor& workspace) {
  visit_full_floats(desc.dtype, [&]<class T>() {
    conv2d_tail_forward<T>(tail, direct(desc), tail_plan(tail, desc, plan.workspace_bytes), x.data<T>(), w.data<T>(),
                           bias.defined() ? bias.data<T>() : nullptr, y.mutable_data<T>(),
                           bits.defined() ? bits.mutable_data<std::uint8_t>() : nullptr,
                           Parts(workspace).take(plan.workspace_bytes));
  });
}

void conv2d_tail_backward(ConvTail tail, const Conv2dDesc& desc, Tensor& dz, const Tensor& dy, const Tensor& bits) {
  visit_full_floats(desc.dtype, [&]<class T>() {
    cpu::conv2d_tail_backward<T>(tail, direct(desc), dy.data<T>(), bits.data<std::uint8_t>(), dz.mutable_data<T>());
  });
}

ConvPlan weight_plan(ConvTail tail, const Conv2dDesc& d, std::size_t cap) {
  return cpu::plan_conv2d_tail_weight(tail, direct(d), size_of(d.dtype), cap);
}

OpPlan plan_conv2d_tail_weight(ConvTail tail, const Conv2dDesc& desc) {
  const ConvPlan plan = weight_plan(tail, desc, workspace_cap() > 0 ? workspace_cap() : SIZE_MAX);
  return {plan.algorithm, plan.workspace_bytes};
}

void conv2d_tail_weight(ConvTail tail, const Conv2dDesc& desc, const OpPlan& plan, Tensor& dw, Tensor& db,
                        const Tensor& x, const Tensor& dy, const Tensor& bits, Tensor& workspace) {
  visit_full_floats(desc.dtype, [&]<class T>() {
    cpu::conv2d_tail_weight<T>(tail, direct(desc), weight_plan(tail, desc, plan.workspace_bytes), x.data<T>(),
                               dy.data<T>(), bits.data<std::uint8_t>(), dw.mutable_data<T>(),
                               db.defined() ? db.mutable_data<T>() : nullptr, Parts(workspace).take(plan.workspace_bytes));
  });
}

// A piece of rows after the other, so that what follows the normalisation finds it in the cache.
void batch_norm_relu_apply(Tensor& y, Tensor& bits, const Tensor& x, const Tensor& residual, const Tensor& mean,
                           const Tensor& invstd, const Tensor& weight, const Tensor& bias) {
  const std::int64_t pixels = x.shape()[0], channels = x.shape()[1], row_bits = bit_bytes(channels);
  const double* m = mean.data<double>();
  const double* inv = invstd.data<double>();
  std::uint8_t* b = bits.defined() ? bits.mutable_data<std::uint8_t>() : nullptr;
  visit_full_floats(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    const T* skip = residual.defined() ? residual.data<T>() : nullptr;
    const T* w = weight.defined() ? weight.data<T>() : nullptr;
    const T* offset = bias.defined() ? bias.data<T>() : nullptr;
    T* out = y.mutable_data<T>();
    constexpr std::int64_t kPiece = 16384;  // elements
    parallel_chunks(pixels, std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(1, channels)),
                    [&](std::int64_t begin, std::int64_t end) {
                      const std::int64_t at = begin * channels, n = (end - begin) * channels;
                      cpu::batch_norm_apply<T>(end - begin, channels, in + at, m, inv, w, offset, out + at, false);
                      if (skip != nullptr) cpu::add<T>(n, out + at, skip + at, out + at);
                      cpu::relu_rows<T>(end - begin, channels, out + at, b != nullptr ? b + begin * row_bits : nullptr);
                    });
  });
}

void relu_rows(Tensor& y, Tensor& bits) {
  visit_full_floats(y.dtype(), [&]<class T>() {
    cpu::relu_rows<T>(y.shape()[0], y.shape()[1], y.mutable_data<T>(),
                 bits.defined() ? bits.mutable_data<std::uint8_t>() : nullptr);
  });
}

void relu_rows_backward(Tensor& dz, const Tensor& dy, const Tensor& bits) {
  visit_full_floats(dz.dtype(), [&]<class T>() {
    cpu::relu_rows_backward<T>(dz.shape()[0], dz.shape()[1], dy.data<T>(), bits.data<std::uint8_t>(), dz.mutable_data<T>());
  });
}

constexpr FusedKernels kFusedTable{
    .device = "cpu",
    .plan_conv2d_tail = plan_conv2d_tail,
    .conv2d_tail = conv2d_tail,
    .conv2d_tail_backward = conv2d_tail_backward,
    .plan_conv2d_tail_weight = plan_conv2d_tail_weight,
    .conv2d_tail_weight = conv2d_tail_weight,
    .batch_norm_relu_apply = batch_norm_relu_apply,
    .relu_rows = relu_rows,
    .relu_rows_backward = relu_rows_backward,
};

}  // namespace
}  // namespace cpu

const FusedKernels& cpu_fused_kernels() { return cpu::kFusedTable; }

const FusedKernels* fused_kernels_for(Device device) {
  if (device == kDryCpu) return &dry_fused_kernels();
  return device.type == DeviceType::cpu ? &cpu_fused_kernels() : nullptr;
}

}  // namespace limpid
