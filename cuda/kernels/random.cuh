// Random numbers by counter, as the CPU makes them: element i (in logical order) is a function of key and i. Uniform
// numbers and dropout's masks have the CPU's bits; normal numbers go through the device's double-precision log, sin and
// cos, which may differ from the host's in the last bit of a double. Meaning: the entries of tensor/kernels.h. Floating
// dtypes.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <limpid/cuda/kernels/operands.cuh>

namespace limpid::cu {

cudaError_t uniform(DType dtype, const Shape& shape, const Output& out, std::uint64_t key, std::uint64_t first,
                    cudaStream_t stream);
cudaError_t normal(DType dtype, const Shape& shape, const Output& out, std::uint64_t key, std::uint64_t first,
                   cudaStream_t stream);
cudaError_t dropout(DType dtype, const Shape& shape, const Output& out, const Input& x, double p, std::uint64_t key,
                    std::int64_t sample_offset, cudaStream_t stream);

}  // namespace limpid::cu
