// Targets as in panel.cpp. bf16 is shifts and a rounding that the compiler vectorises for each target; f16 has instructions of
// its own from AVX2 on.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/half_loops.cpp>
#include <hwy/foreach_target.h>

#include <limpid/tensor/cpu/half_loops.h>
#include <limpid/tensor/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

void widen_half(std::int64_t n, const Half* x, float* y) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const Tag<float> d;
  const hn::Rebind<hwy::float16_t, Tag<float>> d16;
  const auto* bits = reinterpret_cast<const hwy::float16_t*>(x);
  for (; i + kLanes<float> <= n; i += kLanes<float>) hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, bits + i)), d, y + i);
#endif
  for (; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

void narrow_half(std::int64_t n, const float* x, Half* y) {
  std::int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const Tag<float> d;
  const hn::Rebind<hwy::float16_t, Tag<float>> d16;
  auto* bits = reinterpret_cast<hwy::float16_t*>(y);
  for (; i + kLanes<float> <= n; i += kLanes<float>) hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, x + i)), d16, bits + i);
#endif
  for (; i < n; ++i) y[i] = Half(x[i]);
}

void widen_bfloat(std::int64_t n, const BFloat16* x, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = limpid::detail::bits_as<float>(static_cast<std::uint32_t>(x[i].bits) << 16);
}

void narrow_bfloat(std::int64_t n, const float* x, BFloat16* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = limpid::detail::bits_as<std::uint32_t>(x[i]);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40u;
    y[i].bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

inline constexpr HalfLoops kHalfLoops = {&widen_half, &narrow_half, &widen_bfloat, &narrow_bfloat};
const HalfLoops* half_loops_table() { return &kHalfLoops; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
HWY_EXPORT(half_loops_table);
const HalfLoops& half_loops() { return *HWY_DYNAMIC_DISPATCH(half_loops_table)(); }
}  // namespace limpid::cpu
#endif
