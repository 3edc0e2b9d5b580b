// Shared by the tests of kernels: random numbers in every dtype, and comparison with results computed in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/device_buffer.h>
#include <limpid/tensor/dtype.h>

namespace limpid::cudasim {

template <class T>
double as_double(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

// n numbers in [-1, 1), or whole numbers in [-9, 9] (uint8: [0, 9]) for integers; rounded to T. Each seed its own.
template <class T>
std::vector<T> random_numbers(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 17);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& v : values) {
    const double u = static_cast<double>(random() >> 11) / 4503599627370496.0 - 1.0;
    if constexpr (std::is_integral_v<T>) {
      v = static_cast<T>(std::is_signed_v<T> ? u * 10 : u * 5 + 5);
    } else {
      v = T(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(u));
    }
  }
  return values;
}

// The relative error that one rounding to T may make, and some terms in the accumulation type.
template <class T>
double rounding(double terms = 1) {
  const double wide = (sizeof(T) == 8 ? 2.3e-16 : 1.2e-7) * (4 + std::sqrt(terms));
  if (std::is_same_v<T, Half>) return 5e-4 + wide;
  if (std::is_same_v<T, BFloat16>) return 4e-3 + wide;
  return wide;
}

// One failing assertion a buffer, which names the worst element. Errors count relative to the largest wanted value
// or 1.
template <class T>
void check_numbers(const DeviceBuffer<T>& got, const std::vector<double>& want, double tolerance,
                   std::size_t offset = 0) {
  REQUIRE(got.size() >= want.size() + offset);
  double scale = 1, worst = 0;
  std::size_t at = 0;
  for (double v : want) scale = std::isfinite(v) ? std::max(scale, std::fabs(v)) : scale;
  for (std::size_t i = 0; i < want.size(); i++) {
    const double g = as_double(got[i + offset]);
    if (g == want[i] || (std::isnan(g) && std::isnan(want[i]))) continue;
    const double error = std::isfinite(g - want[i]) ? std::fabs(g - want[i]) / scale : INFINITY;
    if (error > worst) worst = error, at = i;
  }
  if (want.empty()) return;
  CHECK_MESSAGE(worst <= tolerance, "element ", at, " of ", want.size(), ": ", as_double(got[at + offset]), ", not ",
                want[at], ", error ", worst, " > ", tolerance);
  CHECK(got.intact());
}

}  // namespace limpid::cudasim
