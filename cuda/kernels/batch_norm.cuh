// Batch norm over rows x [pixels, channels], channels fastest (channels_last images), cut into five kernels so that it
// can be fused into neighbours, synchronised across ranks and made exact under accumulation. x and y: f64, f32, f16,
// bf16. Statistics and sums over rows are f64 at the end: threads add short runs in accumulate_t<T> and join them in
// double.
//
// The forms with `residual`, `relu` and `y` are the fused ones: y = relu(bn(x) + residual), whose gradient passes where
// y > 0. Pointers that a form does not need are null.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/plans.h>

namespace limpid::cu {

// weight and bias [channels], null for 1 and 0, of any floating dtype: 16-bit images often have f32 parameters.
struct AffineParams {
  const void* weight = nullptr;
  const void* bias = nullptr;
  DType dtype = DType::float32;
};

// stats [3][channels] f64: count, mean, M2 = sum (x - mean)^2. plan: plan_batch_norm_parts().
cudaError_t batch_norm_statistics(DType dtype, const BatchNormPlan& plan, double* stats, const void* x,
                                  std::int64_t pixels, std::int64_t channels, void* workspace, cudaStream_t stream);
// stats = merge of parts [n][3][channels]; parts with count 0 are skipped.
cudaError_t batch_norm_combine(double* stats, const double* parts, std::int64_t n, std::int64_t channels,
                               cudaStream_t stream);
// y = (x - mean) * invstd * weight + bias (+ residual) (then max(0, .)); mean, invstd [channels] f64. y may be x.
cudaError_t batch_norm_apply(DType dtype, void* y, const void* x, const void* residual, bool relu, const double* mean,
                             const double* invstd, const AffineParams& affine, std::int64_t pixels,
                             std::int64_t channels, cudaStream_t stream);
// sums [2][channels] f64: sum g, sum g * xhat with g = dy, or dy where y > 0.
cudaError_t batch_norm_backward_reduce(DType dtype, const BatchNormPlan& plan, double* sums, const void* x,
                                       const void* dy, const void* y, const double* mean, const double* invstd,
                                       std::int64_t pixels, std::int64_t channels, void* workspace,
                                       cudaStream_t stream);
// dx = weight * invstd * (g - sum_g / count - xhat * sum_g_xhat / count); count 0: statistics were constants. dresidual
// = g. dx may be dy.
cudaError_t batch_norm_backward_apply(DType dtype, void* dx, void* dresidual, const void* x, const void* dy,
                                      const void* y, const double* mean, const double* invstd,
                                      const AffineParams& affine, const double* sums, double count, std::int64_t pixels,
                                      std::int64_t channels, cudaStream_t stream);

}  // namespace limpid::cu
