// Matrix products with any strides: c[b] = a[b] b[b] (+ bias) (+ c), c dense. The fallback of cuBLASLt, and the
// reference for it.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/cuda/plans.h>

namespace limpid::cu {

// a, b, c, bias of desc.dtype, strides in elements; bias [n] or null. `workspace` has plan.workspace_bytes bytes. With
// `accumulate` the product is added to c; one rounding in either case. Integers wrap around; bool is refused
// (cudaErrorInvalidValue). k = 0 writes the bias or zeros.
cudaError_t gemm(const MatmulDesc& desc, const GemmPlan& plan, void* c, const void* a, const void* b, const void* bias,
                 void* workspace, bool accumulate, cudaStream_t stream);

// out[i] = sum over splits of partial[split][i] in order, plus bias[i % n] unless bias is null, plus out[i] if
// accumulate. partial: f64 for f64, else f32. Also for the partial gradients of a convolution.
cudaError_t add_splits(DType dtype, void* out, const void* partial, std::int64_t splits, std::int64_t count,
                       const void* bias, std::int64_t n, bool accumulate, cudaStream_t stream);

}  // namespace limpid::cu
