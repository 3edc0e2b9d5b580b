// Targets as in panel.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/winograd_kernels.cpp>
#include <hwy/foreach_target.h>

#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/simd-inl.h>
#include <limpid/tensor/cpu/winograd.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

using V = Vec<float>;
inline constexpr std::int64_t kP = kPanel<float>, kL = kLanes<float>;

HWY_INLINE V constant(float x) { return hn::Set(Tag<float>(), x); }

// Rows of B^T: (4 0 -5 0 1 0) (0 -4 -4 1 1 0) (0 4 -4 -1 1 0) (0 -2 -1 2 1 0) (0 2 -1 -2 1 0) (0 4 0 -5 0 1).
HWY_INLINE void input_1d(const V* d, V* o) {
  const V c4 = constant(4), c5 = constant(5);
  const V a = hn::NegMulAdd(c4, d[2], d[4]), b = hn::NegMulAdd(c4, d[1], d[3]), c = hn::Sub(d[4], d[2]);
  const V e = hn::Mul(constant(2), hn::Sub(d[3], d[1]));
  o[0] = hn::MulAdd(c4, d[0], hn::NegMulAdd(c5, d[2], d[4]));
  o[1] = hn::Add(a, b), o[2] = hn::Sub(a, b), o[3] = hn::Add(c, e), o[4] = hn::Sub(c, e);
  o[5] = hn::MulAdd(c4, d[1], hn::NegMulAdd(c5, d[3], d[5]));
}
// Rows of A^T: (1 1 1 1 1 0) (0 1 -1 2 -2 0) (0 1 1 4 4 0) (0 1 -1 8 -8 1).
HWY_INLINE void output_1d(const V* m, V* o) {
  const V s = hn::Add(m[1], m[2]), d = hn::Sub(m[1], m[2]), s2 = hn::Add(m[3], m[4]), d2 = hn::Sub(m[3], m[4]);
  o[0] = hn::Add(hn::Add(m[0], s), s2);
  o[1] = hn::MulAdd(constant(2), d2, d);
  o[2] = hn::MulAdd(constant(4), s2, s);
  o[3] = hn::Add(hn::MulAdd(constant(8), d2, d), m[5]);
}
// A: the transpose of the above.
HWY_INLINE void gradient_1d(const V* y, V* o) {
  const V a = hn::Add(y[0], y[2]), b = hn::Add(y[1], y[3]), c = hn::MulAdd(constant(4), y[2], y[0]);
  const V d = hn::Mul(constant(2), hn::MulAdd(constant(4), y[3], y[1]));
  o[0] = y[0], o[1] = hn::Add(a, b), o[2] = hn::Sub(a, b), o[3] = hn::Add(c, d), o[4] = hn::Sub(c, d), o[5] = y[3];
}
// Rows of G: (1/4 0 0) (-1/6 -1/6 -1/6) (-1/6 1/6 -1/6) (1/24 1/12 1/6) (1/24 -1/12 1/6) (0 0 1).
HWY_INLINE void filter_1d(const V* g, V* o) {
  const V sixth = constant(1.0f / 6), twelfth = constant(1.0f / 12), small = constant(1.0f / 24);
  const V q = hn::Mul(constant(-1.0f / 6), hn::Add(g[0], g[2])), h = hn::Mul(sixth, g[1]);
  const V p = hn::MulAdd(small, g[0], hn::Mul(sixth, g[2])), r = hn::Mul(twelfth, g[1]);
  o[0] = hn::Mul(constant(0.25f), g[0]);
  o[1] = hn::Sub(q, h), o[2] = hn::Add(q, h), o[3] = hn::Add(p, r), o[4] = hn::Sub(p, r), o[5] = g[2];
}
// G^T.
HWY_INLINE void filter_gradient_1d(const V* u, V* o) {
  const V sixth = constant(1.0f / 6), twelfth = constant(1.0f / 12), small = constant(1.0f / 24);
  const V s = hn::Add(u[1], u[2]), d = hn::Sub(u[2], u[1]), s2 = hn::Add(u[3], u[4]), d2 = hn::Sub(u[3], u[4]);
  o[0] = hn::MulAdd(constant(0.25f), u[0], hn::NegMulAdd(sixth, s, hn::Mul(small, s2)));
  o[1] = hn::MulAdd(sixth, d, hn::Mul(twelfth, d2));
  o[2] = hn::Add(hn::NegMulAdd(sixth, s, hn::Mul(sixth, s2)), u[5]);
}

HWY_INLINE V load_channels(const float* p, std::int64_t part) {
  return part >= kL ? hn::LoadU(Tag<float>(), p) : load_part(p, part);
}

// Transforms of kIn x kIn pixels to 6x6, for every vector of channels. fetch(i, j, c, part) gives pixel (i, j).
template <int kIn, class Transform, class Fetch>
HWY_INLINE void forward_tile(std::int64_t channels, float* out, std::int64_t stride, const Transform& transform,
                             const Fetch& fetch) {
  const Tag<float> d;
  const std::int64_t count = panels<float>(channels), position = count * stride * kP;
  for (std::int64_t panel = 0; panel < count; ++panel) {
    for (std::int64_t h = 0; h < kP; h += kL) {
      const std::int64_t c = panel * kP + h, part = channels - c;
      float* p = out + panel * stride * kP + h;
      if (part <= 0) {
        for (int i = 0; i < 36; ++i) hn::StoreU(hn::Zero(d), d, p + i * position);
        continue;
      }
      V half[6][kIn];
      for (int j = 0; j < kIn; ++j) {
        V column[kIn], o[6];
        for (int i = 0; i < kIn; ++i) column[i] = fetch(i, j, c, part);
        transform(column, o);
        for (int i = 0; i < 6; ++i) half[i][j] = o[i];
      }
      for (int i = 0; i < 6; ++i) {
        V o[6];
        transform(half[i], o);
        for (int j = 0; j < 6; ++j) hn::StoreU(o[j], d, p + (i * 6 + j) * position);
      }
    }
  }
}

void input(const WinogradGeo& g, const float* x, std::int64_t channels, std::int64_t t0, std::int64_t count, float* v,
           std::int64_t stride) {
  const auto transform = [](const V* d, V* o) HWY_ATTR { input_1d(d, o); };
  for (std::int64_t t = t0; t < t0 + count; ++t, v += kP) {
    const WinogradTile at(g, t);
    const std::int64_t y0 = at.y - g.pad_h, x0 = at.x - g.pad_w, base = (at.image * g.h + y0) * g.w + x0;
    if (y0 >= 0 && x0 >= 0 && y0 + 6 <= g.h && x0 + 6 <= g.w) {
      forward_tile<6>(channels, v, stride, transform, [&](int i, int j, std::int64_t c, std::int64_t part) HWY_ATTR {
        return load_channels(x + (base + i * g.w + j) * channels + c, part);
      });
    } else {
      forward_tile<6>(channels, v, stride, transform, [&](int i, int j, std::int64_t c, std::int64_t part) HWY_ATTR {
        const bool inside = y0 + i >= 0 && y0 + i < g.h && x0 + j >= 0 && x0 + j < g.w;
        return inside ? load_channels(x + (base + i * g.w + j) * channels + c, part) : hn::Zero(Tag<float>());
      });
    }
  }
}

void gradient(const WinogradGeo& g, const float* dy, std::int64_t channels, std::int64_t t0, std::int64_t count,
              float* z, std::int64_t stride) {
  const auto transform = [](const V* d, V* o) HWY_ATTR { gradient_1d(d, o); };
  for (std::int64_t t = t0; t < t0 + count; ++t, z += kP) {
    const WinogradTile at(g, t);
    const std::int64_t base = (at.image * g.oh + at.y) * g.ow + at.x;
    forward_tile<4>(channels, z, stride, transform, [&](int i, int j, std::int64_t c, std::int64_t part) HWY_ATTR {
      const bool inside = at.y + i < g.oh && at.x + j < g.ow;
      return inside ? load_channels(dy + (base + i * g.ow + j) * channels + c, part) : hn::Zero(Tag<float>());
    });
  }
}

void output(const WinogradGeo& g, const float* m, std::int64_t channels, std::int64_t t0, std::int64_t count,
            std::int64_t stride, const float* bias, float* y, std::int64_t total) {
  const Tag<float> d;
  const std::int64_t n_panels = panels<float>(channels), position = n_panels * stride * kP;
  for (std::int64_t t = t0; t < t0 + count; ++t, m += kP) {
    const WinogradTile at(g, t);
    const std::int64_t base = (at.image * g.oh + at.y) * g.ow + at.x;
    const std::int64_t rows = g.oh - at.y < 4 ? g.oh - at.y : 4, cols = g.ow - at.x < 4 ? g.ow - at.x : 4;
    for (std::int64_t panel = 0; panel < n_panels; ++panel) {
      for (std::int64_t h = 0; h < kP; h += kL) {
        const std::int64_t c = panel * kP + h, part = channels - c;
        if (part <= 0) break;
        const float* p = m + panel * stride * kP + h;
        V half[4][6];
        for (int j = 0; j < 6; ++j) {
          V column[6], o[4];
          for (int i = 0; i < 6; ++i) column[i] = hn::LoadU(d, p + (i * 6 + j) * position);
          output_1d(column, o);
          for (int i = 0; i < 4; ++i) half[i][j] = o[i];
        }
        const V offset = bias != nullptr ? load_channels(bias + c, part) : hn::Zero(d);
        for (int i = 0; i < rows; ++i) {
          V o[4];
          output_1d(half[i], o);
          float* out = y + (base + i * g.ow) * total + c;
          for (int j = 0; j < 4; ++j) {
            if (j >= cols) break;
            if (part >= kL) {
              hn::StoreU(hn::Add(o[j], offset), d, out + j * total);
            } else {
              store_part<float>(hn::Add(o[j], offset), out + j * total, part);
            }
          }
        }
      }
    }
  }
}

void filter(std::int64_t rows, const float* w, float* u, std::int64_t position) {
  const Tag<float> d;
  for (std::int64_t e = 0; e < rows * kP; e += kL) {
    V half[6][3];
    for (int s = 0; s < 3; ++s) {
      V column[3], o[6];
      for (int r = 0; r < 3; ++r) column[r] = hn::LoadU(d, w + (r * 3 + s) * rows * kP + e);
      filter_1d(column, o);
      for (int i = 0; i < 6; ++i) half[i][s] = o[i];
    }
    for (int i = 0; i < 6; ++i) {
      V o[6];
      filter_1d(half[i], o);
      for (int j = 0; j < 6; ++j) hn::StoreU(o[j], d, u + (i * 6 + j) * position + e);
    }
  }
}

void filter_gradient(std::int64_t rows, const float* u, std::int64_t position, float* dw, bool accumulate) {
  const Tag<float> d;
  for (std::int64_t e = 0; e < rows * kP; e += kL) {
    V half[3][6];
    for (int j = 0; j < 6; ++j) {
      V column[6], o[3];
      for (int i = 0; i < 6; ++i) column[i] = hn::LoadU(d, u + (i * 6 + j) * position + e);
      filter_gradient_1d(column, o);
      for (int r = 0; r < 3; ++r) half[r][j] = o[r];
    }
    for (int r = 0; r < 3; ++r) {
      V o[3];
      filter_gradient_1d(half[r], o);
      for (int s = 0; s < 3; ++s) {
        float* out = dw + (r * 3 + s) * rows * kP + e;
        hn::StoreU(accumulate ? hn::Add(o[s], hn::LoadU(d, out)) : o[s], d, out);
      }
    }
  }
}

inline constexpr WinogradKernels kWinogradKernels = {&input, &gradient, &output, &filter, &filter_gradient};

const WinogradKernels* winograd_table() { return &kWinogradKernels; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
HWY_EXPORT(winograd_table);
const WinogradKernels& winograd_kernels() { return *HWY_DYNAMIC_DISPATCH(winograd_table)(); }
}  // namespace limpid::cpu
#endif
