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

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
