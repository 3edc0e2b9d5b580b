// Pooling from tensors to the kernels of pool.h; 16-bit floats by plain loops here, a strip of channels at a time.
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

// The outputs whose window has input i: the inverse of the two functions above.
Range outputs_with(std::int64_t i, std::int64_t stride, std::int64_t pad, std::int64_t kernel, std::int64_t outputs) {
  const std::int64_t first = i + pad - kernel;
  return {first < 0 ? 0 : first / stride + 1, std::min(outputs, (i + pad) / stride + 1)};
}
Range adaptive_outputs_with(std::int64_t i, std::int64_t extent, std::int64_t outputs) {
  return {i * outputs / extent, ((i + 1) * outputs + extent - 1) / extent};
}

constexpr std::int64_t kStrip = 64;

// strip(first channel, channels)
template <class Strip>
void for_strips(std::int64_t channels, Strip strip) {
  for (std::int64_t c = 0; c < channels; c += kStrip) strip(c, std::min(kStrip, channels - c));
}

template <class T>
void max_forward(const Pool2dDesc& d, const T* x, T* y, std::int32_t* indices) {
  parallel_for(d.n * d.oh, [&](std::int64_t row) {
    const T* image = x + row / d.oh * d.h * d.w * d.c;
    const std::int64_t oh = row % d.oh;
    for (std::int64_t ow = 0; ow < d.ow; ow++) {
      for_strips(d.c, [&](std::int64_t c, std::int64_t n) {
        float best[kStrip] = {}, value[kStrip];
        std::int32_t at[kStrip];
        std::fill(at, at + n, -1);
        bool first = true;
        for (std::int64_t r = 0; r < d.kernel_h; r++) {
          for (std::int64_t s = 0; s < d.kernel_w; s++) {
            std::int64_t ih = oh * d.stride_h - d.pad_h + r * d.dil_h, iw = ow * d.stride_w - d.pad_w + s * d.dil_w;
            if (ih < 0 || ih >= d.h || iw < 0 || iw >= d.w) continue;
            const std::int32_t pixel = static_cast<std::int32_t>(ih * d.w + iw);
            convert_run(n, image + pixel * d.c + c, value);
            for (std::int64_t i = 0; i < n; i++) {
              const bool larger = first | (value[i] > best[i]) | ((value[i] != value[i]) & (best[i] == best[i]));
              best[i] = larger ? value[i] : best[i];
              at[i] = larger ? pixel : at[i];
            }
            first = false;
          }
        }
        const std::int64_t to = (row * d.ow + ow) * d.c + c;
        convert_run(n, best, y + to);
        std::copy(at, at + n, indices + to);
      });
    }
  });
}

// Each input pixel collects from the outputs whose maximum it is: no conflicts, sums in float.
template <class T>
void max_backward(const Pool2dDesc& d, const T* dy, const std::int32_t* indices, T* dx) {
  parallel_for(d.n * d.h, [&](std::int64_t row) {
    const std::int64_t image = row / d.h, ih = row % d.h;
    for (std::int64_t iw = 0; iw < d.w; iw++) {
      for_strips(d.c, [&](std::int64_t c, std::int64_t n) {
        float sum[kStrip] = {}, grad[kStrip];
        const std::int32_t pixel = static_cast<std::int32_t>(ih * d.w + iw);
        for (std::int64_t r = 0; r < d.kernel_h; r++) {
          std::int64_t th = ih + d.pad_h - r * d.dil_h;
          if (th < 0 || th % d.stride_h != 0 || th / d.stride_h >= d.oh) continue;
          for (std::int64_t s = 0; s < d.kernel_w; s++) {
            std::int64_t tw = iw + d.pad_w - s * d.dil_w;
            if (tw < 0 || tw % d.stride_w != 0 || tw / d.stride_w >= d.ow) continue;
            const std::int64_t from = ((image * d.oh + th / d.stride_h) * d.ow + tw / d.stride_w) * d.c + c;
            convert_run(n, dy + from, grad);
            for (std::int64_t i = 0; i < n; i++) sum[i] += indices[from + i] == pixel ? grad[i] : 0.0f;
          }
        }
        convert_run(n, sum, dx + (row * d.w + iw) * d.c + c);
      });
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
      for_strips(d.c, [&](std::int64_t c, std::int64_t n) {
        double sum[kStrip] = {};
        float value[kStrip];
        for (std::int64_t ih = rh.begin; ih < rh.end; ih++) {
          for (std::int64_t iw = rw.begin; iw < rw.end; iw++) {
            convert_run(n, image + (ih * d.w + iw) * d.c + c, value);
            for (std::int64_t i = 0; i < n; i++) sum[i] += static_cast<double>(value[i]);
          }
        }
        for (std::int64_t i = 0; i < n; i++) value[i] = static_cast<float>(sum[i] / static_cast<double>(rows * cols));
        convert_run(n, value, y + (row * d.ow + ow) * d.c + c);
      });
    }
  });
}

template <class T>
void average_backward(const Pool2dDesc& d, bool adaptive, const T* dy, T* dx) {
  parallel_for(d.n * d.h, [&](std::int64_t row) {
    const std::int64_t image = row / d.h, ih = row % d.h;
    auto positions = [&](std::int64_t o, bool vertical) {
      std::int64_t counted = 0;
      Range r = adaptive ? (vertical ? adaptive_window(o, d.h, d.oh) : adaptive_window(o, d.w, d.ow))
                : vertical ? window(o, d.stride_h, d.pad_h, d.kernel_h, d.h, d.count_include_pad, counted)
                           : window(o, d.stride_w, d.pad_w, d.kernel_w, d.w, d.count_include_pad, counted);
      return adaptive ? r.end - r.begin : counted;
    };
    const Range oh = adaptive ? adaptive_outputs_with(ih, d.h, d.oh) : outputs_with(ih, d.stride_h, d.pad_h, d.kernel_h, d.oh);
    for (std::int64_t iw = 0; iw < d.w; iw++) {
      const Range ow = adaptive ? adaptive_outputs_with(iw, d.w, d.ow) : outputs_with(iw, d.stride_w, d.pad_w, d.kernel_w, d.ow);
      for_strips(d.c, [&](std::int64_t c, std::int64_t n) {
        float sum[kStrip] = {}, grad[kStrip];
        for (std::int64_t v = oh.begin; v < oh.end; v++) {
          for (std::int64_t u = ow.begin; u < ow.end; u++) {
            convert_run(n, dy + ((image * d.oh + v) * d.ow + u) * d.c + c, grad);
            const float count = static_cast<float>(positions(v, true) * positions(u, false));
            for (std::int64_t i = 0; i < n; i++) sum[i] += grad[i] / count;
          }
        }
        convert_run(n, sum, dx + (row * d.w + iw) * d.c + c);
      });
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
