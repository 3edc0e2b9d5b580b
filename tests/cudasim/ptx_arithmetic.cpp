// Compiled with -frounding-math: directed roundings are done by the processor.
#include <cudasim/ptx_arithmetic.h>

#include <algorithm>
#include <limits>

#include <cudasim/ptx_numbers.h>

namespace limpid::cudasim::ptx {
namespace {

float flushed(const Instruction& i, float v) {  // .ftz: subnormal numbers are zero, with their sign
  return i.has(Mod::ftz) && std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v;
}
template <class T>
T saturated(const Instruction& i, T v) {
  return i.has(Mod::sat) ? (v > T(0) ? std::min(v, T(1)) : T(0)) : v;
}
// min and max return the number when one operand is none, and -0 is below +0.
template <class T>
T smaller(T a, T b) { return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b); }
template <class T>
T larger(T a, T b) { return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b); }

template <class T>
T float_arithmetic(const Instruction& i, Op op, T a, T b, T c, bool& supported) {
  if (i.has(Mod::NaN) && (op == Op::min || op == Op::max) && (std::isnan(a) || std::isnan(b))) return std::numeric_limits<T>::quiet_NaN();
  Rounding rounding(i);
  volatile T x = a, y = b, z = c, r = 0;
  switch (op) {
    case Op::add: r = x + y; break;
    case Op::sub: r = x - y; break;
    case Op::mul: r = x * y; break;
    case Op::mad:
    case Op::fma: r = std::fma(T(x), T(y), T(z)); break;
    case Op::div: r = x / y; break;
    case Op::min: r = smaller(a, b); break;
    case Op::max: r = larger(a, b); break;
    case Op::neg: r = -x; break;
    case Op::abs: r = std::fabs(T(x)); break;
    default: supported = false;
  }
  return saturated(i, T(r));
}

// 16-bit: exact or nearly so in double, rounded once.
std::uint64_t half_arithmetic(const Instruction& i, Op op, Type element, Values v, bool& supported) {
  const double r = float_arithmetic<double>(i, op, real(element, v.a), real(element, v.b), real(element, v.c), supported);
  return bits_of_real(element, r);
}

std::uint64_t integer_arithmetic(const Instruction& i, Op op, Values v, bool& supported) {
  const Type t = i.type;
  const unsigned bits = bits_of(t);
  const bool s = is_signed(t);
  const std::uint64_t a = integer(t, v.a), b = integer(t, v.b);
  const auto sa = static_cast<std::int64_t>(a), sb = static_cast<std::int64_t>(b);
  std::uint64_t r = 0;
  switch (op) {
    case Op::add: r = a + b; break;
    case Op::sub: r = a - b; break;
    case Op::mul:
    case Op::mad: {
      const std::uint64_t add = op == Op::mad ? v.c : 0;
      if (i.has(Mod::wide)) return low_bits(a * b + add, 2 * bits);
      if (i.has(Mod::hi)) {
        r = s ? static_cast<std::uint64_t>((static_cast<__int128>(sa) * sb) >> bits)
              : static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> bits);
      } else {
        r = a * b;
      }
      r += add;
      break;
    }
    case Op::div: r = b == 0 ? ~std::uint64_t(0) : !s ? a / b : sb == -1 ? 0 - a : static_cast<std::uint64_t>(sa / sb); break;
    case Op::rem: r = b == 0 ? a : !s ? a % b : sb == -1 ? 0 : static_cast<std::uint64_t>(sa % sb); break;
    case Op::min: r = s ? static_cast<std::uint64_t>(std::min(sa, sb)) : std::min(a, b); break;
    case Op::max: r = s ? static_cast<std::uint64_t>(std::max(sa, sb)) : std::max(a, b); break;
    case Op::neg: r = 0 - a; break;
    case Op::abs: r = sa < 0 ? 0 - a : a; break;
    default: supported = false;
  }
  if (i.has(Mod::sat)) supported = false;
  return low_bits(r, bits);
}
}  // namespace

std::uint64_t arithmetic(const Instruction& i, Op op, Values v, bool& supported) {
  switch (i.type) {
    case Type::f32:
      return bits_of_f32(flushed(i, float_arithmetic<float>(i, op, flushed(i, as_f32(v.a)), flushed(i, as_f32(v.b)),
                                                            flushed(i, as_f32(v.c)), supported)));
    case Type::f64: return bits_of_f64(float_arithmetic<double>(i, op, as_f64(v.a), as_f64(v.b), as_f64(v.c), supported));
    case Type::f16:
    case Type::bf16: return half_arithmetic(i, op, i.type, v, supported);
    case Type::f16x2:
    case Type::bf16x2: {
      const Type element = i.type == Type::f16x2 ? Type::f16 : Type::bf16;
      const std::uint64_t low = half_arithmetic(i, op, element, v, supported);
      return low | half_arithmetic(i, op, element, {v.a >> 16, v.b >> 16, v.c >> 16}, supported) << 16;
    }
    default: return integer_arithmetic(i, op, v, supported);
  }
}

std::uint64_t function_value(const Instruction& i, Values v, bool& supported) {
  const Type t = i.type;
  if (t == Type::f64) {
    const double a = as_f64(v.a);
    Rounding rounding(i);
    switch (i.op) {
      case Op::rcp: return bits_of_f64(1.0 / a);
      case Op::sqrt: return bits_of_f64(std::sqrt(a));
      case Op::rsqrt: return bits_of_f64(1.0 / std::sqrt(a));
      case Op::copysign: return bits_of_f64(std::copysign(as_f64(v.b), a));
      default: supported = false; return 0;
    }
  }
  if (is_packed(t) || (t != Type::f32 && t != Type::f16 && t != Type::bf16)) {
    supported = false;
    return 0;
  }
  const float a = t == Type::f32 ? flushed(i, as_f32(v.a)) : static_cast<float>(real(t, v.a));
  Rounding rounding(i);
  float r = 0;
  switch (i.op) {
    case Op::ex2: r = std::exp2(a); break;
    case Op::lg2: r = std::log2(a); break;
    case Op::rcp: r = 1.0f / a; break;
    case Op::sqrt: r = std::sqrt(a); break;
    case Op::rsqrt: r = 1.0f / std::sqrt(a); break;
    case Op::sin: r = std::sin(a); break;
    case Op::cos: r = std::cos(a); break;
    case Op::tanh: r = std::tanh(a); break;
    case Op::copysign: r = std::copysign(as_f32(v.b), a); break;
    default: supported = false;
  }
  return t == Type::f32 ? bits_of_f32(flushed(i, r)) : bits_of_real(t, r);
}

bool compare(const Instruction& i, std::uint64_t a_bits, std::uint64_t b_bits, bool& supported) {
  const auto mod = static_cast<Mod>(i.compare);
  int order = 0;  // of a to b
  if (is_float(i.type)) {
    const double a = i.type == Type::f32 ? flushed(i, as_f32(a_bits)) : real(i.type, a_bits);
    const double b = i.type == Type::f32 ? flushed(i, as_f32(b_bits)) : real(i.type, b_bits);
    const bool none = std::isnan(a) || std::isnan(b);
    if (mod == Mod::num || mod == Mod::nan) return none == (mod == Mod::nan);
    if (none) return mod >= Mod::equ && mod <= Mod::geu;
    order = a < b ? -1 : a > b;
  } else {
    const std::uint64_t a = integer(i.type, a_bits), b = integer(i.type, b_bits);
    const auto sa = static_cast<std::int64_t>(a), sb = static_cast<std::int64_t>(b);
    order = is_signed(i.type) ? (sa < sb ? -1 : sa > sb) : (a < b ? -1 : a > b);
  }
  switch (mod) {
    case Mod::eq: case Mod::equ: return order == 0;
    case Mod::ne: case Mod::neu: return order != 0;
    case Mod::lt: case Mod::lo: case Mod::ltu: return order < 0;
    case Mod::le: case Mod::ls: case Mod::leu: return order <= 0;
    case Mod::gt: case Mod::hi: case Mod::gtu: return order > 0;
    case Mod::ge: case Mod::hs: case Mod::geu: return order >= 0;
    default: supported = false; return false;
  }
}

std::uint64_t convert(const Instruction& i, std::uint64_t a, std::uint64_t b, bool& supported) {
  const Type to = i.type, from = i.second_type;
  if (is_packed(to)) {  // a is the upper half
    if (from != Type::f32) supported = false;
    const Type element = to == Type::f16x2 ? Type::f16 : Type::bf16;
    return bits_of_real(element, as_f32(b)) | bits_of_real(element, as_f32(a)) << 16;
  }
  if (is_packed(from)) supported = false;
  auto to_whole = [&](double v) {
    if (i.has(Mod::rni)) return std::nearbyint(v);
    if (i.has(Mod::rzi)) return std::trunc(v);
    if (i.has(Mod::rmi)) return std::floor(v);
    if (i.has(Mod::rpi)) return std::ceil(v);
    return v;
  };
  if (is_float(to)) {
    Rounding rounding(i);
    if (!is_float(from)) {  // integers of 64 bits round once, in the target's type
      const std::uint64_t v = integer(from, a);
      const bool s = is_signed(from);
      volatile float f = 0;
      volatile double d = 0;
      if (to == Type::f32) {
        f = s ? static_cast<float>(static_cast<std::int64_t>(v)) : static_cast<float>(v);
        return bits_of_f32(f);
      }
      d = s ? static_cast<double>(static_cast<std::int64_t>(v)) : static_cast<double>(v);
      return bits_of_real(to, d);
    }
    double v = from == Type::f32 ? flushed(i, as_f32(a)) : real(from, a);
    v = saturated(i, to_whole(v));
    if (to == Type::f16 || to == Type::bf16) {
      if (i.has(Mod::rz) || i.has(Mod::rm) || i.has(Mod::rp)) supported = false;
      return bits_of_real(to, v);
    }
    volatile double wide = v;
    if (to == Type::f64) return bits_of_f64(wide);
    volatile float narrow = static_cast<float>(wide);
    return bits_of_f32(flushed(i, narrow));
  }
  if (is_float(from)) {  // out of range: the nearest integer that there is; no number: 0 (the high bit for 64 bits)
    const double v = to_whole(from == Type::f32 ? flushed(i, as_f32(a)) : real(from, a));
    const unsigned bits = bits_of(to);
    if (std::isnan(v)) return bits == 64 ? std::uint64_t(1) << 63 : 0;
    const double low = is_signed(to) ? -std::ldexp(1.0, static_cast<int>(bits) - 1) : 0;
    const double high = std::ldexp(1.0, static_cast<int>(bits) - (is_signed(to) ? 1 : 0));
    if (v <= low) return low_bits(is_signed(to) ? std::uint64_t(1) << (bits - 1) : 0, bits);
    if (v >= high) return low_bits(is_signed(to) ? (std::uint64_t(1) << (bits - 1)) - 1 : ~std::uint64_t(0), bits);
    return low_bits(is_signed(to) ? static_cast<std::uint64_t>(static_cast<std::int64_t>(v)) : static_cast<std::uint64_t>(v), bits);
  }
  const std::uint64_t v = integer(from, a);
  if (i.has(Mod::sat)) supported = false;
  // A narrower result keeps its sign in a wider register.
  return low_bits(integer(to, v), std::max(32u, bits_of(to)));
}

std::uint64_t bit_operation(const Instruction& i, Values v, std::uint64_t d, bool& supported) {
  const unsigned bits = i.type == Type::pred ? 1 : bits_of(i.type);
  const std::uint64_t a = low_bits(v.a, bits), b = low_bits(v.b, bits);
  switch (i.op) {
    case Op::and_: return a & b;
    case Op::or_: return a | b;
    case Op::xor_: return a ^ b;
    case Op::not_: return low_bits(~a, bits);
    case Op::shl: {
      const std::uint32_t by = static_cast<std::uint32_t>(v.b);
      return by >= bits ? 0 : low_bits(a << by, bits);
    }
    case Op::shr: {
      const std::uint32_t by = static_cast<std::uint32_t>(v.b);
      if (!is_signed(i.type)) return by >= bits ? 0 : a >> by;
      return low_bits(static_cast<std::uint64_t>(static_cast<std::int64_t>(integer(i.type, v.a)) >> std::min(by, bits - 1)), bits);
    }
    case Op::shf: {  // of the 64 bits b:a, by c
      const std::uint64_t both = b << 32 | a;
      const std::uint32_t c = static_cast<std::uint32_t>(v.c);
      const std::uint32_t by = i.has(Mod::wrap) ? c % 32 : std::min(c, 32u);
      return low_bits(i.has(Mod::l) ? (both << by) >> 32 : both >> by, 32);
    }
    case Op::bfi: {  // a into b at position c, d bits
      const unsigned at = static_cast<unsigned>(v.c & 0xff), length = static_cast<unsigned>(d & 0xff);
      if (at >= bits || length == 0) return b;
      const std::uint64_t mask = low_bits(low_bits(~std::uint64_t(0), length) << at, bits);
      return (b & ~mask) | ((a << at) & mask);
    }
    case Op::bfe: {  // b: position, c: length
      const unsigned at = static_cast<unsigned>(v.b & 0xff), length = static_cast<unsigned>(v.c & 0xff);
      if (length == 0) return 0;
      const std::uint64_t shifted = at >= bits ? 0 : a >> at;
      const unsigned kept = std::min(length, bits);
      std::uint64_t r = low_bits(shifted, kept);
      const unsigned sign_at = std::min(at + kept - 1, bits - 1);
      if (is_signed(i.type) && (a >> sign_at & 1)) r |= ~low_bits(~std::uint64_t(0), std::min(kept, bits - std::min(at, bits)));
      return low_bits(r, bits);
    }
    case Op::brev: {
      std::uint64_t r = 0;
      for (unsigned k = 0; k < bits; k++) r |= (a >> k & 1) << (bits - 1 - k);
      return r;
    }
    case Op::prmt: {  // picks four of the eight bytes b:a; bit 3 of a selector repeats the byte's sign
      const std::uint64_t both = low_bits(v.b, 32) << 32 | low_bits(v.a, 32);
      std::uint64_t r = 0;
      for (unsigned k = 0; k < 4; k++) {
        const unsigned selector = static_cast<unsigned>(v.c >> (4 * k) & 0xf);
        const auto byte = static_cast<std::uint8_t>(both >> (8 * (selector & 7)));
        const std::uint64_t picked = selector & 8 ? (byte & 0x80 ? 0xff : 0) : byte;
        r |= picked << (8 * k);
      }
      return r;
    }
    case Op::lop3: {
      std::uint64_t r = 0;
      for (unsigned k = 0; k < 32; k++) {
        const unsigned row = static_cast<unsigned>((v.a >> k & 1) << 2 | (v.b >> k & 1) << 1 | (v.c >> k & 1));
        r |= (d >> row & 1) << k;
      }
      return r;
    }
    case Op::popc: return static_cast<std::uint64_t>(std::popcount(a));
    case Op::clz: return static_cast<std::uint64_t>(std::countl_zero(a)) - (64 - bits);
    default: supported = false; return 0;
  }
}

}  // namespace limpid::cudasim::ptx
