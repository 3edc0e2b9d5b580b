// Targets as in panel.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/conv_kernels.cpp>
#include <hwy/foreach_target.h>

#include <limpid/tensor/cpu/conv_kernels.h>
#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE void copy_panel_row(const T* src, T* dst) {
  for (std::int64_t j = 0; j < kPanel<T>; ++j) dst[j] = src[j];
}
template <class T>
HWY_INLINE void zero_panel_row(T* dst) {
  for (std::int64_t j = 0; j < kPanel<T>; ++j) dst[j] = T(0);
}

// Channels are whole panels: every panel belongs to one tap, so rows of pixels are copied a cache line each.
template <class T>
void pack_aligned(const PatchMap& m, const T* x, std::int64_t p0, std::int64_t count, std::int64_t k0, std::int64_t kn,
                  T* dst) {
  constexpr std::int64_t P = kPanel<T>;
  const std::int64_t per_tap = m.cn / P;
  for (std::int64_t q = k0 / P; q < (k0 + kn) / P; ++q) {
    const std::int64_t tap = q / per_tap, c = q % per_tap * P;
    const std::int64_t ty = m.ty0 + tap / m.ns * m.dty, tx = m.tx0 + tap % m.ns * m.dtx;
    // Patches [lo, hi) of a grid row see a column inside the image.
    std::int64_t lo = tx < 0 ? (-tx + m.sx - 1) / m.sx : 0;
    std::int64_t hi = m.iw - tx > 0 ? (m.iw - tx + m.sx - 1) / m.sx : 0;
    if (lo > m.gw) lo = m.gw;
    if (hi > m.gw) hi = m.gw;
    if (hi < lo) hi = lo;
    std::int64_t p = p0;
    while (p < p0 + count) {
      const std::int64_t j0 = p % m.gw, i = p / m.gw % m.gh, n = p / (m.gw * m.gh);
      const std::int64_t run = m.gw - j0 < p0 + count - p ? m.gw - j0 : p0 + count - p;
      const std::int64_t y = i * m.sy + ty, j1 = j0 + run;
      const bool inside = y >= 0 && y < m.ih;
      const std::int64_t begin = !inside ? j1 : lo < j0 ? j0 : lo > j1 ? j1 : lo;
      const std::int64_t end = !inside ? j1 : hi > j1 ? j1 : hi < begin ? begin : hi;
      std::int64_t j = j0;
      for (; j < begin; ++j, dst += P) zero_panel_row(dst);
      if (j < end) {
        const T* src = x + ((n * m.ih + y) * m.iw + j * m.sx + tx) * m.ct + c;
        const std::int64_t step = m.sx * m.ct;
        for (; j < end; ++j, dst += P, src += step) copy_panel_row(src, dst);
      }
      for (; j < j1; ++j, dst += P) zero_panel_row(dst);
      p += run;
    }
  }
}

// Writes a run of the patch matrix's row at column `pos`, splitting it at panel borders. src null: zeros.
template <class T>
struct RowWriter {
  T* row;               // the patch's slot in the first panel
  std::int64_t stride;  // between panels
  std::int64_t pos = 0;
  HWY_INLINE void put(const T* src, std::int64_t len) {
    constexpr std::int64_t P = kPanel<T>;
    while (len > 0) {
      const std::int64_t o = pos % P, room = P - o < len ? P - o : len;
      T* out = row + pos / P * stride + o;
      if (src != nullptr) {
        for (std::int64_t j = 0; j < room; ++j) out[j] = src[j];
        src += room;
      } else {
        for (std::int64_t j = 0; j < room; ++j) out[j] = T(0);
      }
      pos += room;
      len -= room;
    }
  }
};

// A short patch (first layers): element by element, with tables of source and destination offsets. Columns beyond the
// depth are left alone: no product reads them.
inline constexpr std::int64_t kShortPatch = 160;

template <class T>
void pack_short(const PatchMap& m, const T* x, std::int64_t p0, std::int64_t count, T* dst) {
  constexpr std::int64_t P = kPanel<T>;
  const std::int64_t depth = m.depth();
  std::int32_t from[kShortPatch], to[kShortPatch];
  std::int16_t row_of[kShortPatch], col_of[kShortPatch];
  for (std::int64_t k = 0; k < depth; ++k) {
    const std::int64_t c = k % m.cn, s = k / m.cn % m.ns, r = k / (m.cn * m.ns);
    from[k] = static_cast<std::int32_t>((r * m.dty * m.iw + s * m.dtx) * m.ct + c);
    to[k] = static_cast<std::int32_t>(k / P * count * P + k % P);
    row_of[k] = static_cast<std::int16_t>(r), col_of[k] = static_cast<std::int16_t>(s);
  }
  std::int64_t j = p0 % m.gw, i = p0 / m.gw % m.gh, n = p0 / (m.gw * m.gh);
  for (std::int64_t p = 0; p < count; ++p, dst += P) {
    const std::int64_t y0 = i * m.sy + m.ty0, x0 = j * m.sx + m.tx0;
    const std::int64_t base = ((n * m.ih + y0) * m.iw + x0) * m.ct;
    if (y0 >= 0 && x0 >= 0 && y0 + (m.nr - 1) * m.dty < m.ih && x0 + (m.ns - 1) * m.dtx < m.iw) {
      const T* src = x + base;
      for (std::int64_t k = 0; k < depth; ++k) dst[to[k]] = src[from[k]];
    } else {
      for (std::int64_t k = 0; k < depth; ++k) {
        const std::int64_t yy = y0 + row_of[k] * m.dty, xx = x0 + col_of[k] * m.dtx;
        dst[to[k]] = yy >= 0 && yy < m.ih && xx >= 0 && xx < m.iw ? x[base + from[k]] : T(0);
      }
    }
    if (++j == m.gw) {
      j = 0;
      if (++i == m.gh) i = 0, ++n;
    }
  }
}

template <class T>
void pack_patches(const PatchMap& m, const T* x, std::int64_t p0, std::int64_t count, std::int64_t k0, std::int64_t kn,
                  T* dst) {
  constexpr std::int64_t P = kPanel<T>;
  if (m.cn % P == 0) return pack_aligned(m, x, p0, count, k0, kn, dst);
  if (k0 == 0 && kn == m.depth() && kn <= kShortPatch) return pack_short(m, x, p0, count, dst);
  const bool merged = m.dtx == 1 && m.cn == m.ct;
  const std::int64_t k1 = k0 + kn, row_run = m.ns * m.cn, padded = round_up(kn, P);
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t q = p0 + p, j = q % m.gw, i = q / m.gw % m.gh, n = q / (m.gw * m.gh);
    const std::int64_t x0 = j * m.sx + m.tx0, x1 = x0 + (m.ns - 1) * m.dtx;
    RowWriter<T> writer{dst + p * P, count * P};
    for (std::int64_t r = k0 / row_run; r < m.nr && r * row_run < k1; ++r) {
      // The wanted part [a, b) of this tap row.
      const std::int64_t a = k0 > r * row_run ? k0 - r * row_run : 0;
      const std::int64_t b = k1 < (r + 1) * row_run ? k1 - r * row_run : row_run;
      const std::int64_t y = i * m.sy + m.ty0 + r * m.dty;
      if (y < 0 || y >= m.ih) {
        writer.put(nullptr, b - a);
        continue;
      }
      const T* line = x + (n * m.ih + y) * m.iw * m.ct;
      if (merged && x0 >= 0 && x1 < m.iw) {
        writer.put(line + x0 * m.ct + a, b - a);
        continue;
      }
      for (std::int64_t e = a; e < b;) {
        const std::int64_t s = e / m.cn, c = e % m.cn, len = m.cn - c < b - e ? m.cn - c : b - e;
        const std::int64_t xx = x0 + s * m.dtx;
        writer.put(xx >= 0 && xx < m.iw ? line + xx * m.ct + c : nullptr, len);
        e += len;
      }
    }
    writer.put(nullptr, padded - kn);
  }
}

template <class T>
void pack_filter(const FilterMap& m, const T* w, std::int64_t panel, T* dst) {
  constexpr std::int64_t P = kPanel<T>;
  const std::int64_t n0 = panel * P, n = m.n - n0 < P ? m.n - n0 : P;
  w += n0 * m.stride_n;
  for (std::int64_t c = 0; c < m.cn; ++c) {
    for (std::int64_t r = 0; r < m.nr; ++r) {
      for (std::int64_t s = 0; s < m.ns; ++s) {
        const T* src = w + c * m.stride_c + r * m.stride_r + s * m.stride_s;
        T* out = dst + ((r * m.ns + s) * m.cn + c) * P;
        if (n == P) {
          for (std::int64_t j = 0; j < P; ++j) out[j] = src[j * m.stride_n];
        } else {
          for (std::int64_t j = 0; j < P; ++j) out[j] = j < n ? src[j * m.stride_n] : T(0);
        }
      }
    }
  }
}

template <class T>
void unpack_filter(const FilterMap& m, const T* src, std::int64_t parts, std::int64_t part_stride, std::int64_t panel,
                   T* w) {
  constexpr std::int64_t P = kPanel<T>;
  const std::int64_t n0 = panel * P, n = m.n - n0 < P ? m.n - n0 : P;
  w += n0 * m.stride_n;
  for (std::int64_t c = 0; c < m.cn; ++c) {
    for (std::int64_t r = 0; r < m.nr; ++r) {
      for (std::int64_t s = 0; s < m.ns; ++s) {
        const T* in = src + ((r * m.ns + s) * m.cn + c) * P;
        T* out = w + c * m.stride_c + r * m.stride_r + s * m.stride_s;
        T total[kPanel<T>];
        for (std::int64_t j = 0; j < P; ++j) total[j] = in[j];
        for (std::int64_t q = 1; q < parts; ++q) {
          for (std::int64_t j = 0; j < P; ++j) total[j] += in[q * part_stride + j];
        }
        for (std::int64_t j = 0; j < n; ++j) out[j * m.stride_n] = total[j];
      }
    }
  }
}

template <class T>
void depthwise_forward_row(const DepthwiseDesc& d, const T* image, const T* taps, const T* bias, std::int64_t row,
                           T* HWY_RESTRICT y) {
  for (std::int64_t ox = 0; ox < d.ow; ++ox, y += d.c) {
    for (std::int64_t c = 0; c < d.c; ++c) y[c] = bias != nullptr ? bias[c] : T(0);
    for (std::int64_t r = 0; r < d.r; ++r) {
      const std::int64_t iy = row * d.stride_h - d.pad_h + r * d.dil_h;
      if (iy < 0 || iy >= d.h) continue;
      for (std::int64_t s = 0; s < d.s; ++s) {
        const std::int64_t ix = ox * d.stride_w - d.pad_w + s * d.dil_w;
        if (ix < 0 || ix >= d.w) continue;
        const T* src = image + (iy * d.w + ix) * d.c;
        const T* tap = taps + (r * d.s + s) * d.c;
        for (std::int64_t c = 0; c < d.c; ++c) y[c] += src[c] * tap[c];
      }
    }
  }
}

template <class T>
void depthwise_input_row(const DepthwiseDesc& d, const T* dy_image, const T* taps, std::int64_t row,
                         T* HWY_RESTRICT dx) {
  for (std::int64_t ix = 0; ix < d.w; ++ix, dx += d.c) {
    for (std::int64_t c = 0; c < d.c; ++c) dx[c] = T(0);
    for (std::int64_t r = 0; r < d.r; ++r) {
      const std::int64_t ny = row + d.pad_h - r * d.dil_h;
      if (ny < 0 || ny % d.stride_h != 0 || ny / d.stride_h >= d.oh) continue;
      for (std::int64_t s = 0; s < d.s; ++s) {
        const std::int64_t nx = ix + d.pad_w - s * d.dil_w;
        if (nx < 0 || nx % d.stride_w != 0 || nx / d.stride_w >= d.ow) continue;
        const T* src = dy_image + (ny / d.stride_h * d.ow + nx / d.stride_w) * d.c;
        const T* tap = taps + (r * d.s + s) * d.c;
        for (std::int64_t c = 0; c < d.c; ++c) dx[c] += src[c] * tap[c];
      }
    }
  }
}

template <class T>
void depthwise_weight_row(const DepthwiseDesc& d, const T* image, const T* dy, std::int64_t row, T* HWY_RESTRICT taps) {
  for (std::int64_t r = 0; r < d.r; ++r) {
    const std::int64_t iy = row * d.stride_h - d.pad_h + r * d.dil_h;
    if (iy < 0 || iy >= d.h) continue;
    for (std::int64_t s = 0; s < d.s; ++s) {
      T* HWY_RESTRICT tap = taps + (r * d.s + s) * d.c;
      for (std::int64_t ox = 0; ox < d.ow; ++ox) {
        const std::int64_t ix = ox * d.stride_w - d.pad_w + s * d.dil_w;
        if (ix < 0 || ix >= d.w) continue;
        const T* src = image + (iy * d.w + ix) * d.c;
        const T* g = dy + ox * d.c;
        for (std::int64_t c = 0; c < d.c; ++c) tap[c] += src[c] * g[c];
      }
    }
  }
}

template <class T>
inline constexpr ConvKernels<T> kConvKernels = {&pack_patches<T>,        &pack_filter<T>,
                                                &unpack_filter<T>,       &depthwise_forward_row<T>,
                                                &depthwise_input_row<T>, &depthwise_weight_row<T>};

const ConvKernels<float>* conv_kernels_float() { return &kConvKernels<float>; }
const ConvKernels<double>* conv_kernels_double() { return &kConvKernels<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
HWY_EXPORT(conv_kernels_float);
HWY_EXPORT(conv_kernels_double);

template <>
const ConvKernels<float>& conv_kernels<float>() {
  return *HWY_DYNAMIC_DISPATCH(conv_kernels_float)();
}
template <>
const ConvKernels<double>& conv_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(conv_kernels_double)();
}
}  // namespace limpid::cpu
#endif
