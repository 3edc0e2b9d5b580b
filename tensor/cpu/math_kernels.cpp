#include <limpid/tensor/cpu/math_kernels.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <limpid/tensor/cpu/math_loops.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>

namespace limpid::cpu {
namespace {

// Elements a task of an elementwise loop: long enough to pay for the fork, short enough to balance.
constexpr std::int64_t kGrain = 32768;

template <class Fn>
void chunks(std::int64_t n, const Fn& fn) {
  if (n <= 2 * kGrain) {
    if (n > 0) fn(std::int64_t{0}, n);
  } else {
    parallel_chunks(n, kGrain, fn);
  }
}
// Rows of `cols` elements, about kGrain elements a task.
template <class Fn>
void row_chunks(std::int64_t rows, std::int64_t cols, const Fn& fn) {
  if (rows <= 0) return;
  if (rows * cols <= 2 * kGrain) {
    fn(std::int64_t{0}, rows);
  } else {
    parallel_chunks(rows, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(cols, 1)), fn);
  }
}

std::int64_t column_sum_parts(std::int64_t rows, std::int64_t cols) {
  return std::clamp<std::int64_t>(std::min(rows * cols / kGrain, rows / 64), 1, 2 * kMaxSlots);
}

template <class T>
void transpose_images(std::int64_t n, std::int64_t rows, std::int64_t cols, const T* x, T* y) {
  if (rows == 1 || cols == 1) {
    chunks(n * rows * cols, [&](std::int64_t begin, std::int64_t end) { std::copy(x + begin, x + end, y + begin); });
    return;
  }
  const MathLoops<T>& loops = math_loops<T>();
  constexpr std::int64_t kStrip = 1024;  // elements of a strip's long side
  // Strips of the longer side, so that one large image is shared out as well.
  const bool by_cols = cols >= rows;
  const std::int64_t width = std::clamp<std::int64_t>(kGrain / (by_cols ? rows : cols), 16, kStrip) / 16 * 16;
  const std::int64_t strips = ceil_div(by_cols ? cols : rows, width);
  const auto strip = [&](std::int64_t task) {
    const std::int64_t image = task / strips, s = task % strips * width;
    const T* src = x + image * rows * cols;
    T* dst = y + image * rows * cols;
    if (by_cols) {
      loops.transpose(rows, std::min(width, cols - s), src + s, cols, dst + s * rows, rows);
    } else {
      loops.transpose(std::min(width, rows - s), cols, src + s * cols, cols, dst + s, rows);
    }
  };
  if (n * rows * cols <= 2 * kGrain) {
    for (std::int64_t task = 0; task < n * strips; ++task) strip(task);
  } else {
    parallel_for(n * strips, strip);
  }
}

}  // namespace

template <class T>
void relu(std::int64_t n, const T* x, T* y) {
  const auto& loops = math_loops<T>();
  chunks(n, [&](std::int64_t begin, std::int64_t end) { loops.relu(end - begin, x + begin, y + begin); });
}
template <class T>
void relu_backward(std::int64_t n, const T* y, const T* dy, T* dx) {
  const auto& loops = math_loops<T>();
  chunks(n, [&](std::int64_t begin, std::int64_t end) {
    loops.relu_backward(end - begin, y + begin, dy + begin, dx + begin);
  });
}
template <class T>
void add(std::int64_t n, const T* a, const T* b, T* y) {
  const auto& loops = math_loops<T>();
  chunks(n, [&](std::int64_t begin, std::int64_t end) { loops.add(end - begin, a + begin, b + begin, y + begin); });
}
template <class T>
void mul(std::int64_t n, const T* a, const T* b, T* y) {
  const auto& loops = math_loops<T>();
  chunks(n, [&](std::int64_t begin, std::int64_t end) { loops.mul(end - begin, a + begin, b + begin, y + begin); });
}
template <class T>
void scale(std::int64_t n, const T* x, T factor, T* y) {
  const auto& loops = math_loops<T>();
  chunks(n, [&](std::int64_t begin, std::int64_t end) { loops.scale(end - begin, x + begin, factor, y + begin); });
}
template <class T>
void axpy(std::int64_t n, T alpha, const T* x, T* y) {
  const auto& loops = math_loops<T>();
  chunks(n, [&](std::int64_t begin, std::int64_t end) { loops.axpy(end - begin, alpha, x + begin, y + begin); });
}
template <class T>
void add_row(std::int64_t rows, std::int64_t cols, const T* x, const T* b, T* y) {
  if (cols == 0) return;
  const auto& loops = math_loops<T>();
  row_chunks(rows, cols, [&](std::int64_t begin, std::int64_t end) {
    loops.add_row(end - begin, cols, x + begin * cols, b, y + begin * cols);
  });
}

template <class T>
double sum(std::int64_t n, const T* x) {
  const auto& loops = math_loops<T>();
  // At most 64 partial sums on the stack, of equal length, added in order.
  const std::int64_t parts = std::clamp<std::int64_t>(n / kGrain, 1, 64), length = ceil_div(n, parts);
  double partial[64] = {};
  parallel_for(parts, [&](std::int64_t q) {
    const std::int64_t begin = q * length, end = std::min(n, begin + length);
    if (begin < end) partial[q] = loops.sum(end - begin, x + begin);
  });
  double total = 0;
  for (std::int64_t q = 0; q < parts; ++q) total += partial[q];
  return total;
}

std::size_t column_sum_workspace(std::int64_t rows, std::int64_t cols, std::size_t) {
  return static_cast<std::size_t>(column_sum_parts(rows, cols) * cols) * sizeof(double);
}

template <class T>
void column_sum(std::int64_t rows, std::int64_t cols, const T* x, T* y, void* workspace) {
  if (cols == 0) return;
  const auto& loops = math_loops<T>();
  double* partial = static_cast<double*>(workspace);
  const std::int64_t parts = column_sum_parts(rows, cols), step = ceil_div(rows, parts);
  parallel_for(parts, [&](std::int64_t q) {
    const std::int64_t begin = std::min(rows, q * step), end = std::min(rows, begin + step);
    loops.column_sum(end - begin, cols, x + begin * cols, partial + q * cols);
  });
  for (std::int64_t q = 1; q < parts; ++q) {
    for (std::int64_t c = 0; c < cols; ++c) partial[c] += partial[q * cols + c];
  }
  for (std::int64_t c = 0; c < cols; ++c) y[c] = static_cast<T>(partial[c]);
}

template <class T>
void nchw_to_nhwc(std::int64_t n, std::int64_t c, std::int64_t hw, const T* x, T* y) {
  transpose_images(n, c, hw, x, y);
}
template <class T>
void nhwc_to_nchw(std::int64_t n, std::int64_t c, std::int64_t hw, const T* x, T* y) {
  transpose_images(n, hw, c, x, y);
}

template <class T>
void softmax_rows(std::int64_t rows, std::int64_t n, const T* x, T* y, bool log) {
  const auto& loops = math_loops<T>();
  row_chunks(rows, 8 * n, [&](std::int64_t begin, std::int64_t end) {
    loops.softmax(end - begin, n, x + begin * n, y + begin * n, log);
  });
}
template <class T>
void softmax_rows_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx, bool log) {
  const auto& loops = math_loops<T>();
  row_chunks(rows, 4 * n, [&](std::int64_t begin, std::int64_t end) {
    loops.softmax_backward(end - begin, n, dy + begin * n, y + begin * n, dx + begin * n, log);
  });
}

template <class T>
void cross_entropy_rows(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                        const T* row_weight, const T* class_weight, double smoothing, T* losses, T* log_sum_exp) {
  row_chunks(rows, 8 * classes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = logits + r * classes;
      const T top = *std::max_element(x, x + classes);
      double total = 0;
      for (std::int64_t j = 0; j < classes; ++j) total += static_cast<double>(std::exp(x[j] - top));
      const double log_total = std::log(total);
      log_sum_exp[r] = static_cast<T>(static_cast<double>(top) + log_total);
      if (labels[r] < 0) {
        losses[r] = T(0);
        continue;
      }
      // nll(j) = log_total - (x_j - top): the difference first, so that large logits lose nothing.
      const auto nll = [&](std::int64_t j) { return log_total - static_cast<double>(x[j] - top); };
      double loss = (1.0 - smoothing) * static_cast<double>(row_weight[r]) * nll(labels[r]);
      if (smoothing != 0) {
        double spread = 0;
        for (std::int64_t j = 0; j < classes; ++j) {
          spread += (class_weight != nullptr ? static_cast<double>(class_weight[j]) : 1.0) * nll(j);
        }
        loss += smoothing / static_cast<double>(classes) * spread;
      }
      losses[r] = static_cast<T>(loss);
    }
  });
}

template <class T>
void cross_entropy_rows_backward(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                                 const T* row_weight, const T* class_weight, double smoothing, const T* row_scale,
                                 const T* log_sum_exp, T* dx) {
  double weight_sum = static_cast<double>(classes);
  if (class_weight != nullptr) {
    weight_sum = 0;
    for (std::int64_t j = 0; j < classes; ++j) weight_sum += static_cast<double>(class_weight[j]);
  }
  const double spread = smoothing / static_cast<double>(classes);
  row_chunks(rows, 8 * classes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = logits + r * classes;
      T* out = dx + r * classes;
      const std::int64_t label = labels[r];
      if (label < 0) {
        std::fill(out, out + classes, T(0));
        continue;
      }
      // d loss / d x_j = p_j * ((1-s) w + s/C W) - (1-s) w [j = label] - s/C w_j
      const double own = (1.0 - smoothing) * static_cast<double>(row_weight[r]),
                   scale_r = static_cast<double>(row_scale[r]);
      const T factor = static_cast<T>(scale_r * (own + spread * weight_sum));
      const T lse = log_sum_exp[r];
      for (std::int64_t j = 0; j < classes; ++j) out[j] = factor * std::exp(x[j] - lse);
      if (smoothing != 0) {
        for (std::int64_t j = 0; j < classes; ++j) {
          out[j] -=
              static_cast<T>(scale_r * spread * (class_weight != nullptr ? static_cast<double>(class_weight[j]) : 1.0));
        }
      }
      out[label] -= static_cast<T>(scale_r * own);
    }
  });
}

#define LIMPID_INSTANTIATE(T)                                                                                        \
  template void relu<T>(std::int64_t, const T*, T*);                                                                 \
  template void relu_backward<T>(std::int64_t, const T*, const T*, T*);                                              \
  template void add<T>(std::int64_t, const T*, const T*, T*);                                                        \
  template void mul<T>(std::int64_t, const T*, const T*, T*);                                                        \
  template void scale<T>(std::int64_t, const T*, T, T*);                                                             \
  template void axpy<T>(std::int64_t, T, const T*, T*);                                                              \
  template void add_row<T>(std::int64_t, std::int64_t, const T*, const T*, T*);                                      \
  template double sum<T>(std::int64_t, const T*);                                                                    \
  template void column_sum<T>(std::int64_t, std::int64_t, const T*, T*, void*);                                      \
  template void nchw_to_nhwc<T>(std::int64_t, std::int64_t, std::int64_t, const T*, T*);                             \
  template void nhwc_to_nchw<T>(std::int64_t, std::int64_t, std::int64_t, const T*, T*);                             \
  template void softmax_rows<T>(std::int64_t, std::int64_t, const T*, T*, bool);                                     \
  template void softmax_rows_backward<T>(std::int64_t, std::int64_t, const T*, const T*, T*, bool);                  \
  template void cross_entropy_rows<T>(std::int64_t, std::int64_t, const T*, const std::int64_t*, const T*, const T*, \
                                      double, T*, T*);                                                               \
  template void cross_entropy_rows_backward<T>(std::int64_t, std::int64_t, const T*, const std::int64_t*, const T*,  \
                                               const T*, double, const T*, const T*, T*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
