// Targets as in panel.cpp. Loops without a vector type below are vectorised by the compiler for each target.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/math_loops.cpp>
#include <hwy/foreach_target.h>

#include <cmath>
#include <limits>

#include <limpid/tensor/cpu/math_loops.h>
#include <limpid/tensor/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

template <class T>
void relu(std::int64_t n, const T* x, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] < T(0) ? T(0) : x[i];
}
template <class T>
void relu_backward(std::int64_t n, const T* y, const T* dy, T* dx) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = dy[i];
    dx[i] = y[i] <= T(0) ? T(0) : g;  // NaN passes, as in functors.h
  }
}
template <class T>
void add(std::int64_t n, const T* a, const T* b, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}
template <class T>
void mul(std::int64_t n, const T* a, const T* b, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}
template <class T>
void scale(std::int64_t n, const T* x, T factor, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}
template <class T>
void axpy(std::int64_t n, T alpha, const T* x, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
}
template <class T>
void clamp(std::int64_t n, T low, T high, T* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    T v = y[i];
    v = v < low ? low : v;
    y[i] = v > high ? high : v;
  }
}

template <class T>
void add_row(std::int64_t rows, std::int64_t cols, const T* x, const T* b, T* y) {
  constexpr std::int64_t kShort = 64;
  if (cols >= kShort) {
    for (std::int64_t r = 0; r < rows; ++r) add(cols, x + r * cols, b, y + r * cols);
    return;
  }
  // Short rows: the bias is repeated, so that one pass covers several rows.
  T repeated[2 * kShort];
  const std::int64_t group = 2 * kShort / cols, width = group * cols;
  for (std::int64_t i = 0; i < width; ++i) repeated[i] = b[i % cols];
  std::int64_t r = 0;
  for (; r + group <= rows; r += group) add(width, x + r * cols, repeated, y + r * cols);
  add((rows - r) * cols, x + r * cols, repeated, y + r * cols);
}

// Eight interleaved double sums, added pairwise at the end.
template <class T, bool kSquare>
double sum_of(std::int64_t n, const T* x) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const double v = static_cast<double>(x[i + j]);
      lanes[j] += kSquare ? v * v : v;
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    const double v = static_cast<double>(x[i]);
    lanes[j] += kSquare ? v * v : v;
  }
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

template <class T>
void column_sum(std::int64_t rows, std::int64_t cols, const T* x, double* out) {
  constexpr std::int64_t L = kLanes<T>, kRun = 32;
  const Tag<T> d;
  HWY_ALIGN T lanes[4 * kLanes<T>];
  for (std::int64_t c = 0; c < cols; ++c) out[c] = 0;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kRun) {
    const std::int64_t run = rows - r0 < kRun ? rows - r0 : kRun;
    std::int64_t c = 0;
    for (; c + 4 * L <= cols; c += 4 * L) {
      const T* p = x + r0 * cols + c;
      auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
      for (std::int64_t r = 0; r < run; ++r, p += cols) {
        s0 = hn::Add(s0, hn::LoadU(d, p)), s1 = hn::Add(s1, hn::LoadU(d, p + L));
        s2 = hn::Add(s2, hn::LoadU(d, p + 2 * L)), s3 = hn::Add(s3, hn::LoadU(d, p + 3 * L));
      }
      hn::Store(s0, d, lanes), hn::Store(s1, d, lanes + L), hn::Store(s2, d, lanes + 2 * L),
          hn::Store(s3, d, lanes + 3 * L);
      for (std::int64_t j = 0; j < 4 * L; ++j) out[c + j] += static_cast<double>(lanes[j]);
    }
    for (; c < cols; c += L) {
      const std::int64_t part = cols - c < L ? cols - c : L;
      const T* p = x + r0 * cols + c;
      auto s0 = hn::Zero(d);
      for (std::int64_t r = 0; r < run; ++r, p += cols)
        s0 = hn::Add(s0, part == L ? hn::LoadU(d, p) : load_part(p, part));
      hn::Store(s0, d, lanes);
      for (std::int64_t j = 0; j < part; ++j) out[c + j] += static_cast<double>(lanes[j]);
    }
  }
}

template <class T>
void transpose(std::int64_t rows, std::int64_t cols, const T* x, std::int64_t x_row, T* y, std::int64_t y_row) {
  constexpr std::int64_t B = 16;
  for (std::int64_t j0 = 0; j0 < cols; j0 += B) {
    const std::int64_t jn = cols - j0 < B ? cols - j0 : B;
    for (std::int64_t i0 = 0; i0 < rows; i0 += B) {
      const std::int64_t in = rows - i0 < B ? rows - i0 : B;
      const T* src = x + i0 * x_row + j0;
      T* dst = y + j0 * y_row + i0;
      if (in == B && jn == B) {
        for (std::int64_t j = 0; j < B; j += 4) {
          for (std::int64_t i = 0; i < B; i += 4) transpose4(src + i * x_row + j, x_row, dst + j * y_row + i, y_row);
        }
      } else {
        for (std::int64_t j = 0; j < jn; ++j) {
          for (std::int64_t i = 0; i < in; ++i) dst[j * y_row + i] = src[i * x_row + j];
        }
      }
    }
  }
}

template <class T>
void softmax(std::int64_t rows, std::int64_t n, const T* x, T* y, bool log) {
  for (std::int64_t r = 0; r < rows; ++r, x += n, y += n) {
    T top = -std::numeric_limits<T>::infinity();
    for (std::int64_t j = 0; j < n; ++j) top = x[j] > top ? x[j] : top;
    double total = 0;
    if (log) {
      for (std::int64_t j = 0; j < n; ++j) total += static_cast<double>(std::exp(x[j] - top));
      const T shift = static_cast<T>(std::log(total));
      for (std::int64_t j = 0; j < n; ++j) y[j] = (x[j] - top) - shift;
    } else {
      for (std::int64_t j = 0; j < n; ++j) total += static_cast<double>(y[j] = std::exp(x[j] - top));
      const T inverse = static_cast<T>(1.0 / total);
      for (std::int64_t j = 0; j < n; ++j) y[j] *= inverse;
    }
  }
}

template <class T>
void softmax_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx, bool log) {
  for (std::int64_t r = 0; r < rows; ++r, dy += n, y += n, dx += n) {
    double total = 0;
    if (log) {  // dx = dy - exp(y) * sum dy
      for (std::int64_t j = 0; j < n; ++j) total += static_cast<double>(dy[j]);
      const T t = static_cast<T>(total);
      for (std::int64_t j = 0; j < n; ++j) dx[j] = dy[j] - std::exp(y[j]) * t;
    } else {  // dx = y * (dy - sum dy * y)
      for (std::int64_t j = 0; j < n; ++j) total += static_cast<double>(dy[j]) * static_cast<double>(y[j]);
      const T t = static_cast<T>(total);
      for (std::int64_t j = 0; j < n; ++j) dx[j] = y[j] * (dy[j] - t);
    }
  }
}

template <class T>
inline constexpr MathLoops<T> kMathLoops = {
    &relu<T>,    &relu_backward<T>, &add<T>,          &mul<T>,        &scale<T>,     &axpy<T>,    &clamp<T>,
    &add_row<T>, &sum_of<T, false>, &sum_of<T, true>, &column_sum<T>, &transpose<T>, &softmax<T>, &softmax_backward<T>};

const MathLoops<float>* math_loops_float() { return &kMathLoops<float>; }
const MathLoops<double>* math_loops_double() { return &kMathLoops<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
HWY_EXPORT(math_loops_float);
HWY_EXPORT(math_loops_double);

template <>
const MathLoops<float>& math_loops<float>() {
  return *HWY_DYNAMIC_DISPATCH(math_loops_float)();
}
template <>
const MathLoops<double>& math_loops<double>() {
  return *HWY_DYNAMIC_DISPATCH(math_loops_double)();
}
}  // namespace limpid::cpu
#endif
