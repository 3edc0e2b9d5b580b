// Small kernels of every kind that the backend has, as subjects for the tests of the test layer itself: they are right,
// and planted_bugs.h has those that are not. All pointers are device pointers; sizes are counts of elements.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <limpid/tensor/half.h>

namespace limpid::cudasim {

// y = x sigmoid(x), 16-byte loads and stores and a scalar tail. T: float, double, Half, BFloat16.
template <class T>
cudaError_t silu(const T* x, T* y, std::int64_t n, cudaStream_t stream);
// out[0] += sum(x): shuffles, one shared value a warp, an atomic a block.
cudaError_t sum(const float* x, float* out, std::int64_t n, cudaStream_t stream);
// out[0] = sum(x) in a fixed order: the last block to finish adds the blocks' sums. partial: `blocks` elements, counter: one 0.
cudaError_t ordered_sum(const float* x, float* partial, unsigned* counter, float* out, std::int64_t n, int blocks, cudaStream_t stream);
// Rows of a [rows, columns] matrix: exp(x - max) / sum of them.
cudaError_t softmax(const float* x, float* y, int rows, int columns, cudaStream_t stream);
// counts[b] += occurrences of b in x: dynamic shared memory, shared and global atomics.
cudaError_t histogram(const int* x, int* counts, std::int64_t n, int bins, cudaStream_t stream);
// c[m, n] = a[m, k] b[k, n]: square tiles in two-dimensional shared arrays.
cudaError_t matmul(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream);
// y[15 - i] = x[0] + ... + x[i] within each half warp (16 elements): partial masks and __syncwarp(mask). n: a multiple of 32.
cudaError_t half_warp_scan(const int* x, int* y, int n, cudaStream_t stream);
// out[w] = {lanes with x > 0, smallest x, bitwise or} of warp w: votes and reductions. n: a multiple of 32.
cudaError_t warp_facts(const int* x, int* out, int n, cudaStream_t stream);
// y = a * x + y in packed 16-bit arithmetic, two elements at a time. n is even.
cudaError_t packed_axpy(float a, const Half* x, Half* y, std::int64_t n, cudaStream_t stream);
cudaError_t packed_axpy(float a, const BFloat16* x, BFloat16* y, std::int64_t n, cudaStream_t stream);
// One of many integer and conversion operations an element, for the interpreter: out[i] = mixture of a[i], b[i].
cudaError_t integer_mix(const std::int32_t* a, const std::int32_t* b, std::int64_t* out, int n, cudaStream_t stream);
// The device's own mathematics, 10 results an element: out[10 i ...] = sin, cos, exp, log, pow(|x|, y), tanh, erf, sqrt, x / y,
// the integer nearest to x. T: float, double.
constexpr int kMathResults = 10;
template <class T>
cudaError_t math_mix(const T* x, const T* y, T* out, int n, cudaStream_t stream);
// out[i] = shape and strides by index at run time, and a table that does not fit registers: y[i] = x[offset of i] + table[i % 16].
struct Strided {
  std::int64_t shape[4], stride[4];
  int dims;
};
cudaError_t strided_copy(Strided from, const float* x, float* y, std::int64_t n, cudaStream_t stream);

}  // namespace limpid::cudasim
