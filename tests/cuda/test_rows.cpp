// Row norms, softmax, cross-entropy and the image batches of the CUDA backend against plain loops in double.
#include <algorithm>
#include <vector>

#include <cudasim/orders.h>
#include <limpid/cuda/kernels/augment.cuh>
#include <limpid/cuda/kernels/row_norm.cuh>
#include <limpid/cuda/kernels/softmax.cuh>

#include "numbers.h"

using namespace limpid;
using namespace limpid::cudasim;

namespace {

template <class T>
void check_row_norm(const cu::RowNormShape& s, bool affine, double level = 0) {
  INFO("row norm ", to_string(dtype_of<T>), " [", s.rows, ",", s.len, "] inner ", s.inner, " affine rows ",
       s.affine_rows);
  const auto R = std::size_t(s.rows), L = std::size_t(s.len), pairs = std::size_t(s.affine_rows * s.slice());
  auto x = random_numbers<T>(s.rows * s.len, 1);
  for (T& v : x) v = T(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(as_double(v) + level));
  const auto dy = random_numbers<T>(s.rows * s.len, 2), weight = random_numbers<T>(std::int64_t(pairs), 3),
             bias = random_numbers<T>(std::int64_t(pairs), 4);
  std::vector<double> y(R * L), dx(R * L), mean(R, 0.0), invstd(R), dweight(pairs, 0.0), dbias(pairs, 0.0);
  const double eps = 1e-5;
  for (std::size_t r = 0; r < R; r++) {
    double m2 = 0, sum = 0, sum_xhat = 0;
    for (std::size_t i = 0; i < L; i++) mean[r] += as_double(x[r * L + i]) / double(L);
    for (std::size_t i = 0; i < L; i++) m2 += std::pow(as_double(x[r * L + i]) - mean[r], 2);
    invstd[r] = 1 / std::sqrt(m2 / double(L) + eps);
    auto pair = [&](std::size_t i) {
      return std::size_t(std::int64_t(r) % s.affine_rows * s.slice() + std::int64_t(i) / s.inner);
    };
    auto xhat = [&](std::size_t i) { return (as_double(x[r * L + i]) - mean[r]) * invstd[r]; };
    auto g = [&](std::size_t i) { return as_double(dy[r * L + i]) * (affine ? as_double(weight[pair(i)]) : 1.0); };
    for (std::size_t i = 0; i < L; i++) {
      y[r * L + i] = xhat(i) * (affine ? as_double(weight[pair(i)]) : 1.0) + (affine ? as_double(bias[pair(i)]) : 0.0);
      sum += g(i) / double(L), sum_xhat += g(i) * xhat(i) / double(L);
      dweight[pair(i)] += as_double(dy[r * L + i]) * xhat(i), dbias[pair(i)] += as_double(dy[r * L + i]);
    }
    for (std::size_t i = 0; i < L; i++) dx[r * L + i] = invstd[r] * (g(i) - sum - xhat(i) * sum_xhat);
  }
  DeviceBuffer<T> xs(x), dys(dy), ws(weight), bs(bias), ys(R * L), dxs(R * L), dws(pairs), dbs(pairs);
  DeviceBuffer<double> means(R), invstds(R), exact_mean(mean), exact_invstd(invstd);
  const DType dtype = dtype_of<T>;
  const T *pw = affine ? ws.data() : nullptr, *pb = affine ? bs.data() : nullptr;
  REQUIRE(cu::row_norm(dtype, s, ys.data(), means.data(), invstds.data(), xs.data(), pw, pb, eps, nullptr) ==
          cudaSuccess);
  const double growth = 1 + std::fabs(level) / 10, sums = sizeof(T) == 8 ? 1e-13 : 2e-6;
  check_numbers(ys, y, growth * rounding<T>(16));
  check_numbers(means, mean, sums);
  check_numbers(invstds, invstd, growth * sums);
  REQUIRE(cu::row_norm_backward(dtype, s, dxs.data(), dws.data(), dbs.data(), dys.data(), xs.data(), exact_mean.data(),
                                exact_invstd.data(), pw, nullptr) == cudaSuccess);
  check_numbers(dxs, dx, growth * rounding<T>(16));
  check_numbers(dws, dweight, growth * rounding<T>(16));
  check_numbers(dbs, dbias, rounding<T>(16));
  REQUIRE(cu::row_norm_backward(dtype, s, nullptr, nullptr, dbs.data(), dys.data(), xs.data(), exact_mean.data(),
                                exact_invstd.data(), pw, nullptr) == cudaSuccess);
  check_numbers(dbs, dbias, rounding<T>(16));
}

template <class T>
void check_row_norms() {
  check_row_norm<T>({.rows = 5, .len = 37}, true);  // layer norm
  check_row_norm<T>({.rows = 3, .len = 33}, false);
  check_row_norm<T>({.rows = 6, .len = 12, .inner = 4, .affine_rows = 2}, true);    // group norm, small planes
  check_row_norm<T>({.rows = 4, .len = 140, .inner = 70, .affine_rows = 2}, true);  // a block a plane
}

template <class T>
void check_softmax(std::int64_t rows, std::int64_t n) {
  INFO("softmax ", to_string(dtype_of<T>), " [", rows, ",", n, "]");
  auto x = random_numbers<T>(rows * n, 1);
  for (std::size_t i = 0; i < x.size(); i++)
    x[i] = T(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(as_double(x[i]) * 8 +
                                                                                       (i % 2 ? 50 : 52)));
  const auto dy = random_numbers<T>(rows * n, 2);
  for (bool log : {false, true}) {
    DeviceBuffer<T> xs(x), dys(dy), ys(x.size()), dxs(x.size());
    REQUIRE(cu::softmax(dtype_of<T>, log, ys.data(), xs.data(), rows, n, nullptr) == cudaSuccess);
    REQUIRE(cu::softmax_backward(dtype_of<T>, log, dxs.data(), dys.data(), ys.data(), rows, n, nullptr) == cudaSuccess);
    std::vector<double> y(x.size()), dx(x.size());
    for (std::int64_t r = 0; r < rows; r++) {
      const auto first = std::size_t(r * n), last = first + std::size_t(n);
      double top = -INFINITY, total = 0, sum = 0;
      for (std::size_t i = first; i < last; i++) top = std::max(top, as_double(x[i]));
      for (std::size_t i = first; i < last; i++) total += std::exp(as_double(x[i]) - top);
      for (std::size_t i = first; i < last; i++) {
        y[i] = log ? as_double(x[i]) - top - std::log(total) : std::exp(as_double(x[i]) - top) / total;
        sum += as_double(dy[i]) * (log ? 1 : as_double(ys[i]));  // the gradient is of the rounded result
      }
      for (std::size_t i = first; i < last; i++) {
        const double p = as_double(ys[i]);
        dx[i] = log ? as_double(dy[i]) - std::exp(p) * sum : p * (as_double(dy[i]) - sum);
      }
    }
    check_numbers(ys, y, rounding<T>(double(n)));
    check_numbers(dxs, dx, rounding<T>(double(n)));
  }
}

template <class T>
void check_cross_entropy(std::int64_t rows, std::int64_t classes, double smoothing, bool weighted) {
  INFO("cross entropy ", to_string(dtype_of<T>), " [", rows, ",", classes, "] smoothing ", smoothing);
  using S = accumulate_t<T>;
  auto x = random_numbers<T>(rows * classes, 1);
  for (T& v : x) v = T(static_cast<S>(as_double(v) * 6 + 40));
  auto weight = random_numbers<T>(classes, 2);
  for (T& w : weight) w = T(static_cast<S>(as_double(w) + 1.5));
  const auto scale = random_numbers<S>(rows, 3);
  std::vector<std::int64_t> labels(std::size_t(rows), 0);
  for (std::int64_t r = 0; r < rows; r++) labels[std::size_t(r)] = r % 4 == 3 ? -100 : r * 7 % classes;
  const LossDesc d{.rows = rows, .classes = classes, .label_smoothing = smoothing};
  std::vector<double> losses, weights, lses, dx;
  double weight_sum = 0;
  auto w = [&](std::int64_t c) { return weighted ? as_double(weight[std::size_t(c)]) : 1.0; };
  for (std::int64_t c = 0; c < classes; c++) weight_sum += w(c);
  for (std::int64_t r = 0; r < rows; r++) {
    const std::int64_t label = labels[std::size_t(r)];
    auto value = [&](std::int64_t c) { return as_double(x[std::size_t(r * classes + c)]); };
    double top = -INFINITY, total = 0, spread = 0;
    for (std::int64_t c = 0; c < classes; c++) top = std::max(top, value(c));
    for (std::int64_t c = 0; c < classes; c++) total += std::exp(value(c) - top);
    const double lse = top + std::log(total);
    for (std::int64_t c = 0; c < classes; c++) spread += w(c) * (lse - value(c));
    const bool ignored = label < 0;
    const double own = ignored ? 0 : w(label);
    lses.push_back(lse), weights.push_back(own);
    losses.push_back(ignored ? 0 : (1 - smoothing) * own * (lse - value(label)) + smoothing / double(classes) * spread);
    for (std::int64_t c = 0; c < classes; c++) {
      const double p = std::exp(value(c) - lse);
      double g =
          p * ((1 - smoothing) * own + smoothing / double(classes) * weight_sum) - smoothing / double(classes) * w(c);
      if (c == label) g -= (1 - smoothing) * own;
      dx.push_back(ignored ? 0 : g * as_double(scale[std::size_t(r)]));
    }
  }
  DeviceBuffer<T> xs(x), ws(weight), dxs(x.size());
  DeviceBuffer<S> loss(losses.size()), row_weight(losses.size()), lse(losses.size()), scales(scale),
      exact(std::vector<S>(lses.begin(), lses.end()));
  DeviceBuffer<std::int64_t> ls(labels);
  const T* pw = weighted ? ws.data() : nullptr;
  REQUIRE(cu::cross_entropy(dtype_of<T>, d, loss.data(), row_weight.data(), lse.data(), xs.data(), ls.data(), pw,
                            nullptr) == cudaSuccess);
  check_numbers(loss, losses, rounding<S>(double(classes)));
  check_numbers(row_weight, weights, 0.0);
  check_numbers(lse, lses, rounding<S>(1));
  REQUIRE(cu::cross_entropy_backward(dtype_of<T>, d, dxs.data(), scales.data(), xs.data(), ls.data(), pw, exact.data(),
                                     nullptr) == cudaSuccess);
  check_numbers(dxs, dx, rounding<T>(double(classes)) + (sizeof(S) == 4 ? 4e-6 : 0.0));  // exp of a rounded log-sum-exp
}

}  // namespace

TEST_CASE("layer and group norm, in every order and dtype") {
  for_each_order([] {
    check_row_norms<float>();
    check_row_norms<double>();
    check_row_norms<Half>();
    check_row_norms<BFloat16>();
  });
}

TEST_CASE("row norms: long rows, a level far from zero, many rows, no rows") {
  check_row_norm<float>({.rows = 2, .len = 1500}, true, 100);
  check_row_norm<float>({.rows = 1, .len = 20000}, false, 10);
  check_row_norm<Half>({.rows = 70, .len = 40}, true);
  check_row_norm<double>({.rows = 3, .len = 1}, true);
  check_row_norm<float>({.rows = 0, .len = 4}, true);  // the gradients of the pairs are sums over nothing
}

TEST_CASE("softmax and log-softmax, in every order and dtype") {
  for_each_order([] {
    for (std::int64_t n : {1, 10, 33}) {
      check_softmax<float>(3, n);
      check_softmax<double>(2, n);
      check_softmax<Half>(2, n);
      check_softmax<BFloat16>(2, n);
    }
  });
  check_softmax<float>(2, 1000);
  check_softmax<Half>(1, 777);
  check_softmax<float>(0, 4);
}

TEST_CASE("cross-entropy with class weights, smoothing and ignored rows, in every order and dtype") {
  for_each_order([] {
    for (double smoothing : {0.0, 0.1}) {
      check_cross_entropy<float>(9, 10, smoothing, true);
      check_cross_entropy<double>(5, 3, smoothing, smoothing > 0);
      check_cross_entropy<Half>(5, 33, smoothing, true);
      check_cross_entropy<BFloat16>(5, 10, smoothing, false);
    }
  });
  check_cross_entropy<float>(5, 600, 0.1, true);
  check_cross_entropy<float>(0, 3, 0, false);
}

TEST_CASE("cross-entropy: a label that is no class gives NaN and reads nothing; a NaN logit gives NaN") {
  DeviceBuffer<float> x{1, 2, 3, 4, NAN, 6}, loss(2), weight(2), lse(2), scale{1, 1}, dx(6);
  DeviceBuffer<std::int64_t> labels{3, 0};
  const LossDesc d{.rows = 2, .classes = 3};
  CHECK(cu::cross_entropy(float32, d, loss.data(), weight.data(), lse.data(), x.data(), labels.data(), nullptr,
                          nullptr) == cudaSuccess);
  CHECK(cu::cross_entropy_backward(float32, d, dx.data(), scale.data(), x.data(), labels.data(), nullptr, lse.data(),
                                   nullptr) == cudaSuccess);
  CHECK((std::isnan(loss[0]) && std::isnan(loss[1])));
  for (std::size_t i = 0; i < 6; i++) CHECK(std::isnan(dx[i]));
}

template <class T>
static void check_augment(bool channels_last) {
  const std::int64_t count = 4, c = 3, h = 5, w = 6, oh = 4, ow = 7, n = 3;
  const std::vector<std::uint8_t> data = [&] {
    std::vector<std::uint8_t> bytes(std::size_t(count * c * h * w));
    for (std::size_t i = 0; i < bytes.size(); i++) bytes[i] = std::uint8_t(i * 89 % 256);
    return bytes;
  }();
  cu::AugmentShape s;
  s.images = n, s.channels = c, s.height = h, s.width = w, s.out_height = oh, s.out_width = ow;
  s.image_step = c * h * w;
  s.channel_step = channels_last ? 1 : h * w, s.row_step = channels_last ? w * c : w,
  s.column_step = channels_last ? c : 1;
  for (int k = 0; k < c; k++)
    s.mean[k] = 0.1f + 0.2f * float(k), s.scale[k] = 1 / (0.3f + 0.1f * float(k)), s.fill[k] = -1.0f - float(k);
  const std::vector<std::int64_t> index{2, 0, 2};
  const std::vector<std::int32_t> top{-2, 0, 3}, left{1, -4, 0};
  const std::vector<std::uint8_t> flip{0, 1, 1};
  DeviceBuffer<std::uint8_t> bytes(data), flips(flip);
  DeviceBuffer<std::int64_t> indices(index);
  DeviceBuffer<std::int32_t> tops(top), lefts(left);
  DeviceBuffer<T> out(std::size_t(n * oh * ow * c));
  for (bool moved : {true, false}) {
    CHECK(cu::augment(s, dtype_of<T>, out.data(), bytes.data(), indices.data(), moved ? tops.data() : nullptr,
                      moved ? lefts.data() : nullptr, moved ? flips.data() : nullptr, nullptr) == cudaSuccess);
    for (std::size_t i = 0; i < out.size(); i++) {
      const auto k = std::int64_t(i) % c, x = std::int64_t(i) / c % ow, y = std::int64_t(i) / c / ow % oh,
                 image = std::int64_t(i) / c / ow / oh;
      const auto at = std::size_t(image);
      const std::int64_t row = y + (moved ? top[at] : 0),
                         column = (moved && flip[at] ? ow - 1 - x : x) + (moved ? left[at] : 0);
      float want = s.fill[k];
      if (row >= 0 && row < h && column >= 0 && column < w) {
        const auto from =
            std::size_t(index[at] * s.image_step + k * s.channel_step + row * s.row_step + column * s.column_step);
        want = (static_cast<float>(data[from]) / 255.0f - s.mean[k]) * s.scale[k];
      }
      CHECK(as_double(out[i]) == as_double(T(want)));  // the host's numbers, to the bit
    }
  }
  CHECK(out.intact());
}

TEST_CASE("image batches: gathered, cropped with padding, flipped and normalised, to the bit") {
  for_each_order([] {
    check_augment<float>(false);
    check_augment<float>(true);
    check_augment<Half>(false);
    check_augment<BFloat16>(true);
  });
  cu::AugmentShape s;
  s.channels = 17, s.images = s.out_height = s.out_width = 1;
  CHECK(cu::augment(s, float32, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) ==
        cudaErrorInvalidValue);
  s.channels = 1;
  CHECK(cu::augment(s, float64, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) ==
        cudaErrorInvalidValue);
  s.images = 0;
  CHECK(cu::augment(s, float32, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) == cudaSuccess);
}
