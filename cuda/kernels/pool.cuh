// Pooling of channels_last images: maximum with the place of the maximum, average, adaptive average, and their
// gradients. One thread a pixel and a vector of channels. Gradients gather: each input adds up what the outputs above
// it give, in their order, so there are no atomics. f64, f32, f16, bf16; 16-bit averages add in f32.
#pragma once

#include <cuda_runtime_api.h>

#include <limpid/tensor/kernels.h>

namespace limpid::cu {

// indices: h * W + w of the maximum (the first of equals, the last NaN), or null. A window in the padding alone gives
// -inf and index 0.
cudaError_t max_pool2d(DType dtype, const Pool2dDesc& desc, void* y, std::int32_t* indices, const void* x,
                       cudaStream_t stream);
cudaError_t max_pool2d_backward(DType dtype, const Pool2dDesc& desc, void* dx, const void* dy,
                                const std::int32_t* indices, cudaStream_t stream);
// The average divides by the window's places, without or (count_include_pad) with those in the padding.
cudaError_t avg_pool2d(DType dtype, const Pool2dDesc& desc, void* y, const void* x, cudaStream_t stream);
cudaError_t avg_pool2d_backward(DType dtype, const Pool2dDesc& desc, void* dx, const void* dy, cudaStream_t stream);
// Output o of O over I inputs averages [floor(o I / O), ceil((o + 1) I / O)).
cudaError_t adaptive_avg_pool2d(DType dtype, const Pool2dDesc& desc, void* y, const void* x, cudaStream_t stream);
cudaError_t adaptive_avg_pool2d_backward(DType dtype, const Pool2dDesc& desc, void* dx, const void* dy,
                                         cudaStream_t stream);

}  // namespace limpid::cu
