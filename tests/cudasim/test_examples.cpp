// The example kernels against plain loops on the host. The same file is linked to every execution of the kernels: g++'s code,
// g++'s code under the access checker, and nvcc's PTX.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/device_buffer.h>
#include <cudasim/example_kernels.h>
#include <cudasim/orders.h>

using namespace limpid;
using namespace limpid::cudasim;

namespace {
std::vector<float> random_values(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-4, 4);
  std::vector<float> values(n);
  for (float& v : values) v = uniform(random);
  return values;
}
void check_close(double got, double want, double tolerance) { CHECK(std::fabs(got - want) <= tolerance * (1 + std::fabs(want))); }

template <class T>
void check_silu(double tolerance) {
  for (std::size_t n : {std::size_t(1), std::size_t(3), std::size_t(8), std::size_t(1029)}) {
    const std::vector<float> values = random_values(n, n);
    std::vector<T> input(values.begin(), values.end());
    DeviceBuffer<T> x(input), y(n);
    CHECK(silu(x.data(), y.data(), std::int64_t(n), nullptr) == cudaSuccess);
    for (std::size_t i = 0; i < n; i++) {
      const double v = static_cast<double>(input[i]);
      check_close(static_cast<double>(y[i]), v / (1 + std::exp(-v)), tolerance);
    }
    CHECK(y.intact());
  }
}
}  // namespace

TEST_CASE("silu, vectorised, in four types") {
  for_each_order([] {
    check_silu<float>(1e-6);
    check_silu<double>(1e-14);
    check_silu<Half>(1e-3);
    check_silu<BFloat16>(8e-3);
  });
}

TEST_CASE("sum by atomics, and sum in a fixed order") {
  const std::vector<float> values = random_values(3001, 5);
  double want = 0;
  for (float v : values) want += v;
  std::vector<float> ordered;
  for_each_order([&] {
    DeviceBuffer<float> x(values), total{0.0f}, partial(5), out(1);
    DeviceBuffer<unsigned> counter{0u};
    CHECK(sum(x.data(), total.data(), 3001, nullptr) == cudaSuccess);
    check_close(total[0], want, 1e-4);
    CHECK(ordered_sum(x.data(), partial.data(), counter.data(), out.data(), 3001, 5, nullptr) == cudaSuccess);
    check_close(out[0], want, 1e-4);
    CHECK(counter[0] == 0);
    ordered.push_back(out[0]);
  });
  CHECK(std::all_of(ordered.begin(), ordered.end(), [&](float v) { return v == ordered[0]; }));
}

TEST_CASE("softmax of rows") {
  for_each_order([] {
    const int rows = 3, columns = 201;
    const std::vector<float> values = random_values(std::size_t(rows * columns), 6);
    DeviceBuffer<float> x(values), y(values.size());
    CHECK(softmax(x.data(), y.data(), rows, columns, nullptr) == cudaSuccess);
    for (int r = 0; r < rows; r++) {
      const float* row = values.data() + r * columns;
      const double largest = *std::max_element(row, row + columns);
      double s = 0;
      for (int c = 0; c < columns; c++) s += std::exp(row[c] - largest);
      for (int c = 0; c < columns; c++) check_close(y[std::size_t(r * columns + c)], std::exp(row[c] - largest) / s, 1e-5);
    }
    CHECK(y.intact());
  });
}

TEST_CASE("histogram in dynamic shared memory") {
  for_each_order([] {
    const int bins = 37;
    std::vector<int> values(2000), want(bins, 0);
    for (std::size_t i = 0; i < values.size(); i++) want[std::size_t(values[i] = int(i * 7919 % 37))]++;
    DeviceBuffer<int> x(values), counts(std::vector<int>(bins, 0));
    CHECK(histogram(x.data(), counts.data(), 2000, bins, nullptr) == cudaSuccess);
    CHECK(counts.values() == want);
    CHECK(counts.intact());
  });
}

TEST_CASE("matrix product by tiles") {
  for_each_order([] {
    const int m = 11, n = 9, k = 13;
    const std::vector<float> left = random_values(std::size_t(m * k), 8), right = random_values(std::size_t(k * n), 9);
    DeviceBuffer<float> a(left), b(right), c(std::size_t(m * n));
    CHECK(matmul(a.data(), b.data(), c.data(), m, n, k, nullptr) == cudaSuccess);
    for (int i = 0; i < m; i++) {
      for (int j = 0; j < n; j++) {
        double want = 0;
        for (int l = 0; l < k; l++) want += double(left[std::size_t(i * k + l)]) * right[std::size_t(l * n + j)];
        check_close(c[std::size_t(i * n + j)], want, 1e-4);
      }
    }
    CHECK(c.intact());
  });
}

TEST_CASE("half warps by themselves, and facts of whole warps") {
  for_each_order([] {
    const int n = 352;  // ends within a block
    std::vector<int> values(n);
    for (int i = 0; i < n; i++) values[std::size_t(i)] = i * 37 % 101 - 50;
    DeviceBuffer<int> x(values), scan(n), facts(n / 32 * 5);
    CHECK(half_warp_scan(x.data(), scan.data(), n, nullptr) == cudaSuccess);
    for (int first = 0; first < n; first += 16) {
      for (int i = 0, s = 0; i < 16; i++) CHECK(scan[std::size_t(first + 15 - i)] == (s += values[std::size_t(first + i)]));
    }
    CHECK(warp_facts(x.data(), facts.data(), n, nullptr) == cudaSuccess);
    for (int w = 0; w < n / 32; w++) {
      unsigned positive = 0, bits = 0;
      int smallest = values[std::size_t(w * 32)];
      for (int lane = 0; lane < 32; lane++) {
        const int v = values[std::size_t(w * 32 + lane)];
        positive |= unsigned(v > 0) << lane;
        bits |= unsigned(v);
        smallest = std::min(smallest, v);
      }
      const int want[5] = {int(positive), smallest, int(bits), positive != 0, positive == ~0u};
      for (int f = 0; f < 5; f++) CHECK(facts[std::size_t(w * 5 + f)] == want[f]);
    }
  });
}

template <class T>
static void check_packed(double tolerance) {
  const std::vector<float> first = random_values(500, 11), second = random_values(500, 12);
  DeviceBuffer<T> x(std::vector<T>(first.begin(), first.end())), y(std::vector<T>(second.begin(), second.end()));
  CHECK(packed_axpy(1.5f, x.data(), y.data(), 500, nullptr) == cudaSuccess);
  for (std::size_t i = 0; i < 500; i++) check_close(static_cast<double>(y[i]), 1.5 * T(first[i]) + T(second[i]), tolerance);
}

TEST_CASE("packed arithmetic on pairs of 16-bit numbers") {
  for_each_order([] {
    check_packed<Half>(4e-3);
    check_packed<BFloat16>(3e-2);
  });
}

TEST_CASE("integer arithmetic of every kind") {
  std::vector<std::int32_t> a, b;
  for (std::int32_t x : {0, 1, -1, 7, -128, 255, 65537, 1 << 30, INT32_MAX, INT32_MIN + 1}) {
    for (std::int32_t y : {0, 1, -2, 13, 31, 32, -100000, INT32_MAX}) a.push_back(x), b.push_back(y);
  }
  std::vector<std::int64_t> want(a.size());
  for (std::size_t i = 0; i < a.size(); i++) {
    const std::int64_t x = a[i], y = b[i], ux = static_cast<std::uint32_t>(a[i]), uy = static_cast<std::uint32_t>(b[i]);
    std::int64_t r = x * y;
    r += static_cast<std::int64_t>((static_cast<std::uint64_t>(ux) * static_cast<std::uint64_t>(uy)) >> 32) << (uy % 13);
    r ^= y != 0 ? x / (y == -1 ? 2 : y) : 7;
    r += ux % (uy | 1) * 3;
    r -= (a[i] >> (uy % 32)) ^ static_cast<std::int32_t>(ux >> (uy % 32));
    int leading = 0;
    while (leading < 32 && !(ux >> (31 - leading) & 1)) leading++;
    int ones = 0;
    for (int bit = 0; bit < 32; bit++) ones += ux >> bit & 1;
    r += ones * 1000 + leading * 100 + static_cast<std::int8_t>(a[i]) * 10 + static_cast<std::uint8_t>(b[i]) + static_cast<std::int16_t>(a[i] ^ b[i]);
    r += static_cast<std::int64_t>(static_cast<double>(x) / 3.0) + static_cast<std::int64_t>(static_cast<float>(uy) * 0.5f);
    r = r < 0 ? -r : (r > (std::int64_t(1) << 40) ? r - (r >> 5) : r);
    want[i] = r + std::min(x, y) - static_cast<std::int64_t>(std::max(ux, uy));
  }
  for_each_order([&] {
    DeviceBuffer<std::int32_t> x(a), y(b);
    DeviceBuffer<std::int64_t> out(a.size());
    CHECK(integer_mix(x.data(), y.data(), out.data(), int(a.size()), nullptr) == cudaSuccess);
    CHECK(out.values() == want);
  });
}

template <class T>
static void check_math(double tolerance) {
  std::vector<T> x, y;
  for (double a : {0.5, -3.0, 1e-3, 100.25, -2000.5, 3.5e5, 1.25e10, -4e12}) {  // the large ones reduce their angle the slow way
    for (double b : {1.0, -0.75, 2.5, 0.125}) x.push_back(T(a)), y.push_back(T(b));
  }
  DeviceBuffer<T> a(x), b(y), out(x.size() * kMathResults);
  CHECK(math_mix(a.data(), b.data(), out.data(), int(x.size()), nullptr) == cudaSuccess);
  for (std::size_t i = 0; i < x.size(); i++) {
    const T p = std::fabs(x[i]);
    const T want[kMathResults] = {std::sin(x[i]), std::cos(x[i]), std::exp(y[i]), std::log(p), std::pow(p, y[i]),
                                  std::tanh(y[i]), std::erf(y[i]), std::sqrt(p), x[i] / y[i], std::nearbyint(x[i])};
    for (std::size_t k = 0; k < kMathResults; k++) {
      CAPTURE(k);
      CAPTURE(x[i]);
      check_close(static_cast<double>(out[i * kMathResults + k]), static_cast<double>(want[k]), tolerance);
    }
  }
}

TEST_CASE("mathematics of the device") {
  check_math<float>(3e-6);
  check_math<double>(1e-14);
  CHECK(finding() == std::string());
}

TEST_CASE("strides from an argument, and a table in local memory") {
  for_each_order([] {
    const Strided transposed{{3, 4, 5, 0}, {1, 15, 3, 0}, 3};  // [3, 4, 5] out of a contiguous [4, 5, 3]
    std::vector<float> values(60);
    for (std::size_t i = 0; i < 60; i++) values[i] = float(i);
    DeviceBuffer<float> x(values), y(60);
    CHECK(strided_copy(transposed, x.data(), y.data(), 60, nullptr) == cudaSuccess);
    for (std::size_t i = 0; i < 60; i++) {
      CHECK(y[i] == float(i / 20 + i / 5 % 4 * 15 + i % 5 * 3) + float(i % 16 * (i % 16)));
    }
    CHECK(y.intact());
  });
}

TEST_CASE("empty inputs") {
  DeviceBuffer<float> x(0), y(0), total{3.0f};
  CHECK(silu(x.data(), y.data(), 0, nullptr) == cudaSuccess);
  CHECK(sum(x.data(), total.data(), 0, nullptr) == cudaSuccess);
  CHECK(total[0] == 3.0f);
  CHECK(softmax(x.data(), y.data(), 0, 4, nullptr) == cudaErrorInvalidConfiguration);
}
