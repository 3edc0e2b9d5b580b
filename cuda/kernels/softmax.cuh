// Softmax, log-softmax and the fused cross-entropy over rows of a contiguous [rows, n], and their gradients. f64, f32,
// f16, bf16; 16-bit rows are computed in f32. Row results (losses, weights, log-sum-exp) are f64 for f64 logits, else
// f32.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/tensor/kernels.h>

namespace limpid::cu {

cudaError_t softmax(DType dtype, bool log, void* y, const void* x, std::int64_t rows, std::int64_t n,
                    cudaStream_t stream);
// softmax: dx = y (dy - sum(dy y)); log: dx = dy - exp(y) sum(dy).
cudaError_t softmax_backward(DType dtype, bool log, void* dx, const void* dy, const void* y, std::int64_t rows,
                             std::int64_t n, cudaStream_t stream);

// With smoothing e, class weights w (dtype of the logits, or null for 1), C classes, nll(c) = log sum exp(x) - x_c:
//   losses[row] = (1-e) w[y] nll(y) + e/C sum_c w[c] nll(c);  row_weights[row] = w[y];  both 0 for ignored rows.
// A label outside of [0, C) reads nothing and gives NaN: the caller has checked the labels (index_error.cuh).
cudaError_t cross_entropy(DType dtype, const LossDesc& desc, void* losses, void* row_weights, void* log_sum_exp,
                          const void* logits, const std::int64_t* labels, const void* class_weight,
                          cudaStream_t stream);
// d logits = row_scale[row] * d losses[row] / d logits
cudaError_t cross_entropy_backward(DType dtype, const LossDesc& desc, void* dx, const void* row_scale,
                                   const void* logits, const std::int64_t* labels, const void* class_weight,
                                   const void* log_sum_exp, cudaStream_t stream);

}  // namespace limpid::cu
