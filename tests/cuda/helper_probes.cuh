// Kernels that show what the helpers of cuda/kernels compute.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <limpid/tensor/shape.h>

namespace limpid::cu {

// For every position of the walk over two operands (a first): out[position] = {offset in a, offset in b}.
cudaError_t probe_offsets(const Shape& shape, const Strides& a, const Strides& b, bool narrow, std::int64_t* out,
                          cudaStream_t stream);
// out[i] = numerators[i] / divisor by Divider.
cudaError_t probe_divider(unsigned divisor, const unsigned* numerators, unsigned* out, int n, cudaStream_t stream);
// One block of 128 threads: out[2t] = sum, out[2t + 1] = maximum of the 128 values, as thread t sees them.
cudaError_t probe_block_reduce(const float* x, float* out, cudaStream_t stream);

}  // namespace limpid::cu
