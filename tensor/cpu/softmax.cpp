// Softmax and log-softmax over the last dim of a contiguous tensor, and their gradients.
#include <algorithm>
#include <cmath>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/math_kernels.h>
#include <limpid/tensor/cpu/parallel.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kRowGrain = 4096;  // elements a task

// 16-bit storage: the row is read in float, its sum kept in double.
template <class T>
void rows_forward(std::int64_t rows, std::int64_t n, const T* x, T* y, bool log) {
  parallel_chunks(rows, std::max<std::int64_t>(1, kRowGrain / n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r++) {
      const T* in = x + r * n;
      T* out = y + r * n;
      float top = in[0];
      for (std::int64_t i = 1; i < n; i++) top = std::max(top, static_cast<float>(in[i]));
      double total = 0;
      for (std::int64_t i = 0; i < n; i++) total += std::exp(static_cast<float>(in[i]) - top);
      float log_total = static_cast<float>(std::log(total));
      float factor = static_cast<float>(1 / total);
      for (std::int64_t i = 0; i < n; i++) {
        float shifted = static_cast<float>(in[i]) - top;
        out[i] = T(log ? shifted - log_total : std::exp(shifted) * factor);
      }
    }
  });
}

// softmax: dx = y (dy - sum(dy y)); log: dx = dy - exp(y) sum(dy).
template <class T>
void rows_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx, bool log) {
  parallel_chunks(rows, std::max<std::int64_t>(1, kRowGrain / n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r++) {
      const T* g = dy + r * n;
      const T* p = y + r * n;
      T* out = dx + r * n;
      double total = 0;
      for (std::int64_t i = 0; i < n; i++) {
        total += static_cast<double>(static_cast<float>(g[i])) * (log ? 1.0 : static_cast<double>(static_cast<float>(p[i])));
      }
      float sum = static_cast<float>(total);
      for (std::int64_t i = 0; i < n; i++) {
        float gi = g[i], pi = p[i];
        out[i] = T(log ? gi - std::exp(pi) * sum : pi * (gi - sum));
      }
    }
  });
}

}  // namespace

void softmax(Tensor& y, const Tensor& x, bool log) {
  if (x.numel() == 0) return;
  std::int64_t n = x.shape().back(), rows = x.numel() / n;
  visit_floating(x.dtype(), "softmax", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      softmax_rows<T>(rows, n, x.data<T>(), y.mutable_data<T>(), log);
    } else {
      rows_forward<T>(rows, n, x.data<T>(), y.mutable_data<T>(), log);
    }
  });
}

void softmax_backward(Tensor& dx, const Tensor& dy, const Tensor& y, bool log) {
  if (y.numel() == 0) return;
  std::int64_t n = y.shape().back(), rows = y.numel() / n;
  visit_floating(y.dtype(), "softmax", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      softmax_rows_backward<T>(rows, n, dy.data<T>(), y.data<T>(), dx.mutable_data<T>(), log);
    } else {
      rows_backward<T>(rows, n, dy.data<T>(), y.data<T>(), dx.mutable_data<T>(), log);
    }
  });
}

}  // namespace limpid::cpu
