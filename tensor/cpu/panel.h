// Internal to tensor/cpu: matrix products on packed panels, the core of gemm, convolution and Winograd.
// Panel layout of a matrix [rows][cols]: [ceil(cols / P)][rows][P] with P = 64 bytes / sizeof(T) (one cache line), zero
// filled beyond cols; consecutive panels are `stride` elements apart. The layout does not depend on the instruction
// set, so neither do workspace bytes. All kernels are serial, and chosen for the processor at run time.
#pragma once

#include <cstdint>

namespace limpid::cpu {

template <class T>
inline constexpr std::int64_t kPanel = 64 / static_cast<std::int64_t>(sizeof(T));

template <class T>
constexpr std::int64_t panels(std::int64_t cols) {
  return (cols + kPanel<T> - 1) / kPanel<T>;
}
constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

// What the accumulators start from.
enum class Init : std::uint8_t { zero, load, bias };

template <class T>
struct PanelKernels {
  // Packs src[rows][cols] with strides (row_stride, col_stride) into panels.
  void (*pack)(std::int64_t rows, std::int64_t cols, const T* src, std::int64_t row_stride, std::int64_t col_stride,
               T* dst, std::int64_t stride);
  // C[m][n] = init + A[m][k] * B[k][n]; A and B in panels, C dense rows with row stride c_row. bias: n values.
  void (*multiply)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
                   std::int64_t b_stride, T* c, std::int64_t c_row, Init init, const T* bias);
  // The same, but C is in panels with stride c_stride, n a multiple of P.
  void (*multiply_panels)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
                          std::int64_t b_stride, T* c, std::int64_t c_stride);
  // D[rows][cols] (+)= A[t][rows]^T * Z[t][cols]; A, Z and D in panels. Padding columns of D become 0.
  void (*multiply_transposed)(std::int64_t t, std::int64_t rows, std::int64_t cols, const T* a, std::int64_t a_stride,
                              const T* z, std::int64_t z_stride, T* d, std::int64_t d_stride, bool accumulate);
  // The two products with A read where it lies: element k of row i is x[offsets[k] + i * step] (patches of an image with
  // few channels). C[m][n] = bias (or 0) + A[m][k] * B[k][n].
  void (*multiply_gathered)(std::int64_t m, std::int64_t n, std::int64_t k, const T* x, const std::int32_t* offsets,
                            std::int64_t step, const T* b, std::int64_t b_stride, T* c, std::int64_t c_row, const T* bias);
  // D[k][cols] += A[t][k]^T * Z[t][cols].
  void (*add_gathered_transposed)(std::int64_t t, std::int64_t k, std::int64_t cols, const T* x,
                                  const std::int32_t* offsets, std::int64_t step, const T* z, std::int64_t z_stride, T* d,
                                  std::int64_t d_stride);
  // Unpacked, for small m or k: C = init + A * B with any strides of A, rows of B dense.
  void (*small_rows)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row, std::int64_t a_col,
                     const T* b, std::int64_t b_row, T* c, std::int64_t c_row, bool accumulate, const T* bias);
  // Unpacked, for small m: rows of A and columns of B dense (B is a transposed weight): dot products.
  void (*small_dots)(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row, const T* b,
                     std::int64_t b_col, T* c, std::int64_t c_row, bool accumulate, const T* bias);
};

template <class T>
const PanelKernels<T>& panel_kernels();

}  // namespace limpid::cpu
