// Layer norm and group norm over rows of a contiguous [rows, len]; statistics are f64. The affine pair of element (row, i)
// has index (row % affine_rows) * (len / inner) + i / inner.
#include <algorithm>
#include <cmath>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>

namespace limpid::cpu {
namespace {

template <class T>
double value_of(T x) {
  return static_cast<double>(static_cast<compute_t<T>>(x));
}
template <class T>
T stored(double x) {
  return static_cast<T>(static_cast<compute_t<T>>(x));
}

struct Geometry {
  std::int64_t rows, len, inner, affine_rows;
  std::int64_t slice() const { return len / inner; }  // affine pairs a row
  std::int64_t grain() const { return std::max<std::int64_t>(1, kGrainCostly / std::max<std::int64_t>(len, 1)); }
};

Geometry geometry_of(const Tensor& x, const Tensor& mean, std::int64_t inner, std::int64_t affine_rows) {
  std::int64_t rows = mean.numel();
  return {rows, rows > 0 ? x.numel() / rows : 0, std::max<std::int64_t>(inner, 1), affine_rows};
}

// Sums with eight lanes, which the compiler turns into vectors.
template <class Term>
double lane_sum(std::int64_t n, Term term) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; j++) lanes[j] += term(i + j);
  }
  double sum = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  for (; i < n; i++) sum += term(i);
  return sum;
}

template <class T>
void forward(const Geometry& g, T* y, double* mean, double* invstd, const T* x, const T* weight, const T* bias,
             double eps) {
  parallel_chunks(g.rows, g.grain(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r++) {
      const T* in = x + r * g.len;
      T* out = y + r * g.len;
      double m = lane_sum(g.len, [&](std::int64_t i) { return value_of(in[i]); }) / static_cast<double>(g.len);
      double squares = lane_sum(g.len, [&](std::int64_t i) {
        double d = value_of(in[i]) - m;
        return d * d;
      });
      double inv = 1.0 / std::sqrt(squares / static_cast<double>(g.len) + eps);
      mean[r] = m;
      invstd[r] = inv;
      const std::int64_t first = r % g.affine_rows * g.slice();
      for (std::int64_t s = 0, i = 0; s < g.slice(); s++) {
        double w = weight ? value_of(weight[first + s]) : 1.0, b = bias ? value_of(bias[first + s]) : 0.0;
        for (std::int64_t j = 0; j < g.inner; j++, i++) out[i] = stored<T>((value_of(in[i]) - m) * inv * w + b);
      }
    }
  });
}

// dx = invstd (g - mean(g) - xhat mean(g xhat)), g = dy weight
template <class T>
void backward_input(const Geometry& g, T* dx, const T* dy, const T* x, const double* mean, const double* invstd,
                    const T* weight) {
  parallel_chunks(g.rows, g.grain(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r++) {
      const T* in = x + r * g.len;
      const T* grad = dy + r * g.len;
      T* out = dx + r * g.len;
      const std::int64_t first = r % g.affine_rows * g.slice();
      double m = mean[r], inv = invstd[r], sum = 0, sum_xhat = 0;
      for (std::int64_t s = 0; s < g.slice(); s++) {
        double w = weight ? value_of(weight[first + s]) : 1.0, part = 0, part_xhat = 0;
        for (std::int64_t i = s * g.inner; i < (s + 1) * g.inner; i++) {
          double v = value_of(grad[i]);
          part += v;
          part_xhat += v * (value_of(in[i]) - m);
        }
        sum += w * part;
        sum_xhat += w * part_xhat * inv;
      }
      sum /= static_cast<double>(g.len);
      sum_xhat /= static_cast<double>(g.len);
      for (std::int64_t s = 0; s < g.slice(); s++) {
        double w = weight ? value_of(weight[first + s]) : 1.0;
        for (std::int64_t i = s * g.inner; i < (s + 1) * g.inner; i++) {
          double xhat = (value_of(in[i]) - m) * inv;
          out[i] = stored<T>(inv * (value_of(grad[i]) * w - sum - xhat * sum_xhat));
        }
      }
    }
  });
}

// A task owns a tile of affine pairs and walks the rows in order: no partial results, no workspace.
template <class T>
void backward_affine(const Geometry& g, T* dweight, T* dbias, const T* dy, const T* x, const double* mean,
                     const double* invstd) {
  constexpr std::int64_t kTile = 32;
  const std::int64_t tiles = (g.slice() + kTile - 1) / kTile;
  parallel_for(g.affine_rows * tiles, [&](std::int64_t task) {
    const std::int64_t row0 = task / tiles, first = task % tiles * kTile;
    const std::int64_t count = std::min(kTile, g.slice() - first);
    double sums[kTile] = {}, sums_xhat[kTile] = {};
    for (std::int64_t r = row0; r < g.rows; r += g.affine_rows) {
      const double m = mean[r], inv = invstd[r];
      for (std::int64_t s = 0; s < count; s++) {
        double part = 0, part_xhat = 0;
        const std::int64_t at = r * g.len + (first + s) * g.inner;
        for (std::int64_t i = at; i < at + g.inner; i++) {
          double v = value_of(dy[i]);
          part += v;
          part_xhat += v * (value_of(x[i]) - m);
        }
        sums[s] += part;
        sums_xhat[s] += part_xhat * inv;
      }
    }
    for (std::int64_t s = 0; s < count; s++) {
      const std::int64_t to = row0 * g.slice() + first + s;
      if (dweight) dweight[to] = stored<T>(sums_xhat[s]);
      if (dbias) dbias[to] = stored<T>(sums[s]);
    }
  });
}

template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

}  // namespace

void row_norm(Tensor& y, Tensor& mean, Tensor& invstd, const Tensor& x, const Tensor& weight, const Tensor& bias,
              std::int64_t inner, std::int64_t affine_rows, double eps) {
  Geometry g = geometry_of(x, mean, inner, affine_rows);
  visit_floating(x.dtype(), "row_norm", [&]<class T>() {
    forward<T>(g, y.mutable_data<T>(), mean.mutable_data<double>(), invstd.mutable_data<double>(), x.data<T>(),
               data_or_null<T>(weight), data_or_null<T>(bias), eps);
  });
}

void row_norm_backward(Tensor& dx, Tensor& dweight, Tensor& dbias, const Tensor& dy, const Tensor& x,
                       const Tensor& mean, const Tensor& invstd, const Tensor& weight, std::int64_t inner,
                       std::int64_t affine_rows) {
  Geometry g = geometry_of(x, mean, inner, affine_rows);
  const double* m = mean.data<double>();
  const double* inv = invstd.data<double>();
  visit_floating(x.dtype(), "row_norm", [&]<class T>() {
    if (dx.defined()) {
      backward_input<T>(g, dx.mutable_data<T>(), dy.data<T>(), x.data<T>(), m, inv, data_or_null<T>(weight));
    }
    if (!dweight.defined() && !dbias.defined()) return;
    if (g.rows == 0) {  // nothing was normalised: the gradients are sums over no rows
      if (dweight.defined()) fill(dweight, 0);
      if (dbias.defined()) fill(dbias, 0);
      return;
    }
    backward_affine<T>(g, dweight.defined() ? dweight.mutable_data<T>() : nullptr,
                       dbias.defined() ? dbias.mutable_data<T>() : nullptr, dy.data<T>(), x.data<T>(), m, inv);
  });
}

}  // namespace limpid::cpu
