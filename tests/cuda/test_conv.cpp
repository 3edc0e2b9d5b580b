// Convolutions of the CUDA backend, all three passes, against plain loops in double.
#include <algorithm>
#include <vector>

#include <cudasim/orders.h>
#include <limpid/cuda/kernels/conv.cuh>

#include "numbers.h"

using namespace limpid;
using namespace limpid::cudasim;

namespace {

struct Oracle {
  std::vector<double> y, dx, dw;
};

template <class T>
Oracle plain_conv(const Conv2dDesc& d, const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& bias,
                  const std::vector<T>& dy) {
  const std::int64_t group_in = d.c / d.groups, group_out = d.k / d.groups;
  Oracle o;
  o.y.assign(std::size_t(d.n * d.oh() * d.ow() * d.k), 0);
  o.dx.assign(x.size(), 0), o.dw.assign(w.size(), 0);
  for (std::int64_t n = 0; n < d.n; n++)
    for (std::int64_t oh = 0; oh < d.oh(); oh++)
      for (std::int64_t ow = 0; ow < d.ow(); ow++)
        for (std::int64_t k = 0; k < d.k; k++) {
          const auto to = std::size_t(((n * d.oh() + oh) * d.ow() + ow) * d.k + k);
          double sum = bias.empty() ? 0 : as_double(bias[std::size_t(k)]);
          for (std::int64_t c = 0; c < group_in; c++)
            for (std::int64_t r = 0; r < d.r; r++)
              for (std::int64_t s = 0; s < d.s; s++) {
                const std::int64_t ih = oh * d.stride_h - d.pad_h + r * d.dil_h,
                                   iw = ow * d.stride_w - d.pad_w + s * d.dil_w;
                if (ih < 0 || ih >= d.h || iw < 0 || iw >= d.w) continue;
                const auto from = std::size_t(((n * d.h + ih) * d.w + iw) * d.c + k / group_out * group_in + c);
                const auto filter = std::size_t(((k * group_in + c) * d.r + r) * d.s + s);
                sum += as_double(x[from]) * as_double(w[filter]);
                o.dx[from] += as_double(dy[to]) * as_double(w[filter]);
                o.dw[filter] += as_double(dy[to]) * as_double(x[from]);
              }
          o.y[to] = sum;
        }
  return o;
}

struct Forced {
  bool wide = false;
  std::int64_t splits = 1;  // of the pixels in backward_weight
  bool bias = true;
  std::int64_t offset = 0;  // elements by which images and weight miss their alignment
};

cu::ConvPlan forced_plan(Conv2dPass pass, const Conv2dDesc& d, const Forced& f) {
  cu::ConvPlan plan = cu::plan_conv(pass, d);
  if (plan.algorithm != cu::ConvAlgorithm::depthwise)
    plan.gemm.tile = f.wide ? cu::GemmTile::wide : cu::GemmTile::small;
  if (pass == Conv2dPass::backward_weight) {
    const std::int64_t pixels = d.n * d.oh() * d.ow(),
                       unit = plan.algorithm == cu::ConvAlgorithm::depthwise ? 1 : cu::panel_depth(d.dtype);
    plan.gemm.split_depth = std::max(unit, (pixels / f.splits + unit - 1) / unit * unit);
    plan.gemm.splits = std::max<std::int64_t>(1, (pixels + plan.gemm.split_depth - 1) / plan.gemm.split_depth);
    const std::size_t number = d.dtype == DType::float64 ? 8 : 4;
    plan.workspace_bytes =
        plan.gemm.splits > 1 ? std::size_t(plan.gemm.splits * d.k * d.c / d.groups * d.r * d.s) * number : 0;
  }
  return plan;
}

template <class T>
void check_conv(Conv2dDesc d, const Forced& f = {}, cu::ConvAlgorithm algorithm = cu::ConvAlgorithm::implicit_gemm) {
  d.dtype = dtype_of<T>;
  INFO("conv ", to_string(d.dtype), " n ", d.n, " c ", d.c, " ", d.h, "x", d.w, " k ", d.k, " ", d.r, "x", d.s,
       " stride ", d.stride_h, ",", d.stride_w, " pad ", d.pad_h, ",", d.pad_w, " dilation ", d.dil_h, ",", d.dil_w,
       " groups ", d.groups, " splits ", f.splits, " offset ", f.offset);
  const std::int64_t weights = d.k * (d.c / d.groups) * d.r * d.s, outputs = d.n * d.oh() * d.ow() * d.k;
  const auto x = random_numbers<T>(d.n * d.h * d.w * d.c, 1), w = random_numbers<T>(weights, 2),
             dy = random_numbers<T>(outputs, 4);
  const auto bias = random_numbers<T>(f.bias ? d.k : 0, 3);
  const Oracle want = plain_conv(d, x, w, bias, dy);
  const auto o = std::size_t(f.offset);
  auto shifted = [&](const std::vector<T>& values) {
    std::vector<T> moved(o, T(0.0f));
    moved.insert(moved.end(), values.begin(), values.end());
    return moved;
  };
  DeviceBuffer<T> xs(shifted(x)), ws(shifted(w)), dys(shifted(dy)), bs(bias);
  DeviceBuffer<T> y(o + std::size_t(outputs)), dx(o + x.size()), dw(w.size());
  auto run = [&](Conv2dPass pass, auto call) {
    const cu::ConvPlan plan = forced_plan(pass, d, f);
    CHECK(plan.algorithm == algorithm);
    DeviceBuffer<char> workspace(plan.workspace_bytes);
    REQUIRE(call(plan, workspace.data()) == cudaSuccess);
    CHECK(workspace.intact());
  };
  run(Conv2dPass::forward, [&](const cu::ConvPlan& plan, void* workspace) {
    return cu::conv_forward(d, plan, y.data() + o, xs.data() + o, ws.data() + o, f.bias ? bs.data() : nullptr,
                            workspace, nullptr);
  });
  run(Conv2dPass::backward_input, [&](const cu::ConvPlan& plan, void* workspace) {
    return cu::conv_backward_input(d, plan, dx.data() + o, dys.data() + o, ws.data() + o, workspace, nullptr);
  });
  run(Conv2dPass::backward_weight, [&](const cu::ConvPlan& plan, void* workspace) {
    return cu::conv_backward_weight(d, plan, dw.data(), xs.data() + o, dys.data() + o, workspace, nullptr);
  });
  check_numbers(y, want.y, rounding<T>(double(weights)), o);
  check_numbers(dx, want.dx, rounding<T>(double(weights)), o);
  check_numbers(dw, want.dw, rounding<T>(double(outputs)));
}

template <class T>
void check_dtype() {
  check_conv<T>({.n = 2, .c = 8, .h = 5, .w = 4, .k = 8, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1});  // vectors
  check_conv<T>(
      {.n = 2, .c = 3, .h = 6, .w = 5, .k = 5, .r = 3, .s = 2, .stride_h = 2, .stride_w = 1, .pad_h = 1});  // borders
}

}  // namespace

TEST_CASE("conv: all dtypes, with and without vectors, in every order") {
  for_each_order([] {
    check_dtype<float>();
    check_dtype<double>();
    check_dtype<Half>();
    check_dtype<BFloat16>();
  });
}

TEST_CASE("conv: strides, padding, dilation, groups") {
  check_conv<float>(
      {.n = 1, .c = 4, .h = 9, .w = 8, .k = 3, .r = 3, .s = 3, .stride_h = 2, .stride_w = 3, .pad_h = 1, .pad_w = 2});
  check_conv<float>({.n = 2,
                     .c = 2,
                     .h = 9,
                     .w = 9,
                     .k = 3,
                     .r = 2,
                     .s = 3,
                     .stride_h = 2,
                     .stride_w = 2,
                     .pad_h = 2,
                     .pad_w = 1,
                     .dil_h = 2,
                     .dil_w = 3});
  check_conv<float>({.n = 1,
                     .c = 2,
                     .h = 9,
                     .w = 11,
                     .k = 3,
                     .r = 3,
                     .s = 3,
                     .stride_h = 4,
                     .stride_w = 6,
                     .pad_h = 1,
                     .pad_w = 1,
                     .dil_h = 2,
                     .dil_w = 4});
  check_conv<float>(
      {.n = 2, .c = 3, .h = 8, .w = 8, .k = 4, .r = 1, .s = 1, .stride_h = 3, .stride_w = 3});  // inputs that no output
                                                                                                // reads
  check_conv<float>({.n = 2, .c = 6, .h = 5, .w = 5, .k = 9, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 3},
                    {.bias = false});
  check_conv<float>({.n = 3, .c = 16, .h = 4, .w = 3, .k = 8, .r = 2, .s = 2, .groups = 2});
  check_conv<double>({.n = 1, .c = 1, .h = 7, .w = 1, .k = 1, .r = 5, .s = 1, .pad_h = 4});
  check_conv<float>({.n = 2, .c = 8, .h = 4, .w = 4, .k = 8, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1},
                    {.offset = 1});  // unaligned
  check_conv<Half>({.n = 2, .c = 8, .h = 4, .w = 4, .k = 8, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}, {.offset = 3});
}

TEST_CASE("conv: the wide tile") {
  check_conv<float>(
      {.n = 3, .c = 8, .h = 7, .w = 7, .k = 68, .r = 3, .s = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1},
      {.wide = true});
  check_conv<double>({.n = 1, .c = 5, .h = 12, .w = 11, .k = 66, .r = 2, .s = 2}, {.wide = true});
  check_conv<Half>({.n = 1, .c = 16, .h = 6, .w = 6, .k = 72, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}, {.wide = true});
  check_conv<BFloat16>({.n = 1, .c = 3, .h = 6, .w = 6, .k = 8, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1},
                       {.wide = true});
}

TEST_CASE("conv: the weight's gradient in parts") {
  for_each_order([] {
    check_conv<float>({.n = 2, .c = 5, .h = 6, .w = 5, .k = 6, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}, {.splits = 3});
    check_conv<BFloat16>({.n = 2, .c = 8, .h = 5, .w = 5, .k = 8, .r = 3, .s = 3, .groups = 2}, {.splits = 2});
  });
}

TEST_CASE("conv: 1x1 filters are products of matrices") {
  check_conv<float>({.n = 2, .c = 12, .h = 5, .w = 3, .k = 20, .r = 1, .s = 1}, {}, cu::ConvAlgorithm::gemm);
  check_conv<Half>({.n = 2, .c = 3, .h = 5, .w = 3, .k = 5, .r = 1, .s = 1}, {.splits = 2, .offset = 1},
                   cu::ConvAlgorithm::gemm);
}

TEST_CASE("conv: one input channel a group") {
  const auto depthwise = cu::ConvAlgorithm::depthwise;
  for_each_order([&] {
    check_conv<float>(
        {.n = 2, .c = 8, .h = 5, .w = 6, .k = 8, .r = 3, .s = 3, .stride_h = 2, .pad_h = 1, .pad_w = 1, .groups = 8},
        {}, depthwise);
    check_conv<Half>({.n = 2, .c = 16, .h = 4, .w = 5, .k = 16, .r = 3, .s = 2, .pad_h = 1, .dil_h = 2, .groups = 16},
                     {.splits = 3}, depthwise);
    check_conv<double>({.n = 1, .c = 3, .h = 4, .w = 5, .k = 6, .r = 2, .s = 2, .stride_w = 2, .groups = 3},
                       {.splits = 2}, depthwise);
    check_conv<BFloat16>({.n = 1, .c = 35, .h = 4, .w = 4, .k = 35, .r = 3, .s = 3, .groups = 35}, {.bias = false},
                         depthwise);
  });
}

TEST_CASE("conv: empty batches; the weight's gradient of nothing is zero") {
  const Conv2dDesc d{.dtype = float32, .n = 0, .c = 2, .h = 4, .w = 4, .k = 3, .r = 3, .s = 3};
  CHECK(cu::conv_forward(d, cu::plan_conv(Conv2dPass::forward, d), nullptr, nullptr, nullptr, nullptr, nullptr,
                         nullptr) == cudaSuccess);
  DeviceBuffer<float> dw(std::size_t(2 * 3 * 9)), none(0);
  CHECK(cu::conv_backward_weight(d, cu::plan_conv(Conv2dPass::backward_weight, d), dw.data(), none.data(), none.data(),
                                 nullptr, nullptr) == cudaSuccess);
  check_numbers(dw, std::vector<double>(54, 0.0), 0);
}

TEST_CASE("column sums: the gradient of a bias") {
  for_each_order([] {
    for (std::int64_t columns : {1, 10, 16, 33}) {
      for (std::int64_t rows : {0, 1, 37, 700}) {
        const std::vector<Half> x = random_numbers<Half>(rows * columns, 8);
        const cu::ColumnSumPlan plan = cu::plan_column_sum(rows, columns, float16);
        CHECK((plan.splits > 1) == (rows == 700));
        DeviceBuffer<Half> in(x), out(static_cast<std::size_t>(columns));
        DeviceBuffer<char> workspace(plan.workspace_bytes);
        CHECK(cu::column_sum(float16, plan, out.data(), in.data(), rows, columns, workspace.data(), nullptr) ==
              cudaSuccess);
        std::vector<double> want(std::size_t(columns), 0.0);
        for (std::size_t i = 0; i < x.size(); i++) want[i % std::size_t(columns)] += as_double(x[i]);
        check_numbers(out, want, rounding<Half>(double(rows)));
        CHECK(cu::column_sum(float16, {}, out.data(), in.data(), rows, columns, nullptr, nullptr) ==
              cudaSuccess);  // no workspace
        check_numbers(out, want, rounding<Half>(double(rows)));
      }
    }
  });
}

TEST_CASE("plans keep to a cap, and the bytes of a plan as the cap give that plan again") {
  const Conv2dDesc d{
      .dtype = float32, .n = 64, .c = 16, .h = 32, .w = 32, .k = 16, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1};
  const cu::ConvPlan free = cu::plan_conv(Conv2dPass::backward_weight, d);
  CHECK(free.gemm.splits > 1);
  CHECK(free.workspace_bytes == std::size_t(free.gemm.splits) * 16 * 16 * 9 * 4);
  for (std::size_t cap : {std::size_t(0), std::size_t(40000), free.workspace_bytes}) {
    const cu::ConvPlan capped = cu::plan_conv(Conv2dPass::backward_weight, d, cap);
    CHECK(capped.workspace_bytes <= cap);
    const cu::ConvPlan again = cu::plan_conv(Conv2dPass::backward_weight, d, capped.workspace_bytes);
    CHECK(again.gemm.splits == capped.gemm.splits);
    CHECK(again.gemm.split_depth == capped.gemm.split_depth);
  }
  CHECK(cu::plan_conv(Conv2dPass::forward, d).workspace_bytes == 16 * 16 * 9 * 4);
  const MatmulDesc m{
      .dtype = bfloat16, .m = 10, .n = 128, .k = 4096, .a_row = 1, .a_col = 10, .b_row = 128, .b_col = 1};
  CHECK(cu::plan_gemm(m).splits == 16);
  CHECK(cu::plan_gemm(m).workspace_bytes == 16 * 10 * 128 * 4);
  CHECK(cu::plan_gemm(m, 3 * 10 * 128 * 4).splits == 3);
  CHECK(std::string(cu::plan_matmul(m).algorithm) == "gemm_split");
}
