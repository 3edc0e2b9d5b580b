// Convolution from tensors to the kernels of conv.h. 16-bit floats go through f32 copies in the workspace, a few images at a
// time, so that the copies stay small and in the cache.
#include <limpid/tensor/cpu/conv_desc.h>
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/raw.h>
#include <limpid/tensor/workspace_cap.h>

namespace limpid::cpu {
namespace {

ConvPass pass_of(Conv2dPass pass) {
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

std::int64_t weight_count(const Conv2dDesc& d) { return d.k * (d.c / d.groups) * d.r * d.s; }
std::int64_t image_count(const Conv2dDesc& d) { return d.c * d.h * d.w + d.k * d.oh() * d.ow(); }  // one in, one out

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of f32 images at a time

// How a convolution is cut along the images. f32 and f64: one piece, no copies.
struct Cut {
  std::int64_t images = 0;   // a piece
  ConvPlan whole, rest;      // of a piece, and of what is left at the end
  std::size_t plan_bytes = 0, bytes = 0;

  const ConvPlan& plan_for(std::int64_t n) const { return n == images ? whole : rest; }
};

ConvDesc part_of(const Conv2dDesc& d, std::int64_t images) {
  ConvDesc part = direct(d);
  part.n = images;
  return part;
}

std::size_t copies_bytes(Conv2dPass pass, const Conv2dDesc& d, std::int64_t images) {
  const bool sums = pass == Conv2dPass::backward_weight && images < d.n;  // gradients of a piece, and their sum
  return float_bytes(images * d.c * d.h * d.w) + float_bytes(images * d.k * d.oh() * d.ow()) +
         (sums ? 2 : 1) * float_bytes(weight_count(d)) + float_bytes(d.k);
}

// The largest pieces that fit `cap`, or the smallest. The bytes of a cut as the cap give that cut again.
Cut cut(Conv2dPass pass, const Conv2dDesc& d, std::size_t cap) {
  Cut c;
  c.images = d.n;
  const std::size_t element = d.dtype == DType::float64 ? sizeof(double) : sizeof(float);
  if (!is_narrow(d.dtype)) {
    c.whole = plan_conv2d(pass_of(pass), direct(d), element, cap);
    c.plan_bytes = c.bytes = c.whole.workspace_bytes;
    return c;
  }
  const std::int64_t wanted = static_cast<std::int64_t>(kPieceBytes / sizeof(float)) / std::max<std::int64_t>(image_count(d), 1);
  c.images = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(d.n, 1));
  for (;; c.images /= 2) {
    const std::size_t copies = copies_bytes(pass, d, c.images), left = cap - std::min(cap, copies);
    c.whole = plan_conv2d(pass_of(pass), part_of(d, c.images), element, left);
    const std::int64_t rest = d.n % c.images;
    c.rest = rest > 0 || d.n == 0 ? plan_conv2d(pass_of(pass), part_of(d, rest), element, left) : c.whole;
    c.plan_bytes = aligned64(std::max(c.whole.workspace_bytes, c.rest.workspace_bytes));
    c.bytes = c.plan_bytes + copies;
    if (c.bytes <= cap || c.images <= 1) return c;
  }
}

// run(desc, plan, a, b, bias, out, workspace) on whole tensors, whatever the storage. Which operands have an entry an image
// and which are filters depends on the pass.
template <class Run>
void with_storage(Conv2dPass pass, const Conv2dDesc& d, const OpPlan& op_plan, Tensor& out, const Tensor& a,
                  const Tensor& b, const Tensor& bias, Tensor& workspace, Run run) {
  const Cut c = cut(pass, d, op_plan.workspace_bytes);  // the cut that those bytes were asked for
  Parts parts(workspace);
  void* work = parts.take(c.plan_bytes);
  visit_floating(d.dtype, "conv2d", [&]<class T>() {
    const T* bias_data = bias.defined() ? bias.data<T>() : nullptr;
    if constexpr (std::is_floating_point_v<T>) {
      run(direct(d), c.whole, a.data<T>(), b.data<T>(), bias_data, out.mutable_data<T>(), work);
    } else {
      const bool sums = pass == Conv2dPass::backward_weight;  // a, b are images; the results of the pieces are added
      const std::int64_t images = std::max<std::int64_t>(d.n, 1), filters = weight_count(d);
      const std::int64_t a_step = a.numel() / images, b_step = sums ? b.numel() / images : 0;
      const std::int64_t out_step = sums ? 0 : out.numel() / images;
      float* wide_a = parts.floats(c.images * a_step);
      float* wide_b = parts.floats(sums ? c.images * b_step : filters);
      float* wide_out = parts.floats(sums ? filters : c.images * out_step);
      float* sum = sums && c.images < d.n ? parts.floats(filters) : nullptr;
      float* wide_bias = bias_data ? parts.floats(bias.numel()) : nullptr;
      if (bias_data) convert_all(bias.numel(), bias_data, wide_bias);
      if (!sums) convert_all(filters, b.data<T>(), wide_b);
      T* to = out.mutable_data<T>();
      std::int64_t begin = 0;
      do {
        const std::int64_t n = std::min(c.images, d.n - begin);
        convert_all(n * a_step, a.data<T>() + begin * a_step, wide_a);
        if (sums) convert_all(n * b_step, b.data<T>() + begin * b_step, wide_b);
        float* piece = sum && begin == 0 ? sum : wide_out;
        run(part_of(d, n), c.plan_for(n), static_cast<const float*>(wide_a), static_cast<const float*>(wide_b),
            static_cast<const float*>(wide_bias), piece, work);
        if (!sums) convert_all(n * out_step, wide_out, to + begin * out_step);
        if (sum && begin > 0)
          for (std::int64_t i = 0; i < filters; i++) sum[i] += wide_out[i];
        begin += n;
      } while (begin < d.n);
      if (sums) convert_all(filters, sum ? sum : wide_out, to);
    }
  });
}

}  // namespace

OpPlan plan_conv2d(Conv2dPass pass, const Conv2dDesc& desc) {
  const Cut c = cut(pass, desc, workspace_cap() > 0 ? workspace_cap() : SIZE_MAX);
  check_workspace_cap("conv2d", c.bytes);
  return {c.whole.algorithm, c.bytes};
}

void conv2d(const Conv2dDesc& desc, const OpPlan& whole, Tensor& y, const Tensor& x, const Tensor& w,
            const Tensor& bias, Tensor& workspace) {
  with_storage(Conv2dPass::forward, desc, whole, y, x, w, bias, workspace,
               []<class T>(const ConvDesc& d, const ConvPlan& plan, const T* px, const T* pw, const T* pb, T* py, void* work) {
                 conv2d_forward<T>(d, plan, px, pw, pb, py, work);
               });
}

void conv2d_backward_input(const Conv2dDesc& desc, const OpPlan& whole, Tensor& dx, const Tensor& dy, const Tensor& w,
                           Tensor& workspace) {
  with_storage(Conv2dPass::backward_input, desc, whole, dx, dy, w, Tensor(), workspace,
               []<class T>(const ConvDesc& d, const ConvPlan& plan, const T* pdy, const T* pw, const T*, T* pdx, void* work) {
                 conv2d_backward_input<T>(d, plan, pdy, pw, pdx, work);
               });
}

void conv2d_backward_weight(const Conv2dDesc& desc, const OpPlan& whole, Tensor& dw, const Tensor& x, const Tensor& dy,
                            Tensor& workspace) {
  with_storage(Conv2dPass::backward_weight, desc, whole, dw, x, dy, Tensor(), workspace,
               []<class T>(const ConvDesc& d, const ConvPlan& plan, const T* px, const T* pdy, const T*, T* pdw, void* work) {
                 conv2d_backward_weight<T>(d, plan, px, pdy, pdw, work);
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
