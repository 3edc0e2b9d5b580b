// Fused convolution kernels on bare memory: guards around outputs, bits and workspaces of exactly the planned size, odd
// shapes, thread counts, instruction sets, against the separate kernels and plain loops.
#include <algorithm>
#include <cstring>
#include <limits>

#include <hwy/targets.h>

#include <limpid/base/error.h>
#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/conv_tail.h>

#include "kernel_test.h"

using namespace limpid;
using namespace limpid::cpu;
using namespace kernel_test;

namespace {

template <class T>
T relu_of(T z) {
  return z <= T(0) ? T(0) : z;
}

template <class T>
struct Expected {
  std::vector<T> y, dz;
  std::vector<std::uint8_t> bits;
};

// From z by the definition; dy as given.
template <class T>
Expected<T> expected(ConvTail tail, const ConvDesc& d, const Guarded<T>& z, const Guarded<T>& dy) {
  const std::int64_t oh = d.oh(), ow = d.ow(), row_bits = bit_bytes(d.k);
  const std::int64_t ph = tail == ConvTail::relu ? oh : tail == ConvTail::relu_max_pool ? oh / 2 : 1;
  const std::int64_t pw = tail == ConvTail::relu ? ow : tail == ConvTail::relu_max_pool ? ow / 2 : 1;
  Expected<T> out;
  out.y.resize(static_cast<std::size_t>(d.n * ph * pw * d.k));
  out.dz.resize(static_cast<std::size_t>(d.n * oh * ow * d.k));
  out.bits.resize(static_cast<std::size_t>(d.n * oh * ow * row_bits));
  const auto pass = [&](std::int64_t pixel, std::int64_t k, T g) {
    out.bits[static_cast<std::size_t>(pixel * row_bits + k / 8)] |= static_cast<std::uint8_t>(1 << k % 8);
    out.dz[static_cast<std::size_t>(pixel * d.k + k)] = g;
  };
  for (std::int64_t n = 0; n < d.n; ++n) {
    for (std::int64_t k = 0; k < d.k; ++k) {
      const T mean_g = tail == ConvTail::relu_mean ? (T(1) / static_cast<T>(oh * ow)) * dy[n * d.k + k] : T(0);
      T total = T(0);
      for (std::int64_t i = 0; i < oh; ++i) {
        T line = T(0);
        for (std::int64_t j = 0; j < ow; ++j) {
          const std::int64_t pixel = (n * oh + i) * ow + j;
          const T v = relu_of(z[pixel * d.k + k]);
          line += v;
          if (tail == ConvTail::relu) {
            out.y[static_cast<std::size_t>(pixel * d.k + k)] = v;
            if (v > T(0)) pass(pixel, k, dy[pixel * d.k + k]);
          } else if (tail == ConvTail::relu_mean && v > T(0)) {
            pass(pixel, k, mean_g);
          }
        }
        total += line;
      }
      if (tail == ConvTail::relu_mean)
        out.y[static_cast<std::size_t>(n * d.k + k)] = total * (T(1) / static_cast<T>(oh * ow));
      for (std::int64_t i = 0; tail == ConvTail::relu_max_pool && i < ph; ++i) {
        for (std::int64_t j = 0; j < pw; ++j) {
          std::int64_t best = -1;
          T largest = T(0);
          for (std::int64_t q = 0; q < 4; ++q) {
            const std::int64_t pixel = (n * oh + 2 * i + q / 2) * ow + 2 * j + q % 2;
            const T v = relu_of(z[pixel * d.k + k]);
            if (best < 0 || v > largest) best = pixel, largest = v;
          }
          const std::int64_t at = ((n * ph + i) * pw + j) * d.k + k;
          out.y[static_cast<std::size_t>(at)] = largest;
          if (largest > T(0)) pass(best, k, dy[at]);
        }
      }
    }
  }
  return out;
}

template <class A, class B>
bool same_values(const Guarded<A>& got, const std::vector<B>& want) {
  if (got.size() != static_cast<std::int64_t>(want.size())) return false;
  for (std::int64_t i = 0; i < got.size(); ++i)
    if (got[i] != want[static_cast<std::size_t>(i)]) return false;
  return true;
}

template <class T>
void check_tail(ConvTail tail, const ConvDesc& d, std::size_t cap = SIZE_MAX) {
  INFO("n " << d.n << " c " << d.c << " h " << d.h << " w " << d.w << " k " << d.k << " tail " << static_cast<int>(tail)
            << " size " << sizeof(T) << " cap " << cap);
  Random random(7);
  const std::int64_t pixels = d.n * d.oh() * d.ow();
  const std::int64_t outputs = tail == ConvTail::relu            ? pixels * d.k
                               : tail == ConvTail::relu_max_pool ? d.n * (d.oh() / 2) * (d.ow() / 2) * d.k
                                                                 : d.n * d.k;
  Guarded<T> x(d.n * d.h * d.w * d.c), w(d.k * (d.c / d.groups) * d.r * d.s), bias(d.k), z(pixels * d.k), dy(outputs);
  random.fill(x), random.fill(w), random.fill(bias), random.fill(dy);
  const ConvPlan forward = plan_conv2d(ConvPass::forward, d, sizeof(T));
  Guarded<unsigned char> forward_work(static_cast<std::int64_t>(forward.workspace_bytes));
  conv2d_forward<T>(d, forward, x.data(), w.data(), bias.data(), z.data(), forward_work.data());
  const Expected<T> want = expected(tail, d, z, dy);

  const ConvTailPlan plan = plan_conv2d_tail(tail, d, sizeof(T), cap);
  CHECK(plan_conv2d_tail(tail, d, sizeof(T), plan.workspace_bytes).workspace_bytes == plan.workspace_bytes);
  Guarded<std::uint8_t> bits(pixels * bit_bytes(d.k));
  const Guarded<T> y = run_all_threads<T>(outputs, [&](Guarded<T>& out) {
    Guarded<unsigned char> work(static_cast<std::int64_t>(plan.workspace_bytes));
    conv2d_tail_forward<T>(tail, d, plan, x.data(), w.data(), bias.data(), out.data(), bits.data(), work.data());
    CHECK(work.intact());
    CHECK(bits.intact());
    CHECK(same_values(bits, want.bits));
  });
  CHECK(same_values(y, want.y));
  const Guarded<T> dz = run_all_threads<T>(z.size(), [&](Guarded<T>& out) {
    conv2d_tail_backward<T>(tail, d, dy.data(), bits.data(), out.data());
  });
  CHECK(same_values(dz, want.dz));

  const ConvPlan weight = plan_conv2d_tail_weight(tail, d, sizeof(T));
  if (weight.algorithm == nullptr) return;
  const ConvPlan plain = plan_conv2d(ConvPass::backward_weight, d, sizeof(T));
  Guarded<T> plain_dw(w.size());
  Guarded<unsigned char> plain_work(static_cast<std::int64_t>(plain.workspace_bytes));
  conv2d_backward_weight<T>(d, plain, x.data(), dz.data(), plain_dw.data(), plain_work.data());
  std::vector<double> sums(static_cast<std::size_t>(d.k));
  for (std::int64_t i = 0; i < dz.size(); ++i) sums[static_cast<std::size_t>(i % d.k)] += static_cast<double>(dz[i]);
  Guarded<T> db(d.k);
  const Guarded<T> dw = run_all_threads<T>(w.size(), [&](Guarded<T>& out) {
    Guarded<unsigned char> work(static_cast<std::int64_t>(weight.workspace_bytes));
    conv2d_tail_weight<T>(tail, d, weight, x.data(), dy.data(), bits.data(), out.data(), db.data(), work.data());
    CHECK(work.intact());
    CHECK(db.intact());
  });
  CHECK(same_bits(dw, plain_dw));
  CHECK(error_of(db, sums) < tolerance<T>(static_cast<double>(pixels)));
}

const std::vector<ConvDesc>& cases() {
  static const std::vector<ConvDesc> list = {
      {.n = 2, .c = 1, .h = 9, .w = 10, .k = 5, .r = 3, .s = 3},
      {.n = 1, .c = 3, .h = 7, .w = 60, .k = 33, .r = 3, .s = 3, .pad_h = 1, .pad_w = 2},
      {.n = 3, .c = 15, .h = 8, .w = 9, .k = 17, .r = 3, .s = 2, .stride_h = 2, .pad_w = 1},
      {.n = 1, .c = 2, .h = 12, .w = 11, .k = 8, .r = 2, .s = 3, .stride_w = 3, .pad_h = 3, .dil_h = 2, .dil_w = 2},
      {.n = 9, .c = 4, .h = 5, .w = 5, .k = 70, .r = 2, .s = 2},
      {.n = 2, .c = 16, .h = 11, .w = 9, .k = 19, .r = 3, .s = 3, .pad_h = 1},
      {.n = 1, .c = 64, .h = 8, .w = 8, .k = 300, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1},
      {.n = 5, .c = 24, .h = 6, .w = 7, .k = 10, .r = 1, .s = 1},
      {.n = 2, .c = 12, .h = 6, .w = 6, .k = 12, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 12},
      {.n = 2, .c = 4, .h = 6, .w = 6, .k = 6, .r = 3, .s = 3, .groups = 2}};
  return list;
}
constexpr ConvTail kTails[] = {ConvTail::relu, ConvTail::relu_max_pool, ConvTail::relu_mean};

}  // namespace

TEST_CASE("results, bits and gradients are those of the definition, inside the planned memory") {
  for (const ConvDesc& d : cases()) {
    for (ConvTail tail : kTails) {
      check_tail<float>(tail, d);
      check_tail<double>(tail, d);
    }
  }
}

TEST_CASE("the same in tight workspaces") {
  for (const ConvDesc& d : cases()) {
    if (d.k == 300) continue;  // a smaller plan there is another algorithm, with other last digits
    for (ConvTail tail : kTails) {
      const std::size_t least = plan_conv2d_tail(tail, d, sizeof(double), 0).workspace_bytes;
      check_tail<double>(tail, d, least);
      check_tail<double>(tail, d, least + least / 2);
    }
  }
}

TEST_CASE("the same without the wide instruction sets") {
  hwy::DisableTargets(HWY_AVX2 | HWY_AVX3);
  for (const ConvDesc& d : cases()) {
    if (d.k == 300) continue;
    for (ConvTail tail : kTails) check_tail<float>(tail, d), check_tail<double>(tail, d);
  }
  hwy::DisableTargets(0);
}

TEST_CASE("NaN passes ReLU and wins in a window, and rows of any length are cut by their bits") {
  for (std::int64_t n = 1; n <= 40; ++n) {
    Random random(static_cast<std::uint64_t>(n));
    Guarded<float> y(3 * n), dy(3 * n), dz(3 * n);
    random.fill(y), random.fill(dy);
    y[n - 1] = std::numeric_limits<float>::quiet_NaN(), y[n] = 0.0f;
    const std::vector<float> before(y.data(), y.data() + 3 * n);
    Guarded<std::uint8_t> bits(3 * bit_bytes(n));
    relu_rows<float>(3, n, y.data(), bits.data());
    relu_rows_backward<float>(3, n, dy.data(), bits.data(), dz.data());
    CHECK((y.intact() && bits.intact() && dz.intact()));
    for (std::int64_t i = 0; i < 3 * n; ++i) {
      const float v = before[static_cast<std::size_t>(i)];
      CHECK((std::isnan(v) ? std::isnan(y[i]) : y[i] == std::max(v, 0.0f)));
      CHECK(dz[i] == (v <= 0 ? 0.0f : dy[i]));
    }
  }
}
