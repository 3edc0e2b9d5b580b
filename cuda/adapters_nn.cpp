// Matrix products, convolution and pooling of the CUDA kernel table. The workspace's bytes are the cap that gives a run
// the plan it was allocated for.
#include <limpid/cuda/adapter_private.h>
#include <limpid/cuda/entries.h>
#include <limpid/cuda/kernels/conv.cuh>
#include <limpid/cuda/kernels/gemm.cuh>
#include <limpid/cuda/kernels/pool.cuh>
#include <limpid/cuda/plans.h>

namespace limpid::cu::entries {

OpPlan plan_matmul(const MatmulDesc& desc) { return cu::plan_matmul(desc); }
void matmul(const MatmulDesc& desc, const OpPlan& plan, Tensor& out, const Tensor& a, const Tensor& b,
            const Tensor& bias, Tensor& workspace, bool accumulate) {
  LIMPID_CHECK(desc.dtype != DType::boolean, InternalError, "matmul kernel called with bool");
  const Queue queue(out);
  LIMPID_LAUNCH("matmul", queue,
                gemm(desc, plan_gemm(desc, plan.workspace_bytes), out.raw_mutable_data(), a.raw_data(), b.raw_data(),
                     data_or_null(bias), data_or_null(workspace), accumulate, queue));
}

OpPlan plan_conv2d(Conv2dPass pass, const Conv2dDesc& desc) { return cu::plan_conv2d(pass, desc); }
void conv2d(const Conv2dDesc& desc, const OpPlan& plan, Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias,
            Tensor& workspace) {
  const Queue queue(y);
  LIMPID_LAUNCH("conv2d", queue,
                conv_forward(desc, plan_conv(Conv2dPass::forward, desc, plan.workspace_bytes), y.raw_mutable_data(),
                             x.raw_data(), w.raw_data(), data_or_null(bias), data_or_null(workspace), queue));
}
void conv2d_backward_input(const Conv2dDesc& desc, const OpPlan& plan, Tensor& dx, const Tensor& dy, const Tensor& w,
                           Tensor& workspace) {
  const Queue queue(dx);
  LIMPID_LAUNCH(
      "conv2d_backward_input", queue,
      conv_backward_input(desc, plan_conv(Conv2dPass::backward_input, desc, plan.workspace_bytes),
                          dx.raw_mutable_data(), dy.raw_data(), w.raw_data(), data_or_null(workspace), queue));
}
void conv2d_backward_weight(const Conv2dDesc& desc, const OpPlan& plan, Tensor& dw, const Tensor& x, const Tensor& dy,
                            Tensor& workspace) {
  const Queue queue(dw);
  LIMPID_LAUNCH(
      "conv2d_backward_weight", queue,
      conv_backward_weight(desc, plan_conv(Conv2dPass::backward_weight, desc, plan.workspace_bytes),
                           dw.raw_mutable_data(), x.raw_data(), dy.raw_data(), data_or_null(workspace), queue));
}
void conv2d_backward_bias(const Conv2dDesc& desc, Tensor& db, const Tensor& dy) {
  const Queue queue(db);
  const ColumnSumPlan one_split;  // the entry has no workspace
  LIMPID_LAUNCH("conv2d_backward_bias", queue,
                column_sum(db.dtype(), one_split, db.raw_mutable_data(), dy.raw_data(), desc.n * desc.oh() * desc.ow(),
                           desc.k, nullptr, queue));
}

void max_pool2d(const Pool2dDesc& desc, Tensor& y, Tensor& indices, const Tensor& x) {
  const Queue queue(y);
  std::int32_t* at = indices.defined() ? indices.mutable_data<std::int32_t>() : nullptr;
  LIMPID_LAUNCH("max_pool2d", queue, cu::max_pool2d(y.dtype(), desc, y.raw_mutable_data(), at, x.raw_data(), queue));
}
void max_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy, const Tensor& indices) {
  const Queue queue(dx);
  LIMPID_LAUNCH("max_pool2d_backward", queue,
                cu::max_pool2d_backward(dx.dtype(), desc, dx.raw_mutable_data(), dy.raw_data(),
                                        indices.data<std::int32_t>(), queue));
}
void avg_pool2d(const Pool2dDesc& desc, Tensor& y, const Tensor& x) {
  const Queue queue(y);
  LIMPID_LAUNCH("avg_pool2d", queue, cu::avg_pool2d(y.dtype(), desc, y.raw_mutable_data(), x.raw_data(), queue));
}
void avg_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy) {
  const Queue queue(dx);
  LIMPID_LAUNCH("avg_pool2d_backward", queue,
                cu::avg_pool2d_backward(dx.dtype(), desc, dx.raw_mutable_data(), dy.raw_data(), queue));
}
void adaptive_avg_pool2d(const Pool2dDesc& desc, Tensor& y, const Tensor& x) {
  const Queue queue(y);
  LIMPID_LAUNCH("adaptive_avg_pool2d", queue,
                cu::adaptive_avg_pool2d(y.dtype(), desc, y.raw_mutable_data(), x.raw_data(), queue));
}
void adaptive_avg_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy) {
  const Queue queue(dx);
  LIMPID_LAUNCH("adaptive_avg_pool2d_backward", queue,
                cu::adaptive_avg_pool2d_backward(dx.dtype(), desc, dx.raw_mutable_data(), dy.raw_data(), queue));
}

}  // namespace limpid::cu::entries
