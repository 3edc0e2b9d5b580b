// Normalisation kernels on the CPU, float and double. Batch norm is cut into five kernels over [pixels][channels] (NHWC
// images, channels fastest), so that it can be fused, synchronised across ranks and made exact under accumulation; row
// norms (layer norm, group norm in NCHW order) work on dense rows. Statistics are doubles.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limpid::cpu {

// Workspace of batch_norm_statistics and batch_norm_backward_reduce (64-byte aligned). Pure.
std::size_t batch_norm_workspace(std::int64_t pixels, std::int64_t channels);

// stats [3][C]: count, mean, M2 = sum (x - mean)^2. Partial statistics are merged in a fixed order (Chan et al.).
template <class T>
void batch_norm_statistics(std::int64_t pixels, std::int64_t channels, const T* x, double* stats, void* workspace);
// stats [3][C] = merge of parts [n_parts][3][C]; parts with count 0 are skipped. stats may be parts + 0.
void batch_norm_combine(std::int64_t n_parts, std::int64_t channels, const double* parts, double* stats);
// y = (x - mean) * invstd * weight + bias; weight and bias may be null (1 and 0). y may be x. relu: clamps at 0.
template <class T>
void batch_norm_apply(std::int64_t pixels, std::int64_t channels, const T* x, const double* mean, const double* invstd,
                      const T* weight, const T* bias, T* y, bool relu = false);
// sums [2][C]: sum dy, sum dy * xhat, with xhat = (x - mean) * invstd.
template <class T>
void batch_norm_backward_reduce(std::int64_t pixels, std::int64_t channels, const T* x, const T* dy, const double* mean,
                                const double* invstd, double* sums, void* workspace);
// dx = weight * invstd * (dy - sum_dy / count - xhat * sum_dy_xhat / count); count 0: statistics were constants, so
// dx = weight * invstd * dy. dx may be dy or x.
template <class T>
void batch_norm_backward_apply(std::int64_t pixels, std::int64_t channels, const T* x, const T* dy, const double* mean,
                               const double* invstd, const T* weight, const double* sums, double count, T* dx);

// Rows of a dense [rows][len]. The affine pair of element (row, i) is index (row % affine_rows) * (len / inner) +
// i / inner: layer norm has inner = 1, affine_rows = 1; group norm of NCHW has inner = H*W, affine_rows = groups.
struct RowNormDesc {
  std::int64_t rows = 0, len = 0, inner = 1, affine_rows = 1;
  std::int64_t affine() const { return affine_rows * (len / inner); }
};
// y = (x - mean) / sqrt(var + eps) * weight + bias; mean, invstd [rows] are outputs. weight, bias may be null.
template <class T>
void norm_rows_forward(const RowNormDesc& desc, const T* x, const T* weight, const T* bias, double eps, T* y, T* mean,
                       T* invstd);
// dweight, dbias [affine()] may be null. Workspace: norm_rows_workspace() bytes, 64-byte aligned.
std::size_t norm_rows_workspace(const RowNormDesc& desc);
template <class T>
void norm_rows_backward(const RowNormDesc& desc, const T* x, const T* dy, const T* mean, const T* invstd,
                        const T* weight, T* dx, T* dweight, T* dbias, void* workspace);

// Group norm on NHWC: x [n][pixels][channels]; statistics per (image, group) -> mean, invstd [n][groups].
struct GroupNormDesc {
  std::int64_t n = 0, pixels = 0, channels = 0, groups = 1;
};
std::size_t group_norm_workspace(const GroupNormDesc& desc);
template <class T>
void group_norm_forward(const GroupNormDesc& desc, const T* x, const T* weight, const T* bias, double eps, T* y,
                        T* mean, T* invstd, void* workspace);
template <class T>
void group_norm_backward(const GroupNormDesc& desc, const T* x, const T* dy, const T* mean, const T* invstd,
                         const T* weight, T* dx, T* dweight, T* dbias, void* workspace);

}  // namespace limpid::cpu
