// The CPU's kernel table above the pointer level: 16-bit storage against f64 through every adapter, losses and row norms
// against plain formulas, optimizer steps on tensors.
#include "tensor_test.h"

#include <cstring>
#include <functional>

#include <limpid/tensor/raw_nn.h>

using namespace tensor_test;

namespace {

const Kernels& table() { return cpu_kernels(); }

using Inputs = std::vector<Tensor>;
// Runs f on the inputs in each dtype; the f64 run on the same stored values is the reference.
void compare_dtypes(const char* what, const std::vector<std::pair<Shape, MemoryFormat>>& shapes, double low, double high,
                    const std::function<Inputs(const Inputs&)>& f, double room = 4) {
  for (DType dtype : {float32, float16, bfloat16}) {
    Inputs narrow, wide;
    unsigned seed = 1;
    for (const auto& [shape, format] : shapes) {
      Tensor t = raw::empty(shape, dtype, kCpu, format), w = raw::empty(shape, float64, kCpu, format);
      assign(t, random_numbers(shape.numel(), low, high, seed++));
      assign(w, values(t));
      narrow.push_back(t);
      wide.push_back(w);
    }
    Inputs got = f(narrow), expected = f(wide);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); i++) {
      double scale = 0;
      for (double v : values(expected[i])) scale = std::max(scale, std::fabs(v));
      check_close(values(got[i]), values(expected[i]), room * tolerance(dtype), room * tolerance(dtype) * scale,
                  concat(what, " ", dtype, " output ", i));
    }
  }
}

constexpr MemoryFormat kPlain = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;

Tensor image(const Shape& shape, const Tensor& like) { return raw::empty(shape, like.dtype(), kCpu, kLast); }

}  // namespace

TEST_CASE("the table has every entry") {
  constexpr std::size_t kEntries = sizeof(Kernels) / sizeof(void*);
  static_assert(sizeof(Kernels) % sizeof(void*) == 0);
  const void* entries[kEntries];
  std::memcpy(entries, &table(), sizeof entries);
  for (std::size_t i = 0; i < kEntries; i++) CHECK_MESSAGE(entries[i] != nullptr, "entry ", i);
  CHECK(std::string(table().device) == "cpu");
}

TEST_CASE("convolution in 16 bits") {
  Conv2dDesc d{.n = 2, .c = 4, .h = 7, .w = 6, .k = 6, .r = 3, .s = 2, .stride_h = 2, .stride_w = 1, .pad_h = 1, .pad_w = 1,
               .groups = 2};
  Shape x{2, 4, 7, 6}, w{6, 2, 3, 2}, y{2, 6, d.oh(), d.ow()};
  compare_dtypes("conv2d", {{x, kLast}, {w, kPlain}, {{6}, kPlain}, {y, kLast}}, -1, 1, [&](const Inputs& in) {
    Conv2dDesc desc = d;
    desc.dtype = in[0].dtype();
    return Inputs{raw::conv2d(desc, in[0], in[1], in[2]), raw::conv2d(desc, in[0], in[1], Tensor()),
                  raw::conv2d_backward_input(desc, in[3], in[1]), raw::conv2d_backward_weight(desc, in[0], in[3]),
                  raw::conv2d_backward_bias(desc, in[3])};
  });
}

TEST_CASE("16-bit convolutions in several pieces of images, and of none") {
  // 100 KiB of f32 an image: pieces of ten and a rest; direct, Winograd and depthwise.
  for (Conv2dDesc d : {Conv2dDesc{.n = 23, .c = 8, .h = 40, .w = 40, .k = 8, .r = 5, .s = 5, .pad_h = 2, .pad_w = 2},
                       Conv2dDesc{.n = 13, .c = 16, .h = 28, .w = 28, .k = 16, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1},
                       Conv2dDesc{.n = 23, .c = 8, .h = 40, .w = 40, .k = 8, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 8},
                       Conv2dDesc{.n = 0, .c = 16, .h = 28, .w = 28, .k = 16, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}}) {
    Shape x{d.n, d.c, d.h, d.w}, w{d.k, d.c / d.groups, d.r, d.s}, y{d.n, d.k, d.oh(), d.ow()};
    compare_dtypes("conv2d", {{x, kLast}, {w, kPlain}, {{d.k}, kPlain}, {y, kLast}}, -1, 1, [&](const Inputs& in) {
      Conv2dDesc desc = d;
      desc.dtype = in[0].dtype();
      return Inputs{raw::conv2d(desc, in[0], in[1], in[2]), raw::conv2d_backward_input(desc, in[3], in[1]),
                    raw::conv2d_backward_weight(desc, in[0], in[3])};
    });
  }
  Conv2dDesc large{.dtype = bfloat16, .n = 256, .c = 16, .h = 32, .w = 32, .k = 16, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1};
  for (Conv2dPass pass : {Conv2dPass::forward, Conv2dPass::backward_input, Conv2dPass::backward_weight})
    CHECK(table().plan_conv2d(pass, large).workspace_bytes < 8u << 20);  // the images alone are 32 MiB in f32
}

TEST_CASE("pooling in 16 bits, with indices") {
  Pool2dDesc d{.n = 2, .c = 3, .h = 7, .w = 6, .oh = 4, .ow = 3, .kernel_h = 3, .kernel_w = 2, .stride_h = 2, .stride_w = 2,
               .pad_h = 1, .pad_w = 0};
  Shape x{2, 3, 7, 6}, y{2, 3, 4, 3};
  for (bool with_pad : {true, false}) {
    d.count_include_pad = with_pad;
    compare_dtypes("pool", {{x, kLast}, {y, kLast}}, -1, 1, [&](const Inputs& in) {
      Tensor top = image(y, in[0]), avg = image(y, in[0]), adaptive = image(y, in[0]);
      Tensor indices = raw::empty(y, int32, kCpu, kLast);
      Tensor dtop = image(x, in[0]), davg = image(x, in[0]), dadaptive = image(x, in[0]);
      table().max_pool2d(d, top, indices, in[0]);
      table().max_pool2d_backward(d, dtop, in[1], indices);
      table().avg_pool2d(d, avg, in[0]);
      table().avg_pool2d_backward(d, davg, in[1]);
      table().adaptive_avg_pool2d(d, adaptive, in[0]);
      table().adaptive_avg_pool2d_backward(d, dadaptive, in[1]);
      return Inputs{top, indices, dtop, avg, davg, adaptive, dadaptive};
    });
  }
}

TEST_CASE("batch norm in 16 bits") {
  for (Shape rows : {Shape{77, 5}, Shape{6000, 100}})  // the latter in three pieces and two strips
  compare_dtypes("batch_norm", {{rows, kPlain}, {{rows[1]}, kPlain}, {{rows[1]}, kPlain}, {rows, kPlain}}, 0.5, 2,
                 [&](const Inputs& in) {
                   raw::BatchStatistics s = raw::batch_norm_statistics(in[0], 1e-5);
                   Tensor y = raw::batch_norm_apply(in[0], s.mean, s.invstd, in[1], in[2]);
                   Tensor sums = raw::batch_norm_backward_reduce(in[0], in[3], s.mean, s.invstd);
                   Tensor dx = raw::batch_norm_backward_apply(in[0], in[3], s.mean, s.invstd, in[1], sums, s.count);
                   Tensor dx0 = raw::batch_norm_backward_apply(in[0], in[3], s.mean, s.invstd, Tensor(), sums, 0);
                   return Inputs{s.mean, s.var, y, sums, dx, dx0};
                 });
}

TEST_CASE("softmax in 16 bits") {
  compare_dtypes("softmax", {{{9, 13}, kPlain}, {{9, 13}, kPlain}}, -3, 3, [&](const Inputs& in) {
    Inputs out;
    for (bool log : {false, true}) {
      Tensor y = raw::empty_like(in[0]), dx = raw::empty_like(in[0]);
      table().softmax(y, in[0], log);
      table().softmax_backward(dx, in[1], y, log);
      out.push_back(y);
      out.push_back(dx);
    }
    return out;
  });
}

namespace {

struct RowNorm {
  Tensor y, mean, invstd, dx, dweight, dbias;
};
RowNorm run_row_norm(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& dy, std::int64_t rows, std::int64_t inner,
                     std::int64_t affine_rows) {
  RowNorm r;
  r.y = raw::empty_like(x), r.dx = raw::empty_like(x);
  r.mean = raw::empty({rows}, float64, kCpu), r.invstd = raw::empty({rows}, float64, kCpu);
  r.dweight = raw::empty_like(w), r.dbias = raw::empty_like(w);
  table().row_norm(r.y, r.mean, r.invstd, x, w, b, inner, affine_rows, 1e-3);
  table().row_norm_backward(r.dx, r.dweight, r.dbias, dy, x, r.mean, r.invstd, w, inner, affine_rows);
  return r;
}

}  // namespace

TEST_CASE("row norms: the formula, differences, 16 bits") {
  struct Case {
    std::int64_t rows, len, inner, affine_rows;
  };
  for (const Case& c : {Case{5, 37, 1, 1}, Case{6, 20, 5, 3}, Case{4, 9, 9, 2}}) {
    std::int64_t affine = c.affine_rows * c.len / c.inner;
    auto index = [&](std::int64_t r, std::int64_t i) {
      return static_cast<std::size_t>(r % c.affine_rows * (c.len / c.inner) + i / c.inner);
    };
    std::vector<double> nx = random_numbers(c.rows * c.len, -1, 2, 1), nw = random_numbers(affine, 0.5, 2, 2),
                        nb = random_numbers(affine, -1, 1, 3), ng = random_numbers(c.rows * c.len, -1, 1, 4);
    auto formula = [&](const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b) {
      std::vector<double> y;
      for (std::int64_t r = 0; r < c.rows; r++) {
        double mean = 0, var = 0;
        for (std::int64_t i = 0; i < c.len; i++) mean += x[static_cast<std::size_t>(r * c.len + i)] / static_cast<double>(c.len);
        for (std::int64_t i = 0; i < c.len; i++) {
          var += std::pow(x[static_cast<std::size_t>(r * c.len + i)] - mean, 2) / static_cast<double>(c.len);
        }
        for (std::int64_t i = 0; i < c.len; i++) {
          y.push_back((x[static_cast<std::size_t>(r * c.len + i)] - mean) / std::sqrt(var + 1e-3) * w[index(r, i)] + b[index(r, i)]);
        }
      }
      return y;
    };
    auto slope = [&](std::vector<double> x, std::vector<double> w, std::vector<double> b, int which, std::size_t at) {
      double total = 0;
      for (double sign : {1.0, -1.0}) {
        std::vector<double>* target = which == 0 ? &x : which == 1 ? &w : &b;
        double before = (*target)[at];
        (*target)[at] += sign * 1e-6;
        std::vector<double> y = formula(x, w, b);
        for (std::size_t i = 0; i < y.size(); i++) total += sign * y[i] * ng[i] / 2e-6;
        (*target)[at] = before;
      }
      return total;
    };
    Shape shape{c.rows, c.len};
    RowNorm r = run_row_norm(from(nx, shape), from(nw, {affine}), from(nb, {affine}), from(ng, shape), c.rows, c.inner, c.affine_rows);
    check_close(values(r.y), formula(nx, nw, nb), 1e-12, 1e-12, "row_norm");
    std::vector<double> dx, dw, db;
    for (std::size_t i = 0; i < nx.size(); i++) dx.push_back(slope(nx, nw, nb, 0, i));
    for (std::size_t i = 0; i < nw.size(); i++) dw.push_back(slope(nx, nw, nb, 1, i));
    for (std::size_t i = 0; i < nb.size(); i++) db.push_back(slope(nx, nw, nb, 2, i));
    check_close(values(r.dx), dx, 1e-6, 1e-6, "row_norm dx");
    check_close(values(r.dweight), dw, 1e-6, 1e-6, "row_norm dweight");
    check_close(values(r.dbias), db, 1e-6, 1e-6, "row_norm dbias");
    compare_dtypes("row_norm", {{shape, kPlain}, {{affine}, kPlain}, {{affine}, kPlain}, {shape, kPlain}}, 0.5, 2,
                   [&](const Inputs& in) {
                     RowNorm n = run_row_norm(in[0], in[1], in[2], in[3], c.rows, c.inner, c.affine_rows);
                     return Inputs{n.y, n.mean, n.invstd, n.dx, n.dweight, n.dbias};
                   });
  }
}

namespace {

struct Loss {
  Tensor losses, weights, lse, dx;
};
Loss run_loss(const LossDesc& d, const Tensor& logits, const Tensor& labels, const Tensor& weight, const Tensor& scale) {
  Loss l;
  DType stats = logits.dtype() == float64 ? float64 : float32;
  for (Tensor* t : {&l.losses, &l.weights, &l.lse}) *t = raw::empty({d.rows}, stats, kCpu);
  l.dx = raw::empty_like(logits);
  table().cross_entropy(d, l.losses, l.weights, l.lse, logits, labels, weight);
  table().cross_entropy_backward(d, l.dx, raw::cast(scale, stats), logits, labels, weight, l.lse);
  return l;
}

}  // namespace

TEST_CASE("cross-entropy: PyTorch's definition with smoothing, weights and ignored rows; gradient by differences") {
  const std::int64_t rows = 7, classes = 5;
  std::vector<double> nx = random_numbers(rows * classes, -3, 3, 1), nw{0.5, 2, 1, 0, 1.5}, ns = random_numbers(rows, -1, 2, 3);
  nx[3] = 300;  // large logits lose nothing
  for (std::int64_t ignore : {-100, 2}) {
    for (double smoothing : {0.0, 0.1, 1.0}) {
      for (bool weighted : {false, true}) {
        std::vector<double> labels{0, 1, 2, 3, 4, 2, static_cast<double>(ignore)};
        LossDesc d{.rows = rows, .classes = classes, .ignore_index = ignore, .label_smoothing = smoothing};
        auto row_loss = [&](const std::vector<double>& x, std::int64_t r) {
          if (labels[static_cast<std::size_t>(r)] == static_cast<double>(ignore)) return 0.0;
          const double* row = &x[static_cast<std::size_t>(r * classes)];
          double top = row[0], sum = 0, loss = 0;
          for (int c = 1; c < classes; c++) top = std::max(top, row[c]);
          for (int c = 0; c < classes; c++) sum += std::exp(row[c] - top);
          for (int c = 0; c < classes; c++) {
            double w = weighted ? nw[static_cast<std::size_t>(c)] : 1, nll = std::log(sum) + top - row[c];
            loss += smoothing / classes * w * nll;
            if (c == static_cast<int>(labels[static_cast<std::size_t>(r)])) loss += (1 - smoothing) * w * nll;
          }
          return loss;
        };
        Tensor weight = weighted ? from(nw, {classes}) : Tensor(), y = from(labels, {rows}, int64);
        Loss l = run_loss(d, from(nx, {rows, classes}), y, weight, from(ns, {rows}));
        std::vector<double> expected, row_weights, slopes;
        for (std::int64_t r = 0; r < rows; r++) {
          expected.push_back(row_loss(nx, r));
          double label = labels[static_cast<std::size_t>(r)];
          row_weights.push_back(label == static_cast<double>(ignore) ? 0 : weighted ? nw[static_cast<std::size_t>(label)] : 1);
        }
        for (std::size_t i = 0; i < nx.size(); i++) {
          std::vector<double> up = nx, down = nx;
          up[i] += 1e-6, down[i] -= 1e-6;
          std::int64_t r = static_cast<std::int64_t>(i) / classes;
          slopes.push_back(ns[static_cast<std::size_t>(r)] * (row_loss(up, r) - row_loss(down, r)) / 2e-6);
        }
        check_close(values(l.losses), expected, 1e-12, 1e-12, "losses");
        check_close(values(l.weights), row_weights, 0, 0, "row weights");
        check_close(values(l.dx), slopes, 1e-6, 1e-6, "gradient");
        compare_dtypes("cross_entropy", {{{rows, classes}, kPlain}, {{classes}, kPlain}, {{rows}, kPlain}}, 0.1, 3,
                       [&](const Inputs& in) {
                         Loss n = run_loss(d, in[0], y, weighted ? in[1] : Tensor(), in[2]);
                         return Inputs{n.losses, n.weights, n.lse, n.dx};
                       });
      }
    }
  }
  LossDesc d{.rows = 4, .classes = 10};
  for (std::int64_t bad : {12, -1, 10}) {
    Tensor labels = from({0, 9, -100, static_cast<double>(bad)}, {4}, int64);
    CHECK(message_of<IndexError>([&] {
            run_loss(d, raw::zeros({4, 10}, float32, kCpu), labels, Tensor(), raw::zeros({4}, float32, kCpu));
          }) == concat("[cross_entropy] label ", bad, " at row 3 is outside [0, 10)"));
  }
  d.rows = 0;
  Loss none = run_loss(d, raw::zeros({0, 10}, float32, kCpu), raw::empty({0}, int64, kCpu), Tensor(), raw::zeros({0}, float32, kCpu));
  CHECK(none.dx.numel() == 0);
}

TEST_CASE("optimizer steps on tensors: 16-bit parameters, mixed groups, gradients in another layout") {
  compare_dtypes(
      "optimizer", {{{37, 41}, kPlain}, {{37, 41}, kPlain}, {{3, 3, 4, 4}, kPlain}, {{3, 3, 4, 4}, kLast}}, 0.5, 2,
      [&](const Inputs& in) {
        Inputs out;
        for (int rule = 0; rule < 3; rule++) {
          std::vector<OptimChunk> chunks;
          for (std::size_t i = 0; i < in.size(); i += 2) {
            OptimChunk c{raw::clone(in[i]), in[i + 1], Tensor(), Tensor(), Tensor()};
            for (Tensor* s : {&c.state0, &c.state1, &c.state2}) *s = raw::zeros(c.param.shape(), c.param.dtype(), kCpu);
            chunks.push_back(c);
          }
          std::uint32_t version = chunks[0].param.version();
          if (rule == 0) table().sgd(chunks, {0.1, 0.9, 0, 0.01, true, true});
          if (rule == 1) table().adam(chunks, {0.01, 0.9, 0.999, 1e-8, 0.01, true, false, 1});
          if (rule == 2) table().rmsprop(chunks, {0.01, 0.9, 1e-3, 0.01, 0.9, true});
          CHECK(chunks[0].param.version() > version);
          for (OptimChunk& c : chunks) {
            out.push_back(c.param);
            CHECK(values(c.param) != values(in[2 * static_cast<std::size_t>(&c - chunks.data())]));
          }
        }
        return out;
      });
  std::vector<OptimChunk> mixed;
  for (DType dtype : kFloats) {
    mixed.push_back({from({1, 2, 3}, {3}, dtype), from({1, 1, 1}, {3}, dtype), Tensor(), Tensor(), Tensor()});
  }
  table().sgd(mixed, {0.5, 0, 0, 0, false, true});
  for (OptimChunk& c : mixed) CHECK(values(c.param) == std::vector<double>{0.5, 1.5, 2.5});
}

TEST_CASE("sum of squares and scale over tensors of several dtypes") {
  std::vector<Tensor> tensors;
  for (DType dtype : kFloats) tensors.push_back(from({1, 2, 3, 4}, {2, 2}, dtype));
  tensors.push_back(raw::expand("test", from({2}, {1}, float32), {5}));
  CHECK(table().sum_of_squares(tensors) == 4 * 30 + 20);
  tensors.pop_back();
  table().scale(tensors, 0.5);
  for (Tensor& t : tensors) CHECK(values(t) == std::vector<double>{0.5, 1, 1.5, 2});
  CHECK(table().sum_of_squares({}) == 0);
}
