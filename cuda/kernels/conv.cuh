// Convolution without im2col buffers: products of matrices whose left operand is gathered from the image on its way
// into shared memory. x [n,h,w,c] and y [n,oh,ow,k] are channels_last and dense, the weight is contiguous
// [k,c/groups,r,s]. Any kernel, stride, padding, dilation and number of groups. f64, f32, f16, bf16 (16-bit: sums in
// f32). The fallback of cuDNN, and the reference for it. `plan` is plan_conv() of the same pass and description;
// `workspace` has its bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/plans.h>

namespace limpid::cu {

// y = conv(x, w) + bias; bias [k] or null.
cudaError_t conv_forward(const Conv2dDesc& desc, const ConvPlan& plan, void* y, const void* x, const void* w,
                         const void* bias, void* workspace, cudaStream_t stream);
cudaError_t conv_backward_input(const Conv2dDesc& desc, const ConvPlan& plan, void* dx, const void* dy, const void* w,
                                void* workspace, cudaStream_t stream);
cudaError_t conv_backward_weight(const Conv2dDesc& desc, const ConvPlan& plan, void* dw, const void* x, const void* dy,
                                 void* workspace, cudaStream_t stream);

// The same for one input channel a group (conv_depthwise.cu); the three above go there by themselves.
cudaError_t depthwise_forward(const Conv2dDesc& desc, void* y, const void* x, const void* w, const void* bias,
                              cudaStream_t stream);
cudaError_t depthwise_backward_input(const Conv2dDesc& desc, void* dx, const void* dy, const void* w,
                                     cudaStream_t stream);
cudaError_t depthwise_backward_weight(const Conv2dDesc& desc, const ConvPlan& plan, void* dw, const void* x,
                                      const void* dy, void* workspace, cudaStream_t stream);

// out[c] = sum over rows of x[rows][columns]: the gradient of a bias, of channels_last images with their pixels as
// rows. One split needs no workspace: a block a few columns, some times slower for few columns of many rows.
cudaError_t column_sum(DType dtype, const ColumnSumPlan& plan, void* out, const void* x, std::int64_t rows,
                       std::int64_t columns, void* workspace, cudaStream_t stream);

}  // namespace limpid::cu
