// Batch norm on the CPU, float and double, cut into five kernels over [pixels][channels] (NHWC images, channels
// fastest), so that it can be fused, synchronised across ranks and made exact under accumulation. Statistics are
// doubles. Layer and group norm are in row_norm.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limpid::cpu {

// Workspace of batch_norm_statistics and batch_norm_backward_reduce (64-byte aligned). Pure. With a cap there are fewer
// partial sums, down to one; the two kernels take the same cap, or the bytes that came of it.
std::size_t batch_norm_workspace(std::int64_t pixels, std::int64_t channels, std::size_t cap = SIZE_MAX);

// stats [3][C]: count, mean, M2 = sum (x - mean)^2. Partial statistics are merged in a fixed order (Chan et al.).
template <class T>
void batch_norm_statistics(std::int64_t pixels, std::int64_t channels, const T* x, double* stats, void* workspace,
                           std::size_t cap = SIZE_MAX);
// stats [3][C] = merge of parts [n_parts][3][C]; parts with count 0 are skipped. stats may be parts + 0.
void batch_norm_combine(std::int64_t n_parts, std::int64_t channels, const double* parts, double* stats);
// y = (x - mean) * invstd * weight + bias; weight and bias may be null (1 and 0). y may be x. relu: clamps at 0.
template <class T>
void batch_norm_apply(std::int64_t pixels, std::int64_t channels, const T* x, const double* mean, const double* invstd,
                      const T* weight, const T* bias, T* y, bool relu = false);
// sums [2][C]: sum dy, sum dy * xhat, with xhat = (x - mean) * invstd.
template <class T>
void batch_norm_backward_reduce(std::int64_t pixels, std::int64_t channels, const T* x, const T* dy, const double* mean,
                                const double* invstd, double* sums, void* workspace, std::size_t cap = SIZE_MAX);
// dx = weight * invstd * (dy - sum_dy / count - xhat * sum_dy_xhat / count); count 0: statistics were constants, so
// dx = weight * invstd * dy. dx may be dy or x.
template <class T>
void batch_norm_backward_apply(std::int64_t pixels, std::int64_t channels, const T* x, const T* dy, const double* mean,
                               const double* invstd, const T* weight, const double* sums, double count, T* dx);

}  // namespace limpid::cpu
