// Targets as in panel.cpp. Inner loops run over channels and are vectorised by the compiler for each target.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/pool.cpp>
#include <hwy/foreach_target.h>

#include <algorithm>
#include <limits>

#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/cpu/pool.h>
#include <limpid/tensor/cpu/simd-inl.h>

#ifndef LIMPID_TENSOR_CPU_POOL_ONCE
#define LIMPID_TENSOR_CPU_POOL_ONCE
namespace limpid::cpu {
namespace {

// Each works on one row of one image: an output row in forward, an input row in backward passes.
template <class T>
struct PoolLoops {
  void (*max_row)(const PoolDesc& d, const T* image, std::int64_t oy, T* y, std::int32_t* indices);
  void (*max_back_row)(const PoolDesc& d, const T* dy, const std::int32_t* indices, std::int64_t iy, T* dx);
  void (*avg_row)(const PoolDesc& d, const T* image, std::int64_t oy, T* y);
  void (*avg_back_row)(const PoolDesc& d, const T* dy, std::int64_t iy, T* dx);
  void (*adaptive_row)(const PoolDesc& d, const T* image, std::int64_t oy, T* y);
  void (*adaptive_back_row)(const PoolDesc& d, const T* dy, std::int64_t iy, T* dx);
};

struct Range {
  std::int64_t begin, end;
};
inline Range clip(std::int64_t begin, std::int64_t end, std::int64_t size) {
  return {begin < 0 ? 0 : begin, end > size ? size : end};
}
// Outputs whose window [o * stride - pad, + extent) holds input position i.
inline Range covering(std::int64_t i, std::int64_t pad, std::int64_t extent, std::int64_t stride,
                      std::int64_t outputs) {
  const std::int64_t low = i + pad - extent + 1;
  return clip(low <= 0 ? 0 : (low + stride - 1) / stride, (i + pad) / stride + 1, outputs);
}
// Elements that the average divides by.
inline std::int64_t avg_count(const PoolDesc& d, std::int64_t oy, std::int64_t ox) {
  const std::int64_t y0 = oy * d.stride_h - d.pad_h, x0 = ox * d.stride_w - d.pad_w;
  std::int64_t y1 = y0 + d.kernel_h, x1 = x0 + d.kernel_w;
  if (d.count_include_pad) {  // the window may not stick out beyond the padding
    y1 = std::min(y1, d.h + d.pad_h), x1 = std::min(x1, d.w + d.pad_w);
    return (y1 - y0) * (x1 - x0);
  }
  return (std::min(y1, d.h) - std::max<std::int64_t>(y0, 0)) * (std::min(x1, d.w) - std::max<std::int64_t>(x0, 0));
}
inline Range adaptive_window(std::int64_t o, std::int64_t in, std::int64_t out) {
  return {o * in / out, ((o + 1) * in + out - 1) / out};
}

}  // namespace
}  // namespace limpid::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

template <class T>
void max_row(const PoolDesc& d, const T* image, std::int64_t oy, T* HWY_RESTRICT y,
             std::int32_t* HWY_RESTRICT indices) {
  for (std::int64_t ox = 0; ox < d.ow; ++ox, y += d.c) {
    bool first = true;
    for (std::int64_t r = 0; r < d.kernel_h; ++r) {
      const std::int64_t iy = oy * d.stride_h - d.pad_h + r * d.dil_h;
      if (iy < 0 || iy >= d.h) continue;
      for (std::int64_t s = 0; s < d.kernel_w; ++s) {
        const std::int64_t ix = ox * d.stride_w - d.pad_w + s * d.dil_w;
        if (ix < 0 || ix >= d.w) continue;
        const std::int32_t at = static_cast<std::int32_t>(iy * d.w + ix);
        const T* HWY_RESTRICT x = image + (iy * d.w + ix) * d.c;
        if (first) {
          first = false;
          for (std::int64_t c = 0; c < d.c; ++c) y[c] = x[c];
          if (indices != nullptr) {
            for (std::int64_t c = 0; c < d.c; ++c) indices[c] = at;
          }
        } else if (indices != nullptr) {
          for (std::int64_t c = 0; c < d.c; ++c) {
            const T v = x[c], best = y[c];
            const bool wins = v > best || v != v;
            y[c] = wins ? v : best;
            indices[c] = wins ? at : indices[c];
          }
        } else {
          for (std::int64_t c = 0; c < d.c; ++c) {
            const T v = x[c], best = y[c];
            y[c] = v > best || v != v ? v : best;
          }
        }
      }
    }
    if (first) {  // a window in the padding alone
      for (std::int64_t c = 0; c < d.c; ++c) y[c] = -std::numeric_limits<T>::infinity();
      for (std::int64_t c = 0; indices != nullptr && c < d.c; ++c) indices[c] = 0;
    }
    if (indices != nullptr) indices += d.c;
  }
}

template <class T>
void max_back_row(const PoolDesc& d, const T* dy, const std::int32_t* indices, std::int64_t iy, T* HWY_RESTRICT dx) {
  for (std::int64_t i = 0; i < d.w * d.c; ++i) dx[i] = T(0);
  const std::int64_t extent_h = (d.kernel_h - 1) * d.dil_h + 1, extent_w = (d.kernel_w - 1) * d.dil_w + 1;
  const bool overlap = extent_h > d.stride_h || extent_w > d.stride_w;
  const Range rows = covering(iy, d.pad_h, extent_h, d.stride_h, d.oh);
  for (std::int64_t oy = rows.begin; oy < rows.end; ++oy) {
    if ((iy + d.pad_h - oy * d.stride_h) % d.dil_h != 0) continue;
    for (std::int64_t ox = 0; ox < d.ow; ++ox) {
      const T* HWY_RESTRICT g = dy + (oy * d.ow + ox) * d.c;
      const std::int32_t* HWY_RESTRICT index = indices + (oy * d.ow + ox) * d.c;
      for (std::int64_t s = 0; s < d.kernel_w; ++s) {
        const std::int64_t ix = ox * d.stride_w - d.pad_w + s * d.dil_w;
        if (ix < 0 || ix >= d.w) continue;
        const std::int32_t at = static_cast<std::int32_t>(iy * d.w + ix);
        T* HWY_RESTRICT out = dx + ix * d.c;
        if (overlap) {
          for (std::int64_t c = 0; c < d.c; ++c) out[c] += index[c] == at ? g[c] : T(0);
        } else {
          for (std::int64_t c = 0; c < d.c; ++c) out[c] = index[c] == at ? g[c] : T(0);
        }
      }
    }
  }
}

template <class T>
HWY_INLINE void add_to(std::int64_t n, const T* HWY_RESTRICT x, T factor, T* HWY_RESTRICT y) {
  for (std::int64_t c = 0; c < n; ++c) y[c] += factor * x[c];
}

// y = mean of the window: sums of a window row first, so that the error of long windows stays small.
template <class T>
HWY_INLINE void window_mean(const PoolDesc& d, const T* image, Range rows, Range cols, T inverse, T* HWY_RESTRICT y) {
  constexpr std::int64_t kStrip = 64;
  T line[kStrip], total[kStrip];
  for (std::int64_t c0 = 0; c0 < d.c; c0 += kStrip) {
    const std::int64_t width = d.c - c0 < kStrip ? d.c - c0 : kStrip;
    for (std::int64_t c = 0; c < kStrip; ++c) total[c] = T(0);
    for (std::int64_t iy = rows.begin; iy < rows.end; ++iy) {
      const T* x = image + iy * d.w * d.c + c0;
      for (std::int64_t c = 0; c < kStrip; ++c) line[c] = T(0);
      if (width == kStrip) {
        for (std::int64_t ix = cols.begin; ix < cols.end; ++ix) {
          for (std::int64_t c = 0; c < kStrip; ++c) line[c] += x[ix * d.c + c];
        }
      } else {
        for (std::int64_t ix = cols.begin; ix < cols.end; ++ix) {
          for (std::int64_t c = 0; c < width; ++c) line[c] += x[ix * d.c + c];
        }
      }
      for (std::int64_t c = 0; c < kStrip; ++c) total[c] += line[c];
    }
    for (std::int64_t c = 0; c < width; ++c) y[c0 + c] = total[c] * inverse;
  }
}

template <class T>
void avg_row(const PoolDesc& d, const T* image, std::int64_t oy, T* y) {
  const std::int64_t y0 = oy * d.stride_h - d.pad_h;
  for (std::int64_t ox = 0; ox < d.ow; ++ox, y += d.c) {
    const std::int64_t x0 = ox * d.stride_w - d.pad_w;
    const T inverse = T(1) / static_cast<T>(avg_count(d, oy, ox));
    window_mean(d, image, clip(y0, y0 + d.kernel_h, d.h), clip(x0, x0 + d.kernel_w, d.w), inverse, y);
  }
}

template <class T>
void avg_back_row(const PoolDesc& d, const T* dy, std::int64_t iy, T* dx) {
  const Range rows = covering(iy, d.pad_h, d.kernel_h, d.stride_h, d.oh);
  for (std::int64_t ix = 0; ix < d.w; ++ix, dx += d.c) {
    for (std::int64_t c = 0; c < d.c; ++c) dx[c] = T(0);
    const Range cols = covering(ix, d.pad_w, d.kernel_w, d.stride_w, d.ow);
    for (std::int64_t oy = rows.begin; oy < rows.end; ++oy) {
      for (std::int64_t ox = cols.begin; ox < cols.end; ++ox) {
        add_to(d.c, dy + (oy * d.ow + ox) * d.c, T(1) / static_cast<T>(avg_count(d, oy, ox)), dx);
      }
    }
  }
}

template <class T>
void adaptive_row(const PoolDesc& d, const T* image, std::int64_t oy, T* y) {
  const Range rows = adaptive_window(oy, d.h, d.oh);
  for (std::int64_t ox = 0; ox < d.ow; ++ox, y += d.c) {
    const Range cols = adaptive_window(ox, d.w, d.ow);
    const std::int64_t count = (rows.end - rows.begin) * (cols.end - cols.begin);
    window_mean(d, image, rows, cols, T(1) / static_cast<T>(count), y);
  }
}

template <class T>
void adaptive_back_row(const PoolDesc& d, const T* dy, std::int64_t iy, T* dx) {
  for (std::int64_t i = 0; i < d.w * d.c; ++i) dx[i] = T(0);
  // Windows overlap by at most one position on each side: the first that can hold iy is floor(iy * oh / h).
  for (std::int64_t oy = iy * d.oh / d.h; oy < d.oh; ++oy) {
    const Range rows = adaptive_window(oy, d.h, d.oh);
    if (rows.begin > iy) break;
    if (rows.end <= iy) continue;
    for (std::int64_t ox = 0; ox < d.ow; ++ox) {
      const Range cols = adaptive_window(ox, d.w, d.ow);
      const T inverse = T(1) / static_cast<T>((rows.end - rows.begin) * (cols.end - cols.begin));
      const T* g = dy + (oy * d.ow + ox) * d.c;
      for (std::int64_t ix = cols.begin; ix < cols.end; ++ix) add_to(d.c, g, inverse, dx + ix * d.c);
    }
  }
}

template <class T>
inline constexpr PoolLoops<T> kPoolLoops = {&max_row<T>,      &max_back_row<T>, &avg_row<T>,
                                            &avg_back_row<T>, &adaptive_row<T>, &adaptive_back_row<T>};

const void* pool_loops_float() { return &kPoolLoops<float>; }
const void* pool_loops_double() { return &kPoolLoops<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
namespace {

HWY_EXPORT(pool_loops_float);
HWY_EXPORT(pool_loops_double);

template <class T>
const PoolLoops<T>& pool_loops() {
  if constexpr (sizeof(T) == 4) {
    return *static_cast<const PoolLoops<T>*>(HWY_DYNAMIC_DISPATCH(pool_loops_float)());
  } else {
    return *static_cast<const PoolLoops<T>*>(HWY_DYNAMIC_DISPATCH(pool_loops_double)());
  }
}

// Calls fn(image, row) for all rows of all images; `work` is the elements read a row.
template <class Fn>
void for_rows(std::int64_t images, std::int64_t rows, std::int64_t work, const Fn& fn) {
  constexpr std::int64_t kGrain = 16384;
  const std::int64_t total = images * rows;
  const auto range = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) fn(row / rows, row % rows);
  };
  if (total * work <= 2 * kGrain) {
    range(0, total);
  } else {
    parallel_chunks(total, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(work, 1)), range);
  }
}

}  // namespace

template <class T>
void max_pool2d(const PoolDesc& d, const T* x, T* y, std::int32_t* indices) {
  const auto& loops = pool_loops<T>();
  for_rows(d.n, d.oh, d.ow * d.c * d.kernel_h * d.kernel_w, [&](std::int64_t n, std::int64_t oy) {
    const std::int64_t at = (n * d.oh + oy) * d.ow * d.c;
    loops.max_row(d, x + n * d.h * d.w * d.c, oy, y + at, indices != nullptr ? indices + at : nullptr);
  });
}
template <class T>
void max_pool2d_backward(const PoolDesc& d, const T* dy, const std::int32_t* indices, T* dx) {
  const auto& loops = pool_loops<T>();
  for_rows(d.n, d.h, d.w * d.c, [&](std::int64_t n, std::int64_t iy) {
    const std::int64_t at = n * d.oh * d.ow * d.c;
    loops.max_back_row(d, dy + at, indices + at, iy, dx + (n * d.h + iy) * d.w * d.c);
  });
}
template <class T>
void avg_pool2d(const PoolDesc& d, const T* x, T* y) {
  const auto& loops = pool_loops<T>();
  for_rows(d.n, d.oh, d.ow * d.c * d.kernel_h * d.kernel_w, [&](std::int64_t n, std::int64_t oy) {
    loops.avg_row(d, x + n * d.h * d.w * d.c, oy, y + (n * d.oh + oy) * d.ow * d.c);
  });
}
template <class T>
void avg_pool2d_backward(const PoolDesc& d, const T* dy, T* dx) {
  const auto& loops = pool_loops<T>();
  for_rows(d.n, d.h, d.w * d.c, [&](std::int64_t n, std::int64_t iy) {
    loops.avg_back_row(d, dy + n * d.oh * d.ow * d.c, iy, dx + (n * d.h + iy) * d.w * d.c);
  });
}
template <class T>
void adaptive_avg_pool2d(const PoolDesc& d, const T* x, T* y) {
  const auto& loops = pool_loops<T>();
  for_rows(d.n, d.oh, d.h * d.w * d.c / std::max<std::int64_t>(d.oh, 1), [&](std::int64_t n, std::int64_t oy) {
    loops.adaptive_row(d, x + n * d.h * d.w * d.c, oy, y + (n * d.oh + oy) * d.ow * d.c);
  });
}
template <class T>
void adaptive_avg_pool2d_backward(const PoolDesc& d, const T* dy, T* dx) {
  const auto& loops = pool_loops<T>();
  for_rows(d.n, d.h, d.w * d.c, [&](std::int64_t n, std::int64_t iy) {
    loops.adaptive_back_row(d, dy + n * d.oh * d.ow * d.c, iy, dx + (n * d.h + iy) * d.w * d.c);
  });
}

#define LIMPID_INSTANTIATE(T)                                                               \
  template void max_pool2d<T>(const PoolDesc&, const T*, T*, std::int32_t*);                \
  template void max_pool2d_backward<T>(const PoolDesc&, const T*, const std::int32_t*, T*); \
  template void avg_pool2d<T>(const PoolDesc&, const T*, T*);                               \
  template void avg_pool2d_backward<T>(const PoolDesc&, const T*, T*);                      \
  template void adaptive_avg_pool2d<T>(const PoolDesc&, const T*, T*);                      \
  template void adaptive_avg_pool2d_backward<T>(const PoolDesc&, const T*, T*);
LIMPID_INSTANTIATE(float)
LIMPID_INSTANTIATE(double)
#undef LIMPID_INSTANTIATE

}  // namespace limpid::cpu
#endif
