// Batch norm of the CUDA backend, plain and fused with addition and ReLU, against plain loops in double.
#include <algorithm>
#include <vector>

#include <cudasim/orders.h>
#include <limpid/cuda/kernels/batch_norm.cuh>

#include "numbers.h"

using namespace limpid;
using namespace limpid::cudasim;

namespace {

struct Options {
  std::int64_t splits = 1;
  bool relu = false, residual = false;
  std::size_t offset = 0;  // elements by which the images miss their alignment
  double level = 0;        // added to x: statistics must not cancel
  DType params = float32;
  bool constant = false;  // the statistics do not depend on x
};

template <class T>
std::vector<T> shifted(const std::vector<T>& values, std::size_t offset) {
  std::vector<T> moved(offset, T(0.0f));
  moved.insert(moved.end(), values.begin(), values.end());
  return moved;
}

template <class T>
void check_batch_norm(std::int64_t pixels, std::int64_t channels, const Options& o) {
  INFO("batch norm ", to_string(dtype_of<T>), " [", pixels, ",", channels, "] splits ", o.splits, " offset ", o.offset);
  const DType dtype = dtype_of<T>;
  const auto C = std::size_t(channels), P = std::size_t(pixels);
  auto x = random_numbers<T>(pixels * channels, 1);
  for (T& v : x)
    v = T(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(as_double(v) + o.level));
  const auto dy = random_numbers<T>(pixels * channels, 2), residual = random_numbers<T>(pixels * channels, 3);
  const auto weight = random_numbers<float>(channels, 4), bias = random_numbers<float>(channels, 5);
  const std::vector<Half> half_weight(weight.begin(), weight.end()), half_bias(bias.begin(), bias.end());
  auto gamma = [&](std::size_t c) { return o.params == float16 ? as_double(half_weight[c]) : double(weight[c]); };
  auto beta = [&](std::size_t c) { return o.params == float16 ? as_double(half_bias[c]) : double(bias[c]); };

  std::vector<double> stats(3 * C, 0.0), invstd(C), mean(C);
  for (std::size_t c = 0; c < C; c++) {
    for (std::size_t p = 0; p < P; p++) mean[c] += as_double(x[p * C + c]) / double(P);
    for (std::size_t p = 0; p < P; p++) stats[2 * C + c] += std::pow(as_double(x[p * C + c]) - mean[c], 2);
    stats[c] = double(P), stats[C + c] = mean[c];
    invstd[c] = 1 / std::sqrt(stats[2 * C + c] / double(std::max<std::size_t>(P, 1)) + 1e-5);
  }
  cu::BatchNormPlan plan = cu::plan_batch_norm_parts(pixels, channels, dtype);
  if (o.splits > 1) {
    plan.split_rows = (pixels + o.splits - 1) / o.splits;
    plan.splits = (pixels + plan.split_rows - 1) / plan.split_rows;
    plan.workspace_bytes = std::size_t(plan.splits) * 3 * C * 8;
  }
  DeviceBuffer<T> xs(shifted(x, o.offset)), dys(shifted(dy, o.offset)), rs(shifted(residual, o.offset));
  DeviceBuffer<T> y(o.offset + P * C), dx(o.offset + P * C), dresidual(o.offset + P * C);
  DeviceBuffer<double> means(mean), invstds(invstd), got(3 * C), sums(2 * C);
  DeviceBuffer<char> workspace(plan.workspace_bytes);
  DeviceBuffer<float> weights(weight), biases(bias);
  DeviceBuffer<Half> half_weights(half_weight), half_biases(half_bias);
  const T *px = xs.data() + o.offset, *pdy = dys.data() + o.offset, *pr = o.residual ? rs.data() + o.offset : nullptr;
  cu::AffineParams affine{weights.data(), biases.data(), float32};
  if (o.params == float16) affine = {half_weights.data(), half_biases.data(), float16};

  // M2 relative to its own size: differences to the first value of a run keep it exact.
  const double wide = sizeof(T) == 8 ? 1e-13 : 2e-6;
  REQUIRE(cu::batch_norm_statistics(dtype, plan, got.data(), px, pixels, channels, workspace.data(), nullptr) ==
          cudaSuccess);
  for (std::size_t i = 0; i < 3 * C; i++) {
    const double scale = i < 2 * C ? 1 + std::fabs(stats[i]) : 1e-3 * double(P) + stats[i];
    CHECK(std::fabs(got[i] - stats[i]) <= wide * scale);
  }
  CHECK(got.intact());
  if (pixels == 0) return;

  std::vector<double> want(P * C), g(P * C), sum(2 * C, 0.0), dx_want(P * C);
  REQUIRE(cu::batch_norm_apply(dtype, y.data() + o.offset, px, pr, o.relu, means.data(), invstds.data(), affine, pixels,
                               channels, nullptr) == cudaSuccess);
  for (std::size_t i = 0; i < P * C; i++) {
    const std::size_t c = i % C;
    want[i] =
        (as_double(x[i]) - mean[c]) * invstd[c] * gamma(c) + beta(c) + (o.residual ? as_double(residual[i]) : 0.0);
    if (o.relu) want[i] = std::max(want[i], 0.0);
    g[i] = !o.relu || as_double(y[o.offset + i]) > 0 ? as_double(dy[i]) : 0.0;
    sum[c] += g[i], sum[C + c] += g[i] * (as_double(x[i]) - mean[c]) * invstd[c];
  }
  const double growth = 1 + std::fabs(o.level) / 10;  // x has that much less precision
  check_numbers(y, want, growth * rounding<T>(16), o.offset);

  const T* mask = o.relu ? y.data() + o.offset : nullptr;
  REQUIRE(cu::batch_norm_backward_reduce(dtype, plan, sums.data(), px, pdy, mask, means.data(), invstds.data(), pixels,
                                         channels, workspace.data(), nullptr) == cudaSuccess);
  check_numbers(sums, sum, growth * (sizeof(T) == 8 ? 1e-13 : 1e-5));
  DeviceBuffer<double> exact(sum);
  const double count = o.constant ? 0 : double(P);
  REQUIRE(cu::batch_norm_backward_apply(dtype, dx.data() + o.offset, o.residual ? dresidual.data() + o.offset : nullptr,
                                        px, pdy, mask, means.data(), invstds.data(), affine,
                                        o.constant ? nullptr : exact.data(), count, pixels, channels,
                                        nullptr) == cudaSuccess);
  for (std::size_t i = 0; i < P * C; i++) {
    const std::size_t c = i % C;
    const double xhat = (as_double(x[i]) - mean[c]) * invstd[c];
    dx_want[i] = gamma(c) * invstd[c] * (count > 0 ? g[i] - sum[c] / count - xhat * sum[C + c] / count : g[i]);
  }
  check_numbers(dx, dx_want, growth * rounding<T>(16), o.offset);
  if (o.residual) check_numbers(dresidual, g, 0.0, o.offset);
  CHECK(workspace.intact());
}

template <class T>
void check_dtype() {
  check_batch_norm<T>(37, 16, {});                                            // vectors
  check_batch_norm<T>(50, 5, {.splits = 3, .relu = true, .residual = true});  // odd channels, parts
  check_batch_norm<T>(9, 8, {.relu = true, .offset = 1, .params = float16});  // unaligned
  check_batch_norm<T>(21, 40, {.splits = 2, .residual = true, .constant = true});
}

}  // namespace

TEST_CASE("batch norm: statistics, apply and gradients, plain and fused, in every order and dtype") {
  for_each_order([] {
    check_dtype<float>();
    check_dtype<double>();
    check_dtype<Half>();
    check_dtype<BFloat16>();
  });
}

TEST_CASE("batch norm: long columns, a level far from zero, one channel, many channels, one and no pixel") {
  check_batch_norm<float>(1500, 3, {.level = 100});  // a thread has more than one run
  check_batch_norm<float>(40000, 1, {});
  check_batch_norm<Half>(70, 264, {});  // several tiles of channels
  check_batch_norm<float>(1, 4, {});
  check_batch_norm<double>(0, 6, {});
}

TEST_CASE("batch norm: parts of ranks or micro-batches are merged, empty ones skipped, in place too") {
  for_each_order([] {
    const auto x = random_numbers<double>(10 * 3, 9);
    std::vector<double> parts, whole(9, 0.0);
    auto statistics = [&](std::size_t begin, std::size_t end, double* to) {
      for (std::size_t c = 0; c < 3; c++) {
        for (std::size_t p = begin; p < end; p++) to[3 + c] += x[p * 3 + c] / double(end - begin);
        for (std::size_t p = begin; p < end; p++) to[6 + c] += std::pow(x[p * 3 + c] - to[3 + c], 2);
        to[c] = double(end - begin);
      }
    };
    for (auto [begin, end] : {std::pair(0, 4), std::pair(4, 4), std::pair(4, 5), std::pair(5, 10)}) {
      std::vector<double> part(9, 0.0);
      statistics(std::size_t(begin), std::size_t(end), part.data());
      parts.insert(parts.end(), part.begin(), part.end());
    }
    statistics(0, 10, whole.data());
    DeviceBuffer<double> in(parts), out(9);
    CHECK(cu::batch_norm_combine(out.data(), in.data(), 4, 3, nullptr) == cudaSuccess);
    check_numbers(out, whole, 1e-14);
    CHECK(cu::batch_norm_combine(in.data(), in.data(), 4, 3, nullptr) == cudaSuccess);
    for (std::size_t i = 0; i < 9; i++) CHECK(in[i] == out[i]);
  });
}

TEST_CASE("batch norm: sums have the same bits in every order") {
  std::vector<std::vector<double>> results;
  const auto x = random_numbers<BFloat16>(300 * 8, 3);
  for_each_order([&] {
    const cu::BatchNormPlan plan{.splits = 3, .split_rows = 100, .workspace_bytes = 3 * 3 * 8 * 8};
    DeviceBuffer<BFloat16> in(x);
    DeviceBuffer<double> stats(24);
    DeviceBuffer<char> workspace(plan.workspace_bytes);
    CHECK(cu::batch_norm_statistics(bfloat16, plan, stats.data(), in.data(), 300, 8, workspace.data(), nullptr) ==
          cudaSuccess);
    results.push_back(stats.values());
  });
  CHECK(std::all_of(results.begin(), results.end(), [&](const auto& r) { return r == results[0]; }));
}
