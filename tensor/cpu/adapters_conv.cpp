// Convolution from tensors to the kernels of conv.h; 16-bit floats through f32 copies in the workspace.
#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/raw.h>
#include <limpid/tensor/workspace_cap.h>

namespace limpid::cpu {
namespace {

ConvDesc direct(const Conv2dDesc& d) {
  return {.n = d.n,
          .c = d.c,
          .h = d.h,
          .w = d.w,
          .k = d.k,
          .r = d.r,
          .s = d.s,
          .stride_h = d.stride_h,
          .stride_w = d.stride_w,
          .pad_h = d.pad_h,
          .pad_w = d.pad_w,
          .dil_h = d.dil_h,
          .dil_w = d.dil_w,
          .groups = d.groups};
}

ConvPass direct(Conv2dPass pass) {
  switch (pass) {
    case Conv2dPass::forward:
      return ConvPass::forward;
    case Conv2dPass::backward_input:
      return ConvPass::backward_input;
    case Conv2dPass::backward_weight:
      return ConvPass::backward_weight;
  }
  LIMPID_THROW(InternalError, "unknown convolution pass");
}

std::int64_t input_count(const Conv2dDesc& d) { return d.n * d.c * d.h * d.w; }
std::int64_t output_count(const Conv2dDesc& d) { return d.n * d.k * d.oh() * d.ow(); }
std::int64_t weight_count(const Conv2dDesc& d) { return d.k * (d.c / d.groups) * d.r * d.s; }

// f32 copies of 16-bit operands.
std::size_t copies_bytes(const Conv2dDesc& d) {
  if (!is_narrow(d.dtype)) return 0;
  return float_bytes(input_count(d)) + float_bytes(weight_count(d)) + float_bytes(output_count(d)) + float_bytes(d.k);
}

// `bytes`: of the whole workspace, or its cap.
ConvPlan inner_plan(Conv2dPass pass, const Conv2dDesc& d, std::size_t bytes) {
  return plan_conv2d(direct(pass), direct(d), d.dtype == DType::float64 ? sizeof(double) : sizeof(float),
                     bytes - std::min(bytes, copies_bytes(d)));
}

// One call on two inputs and an output, all dense, whatever the storage: run(plan, in0, in1, bias, out, workspace).
template <class Run>
void with_storage(Conv2dPass pass, const Conv2dDesc& d, const OpPlan& whole, Tensor& out, const Tensor& a,
                  const Tensor& b, const Tensor& bias, Tensor& workspace, Run run) {
  ConvPlan plan = inner_plan(pass, d, whole.workspace_bytes);  // the plan that those bytes were asked for
  Parts parts(workspace);
  void* work = parts.take(plan.workspace_bytes);
  visit_floating(d.dtype, "conv2d", [&]<class T>() {
    const T* bias_data = bias.defined() ? bias.data<T>() : nullptr;
    if constexpr (std::is_floating_point_v<T>) {
      run(plan, a.data<T>(), b.data<T>(), bias_data, out.mutable_data<T>(), work);
    } else {
      float* wide_a = parts.floats(a.numel());
      float* wide_b = parts.floats(b.numel());
      float* wide_out = parts.floats(out.numel());
      float* wide_bias = bias_data ? parts.floats(bias.numel()) : nullptr;
      convert_all(a.numel(), a.data<T>(), wide_a);
      convert_all(b.numel(), b.data<T>(), wide_b);
      if (bias_data) convert_all(bias.numel(), bias_data, wide_bias);
      run(plan, static_cast<const float*>(wide_a), static_cast<const float*>(wide_b),
          static_cast<const float*>(wide_bias), wide_out, work);
      convert_all(out.numel(), wide_out, out.mutable_data<T>());
    }
  });
}

}  // namespace

OpPlan plan_conv2d(Conv2dPass pass, const Conv2dDesc& desc) {
  ConvPlan plan = inner_plan(pass, desc, workspace_cap() > 0 ? workspace_cap() : SIZE_MAX);
  std::size_t bytes = plan.workspace_bytes;
  if (is_narrow(desc.dtype)) bytes = aligned64(bytes) + copies_bytes(desc);
  check_workspace_cap("conv2d", bytes);
  return {plan.algorithm, bytes};
}

void conv2d(const Conv2dDesc& desc, const OpPlan& whole, Tensor& y, const Tensor& x, const Tensor& w,
            const Tensor& bias, Tensor& workspace) {
  with_storage(Conv2dPass::forward, desc, whole, y, x, w, bias, workspace,
               [&]<class T>(const ConvPlan& plan, const T* px, const T* pw, const T* pb, T* py, void* work) {
                 conv2d_forward<T>(direct(desc), plan, px, pw, pb, py, work);
               });
}

void conv2d_backward_input(const Conv2dDesc& desc, const OpPlan& whole, Tensor& dx, const Tensor& dy, const Tensor& w,
                           Tensor& workspace) {
  with_storage(Conv2dPass::backward_input, desc, whole, dx, dy, w, Tensor(), workspace,
               [&]<class T>(const ConvPlan& plan, const T* pdy, const T* pw, const T*, T* pdx, void* work) {
                 conv2d_backward_input<T>(direct(desc), plan, pdy, pw, pdx, work);
               });
}

void conv2d_backward_weight(const Conv2dDesc& desc, const OpPlan& whole, Tensor& dw, const Tensor& x, const Tensor& dy,
                            Tensor& workspace) {
  with_storage(Conv2dPass::backward_weight, desc, whole, dw, x, dy, Tensor(), workspace,
               [&]<class T>(const ConvPlan& plan, const T* px, const T* pdy, const T*, T* pdw, void* work) {
                 conv2d_backward_weight<T>(direct(desc), plan, px, pdy, pdw, work);
               });
}

void conv2d_backward_bias(const Conv2dDesc& desc, Tensor& db, const Tensor& dy) {
  // A column sum of the pixels: the reduction needs no workspace.
  std::int64_t pixels = desc.n * desc.oh() * desc.ow();
  Tensor rows = raw::as_strided(dy, {pixels, desc.k}, {desc.k, 1}, dy.impl()->offset);
  Tensor sums = raw::as_strided(db, {1, desc.k}, {desc.k, 1}, db.impl()->offset);
  reduce(ReduceOp::sum, sums, rows, 1u);
}

}  // namespace limpid::cpu
