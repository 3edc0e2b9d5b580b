// Internal to tensor/cpu: the serial loops behind math_kernels.h, chosen for the processor at run time.
#pragma once

#include <cstdint>

namespace limpid::cpu {

template <class T>
struct MathLoops {
  void (*relu)(std::int64_t n, const T* x, T* y);
  void (*relu_backward)(std::int64_t n, const T* y, const T* dy, T* dx);
  void (*add)(std::int64_t n, const T* a, const T* b, T* y);
  void (*mul)(std::int64_t n, const T* a, const T* b, T* y);
  void (*scale)(std::int64_t n, const T* x, T factor, T* y);
  void (*axpy)(std::int64_t n, T alpha, const T* x, T* y);
  void (*clamp)(std::int64_t n, T low, T high, T* y);
  void (*add_row)(std::int64_t rows, std::int64_t cols, const T* x, const T* b, T* y);
  double (*sum)(std::int64_t n, const T* x);
  double (*sum_squares)(std::int64_t n, const T* x);
  // out[c] = sum over rows, in double: short runs of rows in T, then added.
  void (*column_sum)(std::int64_t rows, std::int64_t cols, const T* x, double* out);
  // y[j][i] = x[i][j] for a block of rows x cols.
  void (*transpose)(std::int64_t rows, std::int64_t cols, const T* x, std::int64_t x_row, T* y, std::int64_t y_row);
  void (*softmax)(std::int64_t rows, std::int64_t n, const T* x, T* y, bool log);
  void (*softmax_backward)(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx, bool log);
};

template <class T>
const MathLoops<T>& math_loops();

}  // namespace limpid::cpu
