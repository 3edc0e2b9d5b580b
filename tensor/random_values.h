// From the 32-bit numbers of Philox to values of a dtype: the same for every backend.
#pragma once

#include <cmath>
#include <cstdint>

#include <limpid/tensor/random.h>
#include <limpid/tensor/strided.h>

namespace limpid::kernel {

// [0, 1) in T. 16-bit types keep only the bits that they can hold, since rounding could give 1.
template <class T>
LIMPID_HD inline T uniform_value(std::uint32_t bits) {
  if constexpr (kIsNarrow<T>) {
    constexpr int kKept = std::is_same_v<T, Half> ? 11 : 8;
    return T(static_cast<float>(bits >> (32 - kKept)) / static_cast<float>(1 << kKept));
  } else {
    return static_cast<T>(uniform_from_bits(bits));
  }
}

// Box-Muller in double: u1 in (0, 1], so the logarithm is finite.
LIMPID_HD inline void normal_pair(std::uint32_t a, std::uint32_t b, double& z0, double& z1) {
  constexpr double kTwoPi = 6.283185307179586476925;
  double u1 = (static_cast<double>(a) + 1.0) * 0x1p-32, u2 = static_cast<double>(b) * 0x1p-32;
  double radius = std::sqrt(-2.0 * std::log(u1));
  z0 = radius * std::cos(kTwoPi * u2);
  z1 = radius * std::sin(kTwoPi * u2);
}

}  // namespace limpid::kernel
