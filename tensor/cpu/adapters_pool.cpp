// Pooling from tensors to the kernels of pool.h; 16-bit floats by plain loops here, without copies.
#include <algorithm>

#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/pool.h>

namespace limpid::cpu {
namespace {

PoolDesc direct(const Pool2dDesc& d) {
  return {.n = d.n, .c = d.c, .h = d.h, .w = d.w, .oh = d.oh, .ow = d.ow, .kernel_h = d.kernel_h,
          .kernel_w = d.kernel_w, .stride_h = d.stride_h, .stride_w = d.stride_w, .pad_h = d.pad_h, .pad_w = d.pad_w,
          .dil_h = d.dil_h, .dil_w = d.dil_w, .count_include_pad = d.count_include_pad};
}

struct Range {
  std::int64_t begin, end;
};

// The window of output i, and how many positions of it count in an average.
Range window(std::int64_t i, std::int64_t stride, std::int64_t pad, std::int64_t kernel, std::int64_t extent,
             bool with_pad, std::int64_t& counted) {
  std::int64_t begin = i * stride - pad;
  std::int64_t end = std::min(begin + kernel, extent + pad);
  Range inside{std::max<std::int64_t>(begin, 0), std::min(end, extent)};
  counted = with_pad ? end - begin : inside.end - inside.begin;
  return inside;
}
Range adaptive_window(std::int64_t i, std::int64_t extent, std::int64_t outputs) {
  return {i * extent / outputs, ((i + 1) * extent + outputs - 1) / outputs};
}

template <class T>
void max_forward(const Pool2dDesc& d, const T* x, T* y, std::int32_t* indices) {
  parallel_for(d.n * d.oh, [&](std::int64_t row) {
    const T* image = x + row / d.oh * d.h * d.w * d.c;
    const std::int64_t oh = row % d.oh;
    for (std::int64_t ow = 0; ow < d.ow; ow++) {
      for (std::int64_t c = 0; c < d.c; c++) {
        float best = 0;
        std::int64_t at = -1;
        for (std::int64_t r = 0; r < d.kernel_h; r++) {
          for (std::int64_t s = 0; s < d.kernel_w; s++) {
            std::int64_t ih = oh * d.stride_h - d.pad_h + r * d.dil_h, iw = ow * d.stride_w - d.pad_w + s * d.dil_w;
            if (ih < 0 || ih >= d.h || iw < 0 || iw >= d.w) continue;
            float value = image[(ih * d.w + iw) * d.c + c];
            if (at < 0 || value > best || (value != value && best == best)) {
              best = value;
              at = ih * d.w + iw;
            }
          }
        }
        std::int64_t to = (row * d.ow + ow) * d.c + c;
        y[to] = T(best);
        indices[to] = static_cast<std::int32_t>(at);
      }
    }
  });
}

// Each input pixel collects from the outputs whose maximum it is: no conflicts, sums in float.
template <class T>
void max_backward(const Pool2dDesc& d, const T* dy, const std::int32_t* indices, T* dx) {
  parallel_for(d.n * d.h, [&](std::int64_t row) {
    const std::int64_t n = row / d.h, ih = row % d.h;
    for (std::int64_t iw = 0; iw < d.w; iw++) {
      for (std::int64_t c = 0; c < d.c; c++) {
        float sum = 0;
        for (std::int64_t r = 0; r < d.kernel_h; r++) {
          std::int64_t th = ih + d.pad_h - r * d.dil_h;
          if (th < 0 || th % d.stride_h != 0 || th / d.stride_h >= d.oh) continue;
          for (std::int64_t s = 0; s < d.kernel_w; s++) {
            std::int64_t tw = iw + d.pad_w - s * d.dil_w;
            if (tw < 0 || tw % d.stride_w != 0 || tw / d.stride_w >= d.ow) continue;
            std::int64_t from = ((n * d.oh + th / d.stride_h) * d.ow + tw / d.stride_w) * d.c + c;
            if (indices[from] == ih * d.w + iw) sum += static_cast<float>(dy[from]);
          }
        }
        dx[(row * d.w + iw) * d.c + c] = T(sum);
      }
    }
  });
}

template <class T>
void average_forward(const Pool2dDesc& d, bool adaptive, const T* x, T* y) {
  parallel_for(d.n * d.oh, [&](std::int64_t row) {
    const T* image = x + row / d.oh * d.h * d.w * d.c;
    std::int64_t rows = 0, cols = 0;
    Range rh = adaptive ? adaptive_window(row % d.oh, d.h, d.oh)
                        : window(row % d.oh, d.stride_h, d.pad_h, d.kernel_h, d.h, d.count_include_pad, rows);
    if (adaptive) rows = rh.end - rh.begin;
    for (std::int64_t ow = 0; ow < d.ow; ow++) {
      Range rw = adaptive ? adaptive_window(ow, d.w, d.ow)
                          : window(ow, d.stride_w, d.pad_w, d.kernel_w, d.w, d.count_include_pad, cols);
      if (adaptive) cols = rw.end - rw.begin;
      for (std::int64_t c = 0; c < d.c; c++) {
        double sum = 0;
        for (std::int64_t ih = rh.begin; ih < rh.end; ih++) {
          for (std::int64_t iw = rw.begin; iw < rw.end; iw++) {
            sum += static_cast<double>(static_cast<float>(image[(ih * d.w + iw) * d.c + c]));
          }
        }
        y[(row * d.ow + ow) * d.c + c] = T(static_cast<float>(sum / static_cast<double>(rows * cols)));
      }
    }
  });
}

template <class T>
void average_backward(const Pool2dDesc& d, bool adaptive, const T* dy, T* dx) {
  parallel_for(d.n * d.h, [&](std::int64_t row) {
    const std::int64_t n = row / d.h, ih = row % d.h;
    auto range = [&](std::int64_t o, bool vertical, std::int64_t& counted) {
      if (adaptive) {
        Range r = vertical ? adaptive_window(o, d.h, d.oh) : adaptive_window(o, d.w, d.ow);
        counted = r.end - r.begin;
        return r;
      }
      return vertical ? window(o, d.stride_h, d.pad_h, d.kernel_h, d.h, d.count_include_pad, counted)
                      : window(o, d.stride_w, d.pad_w, d.kernel_w, d.w, d.count_include_pad, counted);
    };
    for (std::int64_t iw = 0; iw < d.w; iw++) {
      for (std::int64_t c = 0; c < d.c; c++) {
        float sum = 0;
        for (std::int64_t oh = 0; oh < d.oh; oh++) {
          std::int64_t rows = 0;
          Range rh = range(oh, true, rows);
          if (ih < rh.begin || ih >= rh.end) continue;
          for (std::int64_t ow = 0; ow < d.ow; ow++) {
            std::int64_t cols = 0;
            Range rw = range(ow, false, cols);
            if (iw < rw.begin || iw >= rw.end) continue;
            sum += static_cast<float>(dy[((n * d.oh + oh) * d.ow + ow) * d.c + c]) / static_cast<float>(rows * cols);
          }
        }
        dx[(row * d.w + iw) * d.c + c] = T(sum);
      }
    }
  });
}

}  // namespace

void max_pool2d(const Pool2dDesc& desc, Tensor& y, Tensor& indices, const Tensor& x) {
  std::int32_t* at = indices.defined() ? indices.mutable_data<std::int32_t>() : nullptr;
  visit_floating(x.dtype(), "max_pool2d", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      max_pool2d<T>(direct(desc), x.data<T>(), y.mutable_data<T>(), at);
    } else {
      max_forward<T>(desc, x.data<T>(), y.mutable_data<T>(), at);
    }
  });
}

void max_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy, const Tensor& indices) {
  const std::int32_t* at = indices.data<std::int32_t>();
  visit_floating(dy.dtype(), "max_pool2d", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      max_pool2d_backward<T>(direct(desc), dy.data<T>(), at, dx.mutable_data<T>());
    } else {
      max_backward<T>(desc, dy.data<T>(), at, dx.mutable_data<T>());
    }
  });
}

void avg_pool2d(const Pool2dDesc& desc, Tensor& y, const Tensor& x) {
  visit_floating(x.dtype(), "avg_pool2d", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      avg_pool2d<T>(direct(desc), x.data<T>(), y.mutable_data<T>());
    } else {
      average_forward<T>(desc, false, x.data<T>(), y.mutable_data<T>());
    }
  });
}

void avg_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy) {
  visit_floating(dy.dtype(), "avg_pool2d", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      avg_pool2d_backward<T>(direct(desc), dy.data<T>(), dx.mutable_data<T>());
    } else {
      average_backward<T>(desc, false, dy.data<T>(), dx.mutable_data<T>());
    }
  });
}

void adaptive_avg_pool2d(const Pool2dDesc& desc, Tensor& y, const Tensor& x) {
  visit_floating(x.dtype(), "adaptive_avg_pool2d", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      adaptive_avg_pool2d<T>(direct(desc), x.data<T>(), y.mutable_data<T>());
    } else {
      average_forward<T>(desc, true, x.data<T>(), y.mutable_data<T>());
    }
  });
}

void adaptive_avg_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy) {
  visit_floating(dy.dtype(), "adaptive_avg_pool2d", [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      adaptive_avg_pool2d_backward<T>(direct(desc), dy.data<T>(), dx.mutable_data<T>());
    } else {
      average_backward<T>(desc, true, dy.data<T>(), dx.mutable_data<T>());
    }
  });
}

}  // namespace limpid::cpu
