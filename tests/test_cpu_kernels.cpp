// Norm, pooling, optimizer and elementwise kernels of the CPU against plain loops in double: odd sizes, guards, and the
// same bits for 1, 2 and 3 threads.
#include <algorithm>
#include <cstring>
#include <limits>

#include <hwy/targets.h>

#include <limpid/tensor/cpu/half_loops.h>
#include <limpid/tensor/cpu/math_kernels.h>
#include <limpid/tensor/cpu/norm.h>
#include <limpid/tensor/cpu/optim.h>
#include <limpid/tensor/cpu/pool.h>

#include "kernel_test.h"

using namespace limpid::cpu;
using namespace kernel_test;

namespace {

using Doubles = std::vector<double>;
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
Doubles doubles(const Guarded<T>& x) {
  Doubles out(at(x.size()));
  for (std::int64_t i = 0; i < x.size(); ++i) out[at(i)] = static_cast<double>(x[i]);
  return out;
}

template <class T>
void check_batch_norm(std::int64_t pixels, std::int64_t channels, double offset, Random& random) {
  CAPTURE(pixels);
  CAPTURE(channels);
  Guarded<T> x(pixels * channels), dy(pixels * channels), weight(channels), bias(channels);
  random.fill(x), random.fill(dy), random.fill(weight), random.fill(bias);
  for (std::int64_t i = 0; i < x.size(); ++i) x[i] += static_cast<T>(offset);
  const auto workspace = static_cast<std::int64_t>(batch_norm_workspace(pixels, channels));
  Doubles mean(at(channels)), m2(at(channels)), invstd(at(channels)), sum(at(channels)), dot(at(channels));
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t p = 0; p < pixels; ++p)
      mean[at(c)] += static_cast<double>(x[p * channels + c]) / static_cast<double>(pixels);
    for (std::int64_t p = 0; p < pixels; ++p)
      m2[at(c)] += std::pow(static_cast<double>(x[p * channels + c]) - mean[at(c)], 2);
    invstd[at(c)] = 1 / std::sqrt(m2[at(c)] / static_cast<double>(pixels) + 1e-5);
    for (std::int64_t p = 0; p < pixels; ++p) {
      const double g = static_cast<double>(dy[p * channels + c]);
      sum[at(c)] += g;
      dot[at(c)] += g * (static_cast<double>(x[p * channels + c]) - mean[at(c)]) * invstd[at(c)];
    }
  }
  const double steepest = *std::max_element(invstd.begin(), invstd.end());
  const double tol = tolerance<T>(static_cast<double>(pixels)) * (1 + std::fabs(offset));
  const auto stats = run_all_threads<double>(3 * channels, [&](Guarded<double>& out) {
    Guarded<unsigned char> ws(workspace);
    batch_norm_statistics(pixels, channels, x.data(), out.data(), ws.data());
    CHECK(ws.intact());
  });
  for (std::int64_t c = 0; c < channels; ++c) {
    CHECK(stats[c] == static_cast<double>(pixels));
    CHECK(std::fabs(stats[channels + c] - mean[at(c)]) <= tol);
    CHECK(std::fabs(stats[2 * channels + c] - m2[at(c)]) <= tol * (1 + m2[at(c)]));
  }
  const auto sums = run_all_threads<double>(2 * channels, [&](Guarded<double>& out) {
    Guarded<unsigned char> ws(workspace);
    batch_norm_backward_reduce(pixels, channels, x.data(), dy.data(), mean.data(), invstd.data(), out.data(),
                               ws.data());
    CHECK(ws.intact());
  });
  Doubles want_sums(sum);
  want_sums.insert(want_sums.end(), dot.begin(), dot.end());
  CHECK(error_of(sums, want_sums) < tol);
  for (int variant = 0; variant < 4; ++variant) {
    const bool affine = variant & 1, relu = variant & 2;
    Doubles y(at(x.size())), dx(at(x.size()));
    for (std::int64_t p = 0; p < pixels; ++p) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t i = p * channels + c;
        const double xhat = (static_cast<double>(x[i]) - mean[at(c)]) * invstd[at(c)];
        const double w = affine ? static_cast<double>(weight[c]) : 1.0;
        y[at(i)] = xhat * w + (affine ? static_cast<double>(bias[c]) : 0.0);
        if (relu) y[at(i)] = std::max(y[at(i)], 0.0);
        const double n = static_cast<double>(pixels);
        dx[at(i)] =
            w * invstd[at(c)] * (static_cast<double>(dy[i]) - (relu ? 0 : (sum[at(c)] + xhat * dot[at(c)]) / n));
      }
    }
    const auto got = run_all_threads<T>(x.size(), [&](Guarded<T>& out) {
      batch_norm_apply(pixels, channels, x.data(), mean.data(), invstd.data(), affine ? weight.data() : nullptr,
                       affine ? bias.data() : nullptr, out.data(), relu);
    });
    CHECK(error_of(got, y) < 4 * tolerance<T>(1) * (1 + std::fabs(offset)));
    // The variants with relu check the constant-statistics form (count 0) of the gradient.
    const auto got_dx = run_all_threads<T>(x.size(), [&](Guarded<T>& out) {
      batch_norm_backward_apply(pixels, channels, x.data(), dy.data(), mean.data(), invstd.data(),
                                affine ? weight.data() : nullptr, want_sums.data(),
                                relu ? 0.0 : static_cast<double>(pixels), out.data());
    });
    // dx is a difference of terms as large as invstd.
    CHECK(error_of(got_dx, dx) < 4 * tolerance<T>(1) * (1 + std::fabs(offset)) * (1 + steepest));
  }
}

template <class T>
void check_pool(const PoolDesc& d, bool with_nan, Random& random) {
  const std::int64_t in = d.n * d.h * d.w * d.c, out = d.n * d.oh * d.ow * d.c;
  Guarded<T> x(in), dy(out);
  random.fill(x), random.fill(dy);
  for (std::int64_t i = 0; i < in; i += 3) x[i] = static_cast<T>(0.25 * static_cast<double>(random.below(5)));  // ties
  if (with_nan) {
    for (std::int64_t i = 0; i < in; i += 17) x[i] = std::numeric_limits<T>::quiet_NaN();
  }
  Doubles top(at(out)), top_dx(at(in)), avg(at(out)), avg_dx(at(in)), ada(at(out)), ada_dx(at(in));
  std::vector<std::int32_t> index(at(out));
  for (std::int64_t n = 0; n < d.n; ++n)
    for (std::int64_t oy = 0; oy < d.oh; ++oy)
      for (std::int64_t ox = 0; ox < d.ow; ++ox)
        for (std::int64_t c = 0; c < d.c; ++c) {
          const std::int64_t o = ((n * d.oh + oy) * d.ow + ox) * d.c + c;
          const auto pixel = [&](std::int64_t y, std::int64_t xx) { return ((n * d.h + y) * d.w + xx) * d.c + c; };
          double best = -INFINITY, total = 0;
          std::int64_t best_at = -1, inside = 0, padded = 0;
          for (std::int64_t r = 0; r < d.kernel_h; ++r)
            for (std::int64_t s = 0; s < d.kernel_w; ++s) {
              const std::int64_t iy = oy * d.stride_h - d.pad_h + r * d.dil_h,
                                 ix = ox * d.stride_w - d.pad_w + s * d.dil_w;
              if (iy < d.h + d.pad_h && ix < d.w + d.pad_w) ++padded;
              if (iy < 0 || iy >= d.h || ix < 0 || ix >= d.w) continue;
              const double v = static_cast<double>(x[pixel(iy, ix)]);
              if (best_at < 0 || v > best || std::isnan(v)) best = v, best_at = iy * d.w + ix;
              total += v, ++inside;
            }
          top[at(o)] = best, index[at(o)] = static_cast<std::int32_t>(best_at);
          top_dx[at((n * d.h * d.w + best_at) * d.c + c)] += static_cast<double>(dy[o]);
          const double count = static_cast<double>(d.count_include_pad ? padded : inside);
          avg[at(o)] = total / count;
          if (d.dil_h == 1 && d.dil_w == 1) {
            for (std::int64_t r = 0; r < d.kernel_h; ++r)
              for (std::int64_t s = 0; s < d.kernel_w; ++s) {
                const std::int64_t iy = oy * d.stride_h - d.pad_h + r, ix = ox * d.stride_w - d.pad_w + s;
                if (iy >= 0 && iy < d.h && ix >= 0 && ix < d.w)
                  avg_dx[at(pixel(iy, ix))] += static_cast<double>(dy[o]) / count;
              }
          }
          const std::int64_t y0 = oy * d.h / d.oh, y1 = ((oy + 1) * d.h + d.oh - 1) / d.oh;
          const std::int64_t x0 = ox * d.w / d.ow, x1 = ((ox + 1) * d.w + d.ow - 1) / d.ow;
          for (std::int64_t iy = y0; iy < y1; ++iy)
            for (std::int64_t ix = x0; ix < x1; ++ix) {
              const double part = 1.0 / static_cast<double>((y1 - y0) * (x1 - x0));
              ada[at(o)] += static_cast<double>(x[pixel(iy, ix)]) * part;
              ada_dx[at(pixel(iy, ix))] += static_cast<double>(dy[o]) * part;
            }
        }
  const auto indices = run_all_threads<std::int32_t>(out, [&](Guarded<std::int32_t>& idx) {
    Guarded<T> y(out);
    max_pool2d(d, x.data(), y.data(), idx.data());
    CHECK(y.intact());
    CHECK(error_of(y, top) == 0);
  });
  for (std::int64_t i = 0; i < out; ++i) CHECK(indices[i] == index[at(i)]);
  Guarded<T> values(out);
  max_pool2d<T>(d, x.data(), values.data(), nullptr);
  CHECK((values.intact() && error_of(values, top) == 0));
  const auto dx =
      run_all_threads<T>(in, [&](Guarded<T>& g) { max_pool2d_backward(d, dy.data(), indices.data(), g.data()); });
  CHECK(error_of(dx, top_dx) < tolerance<T>(9));
  if (with_nan) return;
  if (d.dil_h == 1 && d.dil_w == 1) {
    const auto y = run_all_threads<T>(out, [&](Guarded<T>& g) { avg_pool2d(d, x.data(), g.data()); });
    CHECK(error_of(y, avg) < tolerance<T>(9));
    const auto adx = run_all_threads<T>(in, [&](Guarded<T>& g) { avg_pool2d_backward(d, dy.data(), g.data()); });
    CHECK(error_of(adx, avg_dx) < tolerance<T>(9));
  }
  const auto y = run_all_threads<T>(out, [&](Guarded<T>& g) { adaptive_avg_pool2d(d, x.data(), g.data()); });
  CHECK(error_of(y, ada) < tolerance<T>(9));
  const auto adx = run_all_threads<T>(in, [&](Guarded<T>& g) { adaptive_avg_pool2d_backward(d, dy.data(), g.data()); });
  CHECK(error_of(adx, ada_dx) < tolerance<T>(9));
}

// A scalar optimizer written after PyTorch's single-tensor paths, in double.
struct Scalar {
  double p = 0, s0 = 0, s1 = 0, s2 = 0;
  void sgd(double g, const SgdStep& s) {
    g += s.weight_decay * p;
    if (s.momentum != 0) {
      s0 = s.first_step ? g : s.momentum * s0 + (1 - s.dampening) * g;
      g = s.nesterov ? g + s.momentum * s0 : s0;
    }
    p -= s.lr * g;
  }
  void adam(double g, const AdamStep& s) {
    if (s.decoupled) {
      p *= 1 - s.lr * s.weight_decay;
    } else {
      g += s.weight_decay * p;
    }
    s0 += (g - s0) * (1 - s.beta1);
    s1 = s1 * s.beta2 + (1 - s.beta2) * g * g;
    const double bc1 = 1 - std::pow(s.beta1, static_cast<double>(s.step)),
                 bc2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
    if (s.amsgrad) s2 = std::max(s2, s1);
    p -= s.lr / bc1 * (s0 / (std::sqrt(s.amsgrad ? s2 : s1) / std::sqrt(bc2) + s.eps));
  }
  void rmsprop(double g, const RmspropStep& s) {
    g += s.weight_decay * p;
    s0 = s.alpha * s0 + (1 - s.alpha) * g * g;
    double avg = s0;
    if (s.centered) {
      s2 += (g - s2) * (1 - s.alpha);
      avg = s0 - s2 * s2;
    }
    avg = std::sqrt(avg) + s.eps;
    if (s.momentum > 0) {
      s1 = s.momentum * s1 + g / avg;
      p -= s.lr * s1;
    } else {
      p -= s.lr * g / avg;
    }
  }
};

template <class T, class Kernel, class Reference>
void check_optimizer(const Kernel& kernel, const Reference& reference, double tol) {
  Random random(11);
  const std::int64_t sizes[] = {1, 17, 0, 40000, 300};
  std::vector<Guarded<T>> p, g, s0, s1, s2;
  std::vector<Chunk<T>> chunks;
  std::vector<std::vector<Scalar>> want;
  for (std::int64_t n : sizes) {
    for (auto* list : {&p, &g, &s0, &s1, &s2}) list->emplace_back(n);
    random.fill(p.back());
    want.emplace_back(at(n));
    for (std::int64_t i = 0; i < n; ++i) {
      s0.back()[i] = s1.back()[i] = s2.back()[i] = T(0);
      want.back()[at(i)].p = static_cast<double>(p.back()[i]);
    }
  }
  for (std::size_t t = 0; t < want.size(); ++t) {
    chunks.push_back({p[t].data(), g[t].data(), s0[t].data(), s1[t].data(), s2[t].data(), p[t].size()});
  }
  Threads restore;
  for (int step = 1; step <= 20; ++step) {
    set_num_threads(1 + step % 3);
    for (auto& grad : g) random.fill(grad);
    kernel(std::span<const Chunk<T>>(chunks), step);
    for (std::size_t t = 0; t < want.size(); ++t) {
      for (std::size_t i = 0; i < want[t].size(); ++i)
        reference(want[t][i], static_cast<double>(g[t][static_cast<std::int64_t>(i)]), step);
    }
  }
  double worst = 0;
  for (std::size_t t = 0; t < want.size(); ++t) {
    for (std::size_t i = 0; i < want[t].size(); ++i) {
      const double e = std::fabs(static_cast<double>(p[t][static_cast<std::int64_t>(i)]) - want[t][i].p);
      worst = e <= 1e300 ? std::max(worst, e) : INFINITY;
    }
    CHECK((p[t].intact() && g[t].intact() && s0[t].intact() && s1[t].intact() && s2[t].intact()));
  }
  CHECK(worst < tol);
}

template <class T>
void check_optimizers(double tol) {
  for (int v = 0; v < 16; ++v) {
    SgdStep s{
        .lr = 0.05, .momentum = v & 1 ? 0.9 : 0.0, .dampening = v & 2 ? 0.3 : 0.0, .weight_decay = v & 4 ? 0.01 : 0.0};
    s.nesterov = (v & 8) && (v & 1) && !(v & 2);
    check_optimizer<T>(
        [&](auto chunks, int step) {
          s.first_step = step == 1;
          sgd_step<T>(chunks, s);
        },
        [&](Scalar& w, double g, int step) {
          s.first_step = step == 1;
          w.sgd(g, s);
        },
        tol);
  }
  for (int v = 0; v < 8; ++v) {
    AdamStep s{.lr = 0.01, .weight_decay = v & 1 ? 0.1 : 0.0, .decoupled = (v & 2) != 0, .amsgrad = (v & 4) != 0};
    check_optimizer<T>(
        [&](auto chunks, int step) {
          s.step = step;
          adam_step<T>(chunks, s);
        },
        [&](Scalar& w, double g, int step) {
          s.step = step;
          w.adam(g, s);
        },
        tol);
  }
  for (int v = 0; v < 8; ++v) {
    const RmspropStep s{
        .lr = 0.01, .weight_decay = v & 1 ? 0.1 : 0.0, .momentum = v & 2 ? 0.9 : 0.0, .centered = (v & 4) != 0};
    check_optimizer<T>([&](auto chunks, int) { rmsprop_step<T>(chunks, s); },
                       [&](Scalar& w, double g, int) { w.rmsprop(g, s); }, tol * (v & 4 ? 20 : 1));
  }
}

template <class T>
void check_loops(std::int64_t n, Random& random) {
  Guarded<T> a(n), b(n);
  random.fill(a), random.fill(b);
  const Doubles x = doubles(a), z = doubles(b);
  Doubles want(at(n));
  const auto expect = [&](auto value, auto kernel) {
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = value(x[i], z[i]);
    const auto got = run_all_threads<T>(n, [&](Guarded<T>& y) {
      std::copy(b.data(), b.data() + n, y.data());
      kernel(y.data());
    });
    CHECK(error_of(got, want) < tolerance<T>(1));
  };
  expect([](double u, double) { return std::max(u, 0.0); }, [&](T* y) { relu(n, a.data(), y); });
  expect([](double u, double v) { return u > 0 ? v : 0; }, [&](T* y) { relu_backward(n, a.data(), b.data(), y); });
  expect([](double u, double v) { return u + v; }, [&](T* y) { add(n, a.data(), b.data(), y); });
  expect([](double u, double v) { return u * v; }, [&](T* y) { mul(n, a.data(), b.data(), y); });
  expect([](double u, double) { return 3 * u; }, [&](T* y) { scale(n, a.data(), T(3), y); });
  expect([](double u, double v) { return v + 0.5 * u; }, [&](T* y) { axpy(n, T(0.5), a.data(), y); });
  double total = 0, squares = 0;
  for (double v : x) total += v, squares += v * v;
  const auto sums = run_all_threads<double>(2, [&](Guarded<double>& out) {
    out[0] = sum(n, a.data());
    const ConstSpan<T> list[] = {{a.data(), n}, {nullptr, 0}};
    out[1] = sum_of_squares<T>(list);
  });
  CHECK(std::fabs(sums[0] - total) < 1e-11 * static_cast<double>(n + 1));
  CHECK(std::fabs(sums[1] - squares) < 1e-11 * static_cast<double>(n + 1));
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = std::clamp(2 * x[i], -0.5, 0.25);
  const auto got = run_all_threads<T>(n, [&](Guarded<T>& y) {
    std::copy(a.data(), a.data() + n, y.data());
    const MutableSpan<T> list[] = {{y.data(), n}};
    scale_tensors<T>(list, 2.0);
    clamp_tensors<T>(list, -0.5, 0.25);
  });
  CHECK(error_of(got, want) < tolerance<T>(1));
}

template <class T>
void check_rows(std::int64_t rows, std::int64_t cols, Random& random) {
  CAPTURE(rows);
  CAPTURE(cols);
  Guarded<T> x(rows * cols), dy(rows * cols), b(cols), weight(rows), class_weight(cols), row_scale(rows);
  random.fill(x), random.fill(dy), random.fill(b), random.fill(weight), random.fill(class_weight),
      random.fill(row_scale);
  std::vector<std::int64_t> labels(at(rows));
  for (auto& label : labels) label = random.below(cols + 1) - 1;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (labels[at(r)] < 0) weight[r] = T(0);
  }
  const Doubles v = doubles(x), g = doubles(dy);
  Doubles sums(at(cols)), plus(at(rows * cols)), soft(plus), logs(plus), soft_dx(plus), log_dx(plus);
  for (std::int64_t r = 0; r < rows; ++r) {
    double top = -INFINITY, total = 0, dot = 0, gsum = 0;
    const auto i = [&](std::int64_t c) { return at(r * cols + c); };
    for (std::int64_t c = 0; c < cols; ++c) {
      sums[at(c)] += v[i(c)];
      plus[i(c)] = v[i(c)] + static_cast<double>(b[c]);
      top = std::max(top, v[i(c)]);
    }
    for (std::int64_t c = 0; c < cols; ++c) total += std::exp(v[i(c)] - top);
    for (std::int64_t c = 0; c < cols; ++c) {
      soft[i(c)] = std::exp(v[i(c)] - top) / total;
      logs[i(c)] = v[i(c)] - top - std::log(total);
      dot += g[i(c)] * soft[i(c)], gsum += g[i(c)];
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      soft_dx[i(c)] = soft[i(c)] * (g[i(c)] - dot);
      log_dx[i(c)] = g[i(c)] - soft[i(c)] * gsum;
    }
  }
  const double tol = tolerance<T>(static_cast<double>(cols + 4));
  CHECK(error_of(run_all_threads<T>(cols,
                                    [&](Guarded<T>& y) {
                                      Guarded<unsigned char> ws(
                                          static_cast<std::int64_t>(column_sum_workspace(rows, cols, sizeof(T))));
                                      column_sum(rows, cols, x.data(), y.data(), ws.data());
                                      CHECK(ws.intact());
                                    }),
                 sums) < tolerance<T>(static_cast<double>(rows)));
  CHECK(error_of(
            run_all_threads<T>(rows * cols, [&](Guarded<T>& y) { add_row(rows, cols, x.data(), b.data(), y.data()); }),
            plus) < tol);
  for (bool log : {false, true}) {
    const auto y =
        run_all_threads<T>(rows * cols, [&](Guarded<T>& out) { softmax_rows(rows, cols, x.data(), out.data(), log); });
    CHECK(error_of(y, log ? logs : soft) < tol);
    const auto dx = run_all_threads<T>(
        rows * cols, [&](Guarded<T>& out) { softmax_rows_backward(rows, cols, dy.data(), y.data(), out.data(), log); });
    CHECK(error_of(dx, log ? log_dx : soft_dx) < tol);
  }
  for (int variant = 0; variant < 4; ++variant) {
    const double s = variant & 1 ? 0.1 : 0.0;
    const bool weighted = variant & 2;
    Doubles loss(at(rows)), grad(at(rows * cols));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t label = labels[at(r)];
      if (label < 0) continue;
      double weights = 0;
      const double w = static_cast<double>(weight[r]), scale_r = static_cast<double>(row_scale[r]);
      loss[at(r)] = -(1 - s) * w * logs[at(r * cols + label)];
      for (std::int64_t c = 0; c < cols; ++c) {
        const double cw = weighted ? static_cast<double>(class_weight[c]) : 1.0;
        loss[at(r)] -= s / static_cast<double>(cols) * cw * logs[at(r * cols + c)];
        weights += cw;
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        const double cw = weighted ? static_cast<double>(class_weight[c]) : 1.0, p = soft[at(r * cols + c)];
        grad[at(r * cols + c)] =
            scale_r * ((1 - s) * w * (p - (c == label ? 1 : 0)) + s / static_cast<double>(cols) * (weights * p - cw));
      }
    }
    Guarded<T> lse(rows);
    const auto losses = run_all_threads<T>(rows, [&](Guarded<T>& out) {
      cross_entropy_rows(rows, cols, x.data(), labels.data(), weight.data(), weighted ? class_weight.data() : nullptr,
                         s, out.data(), lse.data());
    });
    CHECK(lse.intact());
    CHECK(error_of(losses, loss) < tol);
    const auto dx = run_all_threads<T>(rows * cols, [&](Guarded<T>& out) {
      cross_entropy_rows_backward(rows, cols, x.data(), labels.data(), weight.data(),
                                  weighted ? class_weight.data() : nullptr, s, row_scale.data(), lse.data(),
                                  out.data());
    });
    CHECK(error_of(dx, grad) < tol);
  }
}

}  // namespace

TEST_CASE("batch norm kernels equal the formulas") {
  Random random(5);
  for (std::int64_t channels : {1, 2, 3, 7, 8, 16, 31, 64, 70, 129, 300}) {
    for (std::int64_t pixels : {1, 2, 33, 100}) {
      check_batch_norm<float>(pixels, channels, 0, random);
      check_batch_norm<double>(pixels, channels, 0, random);
    }
  }
  check_batch_norm<float>(20000, 12, 3, random);
  check_batch_norm<double>(5000, 40, 100, random);
  check_batch_norm<float>(1100, 257, 50, random);
}

TEST_CASE("batch norm statistics merge to those of all rows, and a large mean costs no accuracy") {
  Random random(6);
  const std::int64_t channels = 5;
  Guarded<double> x(90 * channels);
  random.fill(x);
  Guarded<double> whole(3 * channels), merged(3 * channels), parts(4 * 3 * channels);
  Guarded<unsigned char> ws(static_cast<std::int64_t>(batch_norm_workspace(90, channels)));
  batch_norm_statistics(90, channels, x.data(), whole.data(), ws.data());
  const std::int64_t cuts[] = {0, 1, 40, 40, 90};
  for (int q = 0; q < 4; ++q) {
    batch_norm_statistics(cuts[q + 1] - cuts[q], channels, x.data() + cuts[q] * channels,
                          parts.data() + q * 3 * channels, ws.data());
  }
  batch_norm_combine(4, channels, parts.data(), merged.data());
  CHECK(error_of(merged, doubles(whole)) < 1e-14);
  CHECK((ws.intact() && merged.intact()));
  // Mean 1e4, deviation 0.01: a sum of squares in float would have no correct digit.
  Guarded<float> far(4096);
  double mean = 0, m2 = 0;
  for (std::int64_t i = 0; i < 4096; ++i) far[i] = 1e4f + 0.01f * static_cast<float>(random.next());
  for (std::int64_t i = 0; i < 4096; ++i) mean += static_cast<double>(far[i]) / 4096;
  for (std::int64_t i = 0; i < 4096; ++i) m2 += std::pow(static_cast<double>(far[i]) - mean, 2);
  Guarded<double> stats(3);
  Guarded<unsigned char> ws1(static_cast<std::int64_t>(batch_norm_workspace(4096, 1)));
  batch_norm_statistics(4096, 1, far.data(), stats.data(), ws1.data());
  CHECK(std::fabs(stats[1] - mean) < 1e-7);
  CHECK(std::fabs(stats[2] / m2 - 1) < 1e-4);
}

TEST_CASE("pooling equals the plain loops") {
  Random random(7);
  const PoolDesc cases[] = {
      {.n = 2, .c = 1, .h = 4, .w = 6, .oh = 2, .ow = 3, .kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2},
      {.n = 3,
       .c = 7,
       .h = 9,
       .w = 8,
       .oh = 5,
       .ow = 4,
       .kernel_h = 3,
       .kernel_w = 3,
       .stride_h = 2,
       .stride_w = 2,
       .pad_h = 1,
       .pad_w = 1},
      {.n = 2,
       .c = 64,
       .h = 24,
       .w = 24,
       .oh = 12,
       .ow = 12,
       .kernel_h = 2,
       .kernel_w = 2,
       .stride_h = 2,
       .stride_w = 2},
      {.n = 2,
       .c = 70,
       .h = 9,
       .w = 7,
       .oh = 7,
       .ow = 4,
       .kernel_h = 3,
       .kernel_w = 4,
       .pad_w = 0,
       .count_include_pad = false},
      {.n = 1,
       .c = 33,
       .h = 11,
       .w = 10,
       .oh = 5,
       .ow = 3,
       .kernel_h = 3,
       .kernel_w = 2,
       .stride_h = 2,
       .stride_w = 3,
       .pad_h = 1,
       .pad_w = 1,
       .dil_h = 2,
       .dil_w = 3},
      {.n = 2,
       .c = 5,
       .h = 7,
       .w = 7,
       .oh = 3,
       .ow = 3,
       .kernel_h = 3,
       .kernel_w = 3,
       .stride_h = 3,
       .stride_w = 3,
       .pad_h = 1,
       .pad_w = 1,
       .count_include_pad = false},
      {.n = 2, .c = 20, .h = 5, .w = 6, .oh = 1, .ow = 1, .kernel_h = 5, .kernel_w = 6},
      // ceil mode: the last window sticks out of the padding
      {.n = 1,
       .c = 3,
       .h = 6,
       .w = 6,
       .oh = 4,
       .ow = 4,
       .kernel_h = 2,
       .kernel_w = 2,
       .stride_h = 2,
       .stride_w = 2,
       .pad_h = 1,
       .pad_w = 1},
  };
  for (const PoolDesc& d : cases) {
    for (bool with_nan : {false, true}) {
      check_pool<float>(d, with_nan, random);
      check_pool<double>(d, with_nan, random);
    }
  }
}

TEST_CASE("fused optimizers follow the scalar formulas") {
  check_optimizers<double>(1e-12);
  check_optimizers<float>(2e-4);
}

TEST_CASE("contiguous loops equal plain ones") {
  Random random(8);
  for (std::int64_t n : {0, 1, 7, 8, 33, 1000, 100003}) {
    check_loops<float>(n, random);
    check_loops<double>(n, random);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float x[3] = {nan, -1, 2};
  float y[3];
  relu<float>(3, x, y);
  CHECK(std::isnan(y[0]));
  CHECK((y[1] == 0 && y[2] == 2));
}

TEST_CASE("row kernels equal the formulas") {
  Random random(9);
  for (std::int64_t rows : {1, 3, 70}) {
    for (std::int64_t cols : {1, 2, 10, 16, 33, 70, 130}) {
      check_rows<float>(rows, cols, random);
      check_rows<double>(rows, cols, random);
    }
  }
  check_rows<float>(5000, 33, random);
  check_rows<double>(700, 1000, random);
}

TEST_CASE("layout changes move every element") {
  Random random(10);
  for (std::int64_t c : {1, 3, 16, 40, 300}) {
    for (std::int64_t hw : {1, 5, 49, 1600}) {
      const std::int64_t n = 3;
      Guarded<float> x(n * c * hw);
      random.fill(x);
      Doubles want(at(x.size()));
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t k = 0; k < c; ++k)
          for (std::int64_t p = 0; p < hw; ++p)
            want[at((i * hw + p) * c + k)] = static_cast<double>(x[(i * c + k) * hw + p]);
      const auto y =
          run_all_threads<float>(x.size(), [&](Guarded<float>& out) { nchw_to_nhwc(n, c, hw, x.data(), out.data()); });
      CHECK(error_of(y, want) == 0);
      const auto back =
          run_all_threads<float>(x.size(), [&](Guarded<float>& out) { nhwc_to_nchw(n, c, hw, y.data(), out.data()); });
      CHECK(same_bits(back, x));
    }
  }
}

namespace {

// Bit for bit the scalar conversions of tensor/half.h, on every 16-bit pattern and on floats around every rounding boundary.
template <class T>
void check_conversions() {
  std::vector<T> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  convert_run(65536, all.data(), wide.data());
  std::size_t wrong = 0;
  std::vector<float> numbers;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float expected = all[i];
    wrong += std::isnan(expected) ? !std::isnan(wide[i]) : std::memcmp(&expected, &wide[i], 4) != 0;
    if (!std::isfinite(expected)) continue;
    T next = all[i];
    next.bits++;
    const float middle = 0.5f * (expected + static_cast<float>(next));
    for (float f : {expected, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 2 * middle)}) numbers.push_back(f);
  }
  for (float f : {INFINITY, -INFINITY, NAN, 65519.0f, 65520.0f, 1e30f, 1e-30f, 3.4e38f, 1e-45f}) numbers.push_back(f);
  std::vector<T> narrow(numbers.size());
  convert_run(static_cast<std::int64_t>(numbers.size()), numbers.data(), narrow.data());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const T expected(numbers[i]);
    wrong += std::isnan(numbers[i]) ? !std::isnan(static_cast<float>(narrow[i])) : expected.bits != narrow[i].bits;
  }
  CHECK(wrong == 0);
  // Odd lengths touch nothing behind the end.
  for (std::int64_t n : {0, 1, 7, 17, 33}) {
    std::vector<T> out(40, T(1.0f));
    convert_run(n, numbers.data() + 100, out.data());
    for (std::size_t i = at(n); i < out.size(); ++i) wrong += static_cast<float>(out[i]) != 1.0f;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("16-bit conversions in vectors are the scalar ones, also in the build's baseline") {
  for (bool baseline : {false, true}) {
    hwy::DisableTargets(baseline ? HWY_AVX2 | HWY_AVX3 : 0);
    check_conversions<limpid::Half>();
    check_conversions<limpid::BFloat16>();
  }
  hwy::DisableTargets(0);
}
