// Internal to tensor/cpu: the vector vocabulary of the kernels, compiled once for each instruction set by Highway's
// foreach_target. Include it after <hwy/foreach_target.h>. No include guard in the usual sense: once per target.
#if defined(LIMPID_TENSOR_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIMPID_TENSOR_CPU_SIMD_INL_H_
#undef LIMPID_TENSOR_CPU_SIMD_INL_H_
#else
#define LIMPID_TENSOR_CPU_SIMD_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most one panel (64 bytes).
template <class T>
using Tag = hn::CappedTag<T, 64 / sizeof(T)>;
template <class T>
using Vec = hn::Vec<Tag<T>>;
template <class T>
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(Tag<T>()));

// The first n lanes from memory, the others 0. Never touches memory beyond them.
template <class T>
HWY_INLINE Vec<T> load_part(const T* p, std::int64_t n) {
  const Tag<T> d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(n)), d, p);
#else
  HWY_ALIGN T lanes[kLanes<T>] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return hn::Load(d, lanes);
#endif
}
template <class T>
HWY_INLINE void store_part(Vec<T> v, T* p, std::int64_t n) {
  const Tag<T> d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(n)), d, p);
#else
  HWY_ALIGN T lanes[kLanes<T>];
  hn::Store(v, d, lanes);
  for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}
template <class T>
HWY_INLINE T sum_of_lanes(Vec<T> v) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), v));
}

// dst[j][i] = src[i][j] for a 4x4 block.
template <class T>
HWY_INLINE void transpose4(const T* src, std::int64_t src_row, T* dst, std::int64_t dst_row) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::FixedTag<float, 4> d;
    const hn::FixedTag<std::uint64_t, 2> d64;
    const auto a = hn::LoadU(d, src), b = hn::LoadU(d, src + src_row);
    const auto c = hn::LoadU(d, src + 2 * src_row), e = hn::LoadU(d, src + 3 * src_row);
    const auto ab0 = hn::BitCast(d64, hn::InterleaveLower(d, a, b)),
               ab1 = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
    const auto ce0 = hn::BitCast(d64, hn::InterleaveLower(d, c, e)),
               ce1 = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab0, ce0)), d, dst);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab0, ce0)), d, dst + dst_row);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab1, ce1)), d, dst + 2 * dst_row);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab1, ce1)), d, dst + 3 * dst_row);
    return;
  }
#endif
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 4; ++i) dst[j * dst_row + i] = src[i * src_row + j];
  }
}

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
