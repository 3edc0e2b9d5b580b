// Numbers in PTX registers: raw bits, read and written as the type that the instruction names.
#pragma once

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>

#include <limpid/tensor/half.h>

#include <cudasim/ptx_program.h>

namespace limpid::cudasim::ptx {

inline bool is_signed(Type t) { return t == Type::s8 || t == Type::s16 || t == Type::s32 || t == Type::s64; }
inline bool is_packed(Type t) { return t == Type::f16x2 || t == Type::bf16x2; }
inline bool is_float(Type t) { return t >= Type::f16; }
inline unsigned bits_of(Type t) { return 8 * size_of(t); }

// The integer of this type in the low bits, extended to 64 bits by its sign or by zeros.
inline std::uint64_t integer(Type t, std::uint64_t bits) {
  switch (size_of(t)) {
    case 1: return t == Type::s8 ? static_cast<std::uint64_t>(static_cast<std::int8_t>(bits)) : static_cast<std::uint8_t>(bits);
    case 2: return t == Type::s16 ? static_cast<std::uint64_t>(static_cast<std::int16_t>(bits)) : static_cast<std::uint16_t>(bits);
    case 4: return t == Type::s32 ? static_cast<std::uint64_t>(static_cast<std::int32_t>(bits)) : static_cast<std::uint32_t>(bits);
    default: return bits;
  }
}
inline std::uint64_t low_bits(std::uint64_t value, unsigned bits) { return bits >= 64 ? value : value & ((std::uint64_t(1) << bits) - 1); }

inline float as_f32(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }
inline double as_f64(std::uint64_t bits) { return std::bit_cast<double>(bits); }
inline std::uint64_t bits_of_f32(float v) { return std::bit_cast<std::uint32_t>(v); }
inline std::uint64_t bits_of_f64(double v) { return std::bit_cast<std::uint64_t>(v); }

// Nearest number with `mantissa` stored bits and smallest normal exponent `lowest`, ties to even; in one rounding.
inline double round_to(double v, int mantissa, int lowest) {
  if (v == 0 || !std::isfinite(v)) return v;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(v), lowest) - mantissa);
  return std::nearbyint(v / quantum) * quantum;
}
inline std::uint16_t f16_bits(double v) { return detail::float_to_half_bits(static_cast<float>(round_to(v, 10, -14))); }
inline std::uint16_t bf16_bits(double v) { return BFloat16(static_cast<float>(round_to(v, 7, -126))).bits; }

// The value of a number of any floating type.
inline double real(Type t, std::uint64_t bits) {
  switch (t) {
    case Type::f32: return as_f32(bits);
    case Type::f64: return as_f64(bits);
    case Type::f16: case Type::f16x2: return detail::half_bits_to_float(static_cast<std::uint16_t>(bits));
    default: return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
}
// Its bits; a wider value is rounded to nearest, f32 in the current rounding mode.
inline std::uint64_t bits_of_real(Type t, double v) {
  switch (t) {
    case Type::f32: return bits_of_f32(static_cast<float>(v));
    case Type::f64: return bits_of_f64(v);
    case Type::f16: case Type::f16x2: return f16_bits(v);
    default: return bf16_bits(v);
  }
}

// .rz, .rm, .rp for a scope; nearest otherwise.
class Rounding {
 public:
  explicit Rounding(const Instruction& i) : former_(std::fegetround()) {
    const int mode = i.has(Mod::rz) ? FE_TOWARDZERO : i.has(Mod::rm) ? FE_DOWNWARD : i.has(Mod::rp) ? FE_UPWARD : FE_TONEAREST;
    changed_ = mode != former_;
    if (changed_) std::fesetround(mode);
  }
  ~Rounding() {
    if (changed_) std::fesetround(former_);
  }
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;

 private:
  int former_;
  bool changed_;
};

}  // namespace limpid::cudasim::ptx
