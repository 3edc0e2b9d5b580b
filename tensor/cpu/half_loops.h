// Between 16-bit floats and f32, in vectors: the bits of Half and BFloat16 (tensor/half.h), NaNs staying some NaN.
#pragma once

#include <cstdint>

#include <limpid/tensor/half.h>

namespace limpid::cpu {

struct HalfLoops {
  void (*widen_half)(std::int64_t n, const Half* x, float* y);
  void (*narrow_half)(std::int64_t n, const float* x, Half* y);
  void (*widen_bfloat)(std::int64_t n, const BFloat16* x, float* y);
  void (*narrow_bfloat)(std::int64_t n, const float* x, BFloat16* y);
};
const HalfLoops& half_loops();

inline void convert_run(std::int64_t n, const Half* x, float* y) { half_loops().widen_half(n, x, y); }
inline void convert_run(std::int64_t n, const float* x, Half* y) { half_loops().narrow_half(n, x, y); }
inline void convert_run(std::int64_t n, const BFloat16* x, float* y) { half_loops().widen_bfloat(n, x, y); }
inline void convert_run(std::int64_t n, const float* x, BFloat16* y) { half_loops().narrow_bfloat(n, x, y); }

}  // namespace limpid::cpu
