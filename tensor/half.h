// 16-bit floating types as storage. Arithmetic is done in float; load()/store() convert. Host and device.
// Half: IEEE 754 binary16. BFloat16: the upper half of a binary32. Both conversions round to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

#include <limpid/base/macros.h>

namespace limpid {

namespace detail {
template <class To, class From>
LIMPID_HD inline To bits_as(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

LIMPID_HD inline float half_bits_to_float(std::uint16_t h) {
  std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  std::uint32_t exponent = (h >> 10) & 0x1fu;
  std::uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1fu) return bits_as<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_as<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float.
  float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
  return sign ? -value : value;
}

LIMPID_HD inline std::uint16_t float_to_half_bits(float f) {
  std::uint32_t x = bits_as<std::uint32_t>(f);
  std::uint32_t sign = (x >> 16) & 0x8000u;
  std::uint32_t magnitude = x & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 65520 or more: infinity
  if (magnitude < 0x38800000u) {                                                    // below 2^-14: subnormal
    // Adding 0.5 aligns the last kept bit with the last bit of the float, so the addition itself rounds.
    float shifted = bits_as<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (bits_as<std::uint32_t>(shifted) - 0x3f000000u));
  }
  std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}
}  // namespace detail

struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  LIMPID_HD Half(float f) : bits(detail::float_to_half_bits(f)) {}
  LIMPID_HD operator float() const { return detail::half_bits_to_float(bits); }
};

struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  LIMPID_HD BFloat16(float f) {
    std::uint32_t x = detail::bits_as<std::uint32_t>(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((x >> 16) | 0x40u);  // keep NaN a NaN
    } else {
      bits = static_cast<std::uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
    }
  }
  LIMPID_HD operator float() const { return detail::bits_as<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// The type in which arithmetic on T is done.
template <class T>
struct AccumulateType {
  using type = T;
};
template <>
struct AccumulateType<Half> {
  using type = float;
};
template <>
struct AccumulateType<BFloat16> {
  using type = float;
};
template <class T>
using accumulate_t = typename AccumulateType<T>::type;

}  // namespace limpid
