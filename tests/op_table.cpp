#include "op_table.h"

#include <algorithm>
#include <cmath>

#include <limpid/tensor/functors.h>

namespace limpid::test {
namespace {

using Values = std::vector<double>;
using Reference = std::function<Values(const Inputs&)>;

// ---- inputs: float64, away from kinks unless asked

Tensor leaf(Tensor t) { return t.requires_grad_(); }

// Seeded values in (low, high).
Tensor sample(const Shape& shape, double low, double high, std::uint64_t seed) {
  Generator g(seed);
  Tensor t = rand(shape, {.dtype = float64}, g);
  return t * (high - low) + low;
}
Tensor input(const Shape& shape, double low = -2, double high = 2, std::uint64_t seed = 1) {
  return leaf(sample(shape, low, high, seed).detach());
}
// A leaf whose memory is strided: every second column of a larger transposed tensor.
Tensor strided(const Shape& shape, double low = -2, double high = 2, std::uint64_t seed = 2) {
  if (shape.size() != 2) return input(shape, low, high, seed);
  Tensor base = sample({shape[1], shape[0] + 3}, low, high, seed).detach();
  return leaf(base.narrow(1, 2, shape[0]).transpose(0, 1).detach());
}
Tensor index(std::vector<std::int64_t> values, const Shape& shape) { return from_vector(values, shape); }

// ---- naive indexing

// Value of t at the multi-index of linear position i in `shape`, broadcast.
struct Reader {
  Values values;
  Shape shape;
  explicit Reader(const Tensor& t) : values(t.to_vector<double>()), shape(t.shape()) {}
  double at(std::int64_t i, const Shape& out) const {
    std::int64_t position = 0, step = 1;
    for (int d = 1; d <= out.size(); d++) {
      std::int64_t coordinate = i % out[out.size() - d];
      i /= out[out.size() - d];
      if (d > shape.size()) continue;
      std::int64_t extent = shape[shape.size() - d];
      position += (extent == 1 ? 0 : coordinate) * step;
      step *= extent;
    }
    return values[static_cast<std::size_t>(position)];
  }
};

template <class F>
Reference map1(F f) {
  return [f](const Inputs& in) {
    Values out = in[0].to_vector<double>();
    for (double& v : out) v = f(v);
    return out;
  };
}
template <class F>
Reference map2(F f) {
  return [f](const Inputs& in) {
    Shape shape = broadcast_shapes("reference", in[0].shape(), in[1].shape());
    Reader a(in[0]), b(in[1]);
    Values out(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < out.size(); i++) {
      out[i] = f(a.at(static_cast<std::int64_t>(i), shape), b.at(static_cast<std::int64_t>(i), shape));
    }
    return out;
  };
}

template <class Op, class F>
OpRow unary_row(const char* name, Op op, F f, double low = -2, double high = 2, bool differentiable = true) {
  OpRow row{.name = name, .differentiable = differentiable, .samples = {}};
  auto run = [op](const Inputs& in) { return op(in[0]); };
  row.samples.push_back({"odd", {input({3, 5, 7}, low, high)}, run, map1(f)});
  row.samples.push_back({"strided", {strided({5, 7}, low, high)}, run, map1(f)});
  row.samples.push_back({"empty", {input({0, 3}, low, high)}, run, map1(f)});
  row.samples.push_back({"0-d", {input(Shape(), low, high)}, run, map1(f)});
  row.samples.push_back({"vector tail", {input({67}, low, high)}, run, map1(f)});
  return row;
}

template <class Op, class F>
OpRow binary_row(const char* name, Op op, F f, double low = -2, double high = 2, bool differentiable = true) {
  OpRow row{.name = name, .differentiable = differentiable, .samples = {}};
  auto run = [op](const Inputs& in) { return op(in[0], in[1]); };
  row.samples.push_back({"odd", {input({3, 5}, low, high, 1), input({3, 5}, low, high, 2)}, run, map2(f)});
  row.samples.push_back({"broadcast", {input({3, 1, 5}, low, high, 3), input({4, 1}, low, high, 4)}, run, map2(f)});
  row.samples.push_back({"strided", {strided({5, 7}, low, high, 5), input({5, 7}, low, high, 6)}, run, map2(f)});
  row.samples.push_back({"0-d", {input(Shape(), low, high, 7), input({6}, low, high, 8)}, run, map2(f)});
  row.samples.push_back({"empty", {input({0, 3}, low, high, 9), input({1}, low, high, 10)}, run, map2(f)});
  return row;
}

// Reduces over `dims` (all when empty) with fold(values of one group).
template <class F>
Reference fold(std::vector<std::int64_t> dims, F f) {
  return [dims, f](const Inputs& in) {
    const Shape& shape = in[0].shape();
    std::vector<bool> reduced(static_cast<std::size_t>(shape.size()), dims.empty());
    for (std::int64_t d : dims) reduced[static_cast<std::size_t>(d < 0 ? d + shape.size() : d)] = true;
    std::int64_t groups = 1;
    for (int d = 0; d < shape.size(); d++) {
      if (!reduced[static_cast<std::size_t>(d)]) groups *= shape[d];
    }
    std::vector<Values> members(static_cast<std::size_t>(groups));
    Values all = in[0].to_vector<double>();
    for (std::size_t i = 0; i < all.size(); i++) {
      std::int64_t rest = static_cast<std::int64_t>(i), group = 0, step = 1;
      for (int d = shape.size() - 1; d >= 0; d--) {
        if (!reduced[static_cast<std::size_t>(d)]) {
          group += rest % shape[d] * step;
          step *= shape[d];
        }
        rest /= shape[d];
      }
      members[static_cast<std::size_t>(group)].push_back(all[i]);
    }
    Values out;
    for (const Values& m : members) out.push_back(f(m));
    return out;
  };
}

template <class Op, class F>
OpRow reduce_row(const char* name, Op op, F f, bool differentiable, bool empty_allowed) {
  OpRow row{.name = name, .differentiable = differentiable, .samples = {}};
  struct Case {
    const char* label;
    Shape shape;
    std::vector<std::int64_t> dims;
    bool keepdim;
  };
  std::vector<Case> cases{{"all", {3, 5, 7}, {}, false}, {"last", {3, 5, 7}, {-1}, false}, {"first", {3, 5, 7}, {0}, true},
                          {"middle", {3, 5, 7}, {1}, false}, {"outer pair", {3, 5, 7}, {0, 2}, true}, {"one", {1}, {}, false}};
  if (empty_allowed) cases.push_back({"empty", {0, 3}, {0}, false});
  std::uint64_t seed = 20;
  for (const Case& c : cases) {
    auto run = [op, c](const Inputs& in) { return op(in[0], c.dims, c.keepdim); };
    row.samples.push_back({c.label, {input(c.shape, -2, 2, seed++)}, run, fold(c.dims, f)});
  }
  row.samples.push_back({"strided", {strided({5, 7}, -2, 2, seed)}, [op](const Inputs& in) { return op(in[0], std::vector<std::int64_t>{1}, false); },
                         fold({1}, f)});
  return row;
}

OpRow row(std::string name, std::vector<OpSample> samples, bool differentiable = true) {
  return {.name = std::move(name), .differentiable = differentiable, .samples = std::move(samples)};
}

// ---- movement: the reference is a list of positions in the logical order of the inputs
Reference picks(std::function<double(const Values&, std::int64_t)> pick, std::int64_t count) {
  return [pick, count](const Inputs& in) {
    Values all;
    for (const Tensor& t : in) {
      if (!is_floating(t.dtype())) continue;
      Values v = t.to_vector<double>();
      all.insert(all.end(), v.begin(), v.end());
    }
    Values out(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; i++) out[static_cast<std::size_t>(i)] = pick(all, i);
    return out;
  };
}
double get(const Values& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }

// ---- linear algebra and networks: textbook loops

Values naive_matmul(const Inputs& in) {
  Values a = in[0].to_vector<double>(), b = in[1].to_vector<double>();
  std::int64_t m = in[0].size(-2), k = in[0].size(-1), n = in[1].size(-1);
  Shape lead_a(std::span(in[0].shape().begin(), static_cast<std::size_t>(in[0].dim() - 2)));
  Shape lead_b(std::span(in[1].shape().begin(), static_cast<std::size_t>(in[1].dim() - 2)));
  Shape lead = broadcast_shapes("reference", lead_a, lead_b);
  // Positions of the batch in a and b, by reading an index tensor broadcast.
  Reader ia(reshape(cast(arange(lead_a.numel()), float64), lead_a)), ib(reshape(cast(arange(lead_b.numel()), float64), lead_b));
  Values out;
  for (std::int64_t batch = 0; batch < lead.numel(); batch++) {
    std::int64_t oa = static_cast<std::int64_t>(ia.at(batch, lead)) * m * k, ob = static_cast<std::int64_t>(ib.at(batch, lead)) * k * n;
    for (std::int64_t i = 0; i < m; i++) {
      for (std::int64_t j = 0; j < n; j++) {
        double total = 0;
        for (std::int64_t p = 0; p < k; p++) total += get(a, oa + i * k + p) * get(b, ob + p * n + j);
        out.push_back(total);
      }
    }
  }
  return out;
}

Values naive_conv2d(const Inputs& in, const Conv2dOptions& o) {
  Reader x(in[0]), w(in[1]);
  Values bias = in.size() > 2 ? in[2].to_vector<double>() : Values(static_cast<std::size_t>(in[1].size(0)));
  std::int64_t n = in[0].size(0), c = in[0].size(1), h = in[0].size(2), wd = in[0].size(3);
  std::int64_t k = in[1].size(0), cg = in[1].size(1), r = in[1].size(2), s = in[1].size(3);
  std::int64_t oh = (h + 2 * o.padding.h - o.dilation.h * (r - 1) - 1) / o.stride.h + 1;
  std::int64_t ow = (wd + 2 * o.padding.w - o.dilation.w * (s - 1) - 1) / o.stride.w + 1;
  Values out;
  for (std::int64_t ni = 0; ni < n; ni++)
    for (std::int64_t ki = 0; ki < k; ki++)
      for (std::int64_t y = 0; y < oh; y++)
        for (std::int64_t z = 0; z < ow; z++) {
          double total = get(bias, ki);
          std::int64_t first = ki / (k / o.groups) * cg;
          for (std::int64_t ci = 0; ci < cg; ci++)
            for (std::int64_t ri = 0; ri < r; ri++)
              for (std::int64_t si = 0; si < s; si++) {
                std::int64_t iy = y * o.stride.h - o.padding.h + ri * o.dilation.h;
                std::int64_t ix = z * o.stride.w - o.padding.w + si * o.dilation.w;
                if (iy < 0 || ix < 0 || iy >= h || ix >= wd) continue;
                total += get(x.values, ((ni * c + first + ci) * h + iy) * wd + ix) * get(w.values, ((ki * cg + ci) * r + ri) * s + si);
              }
          out.push_back(total);
        }
  return out;
}

Values naive_pool(const Inputs& in, const Pool2dOptions& o, std::int64_t oh, std::int64_t ow, bool max) {
  Values x = in[0].to_vector<double>();
  std::int64_t planes = in[0].size(0) * in[0].size(1), h = in[0].size(2), w = in[0].size(3);
  Values out;
  for (std::int64_t p = 0; p < planes; p++)
    for (std::int64_t y = 0; y < oh; y++)
      for (std::int64_t z = 0; z < ow; z++) {
        double best = -INFINITY, total = 0;
        std::int64_t count = 0, cells = 0;
        for (std::int64_t r = 0; r < o.kernel_size.h; r++)
          for (std::int64_t s = 0; s < o.kernel_size.w; s++) {
            std::int64_t iy = y * o.stride.h - o.padding.h + r * o.dilation.h;
            std::int64_t ix = z * o.stride.w - o.padding.w + s * o.dilation.w;
            if (iy < h + o.padding.h && ix < w + o.padding.w) cells++;
            if (iy < 0 || ix < 0 || iy >= h || ix >= w) continue;
            double v = get(x, (p * h + iy) * w + ix);
            best = std::max(best, v);
            total += v;
            count++;
          }
        out.push_back(max ? best : total / static_cast<double>(o.count_include_pad ? cells : count));
      }
  return out;
}

Values naive_adaptive(const Inputs& in, std::int64_t oh, std::int64_t ow) {
  Values x = in[0].to_vector<double>();
  std::int64_t planes = in[0].size(0) * in[0].size(1), h = in[0].size(2), w = in[0].size(3);
  Values out;
  for (std::int64_t p = 0; p < planes; p++)
    for (std::int64_t y = 0; y < oh; y++)
      for (std::int64_t z = 0; z < ow; z++) {
        std::int64_t y0 = y * h / oh, y1 = ((y + 1) * h + oh - 1) / oh, x0 = z * w / ow, x1 = ((z + 1) * w + ow - 1) / ow;
        double total = 0;
        for (std::int64_t iy = y0; iy < y1; iy++)
          for (std::int64_t ix = x0; ix < x1; ix++) total += get(x, (p * h + iy) * w + ix);
        out.push_back(total / static_cast<double>((y1 - y0) * (x1 - x0)));
      }
  return out;
}

// Normalises groups of values: group(i) names the group of element i, affine(i) the index of its weight and bias.
Values naive_norm(const Inputs& in, std::function<std::int64_t(std::int64_t)> group, std::function<std::int64_t(std::int64_t)> affine,
                  std::int64_t groups, double eps) {
  Values x = in[0].to_vector<double>();
  Values mean(static_cast<std::size_t>(groups)), var(mean), count(mean);
  auto g = [&](std::size_t i) { return static_cast<std::size_t>(group(static_cast<std::int64_t>(i))); };
  for (std::size_t i = 0; i < x.size(); i++) mean[g(i)] += x[i], count[g(i)] += 1;
  for (std::size_t i = 0; i < mean.size(); i++) mean[i] /= count[i];
  for (std::size_t i = 0; i < x.size(); i++) var[g(i)] += (x[i] - mean[g(i)]) * (x[i] - mean[g(i)]);
  Values w = in.size() > 1 ? in[1].to_vector<double>() : Values(), b = in.size() > 2 ? in[2].to_vector<double>() : Values();
  for (std::size_t i = 0; i < x.size(); i++) {
    std::int64_t a = affine(static_cast<std::int64_t>(i));
    double xhat = (x[i] - mean[g(i)]) / std::sqrt(var[g(i)] / count[g(i)] + eps);
    x[i] = xhat * (w.empty() ? 1 : get(w, a)) + (b.empty() ? 0 : get(b, a));
  }
  return x;
}

Values naive_softmax(const Inputs& in, bool log) {  // last dim
  Values x = in[0].to_vector<double>();
  std::size_t n = static_cast<std::size_t>(in[0].size(-1));
  for (std::size_t r = 0; r < x.size(); r += n) {
    double top = *std::max_element(x.begin() + static_cast<long>(r), x.begin() + static_cast<long>(r + n)), total = 0;
    for (std::size_t i = 0; i < n; i++) total += std::exp(x[r + i] - top);
    for (std::size_t i = 0; i < n; i++) x[r + i] = log ? x[r + i] - top - std::log(total) : std::exp(x[r + i] - top) / total;
  }
  return x;
}

// Cross-entropy by its definition; `in` = logits or log-probabilities [N,C], labels [N] (, weight [C]).
Values naive_nll(const Inputs& in, std::int64_t ignore, double smoothing, Reduction reduction, bool logits) {
  Values p = logits ? naive_softmax({in[0]}, true) : in[0].to_vector<double>();
  auto y = in[1].to_vector<std::int64_t>();
  std::int64_t c = in[0].size(1);
  Values w = in.size() > 2 ? in[2].to_vector<double>() : Values(static_cast<std::size_t>(c), 1.0);
  Values losses;
  double total_weight = 0, sum_losses = 0;
  for (std::size_t i = 0; i < y.size(); i++) {
    double loss = 0;
    if (y[i] != ignore) {
      std::int64_t row = static_cast<std::int64_t>(i) * c;
      loss = -(1 - smoothing) * get(w, y[i]) * get(p, row + y[i]);
      for (std::int64_t k = 0; k < c; k++) loss -= smoothing / static_cast<double>(c) * get(w, k) * get(p, row + k);
      total_weight += get(w, y[i]);
    }
    losses.push_back(loss);
    sum_losses += loss;
  }
  if (reduction == Reduction::none) return losses;
  return {reduction == Reduction::sum ? sum_losses : sum_losses / total_weight};
}

Reference pairwise(std::function<double(double, double)> f, Reduction reduction) {
  return [f, reduction](const Inputs& in) {
    Values a = in[0].to_vector<double>(), b = in[1].to_vector<double>();
    double total = 0;
    for (std::size_t i = 0; i < a.size(); i++) a[i] = f(a[i], b[i]), total += a[i];
    if (reduction == Reduction::none) return a;
    return Values{reduction == Reduction::sum ? total : total / static_cast<double>(a.size())};
  };
}

std::vector<OpRow> elementwise_rows() {
  auto F1 = [](auto f) { return f; };
  (void)F1;
  std::vector<OpRow> rows;
#define UNARY(name, expression, ...) rows.push_back(unary_row(#name, [](const Tensor& x) { return name(x); }, [](double x) { return expression; }, ##__VA_ARGS__))
  UNARY(neg, -x);
  UNARY(abs, std::fabs(x));
  UNARY(sign, x > 0 ? 1.0 : -1.0);
  UNARY(square, x * x);
  UNARY(sqrt, std::sqrt(x), 0.1, 3);
  UNARY(rsqrt, 1 / std::sqrt(x), 0.1, 3);
  UNARY(reciprocal, 1 / x, 0.2, 3);
  UNARY(exp, std::exp(x));
  UNARY(expm1, std::expm1(x));
  UNARY(log, std::log(x), 0.1, 3);
  UNARY(log1p, std::log1p(x), -0.8, 3);
  UNARY(sin, std::sin(x));
  UNARY(cos, std::cos(x));
  UNARY(floor, std::floor(x));
  UNARY(ceil, std::ceil(x));
  UNARY(round, std::nearbyint(x));
  UNARY(relu, x > 0 ? x : 0);
  UNARY(leaky_relu, x > 0 ? x : 0.01 * x);
  UNARY(elu, x > 0 ? x : std::expm1(x));
  UNARY(gelu, 0.5 * x * std::erfc(-x / std::sqrt(2.0)));
  UNARY(gelu_tanh, 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
  UNARY(silu, x / (1 + std::exp(-x)));
  UNARY(sigmoid, 1 / (1 + std::exp(-x)));
  UNARY(tanh, std::tanh(x));
  UNARY(softplus, std::log(1 + std::exp(x)));
  UNARY(isfinite, std::isfinite(x) ? 1.0 : 0.0, -2, 2, false);
  UNARY(isnan, std::isnan(x) ? 1.0 : 0.0, -2, 2, false);
  UNARY(logical_not, x == 0 ? 1.0 : 0.0, -2, 2, false);
#undef UNARY
  rows.push_back(unary_row("clamp", [](const Tensor& x) { return clamp(x, -1, 0.5); }, [](double x) { return std::min(std::max(x, -1.0), 0.5); }));
  rows.push_back(unary_row("cast", [](const Tensor& x) { return cast(cast(x, float64), float64) * 1.0; }, [](double x) { return x; }));
#define BINARY(name, expression, ...) \
  rows.push_back(binary_row(#name, [](const Tensor& a, const Tensor& b) { return name(a, b); }, [](double a, double b) -> double { return expression; }, ##__VA_ARGS__))
  BINARY(add, a + b);
  BINARY(sub, a - b);
  BINARY(mul, a * b);
  BINARY(div, a / b, 0.5, 3);
  BINARY(pow, std::pow(a, b), 0.5, 3);
  BINARY(maximum, std::max(a, b));
  BINARY(minimum, std::min(a, b));
  BINARY(eq, a == b, -2, 2, false);
  BINARY(ne, a != b, -2, 2, false);
  BINARY(lt, a < b, -2, 2, false);
  BINARY(le, a <= b, -2, 2, false);
  BINARY(gt, a > b, -2, 2, false);
  BINARY(ge, a >= b, -2, 2, false);
  BINARY(logical_and, a != 0 && b != 0, -2, 2, false);
  BINARY(logical_or, a != 0 || b != 0, -2, 2, false);
#undef BINARY
  // The forms with a number.
  auto with_number = [&](const char* name, auto op, auto f) { rows.push_back(unary_row(name, op, f, 0.3, 2)); };
  with_number("add", [](const Tensor& x) { return x + 1.5; }, [](double x) { return x + 1.5; });
  with_number("sub", [](const Tensor& x) { return x - 1.5; }, [](double x) { return x - 1.5; });
  with_number("mul", [](const Tensor& x) { return x * 1.5; }, [](double x) { return x * 1.5; });
  with_number("div", [](const Tensor& x) { return x / 1.5; }, [](double x) { return x / 1.5; });
  with_number("rsub", [](const Tensor& x) { return 1.5 - x; }, [](double x) { return 1.5 - x; });
  with_number("rdiv", [](const Tensor& x) { return 1.5 / x; }, [](double x) { return 1.5 / x; });
  with_number("pow", [](const Tensor& x) { return pow(x, 2.5); }, [](double x) { return std::pow(x, 2.5); });
  OpRow choose = row("where", {});
  Tensor mask = from_vector<std::uint8_t>({1, 0, 1, 0, 0, 1}, {2, 3}, {.dtype = boolean});
  choose.samples.push_back({"odd", {input({2, 3}, -2, 2, 1), input({2, 3}, -2, 2, 2)}, [mask](const Inputs& in) { return where(mask, in[0], in[1]); },
                            [mask](const Inputs& in) {
                              Values a = in[0].to_vector<double>(), b = in[1].to_vector<double>(), m = mask.to_vector<double>();
                              for (std::size_t i = 0; i < a.size(); i++) a[i] = m[i] != 0 ? a[i] : b[i];
                              return a;
                            }});
  choose.samples.push_back({"broadcast", {input({3}, -2, 2, 1), input({2, 1}, -2, 2, 2)}, [mask](const Inputs& in) { return where(mask, in[0], in[1]); },
                            [mask](const Inputs& in) {
                              Values a = in[0].to_vector<double>(), b = in[1].to_vector<double>(), m = mask.to_vector<double>(), out(6);
                              for (std::size_t i = 0; i < 6; i++) out[i] = m[i] != 0 ? a[i % 3] : b[i / 3];
                              return out;
                            }});
  rows.push_back(choose);
  return rows;
}

std::vector<OpRow> reduce_rows() {
  std::vector<OpRow> rows;
  auto total = [](const Values& v) { double t = 0; for (double x : v) t += x; return t; };
  auto average = [total](const Values& v) { return total(v) / static_cast<double>(v.size()); };
  auto spread = [average](const Values& v) {
    double m = average(v), t = 0;
    for (double x : v) t += (x - m) * (x - m);
    return t / static_cast<double>(v.size() - 1);
  };
  using Dims = std::vector<std::int64_t>;
  rows.push_back(reduce_row("sum", [](const Tensor& x, const Dims& d, bool k) { return sum(x, d, k); }, total, true, true));
  rows.push_back(reduce_row("mean", [](const Tensor& x, const Dims& d, bool k) { return mean(x, d, k); }, average, true, false));
  rows.push_back(reduce_row("prod", [](const Tensor& x, const Dims& d, bool k) { return prod(x, d, k); },
                            [](const Values& v) { double t = 1; for (double x : v) t *= x; return t; }, true, true));
  rows.push_back(reduce_row("max", [](const Tensor& x, const Dims& d, bool k) { return max(x, d, k); },
                            [](const Values& v) { return *std::max_element(v.begin(), v.end()); }, true, false));
  rows.push_back(reduce_row("min", [](const Tensor& x, const Dims& d, bool k) { return min(x, d, k); },
                            [](const Values& v) { return *std::min_element(v.begin(), v.end()); }, true, false));
  OpRow var_row = reduce_row("var", [](const Tensor& x, const Dims& d, bool k) { return var(x, d, 1, k); }, spread, true, false);
  std::erase_if(var_row.samples, [](const OpSample& s) { return s.label == "one"; });  // 0/0
  rows.push_back(var_row);
  rows.push_back(reduce_row("any", [](const Tensor& x, const Dims& d, bool k) { return any(gt(x, 1.9), d, k); },
                            [](const Values& v) { return std::any_of(v.begin(), v.end(), [](double x) { return x > 1.9; }) ? 1.0 : 0.0; }, false, true));
  rows.push_back(reduce_row("all", [](const Tensor& x, const Dims& d, bool k) { return all(lt(x, 1.5), d, k); },
                            [](const Values& v) { return std::all_of(v.begin(), v.end(), [](double x) { return x < 1.5; }) ? 1.0 : 0.0; }, false, true));
  for (bool top : {true, false}) {
    auto op = [top](const Tensor& x, std::int64_t d) { return top ? argmax(x, d) : argmin(x, d); };
    auto where_is = [top](const Values& v) {
      auto it = top ? std::max_element(v.begin(), v.end()) : std::min_element(v.begin(), v.end());
      return static_cast<double>(it - v.begin());
    };
    OpRow arg = row(top ? "argmax" : "argmin", {}, false);
    for (std::int64_t d : {0, 1, 2}) {
      arg.samples.push_back({"dim", {input({3, 5, 7}, -2, 2, 31)}, [op, d](const Inputs& in) { return op(in[0], d); }, fold({d}, where_is)});
    }
    arg.samples.push_back({"all", {input({3, 5}, -2, 2, 32)}, [top](const Inputs& in) { return top ? argmax(in[0]) : argmin(in[0]); }, fold({}, where_is)});
    rows.push_back(arg);
  }
  // Products with zeros: the gradient needs the product of the others.
  OpRow zeros = row("prod", {});
  for (Values v : {Values{2, 0, 3}, Values{0, 0, 3}}) {
    zeros.samples.push_back({"zeros", {leaf(from_vector(v, {3}))}, [](const Inputs& in) { return prod(in[0]); },
                             [](const Inputs& in) { Values x = in[0].to_vector<double>(); return Values{x[0] * x[1] * x[2]}; }});
  }
  rows.push_back(zeros);
  return rows;
}

std::vector<OpRow> movement_rows() {
  std::vector<OpRow> rows;
  auto same = picks(get, 35);
  auto in57 = [] { return Inputs{strided({5, 7})}; };
  rows.push_back(row("reshape", {{"strided", in57(), [](const Inputs& in) { return reshape(in[0], {7, -1}); }, same},
                                 {"odd", {input({5, 7})}, [](const Inputs& in) { return reshape(in[0], {1, 35}); }, same},
                                 {"empty", {input({0, 7})}, [](const Inputs& in) { return reshape(in[0], {7, 0}); }, picks(get, 0)}}));
  rows.push_back(row("flatten", {{"strided", in57(), [](const Inputs& in) { return flatten(in[0]); }, same},
                                 {"tail", {input({2, 3, 4})}, [](const Inputs& in) { return flatten(in[0], 1); }, picks(get, 24)}}));
  auto transposed = picks([](const Values& v, std::int64_t i) { return get(v, i % 5 * 7 + i / 5); }, 35);
  rows.push_back(row("permute", {{"strided", in57(), [](const Inputs& in) { return permute(in[0], {1, 0}); }, transposed},
                                 {"three", {input({2, 3, 4})}, [](const Inputs& in) { return permute(in[0], {2, 0, -2}); },
                                  picks([](const Values& v, std::int64_t i) { return get(v, i / 3 % 2 * 12 + i % 3 * 4 + i / 6); }, 24)}}));
  rows.push_back(row("transpose", {{"strided", in57(), [](const Inputs& in) { return transpose(in[0], 0, -1); }, transposed}}));
  rows.push_back(row("narrow", {{"strided", in57(), [](const Inputs& in) { return narrow(in[0], 1, 2, 3); },
                                 picks([](const Values& v, std::int64_t i) { return get(v, i / 3 * 7 + 2 + i % 3); }, 15)},
                                {"empty", in57(), [](const Inputs& in) { return narrow(in[0], 0, 5, 0); }, picks(get, 0)}}));
  rows.push_back(row("select", {{"strided", in57(), [](const Inputs& in) { return select(in[0], 0, -2); },
                                 picks([](const Values& v, std::int64_t i) { return get(v, 21 + i); }, 7)}}));
  rows.push_back(row("expand", {{"lead", {input({3, 1})}, [](const Inputs& in) { return expand(in[0], {2, 3, 4}); },
                                 picks([](const Values& v, std::int64_t i) { return get(v, i / 4 % 3); }, 24)}}));
  rows.push_back(row("squeeze", {{"all", {input({1, 5, 1, 7})}, [](const Inputs& in) { return squeeze(in[0]); }, same},
                                 {"one", {input({1, 5, 1, 7})}, [](const Inputs& in) { return squeeze(in[0], 2); }, same}}));
  rows.push_back(row("unsqueeze", {{"strided", in57(), [](const Inputs& in) { return unsqueeze(in[0], 1); }, same}}));
  rows.push_back(row("contiguous", {{"strided", in57(), [](const Inputs& in) { return contiguous(in[0]); }, same},
                                    {"channels_last", {input({2, 3, 4, 5})}, [](const Inputs& in) { return contiguous(in[0], MemoryFormat::channels_last); }, picks(get, 120)}}));
  rows.push_back(row("flip", {{"strided", in57(), [](const Inputs& in) { return flip(in[0], {1}); },
                               picks([](const Values& v, std::int64_t i) { return get(v, i / 7 * 7 + 6 - i % 7); }, 35)},
                              {"both", in57(), [](const Inputs& in) { return flip(in[0], {0, -1}); },
                               picks([](const Values& v, std::int64_t i) { return get(v, 34 - i); }, 35)}}));
  rows.push_back(row("cat", {{"rows", {input({2, 3}, -2, 2, 1), strided({4, 3}, -2, 2, 2)}, [](const Inputs& in) { return cat({in[0], in[1]}, 0); }, picks(get, 18)},
                             {"columns", {input({2, 1}, -2, 2, 1), input({2, 2}, -2, 2, 2)}, [](const Inputs& in) { return cat({in[0], in[1]}, -1); },
                              picks([](const Values& v, std::int64_t i) { return i % 3 == 0 ? get(v, i / 3) : get(v, 2 + i / 3 * 2 + i % 3 - 1); }, 6)}}));
  rows.push_back(row("stack", {{"front", {input({2, 3}, -2, 2, 1), input({2, 3}, -2, 2, 2)}, [](const Inputs& in) { return stack({in[0], in[1]}); }, picks(get, 12)}}));
  rows.push_back(row("pad", {{"last", {input({2, 3})}, [](const Inputs& in) { return pad(in[0], {1, 2}, 9); },
                              picks([](const Values& v, std::int64_t i) { std::int64_t j = i % 6 - 1; return j < 0 || j > 2 ? 9.0 : get(v, i / 6 * 3 + j); }, 12)},
                             {"crop", {input({4, 3})}, [](const Inputs& in) { return pad(in[0], {0, 0, -1, 1}, 0); },
                              picks([](const Values& v, std::int64_t i) { return i < 9 ? get(v, i + 3) : 0.0; }, 12)}}));
  Tensor at = index({0, 2, 1, 1, 0, 0}, {2, 3});
  rows.push_back(row("gather", {{"dim 0", {input({3, 3})}, [at](const Inputs& in) { return gather(in[0], 0, at); },
                                 picks([at](const Values& v, std::int64_t i) { return get(v, at.to_vector<std::int64_t>()[static_cast<std::size_t>(i)] * 3 + i % 3); }, 6)},
                                {"dim 1", {strided({2, 3})}, [at](const Inputs& in) { return gather(in[0], -1, at); },
                                 picks([at](const Values& v, std::int64_t i) { return get(v, i / 3 * 3 + at.to_vector<std::int64_t>()[static_cast<std::size_t>(i)]); }, 6)}}));
  rows.push_back(row("scatter_add", {{"dim 0", {input({3, 3}, -2, 2, 1), input({2, 3}, -2, 2, 2)}, [at](const Inputs& in) { return scatter_add(in[0], 0, at, in[1]); },
                                      [at](const Inputs& in) {
                                        Values out = in[0].to_vector<double>(), s = in[1].to_vector<double>();
                                        auto idx = at.to_vector<std::int64_t>();
                                        for (std::size_t i = 0; i < 6; i++) out[static_cast<std::size_t>(idx[i]) * 3 + i % 3] += s[i];
                                        return out;
                                      }}}));
  Tensor rows_at = index({2, 0, 2, 1}, {4});
  rows.push_back(row("index_select", {{"repeated", {strided({3, 5})}, [rows_at](const Inputs& in) { return index_select(in[0], 0, rows_at); },
                                       picks([rows_at](const Values& v, std::int64_t i) { return get(v, rows_at.to_vector<std::int64_t>()[static_cast<std::size_t>(i / 5)] * 5 + i % 5); }, 20)},
                                      {"columns", {input({2, 3})}, [rows_at](const Inputs& in) { return index_select(in[0], 1, rows_at); },
                                       picks([rows_at](const Values& v, std::int64_t i) { return get(v, i / 4 * 3 + rows_at.to_vector<std::int64_t>()[static_cast<std::size_t>(i % 4)]); }, 8)}}));
  rows.push_back(row("one_hot", {{"labels", {}, [rows_at](const Inputs&) { return one_hot(rows_at, 3); },
                                  [](const Inputs&) { return Values{0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0}; }}}, false));
  return rows;
}

std::vector<OpRow> network_rows() {
  std::vector<OpRow> rows;
  auto mm = [](const Inputs& in) { return matmul(in[0], in[1]); };
  rows.push_back(row("matmul", {{"odd", {input({3, 5}, -1, 1, 1), input({5, 7}, -1, 1, 2)}, mm, naive_matmul},
                                {"strided", {strided({3, 5}, -1, 1, 1), strided({5, 7}, -1, 1, 2)}, mm, naive_matmul},
                                {"batch broadcast", {input({2, 1, 3, 4}, -1, 1, 1), input({3, 4, 2}, -1, 1, 2)}, mm, naive_matmul},
                                {"vector", {input({5}, -1, 1, 1), input({5, 2}, -1, 1, 2)}, mm,
                                 [](const Inputs& in) { return naive_matmul({unsqueeze(in[0], 0), in[1]}); }},
                                {"empty k", {input({2, 0}, -1, 1, 1), input({0, 3}, -1, 1, 2)}, mm, naive_matmul},
                                {"dot", {input({5}, -1, 1, 1), input({5}, -1, 1, 2)}, mm,
                                 [](const Inputs& in) { return naive_matmul({unsqueeze(in[0], 0), unsqueeze(in[1], 1)}); }}}));
  rows.push_back(row("bmm", {{"odd", {input({2, 3, 5}, -1, 1, 1), input({2, 5, 3}, -1, 1, 2)}, [](const Inputs& in) { return bmm(in[0], in[1]); }, naive_matmul}}));
  auto naive_linear = [](const Inputs& in) {
    Values y = naive_matmul({reshape(in[0], {-1, in[0].size(-1)}), transpose(in[1], 0, 1)});
    if (in.size() > 2) {
      Values b = in[2].to_vector<double>();
      for (std::size_t i = 0; i < y.size(); i++) y[i] += b[i % b.size()];
    }
    return y;
  };
  rows.push_back(row("linear", {{"bias", {input({3, 5}, -1, 1, 1), input({4, 5}, -1, 1, 2), input({4}, -1, 1, 3)}, [](const Inputs& in) { return linear(in[0], in[1], in[2]); }, naive_linear},
                                {"one row", {input({1, 9}, -1, 1, 1), strided({4, 9}, -1, 1, 2)}, [](const Inputs& in) { return linear(in[0], in[1]); }, naive_linear},
                                {"three dims", {input({2, 3, 5}, -1, 1, 1), input({4, 5}, -1, 1, 2), input({4}, -1, 1, 3)}, [](const Inputs& in) { return linear(in[0], in[1], in[2]); }, naive_linear}}));
  const Reference naive_linear_relu = [naive_linear](const Inputs& in) {
    Values y = naive_linear(in);
    for (double& v : y) v = std::max(v, 0.0);
    return y;
  };
  rows.push_back(row("linear_relu", {{"bias", {input({3, 5}, -1, 1, 1), input({11, 5}, -1, 1, 2), input({11}, -1, 1, 3)}, [](const Inputs& in) { return linear_relu(in[0], in[1], in[2]); }, naive_linear_relu},
                                     {"three dims", {input({2, 3, 5}, -1, 1, 1), strided({8, 5}, -1, 1, 2)}, [](const Inputs& in) { return linear_relu(in[0], in[1]); }, naive_linear_relu}}));
  OpRow conv = row("conv2d", {});
  struct ConvCase {
    const char* label;
    Shape x, w;
    bool bias;
    Conv2dOptions o;
  };
  for (const ConvCase& c : std::vector<ConvCase>{
           {"3x3", {2, 3, 6, 5}, {4, 3, 3, 3}, true, {}},
           {"stride, pad", {1, 2, 7, 6}, {3, 2, 3, 2}, true, {.stride = {2, 3}, .padding = {1, 1}}},
           {"dilation", {1, 2, 8, 7}, {2, 2, 3, 3}, false, {.padding = {2, 1}, .dilation = {2, 2}}},
           {"groups", {2, 4, 5, 5}, {6, 2, 3, 3}, true, {.padding = {1, 1}, .groups = 2}},
           {"depthwise", {1, 5, 5, 4}, {5, 1, 3, 3}, true, {.padding = {1, 1}, .groups = 5}},
           {"1x1", {2, 5, 3, 3}, {7, 5, 1, 1}, false, {}},
           {"one channel", {2, 1, 6, 6}, {3, 1, 3, 3}, true, {}},
           {"16 channels", {1, 16, 5, 6}, {17, 16, 3, 3}, true, {.padding = {1, 1}}}}) {
    Inputs in{input(c.x, -1, 1, 1), input(c.w, -1, 1, 2)};
    if (c.bias) in.push_back(input({c.w[0]}, -1, 1, 3));
    conv.samples.push_back({c.label, in, [c](const Inputs& i) { return conv2d(i[0], i[1], c.bias ? i[2] : Tensor(), c.o); },
                            [c](const Inputs& i) { return naive_conv2d(i, c.o); }});
  }
  rows.push_back(conv);
  OpRow norm_relu = row("batch_norm_relu", {});
  for (const Shape& shape : {Shape{3, 5, 2, 3}, Shape{4, 9}, Shape{2, 16, 3, 3}}) {
    const std::int64_t c = shape[1];
    for (bool added : {false, true}) {
      for (bool training : {true, false}) {
        Inputs in{input(shape, -2, 2, 61), input({c}, 0.5, 1.5, 62), input({c}, -0.5, 0.5, 63)};
        // Far from zero: the kink of ReLU stays away from the sums.
        const Tensor noise = sample(shape, -1, 1, 64);
        if (added) in.push_back(leaf((noise + sign(noise) * 8).detach()));
        const auto run = [added, training, c](const Inputs& i, bool fused_form) {
          Tensor mean = full({c}, 0.25, {.dtype = i[0].dtype()}), var = full({c}, 1.5, {.dtype = i[0].dtype()});
          if (fused_form) return batch_norm_relu(i[0], added ? i[3] : Tensor(), i[1], i[2], mean, var, training, 0.1, 1e-5);
          Tensor y = batch_norm(i[0], i[1], i[2], mean, var, training, 0.1, 1e-5);
          return relu(added ? add(y, i[3]) : y);
        };
        // The row of batch_norm has the plain loops.
        norm_relu.samples.push_back({added ? "residual" : "alone", in, [run](const Inputs& i) { return run(i, true); },
                                     [run](const Inputs& i) { return run(i, false).to_vector<double>(); }});
      }
    }
  }
  rows.push_back(norm_relu);
  OpRow fused = row("conv2d_relu", {});
  for (const ConvCase& c : std::vector<ConvCase>{
           {"3x3", {2, 3, 6, 5}, {4, 3, 3, 3}, true, {}},
           {"stride, pad, 9 channels", {1, 2, 7, 6}, {9, 2, 3, 2}, true, {.stride = {2, 1}, .padding = {1, 1}}},
           {"groups", {2, 4, 5, 5}, {6, 2, 3, 3}, false, {.padding = {1, 1}, .groups = 2}},
           {"depthwise", {1, 5, 5, 4}, {5, 1, 3, 3}, true, {.padding = {1, 1}, .groups = 5}},
           {"16 channels", {1, 16, 5, 6}, {17, 16, 3, 3}, true, {.padding = {1, 1}}},
           {"one pixel a window", {1, 1, 4, 4}, {8, 1, 3, 3}, true, {}}}) {
    Inputs in{input(c.x, -1, 1, 1), input(c.w, -1, 1, 2)};
    if (c.bias) in.push_back(input({c.w[0]}, -1, 1, 3));
    for (ConvTail tail : {ConvTail::relu, ConvTail::relu_max_pool, ConvTail::relu_mean}) {
      fused.samples.push_back({c.label, in, [c, tail](const Inputs& i) { return conv2d_relu(i[0], i[1], c.bias ? i[2] : Tensor(), c.o, tail); },
                               [c, tail](const Inputs& i) {
                                 Values z = naive_conv2d(i, c.o);
                                 for (double& v : z) v = std::max(v, 0.0);
                                 if (tail == ConvTail::relu) return z;
                                 const auto extent = [&](std::int64_t n, std::int64_t k, std::int64_t stride, std::int64_t pad) { return (n + 2 * pad - k) / stride + 1; };
                                 const std::int64_t oh = extent(c.x[2], c.w[2], c.o.stride.h, c.o.padding.h), ow = extent(c.x[3], c.w[3], c.o.stride.w, c.o.padding.w);
                                 const Inputs image{from_vector(z, {c.x[0], c.w[0], oh, ow})};
                                 if (tail == ConvTail::relu_mean) return naive_adaptive(image, 1, 1);
                                 return naive_pool(image, {.kernel_size = 2, .stride = 2}, oh / 2, ow / 2, true);
                               }});
    }
  }
  rows.push_back(fused);
  OpRow max_row = row("max_pool2d", {}), avg_row = row("avg_pool2d", {});
  struct PoolCase {
    const char* label;
    Pool2dOptions o;
    std::int64_t oh, ow;
  };
  for (PoolCase c : std::vector<PoolCase>{{"2x2", {.kernel_size = {2, 2}, .stride = {2, 2}}, 3, 2},
                                          {"overlap, pad", {.kernel_size = {3, 2}, .stride = {1, 2}, .padding = {1, 1}}, 6, 3},
                                          {"ceil", {.kernel_size = {3, 3}, .stride = {2, 2}, .ceil_mode = true}, 3, 2}}) {
    Inputs in{input({2, 3, 6, 5}, -2, 2, 41)};
    max_row.samples.push_back({c.label, in, [c](const Inputs& i) { return max_pool2d(i[0], c.o); }, [c](const Inputs& i) { return naive_pool(i, c.o, c.oh, c.ow, true); }});
    avg_row.samples.push_back({c.label, in, [c](const Inputs& i) { return avg_pool2d(i[0], c.o); }, [c](const Inputs& i) { return naive_pool(i, c.o, c.oh, c.ow, false); }});
    c.o.count_include_pad = false;
    avg_row.samples.push_back({c.label, in, [c](const Inputs& i) { return avg_pool2d(i[0], c.o); }, [c](const Inputs& i) { return naive_pool(i, c.o, c.oh, c.ow, false); }});
  }
  rows.push_back(max_row);
  rows.push_back(avg_row);
  OpRow adaptive = row("adaptive_avg_pool2d", {});
  for (auto [oh, ow] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {2, 3}, {5, 5}, {7, 2}}) {
    adaptive.samples.push_back({"sizes", {input({2, 3, 6, 5}, -2, 2, 42)}, [oh = oh, ow = ow](const Inputs& i) { return adaptive_avg_pool2d(i[0], {oh, ow}); },
                                [oh = oh, ow = ow](const Inputs& i) { return naive_adaptive(i, oh, ow); }});
  }
  rows.push_back(adaptive);
  for (bool log : {false, true}) {
    auto op = [log](const Tensor& x, std::int64_t d) { return log ? log_softmax(x, d) : softmax(x, d); };
    rows.push_back(row(log ? "log_softmax" : "softmax",
                       {{"last", {strided({5, 7})}, [op](const Inputs& in) { return op(in[0], -1); }, [log](const Inputs& in) { return naive_softmax(in, log); }},
                        {"first", {input({5, 7})}, [op](const Inputs& in) { return op(in[0], 0); },
                         [log](const Inputs& in) {
                           Tensor t = transpose(in[0], 0, 1);
                           Values v = naive_softmax({t}, log), out(35);
                           for (std::size_t i = 0; i < 35; i++) out[i] = v[i % 7 * 5 + i / 7];
                           return out;
                         }},
                        {"large", {leaf(from_vector<double>({1000, 1001, 999}, {1, 3}))}, [op](const Inputs& in) { return op(in[0], 1); }, [log](const Inputs& in) { return naive_softmax(in, log); }}}));
  }
  OpRow bn = row("batch_norm", {});
  for (const Shape& shape : {Shape{4, 3, 3, 2}, Shape{6, 5}, Shape{2, 3, 4}}) {
    std::int64_t c = shape[1], inner = shape.numel() / (shape[0] * c);
    auto channel = [c, inner](std::int64_t i) { return i / inner % c; };
    bn.samples.push_back({"training", {input(shape, -2, 2, 51), input({c}, 0.5, 2, 52), input({c}, -1, 1, 53)},
                          [](const Inputs& in) { return batch_norm(in[0], in[1], in[2], Tensor(), Tensor(), true); },
                          [=](const Inputs& in) { return naive_norm(in, channel, channel, c, 1e-5); }});
    bn.samples.push_back({"eval", {input(shape, -2, 2, 54), input({c}, 0.5, 2, 55), input({c}, -1, 1, 56)},
                          [c](const Inputs& in) { return batch_norm(in[0], in[1], in[2], full({c}, 0.25, {.dtype = in[0].dtype()}), full({c}, 4.0, {.dtype = in[0].dtype()}), false); },
                          [=](const Inputs& in) {
                            Values x = in[0].to_vector<double>(), w = in[1].to_vector<double>(), b = in[2].to_vector<double>();
                            for (std::size_t i = 0; i < x.size(); i++) {
                              std::int64_t k = channel(static_cast<std::int64_t>(i));
                              x[i] = (x[i] - 0.25) / std::sqrt(4.0 + 1e-5) * get(w, k) + get(b, k);
                            }
                            return x;
                          }});
  }
  rows.push_back(bn);
  rows.push_back(row("layer_norm", {{"affine", {input({4, 3, 5}, -2, 2, 61), input({5}, 0.5, 2, 62), input({5}, -1, 1, 63)}, [](const Inputs& in) { return layer_norm(in[0], {5}, in[1], in[2]); },
                                     [](const Inputs& in) { return naive_norm(in, [](auto i) { return i / 5; }, [](auto i) { return i % 5; }, 12, 1e-5); }},
                                    {"two dims", {input({4, 3, 5}, -2, 2, 64)}, [](const Inputs& in) { return layer_norm(in[0], {3, 5}); },
                                     [](const Inputs& in) { return naive_norm(in, [](auto i) { return i / 15; }, [](auto) { return 0; }, 4, 1e-5); }}}));
  rows.push_back(row("group_norm", {{"images", {input({2, 6, 2, 3}, -2, 2, 65), input({6}, 0.5, 2, 66), input({6}, -1, 1, 67)}, [](const Inputs& in) { return group_norm(in[0], 3, in[1], in[2]); },
                                     [](const Inputs& in) { return naive_norm(in, [](auto i) { return i / 12; }, [](auto i) { return i / 6 % 6; }, 6, 1e-5); }},
                                    {"one group", {input({3, 4}, -2, 2, 68)}, [](const Inputs& in) { return group_norm(in[0], 1); },
                                     [](const Inputs& in) { return naive_norm(in, [](auto i) { return i / 4; }, [](auto) { return 0; }, 3, 1e-5); }}}));
  rows.push_back(row("dropout", {{"mask", {input({4, 8}, 1, 2, 71)}, [](const Inputs& in) { return dropout(in[0], 0.25, 99); },
                                  [](const Inputs& in) {  // element i keeps x / (1-p) when its number of the key is >= p
                                    Values x = in[0].to_vector<double>();
                                    for (std::size_t i = 0; i < x.size(); i++) {
                                      float u = uniform_from_bits(philox(99, i / 4).v[i % 4]);
                                      x[i] = u >= 0.25f ? x[i] / 0.75 : 0;
                                    }
                                    return x;
                                  }}}));
  return rows;
}

std::vector<OpRow> loss_rows() {
  std::vector<OpRow> rows;
  Tensor labels = index({2, 0, -100, 3, 1}, {5});
  Tensor weight = from_vector<double>({0.5, 2, 1, 0.25}, {4});
  OpRow ce = row("cross_entropy", {}), nll = row("nll_loss", {});
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    for (bool weighted : {false, true}) {
      for (double smoothing : {0.0, 0.1}) {
        ce.samples.push_back({"labels", {input({5, 4}, -2, 2, 81)},
                              [=](const Inputs& in) {
                                return cross_entropy(in[0], labels, {.weight = weighted ? weight : Tensor(), .label_smoothing = smoothing, .reduction = reduction});
                              },
                              [=](const Inputs& in) {
                                Inputs all{in[0], labels};
                                if (weighted) all.push_back(weight);
                                return naive_nll(all, -100, smoothing, reduction, true);
                              }});
      }
      nll.samples.push_back({"labels", {input({5, 4}, -2, -0.1, 82)},
                             [=](const Inputs& in) { return nll_loss(in[0], labels, {.weight = weighted ? weight : Tensor(), .reduction = reduction}); },
                             [=](const Inputs& in) {
                               Inputs all{in[0], labels};
                               if (weighted) all.push_back(weight);
                               return naive_nll(all, -100, 0, reduction, false);
                             }});
    }
  }
  Tensor image_labels = index({0, 1, 2, 1, 0, 2, 1, 1}, {2, 4});
  ce.samples.push_back({"images", {input({2, 3, 4}, -2, 2, 83)}, [=](const Inputs& in) { return cross_entropy(in[0], image_labels); },
                        [=](const Inputs& in) { return naive_nll({reshape(permute(in[0], {0, 2, 1}), {8, 3}), reshape(image_labels, {8})}, -100, 0, Reduction::mean, true); }});
  rows.push_back(ce);
  rows.push_back(nll);
  auto pair_row = [&](const char* name, auto op, std::function<double(double, double)> f) {
    OpRow r = row(name, {});
    for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      r.samples.push_back({"reductions", {input({3, 5}, -2, 2, 91), input({3, 5}, 0, 1, 92)}, [op, reduction](const Inputs& in) { return op(in[0], in[1], reduction); }, pairwise(f, reduction)});
    }
    rows.push_back(r);
  };
  pair_row("mse_loss", [](const Tensor& a, const Tensor& b, Reduction r) { return mse_loss(a, b, r); }, [](double a, double b) { return (a - b) * (a - b); });
  pair_row("l1_loss", [](const Tensor& a, const Tensor& b, Reduction r) { return l1_loss(a, b, r); }, [](double a, double b) { return std::fabs(a - b); });
  pair_row("smooth_l1_loss", [](const Tensor& a, const Tensor& b, Reduction r) { return smooth_l1_loss(a, b, 0.7, r); },
           [](double a, double b) { double d = std::fabs(a - b); return d < 0.7 ? d * d / 1.4 : d - 0.35; });
  pair_row("binary_cross_entropy_with_logits", [](const Tensor& a, const Tensor& b, Reduction r) { return binary_cross_entropy_with_logits(a, b, r); },
           [](double x, double t) { double s = 1 / (1 + std::exp(-x)); return -t * std::log(s) - (1 - t) * std::log(1 - s); });
  return rows;
}

}  // namespace

const std::vector<OpRow>& op_table() {
  static const std::vector<OpRow> table = [] {
    std::vector<OpRow> rows;
    for (auto part : {elementwise_rows(), reduce_rows(), movement_rows(), network_rows(), loss_rows()}) {
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }();
  return table;
}

}  // namespace limpid::test
