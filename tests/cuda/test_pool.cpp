// Pooling of the CUDA backend against plain loops in double.
#include <vector>

#include <cudasim/orders.h>
#include <limpid/cuda/kernels/pool.cuh>

#include "numbers.h"

using namespace limpid;
using namespace limpid::cudasim;

namespace {

using Range = std::pair<std::int64_t, std::int64_t>;
enum class Kind { max, average, adaptive };

// Window of output o along one axis, and the number that an average divides by.
Range window_of(Kind kind, const Pool2dDesc& d, std::int64_t o, bool vertical, std::int64_t& counted) {
  const std::int64_t in = vertical ? d.h : d.w, out = vertical ? d.oh : d.ow,
                     kernel = vertical ? d.kernel_h : d.kernel_w, stride = vertical ? d.stride_h : d.stride_w,
                     pad = vertical ? d.pad_h : d.pad_w;
  Range r{o * stride - pad, o * stride - pad + kernel};
  if (kind == Kind::adaptive) r = {o * in / out, ((o + 1) * in + out - 1) / out};
  const Range inside{std::max<std::int64_t>(r.first, 0), std::min(r.second, in)};
  counted = kind != Kind::adaptive && d.count_include_pad ? std::min(r.second, in + pad) - r.first
                                                          : inside.second - inside.first;
  return inside;
}

std::int64_t outputs_of(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
                        std::int64_t dilation) {
  return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

template <class T>
void check_pool(Kind kind, Pool2dDesc d, std::size_t offset = 0, bool with_nan = false) {
  if (d.oh == 0) d.oh = outputs_of(d.h, d.kernel_h, d.stride_h, d.pad_h, d.dil_h);
  if (d.ow == 0) d.ow = outputs_of(d.w, d.kernel_w, d.stride_w, d.pad_w, d.dil_w);
  INFO("pool kind ", int(kind), " ", to_string(dtype_of<T>), " ", d.n, "x", d.c, "x", d.h, "x", d.w, " to ", d.oh, "x",
       d.ow, " kernel ", d.kernel_h, "x", d.kernel_w, " offset ", offset);
  auto x = random_numbers<T>(d.n * d.h * d.w * d.c, 1);
  for (std::size_t i = 0; i < x.size(); i += 7) x[i] = x[i / 2];  // some equals: the first one wins
  if (with_nan) x[x.size() / 2] = T(std::nanf("")), x[x.size() / 3] = T(-INFINITY);
  const auto dy = random_numbers<T>(d.n * d.oh * d.ow * d.c, 2);
  std::vector<double> y(dy.size()), dx(x.size(), 0.0);
  std::vector<std::int32_t> index(dy.size(), 0);
  for (std::size_t i = 0; i < dy.size(); i++) {
    const auto c = std::int64_t(i) % d.c, ow = std::int64_t(i) / d.c % d.ow, oh = std::int64_t(i) / d.c / d.ow % d.oh,
               n = std::int64_t(i) / d.c / d.ow / d.oh;
    auto at = [&](std::int64_t h, std::int64_t w) { return std::size_t(((n * d.h + h) * d.w + w) * d.c + c); };
    if (kind == Kind::max) {
      double best = -INFINITY;
      bool first = true;
      for (std::int64_t r = 0; r < d.kernel_h; r++)
        for (std::int64_t s = 0; s < d.kernel_w; s++) {
          const std::int64_t h = oh * d.stride_h - d.pad_h + r * d.dil_h, w = ow * d.stride_w - d.pad_w + s * d.dil_w;
          if (h < 0 || h >= d.h || w < 0 || w >= d.w) continue;
          const double v = as_double(x[at(h, w)]);
          if (first || v > best || std::isnan(v)) best = v, index[i] = std::int32_t(h * d.w + w);
          first = false;
        }
      y[i] = best;
      if (!first) dx[at(index[i] / d.w, index[i] % d.w)] += as_double(dy[i]);
      continue;
    }
    std::int64_t high = 0, wide = 0;
    const Range rows = window_of(kind, d, oh, true, high), columns = window_of(kind, d, ow, false, wide);
    for (std::int64_t h = rows.first; h < rows.second; h++)
      for (std::int64_t w = columns.first; w < columns.second; w++) {
        y[i] += as_double(x[at(h, w)]) / double(high * wide);
        dx[at(h, w)] += as_double(dy[i]) / double(high * wide);
      }
  }
  auto shifted = [&](const std::vector<T>& values) {
    std::vector<T> moved(offset, T(0.0f));
    moved.insert(moved.end(), values.begin(), values.end());
    return moved;
  };
  DeviceBuffer<T> xs(shifted(x)), dys(shifted(dy)), ys(offset + y.size()), dxs(offset + dx.size());
  DeviceBuffer<std::int32_t> at(index.size());
  const DType dtype = dtype_of<T>;
  T *py = ys.data() + offset, *pdx = dxs.data() + offset;
  const T *px = xs.data() + offset, *pdy = dys.data() + offset;
  if (kind == Kind::max) {
    CHECK(cu::max_pool2d(dtype, d, py, at.data(), px, nullptr) == cudaSuccess);
    CHECK(at.values() == index);
    CHECK(at.intact());
    CHECK(cu::max_pool2d_backward(dtype, d, pdx, pdy, at.data(), nullptr) == cudaSuccess);
  } else if (kind == Kind::average) {
    CHECK(cu::avg_pool2d(dtype, d, py, px, nullptr) == cudaSuccess);
    CHECK(cu::avg_pool2d_backward(dtype, d, pdx, pdy, nullptr) == cudaSuccess);
  } else {
    CHECK(cu::adaptive_avg_pool2d(dtype, d, py, px, nullptr) == cudaSuccess);
    CHECK(cu::adaptive_avg_pool2d_backward(dtype, d, pdx, pdy, nullptr) == cudaSuccess);
  }
  check_numbers(ys, y, rounding<T>(40), offset);
  check_numbers(dxs, dx, rounding<T>(40), offset);
  if (kind == Kind::max) {  // without indices the same maxima
    DeviceBuffer<T> again(y.size());
    CHECK(cu::max_pool2d(dtype, d, again.data(), nullptr, px, nullptr) == cudaSuccess);
    check_numbers(again, y, 0.0);
  }
}

template <class T>
void check_dtype() {
  check_pool<T>(Kind::max, {.n = 2,
                            .c = 8,
                            .h = 6,
                            .w = 5,
                            .kernel_h = 3,
                            .kernel_w = 2,
                            .stride_h = 2,
                            .stride_w = 2,
                            .pad_h = 1,
                            .pad_w = 1});
  check_pool<T>(Kind::max,
                {.n = 1,
                 .c = 3,
                 .h = 9,
                 .w = 8,
                 .kernel_h = 3,
                 .kernel_w = 2,
                 .stride_h = 1,
                 .stride_w = 2,
                 .dil_h = 2,
                 .dil_w = 3},
                1, true);
  check_pool<T>(Kind::average, {.n = 2,
                                .c = 8,
                                .h = 6,
                                .w = 5,
                                .kernel_h = 3,
                                .kernel_w = 3,
                                .stride_h = 2,
                                .stride_w = 1,
                                .pad_h = 1,
                                .pad_w = 1});
  check_pool<T>(Kind::average,
                {.n = 1,
                 .c = 5,
                 .h = 7,
                 .w = 6,
                 .kernel_h = 2,
                 .kernel_w = 3,
                 .stride_h = 3,
                 .stride_w = 2,
                 .pad_h = 1,
                 .pad_w = 1,
                 .count_include_pad = false},
                1);
  check_pool<T>(Kind::adaptive, {.n = 2, .c = 16, .h = 7, .w = 5, .oh = 3, .ow = 2});
  check_pool<T>(Kind::adaptive, {.n = 2, .c = 37, .h = 9, .w = 7, .oh = 1, .ow = 1}, 1);  // the block form
  check_pool<T>(Kind::adaptive, {.n = 1, .c = 3, .h = 17, .w = 9, .oh = 2, .ow = 2});     // the same with overlaps
  check_pool<T>(Kind::adaptive, {.n = 1, .c = 2, .h = 2, .w = 3, .oh = 5, .ow = 4});      // more outputs than inputs
}

}  // namespace

TEST_CASE("pooling and its gradients, in every order and dtype") {
  for_each_order([] {
    check_dtype<float>();
    check_dtype<double>();
    check_dtype<Half>();
    check_dtype<BFloat16>();
  });
}

TEST_CASE("pooling: windows that end in the padding, a ceil-mode border, empty batches") {
  check_pool<float>(Kind::max, {.n = 1,
                                .c = 2,
                                .h = 3,
                                .w = 3,
                                .oh = 3,
                                .ow = 2,
                                .kernel_h = 2,
                                .kernel_w = 2,
                                .stride_h = 2,
                                .stride_w = 2,
                                .pad_h = 1});
  check_pool<float>(
      Kind::average,
      {.n = 1, .c = 2, .h = 5, .w = 5, .oh = 3, .ow = 3, .kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2});
  const Pool2dDesc empty{
      .n = 0, .c = 3, .h = 4, .w = 4, .oh = 2, .ow = 2, .kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2};
  CHECK(cu::max_pool2d(float32, empty, nullptr, nullptr, nullptr, nullptr) == cudaSuccess);
  CHECK(cu::adaptive_avg_pool2d(float16, empty, nullptr, nullptr, nullptr) == cudaSuccess);
}
