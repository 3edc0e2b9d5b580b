// Targets as in panel.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/tail_kernels.cpp>
#include <hwy/foreach_target.h>

#include <limpid/tensor/cpu/conv_tail.h>
#include <limpid/tensor/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

// Eight channels at a time: a byte of bits, in one vector or in several.
template <class T>
using Tag8 = hn::CappedTag<T, 8>;
template <class T>
using Vec8 = hn::Vec<Tag8<T>>;
template <class T>
using Mask8 = hn::Mask<Tag8<T>>;
template <class T>
inline constexpr int kLanes8 = static_cast<int>(hn::MaxLanes(Tag8<T>()));

template <class T>
HWY_INLINE unsigned bits_of(Mask8<T> mask) {
  std::uint8_t byte[8] = {};
  hn::StoreMaskBits(Tag8<T>(), mask, byte);
  return byte[0] & ((1u << kLanes8<T>)-1u);
}
template <class T>
HWY_INLINE Mask8<T> mask_of(unsigned bits) {
  const std::uint8_t byte[8] = {static_cast<std::uint8_t>(bits)};
  return hn::LoadMaskBits(Tag8<T>(), byte);
}

// fn(c) for every eight channels; fn.part(c, count) for what is left.
template <class Whole, class Part>
HWY_INLINE void for_eights(std::int64_t n, const Whole& whole, const Part& part) {
  std::int64_t c = 0;
  for (; c + 8 <= n; c += 8) whole(c);
  if (c < n) part(c, n - c);
}

// max(z, 0), NaN stays; returns the bits of what is not 0 or less.
template <class T>
HWY_INLINE unsigned relu8(const T* z, T* y) {
  const Tag8<T> d;
  unsigned bits = 0;
  for (int i = 0; i < 8; i += kLanes8<T>) {
    const Vec8<T> v = hn::LoadU(d, z + i);
    const Mask8<T> dead = hn::Le(v, hn::Zero(d));
    hn::StoreU(hn::IfThenZeroElse(dead, v), d, y + i);
    bits |= bits_of<T>(hn::Not(dead)) << i;
  }
  return bits;
}

template <class T>
void relu(std::int64_t pixels, std::int64_t n, const T* z, std::int64_t z_pixel, T* y, std::int64_t y_pixel,
          std::uint8_t* bits, std::int64_t bits_pixel) {
  for (std::int64_t p = 0; p < pixels; ++p, z += z_pixel, y += y_pixel) {
    for_eights(
        n,
        [&](std::int64_t c) HWY_ATTR {
          const unsigned b = relu8(z + c, y + c);
          if (bits != nullptr) bits[c / 8] = static_cast<std::uint8_t>(b);
        },
        [&](std::int64_t c, std::int64_t count) HWY_ATTR {
          T eight[8] = {};
          for (std::int64_t i = 0; i < count; ++i) eight[i] = z[c + i];
          const unsigned b = relu8(eight, eight);
          for (std::int64_t i = 0; i < count; ++i) y[c + i] = eight[i];
          if (bits != nullptr) bits[c / 8] = static_cast<std::uint8_t>(b);
        });
    if (bits != nullptr) bits += bits_pixel;
  }
}

// Maximum of the four max(z, 0), the first of equals, NaN wins (as in pool.cpp); sets the winner's bit where it is not 0.
template <class T>
HWY_INLINE void pool8(const T* const* z, T* y, unsigned* bits) {
  const Tag8<T> d;
  for (int k = 0; k < 4; ++k) bits[k] = 0;
  for (int i = 0; i < 8; i += kLanes8<T>) {
    Vec8<T> v[4];
    for (int k = 0; k < 4; ++k) {
      v[k] = hn::LoadU(d, z[k] + i);
      v[k] = hn::IfThenZeroElse(hn::Le(v[k], hn::Zero(d)), v[k]);
    }
    Vec8<T> best = v[0];
    Mask8<T> wins[4];
    for (int k = 1; k < 4; ++k) {
      wins[k] = hn::Or(hn::Gt(v[k], best), hn::Not(hn::Eq(v[k], v[k])));  // Ne would be false for NaN
      best = hn::IfThenElse(wins[k], v[k], best);
    }
    hn::StoreU(best, d, y + i);
    Mask8<T> left = hn::Not(hn::Le(best, hn::Zero(d)));  // lanes whose winner is not found yet
    for (int k = 3; k > 0; --k) {
      bits[k] |= bits_of<T>(hn::And(left, wins[k])) << i;
      left = hn::AndNot(wins[k], left);
    }
    bits[0] |= bits_of<T>(left) << i;
  }
}

template <class T>
void max_pool(std::int64_t windows, std::int64_t n, const T* z, std::int64_t z_pixel, std::int64_t z_row, T* y,
              std::int64_t y_pixel, std::uint8_t* bits, std::int64_t bits_pixel, std::int64_t bits_row) {
  const auto put = [&](std::int64_t c, const unsigned* b) {
    if (bits == nullptr) return;
    bits[c / 8] = static_cast<std::uint8_t>(b[0]), bits[bits_pixel + c / 8] = static_cast<std::uint8_t>(b[1]);
    bits[bits_row + c / 8] = static_cast<std::uint8_t>(b[2]);
    bits[bits_row + bits_pixel + c / 8] = static_cast<std::uint8_t>(b[3]);
  };
  for (std::int64_t p = 0; p < windows; ++p, z += 2 * z_pixel, y += y_pixel) {
    const T* at[4] = {z, z + z_pixel, z + z_row, z + z_row + z_pixel};
    for_eights(
        n,
        [&](std::int64_t c) HWY_ATTR {
          const T* eight[4] = {at[0] + c, at[1] + c, at[2] + c, at[3] + c};
          unsigned b[4];
          pool8(eight, y + c, b);
          put(c, b);
        },
        [&](std::int64_t c, std::int64_t count) HWY_ATTR {
          T in[4][8] = {}, out[8];
          for (int k = 0; k < 4; ++k) {
            for (std::int64_t i = 0; i < count; ++i) in[k][i] = at[k][c + i];
          }
          const T* eight[4] = {in[0], in[1], in[2], in[3]};
          unsigned b[4];
          pool8(eight, out, b);
          for (std::int64_t i = 0; i < count; ++i) y[c + i] = out[i];
          put(c, b);
        });
    if (bits != nullptr) bits += 2 * bits_pixel;
  }
}

template <class T>
void relu_sum(std::int64_t pixels, std::int64_t n, const T* z, std::int64_t z_pixel, T* sums, std::uint8_t* bits,
              std::int64_t bits_pixel) {
  const auto run = [&](std::int64_t c, std::int64_t count) HWY_ATTR {
    T total[8] = {}, eight[8] = {};
    for (std::int64_t i = 0; i < count; ++i) total[i] = sums[c + i];
    const T* at = z + c;
    std::uint8_t* b = bits != nullptr ? bits + c / 8 : nullptr;
    for (std::int64_t p = 0; p < pixels; ++p, at += z_pixel) {
      for (std::int64_t i = 0; i < count; ++i) eight[i] = at[i];
      const unsigned alive = relu8(eight, eight);
      for (int i = 0; i < 8; ++i) total[i] += eight[i];
      if (b != nullptr) *b = static_cast<std::uint8_t>(alive), b += bits_pixel;
    }
    for (std::int64_t i = 0; i < count; ++i) sums[c + i] = total[i];
  };
  for_eights(n, [&](std::int64_t c) HWY_ATTR { run(c, 8); }, run);
}

template <class T>
HWY_INLINE void select8(const T* g, Vec8<T> scale, unsigned bits, T* dz) {
  const Tag8<T> d;
  for (int i = 0; i < 8; i += kLanes8<T>) {
    hn::StoreU(hn::IfThenElseZero(mask_of<T>(bits >> i), hn::Mul(scale, hn::LoadU(d, g + i))), d, dz + i);
  }
}

template <class T>
void select(std::int64_t pixels, std::int64_t repeat, std::int64_t n, const T* g, std::int64_t g_pixel, T scale,
            const std::uint8_t* bits, std::int64_t bits_pixel, T* dz, std::int64_t dz_pixel) {
  const Vec8<T> factor = hn::Set(Tag8<T>(), scale);
  std::int64_t left = repeat;
  for (std::int64_t p = 0; p < pixels; ++p, dz += dz_pixel, bits += bits_pixel) {
    if (left-- == 0) g += g_pixel, left = repeat - 1;
    for_eights(
        n, [&](std::int64_t c) HWY_ATTR { select8(g + c, factor, bits[c / 8], dz + c); },
        [&](std::int64_t c, std::int64_t count) HWY_ATTR {
          T eight[8] = {};
          for (std::int64_t i = 0; i < count; ++i) eight[i] = g[c + i];
          select8(eight, factor, bits[c / 8], eight);
          for (std::int64_t i = 0; i < count; ++i) dz[c + i] = eight[i];
        });
  }
}

template <class T>
void add_pixels(std::int64_t pixels, std::int64_t n, const T* z, std::int64_t z_pixel, T* sums) {
  const Tag8<T> d;
  const auto run = [&](std::int64_t c, std::int64_t count) HWY_ATTR {
    T even[8] = {}, odd[8] = {};
    const T* at = z + c;
    if (count == 8) {
      for (int i = 0; i < 8; i += kLanes8<T>) {
        Vec8<T> a = hn::Zero(d), b = a;
        std::int64_t p = 0;
        for (; p + 2 <= pixels; p += 2) {
          a = hn::Add(a, hn::LoadU(d, at + p * z_pixel + i));
          b = hn::Add(b, hn::LoadU(d, at + (p + 1) * z_pixel + i));
        }
        if (p < pixels) a = hn::Add(a, hn::LoadU(d, at + p * z_pixel + i));
        hn::StoreU(a, d, even + i), hn::StoreU(b, d, odd + i);
      }
    } else {
      for (std::int64_t p = 0; p < pixels; ++p) {
        for (std::int64_t i = 0; i < count; ++i) (p % 2 == 0 ? even : odd)[i] += at[p * z_pixel + i];
      }
    }
    for (std::int64_t i = 0; i < count; ++i) sums[c + i] += even[i] + odd[i];
  };
  for_eights(n, [&](std::int64_t c) HWY_ATTR { run(c, 8); }, run);
}

template <class T>
inline constexpr TailKernels<T> kTailKernels = {&relu<T>, &max_pool<T>, &relu_sum<T>, &select<T>, &add_pixels<T>};

const TailKernels<float>* tail_kernels_float() { return &kTailKernels<float>; }
const TailKernels<double>* tail_kernels_double() { return &kTailKernels<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
HWY_EXPORT(tail_kernels_float);
HWY_EXPORT(tail_kernels_double);

template <>
const TailKernels<float>& tail_kernels<float>() {
  return *HWY_DYNAMIC_DISPATCH(tail_kernels_float)();
}
template <>
const TailKernels<double>& tail_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(tail_kernels_double)();
}
}  // namespace limpid::cpu
#endif
