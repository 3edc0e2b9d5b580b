#include <limpid/cuda/kernels/pool.cuh>

#include <cmath>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/image_index.cuh>

namespace limpid::cu {
namespace {

struct Range {
  int begin, end;
};

// One axis of a pooling: n inputs, o outputs.
struct PoolAxis {
  int inputs, outputs, kernel, stride, pad, dilation;

  __device__ LIMPID_INLINE Range window(int out) const {  // inside the image; undilated
    const int begin = out * stride - pad;
    return {begin < 0 ? 0 : begin, begin + kernel < inputs ? begin + kernel : inputs};
  }
  // What an average of the window divides by, along this axis. A window may not stick out beyond the padding.
  __device__ LIMPID_INLINE int counted(int out, bool with_pad) const {
    const Range inside = window(out);
    if (!with_pad) return inside.end - inside.begin;
    const int begin = out * stride - pad, end = begin + kernel;
    return (end < inputs + pad ? end : inputs + pad) - begin;
  }
  // The outputs whose undilated window of `reach` places has input i.
  __device__ LIMPID_INLINE Range outputs_over(int i, int reach) const {
    const int low = i + pad - reach + 1, high = (i + pad) / stride + 1;
    return {low <= 0 ? 0 : (low + stride - 1) / stride, high < outputs ? high : outputs};
  }
  __device__ LIMPID_INLINE Range adaptive_window(int out) const {
    return {static_cast<int>(static_cast<std::int64_t>(out) * inputs / outputs),
            static_cast<int>((static_cast<std::int64_t>(out + 1) * inputs + outputs - 1) / outputs)};
  }
  __device__ LIMPID_INLINE Range adaptive_outputs_over(int i) const {
    return {static_cast<int>(static_cast<std::int64_t>(i) * outputs / inputs),
            static_cast<int>((static_cast<std::int64_t>(i + 1) * outputs + inputs - 1) / inputs)};
  }
};

struct PoolShape {
  PoolAxis h, w;
  int channels;
  bool adaptive, count_include_pad;
  PoolShape(const Pool2dDesc& d, bool is_adaptive)
      : h{int(d.h), int(d.oh), int(d.kernel_h), int(d.stride_h), int(d.pad_h), int(d.dil_h)},
        w{int(d.w), int(d.ow), int(d.kernel_w), int(d.stride_w), int(d.pad_w), int(d.dil_w)},
        channels(int(d.c)),
        adaptive(is_adaptive),
        count_include_pad(d.count_include_pad) {}
};

template <class T, int width>
__global__ void max_kernel(ImageIndex outputs, PoolShape p, T* y, std::int32_t* indices, const T* x) {
  using Acc = accumulate_t<T>;
  for (std::int64_t i = first_position(); i < outputs.count; i += position_step()) {
    const ImagePlace at = outputs.place(i);
    const T* image = x + at.image * p.h.inputs * p.w.inputs * p.channels + at.channel;
    Acc best[width], value[width];
    std::int32_t where[width];
    bool first = true;
#pragma unroll
    for (int j = 0; j < width; j++) best[j] = static_cast<Acc>(-INFINITY), where[j] = 0;
    for (int r = 0; r < p.h.kernel; r++) {
      const int ih = at.y * p.h.stride - p.h.pad + r * p.h.dilation;
      if (ih < 0 || ih >= p.h.inputs) continue;
      for (int s = 0; s < p.w.kernel; s++) {
        const int iw = at.x * p.w.stride - p.w.pad + s * p.w.dilation;
        if (iw < 0 || iw >= p.w.inputs) continue;
        const int pixel = ih * p.w.inputs + iw;
        load_channels<width>(image + static_cast<std::int64_t>(pixel) * p.channels, value);
#pragma unroll
        for (int j = 0; j < width; j++) {
          if (first || value[j] > best[j] || value[j] != value[j]) best[j] = value[j], where[j] = pixel;
        }
        first = false;
      }
    }
    store_channels<width>(y + i * width, best);
    if (!indices) continue;
#pragma unroll
    for (int j = 0; j < width; j++) indices[i * width + j] = where[j];
  }
}

template <class T, int width>
__global__ void max_backward_kernel(ImageIndex inputs, PoolShape p, T* dx, const T* dy, const std::int32_t* indices) {
  for (std::int64_t i = first_position(); i < inputs.count; i += position_step()) {
    const ImagePlace at = inputs.place(i);
    accumulate_t<T> sum[width] = {}, grad[width];
    const int pixel = at.y * p.w.inputs + at.x;
    // All outputs whose dilated window spans the pixel: one whose holes skip it has no such index.
    const Range rows = p.h.outputs_over(at.y, (p.h.kernel - 1) * p.h.dilation + 1);
    const Range columns = p.w.outputs_over(at.x, (p.w.kernel - 1) * p.w.dilation + 1);
    for (int oh = rows.begin; oh < rows.end; oh++) {
      for (int ow = columns.begin; ow < columns.end; ow++) {
        const std::int64_t from = ((at.image * p.h.outputs + oh) * p.w.outputs + ow) * p.channels + at.channel;
        load_channels<width>(dy + from, grad);
#pragma unroll
        for (int j = 0; j < width; j++) sum[j] += indices[from + j] == pixel ? grad[j] : accumulate_t<T>(0);
      }
    }
    store_channels<width>(dx + i * width, sum);
  }
}

template <class T, int width>
__global__ void average_kernel(ImageIndex outputs, PoolShape p, T* y, const T* x) {
  using Acc = accumulate_t<T>;
  for (std::int64_t i = first_position(); i < outputs.count; i += position_step()) {
    const ImagePlace at = outputs.place(i);
    const T* image = x + at.image * p.h.inputs * p.w.inputs * p.channels + at.channel;
    const Range rows = p.adaptive ? p.h.adaptive_window(at.y) : p.h.window(at.y);
    const Range columns = p.adaptive ? p.w.adaptive_window(at.x) : p.w.window(at.x);
    const int high = p.adaptive ? rows.end - rows.begin : p.h.counted(at.y, p.count_include_pad);
    const int wide = p.adaptive ? columns.end - columns.begin : p.w.counted(at.x, p.count_include_pad);
    Acc sum[width] = {}, value[width];
    for (int ih = rows.begin; ih < rows.end; ih++) {
      Acc line[width] = {};  // a row's sum first: the error of large windows stays small
      for (int iw = columns.begin; iw < columns.end; iw++) {
        load_channels<width>(image + (static_cast<std::int64_t>(ih) * p.w.inputs + iw) * p.channels, value);
#pragma unroll
        for (int j = 0; j < width; j++) line[j] += value[j];
      }
#pragma unroll
      for (int j = 0; j < width; j++) sum[j] += line[j];
    }
    const Acc count = static_cast<Acc>(static_cast<std::int64_t>(high) * wide);
#pragma unroll
    for (int j = 0; j < width; j++) sum[j] /= count;
    store_channels<width>(y + i * width, sum);
  }
}

template <class T, int width>
__global__ void average_backward_kernel(ImageIndex inputs, PoolShape p, T* dx, const T* dy) {
  using Acc = accumulate_t<T>;
  for (std::int64_t i = first_position(); i < inputs.count; i += position_step()) {
    const ImagePlace at = inputs.place(i);
    const Range rows = p.adaptive ? p.h.adaptive_outputs_over(at.y) : p.h.outputs_over(at.y, p.h.kernel);
    const Range columns = p.adaptive ? p.w.adaptive_outputs_over(at.x) : p.w.outputs_over(at.x, p.w.kernel);
    Acc sum[width] = {}, grad[width];
    for (int oh = rows.begin; oh < rows.end; oh++) {
      const Range window_h = p.h.adaptive_window(oh);
      const int high = p.adaptive ? window_h.end - window_h.begin : p.h.counted(oh, p.count_include_pad);
      for (int ow = columns.begin; ow < columns.end; ow++) {
        const Range window_w = p.w.adaptive_window(ow);
        const int wide = p.adaptive ? window_w.end - window_w.begin : p.w.counted(ow, p.count_include_pad);
        const Acc count = static_cast<Acc>(static_cast<std::int64_t>(high) * wide);
        load_channels<width>(dy + ((at.image * p.h.outputs + oh) * p.w.outputs + ow) * p.channels + at.channel, grad);
#pragma unroll
        for (int j = 0; j < width; j++) sum[j] += grad[j] / count;
      }
    }
    store_channels<width>(dx + i * width, sum);
  }
}

// Large windows with few outputs (the usual global average): a block an image and kWarpSize channels, kRows lanes side
// by side over the window's pixels. Each lane adds every kRows-th pixel, the lanes are added in order.
constexpr int kRows = 8;
template <class T>
__global__ void wide_average_kernel(PoolShape p, T* y, const T* x) {
  using Acc = accumulate_t<T>;
  LIMPID_SHARED_ARRAY_2D(Acc, lanes, kRows, kWarpSize);
  const int groups = (p.channels + kWarpSize - 1) / kWarpSize;
  const std::int64_t output = blockIdx.x / groups;
  const int channel = static_cast<int>(blockIdx.x % groups) * kWarpSize + static_cast<int>(threadIdx.x);
  const int ow = static_cast<int>(output % p.w.outputs), oh = static_cast<int>(output / p.w.outputs % p.h.outputs);
  const T* image = x + output / p.w.outputs / p.h.outputs * p.h.inputs * p.w.inputs * p.channels + channel;
  const Range rows = p.h.adaptive_window(oh), columns = p.w.adaptive_window(ow);
  const int wide = columns.end - columns.begin, count = (rows.end - rows.begin) * wide;
  Acc sum = 0;
  if (channel < p.channels) {
    for (int i = static_cast<int>(threadIdx.y); i < count; i += kRows) {
      const int ih = rows.begin + i / wide, iw = columns.begin + i % wide;
      sum += to_float(image[(static_cast<std::int64_t>(ih) * p.w.inputs + iw) * p.channels]);
    }
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= p.channels) return;
  for (int lane = 1; lane < kRows; lane++) sum += lanes[lane][threadIdx.x];
  y[output * p.channels + channel] = from_float<T>(sum / static_cast<Acc>(count));
}
constexpr std::int64_t kWideWindow = 32;  // places of a window from which the block form is taken

// f.template operator()<T, width>(index of the images' own pixels)
template <class F>
cudaError_t over_pixels(DType dtype, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c,
                        std::initializer_list<const void*> images, F&& f) {
  if (n * h * w * c == 0) return cudaSuccess;
  if (h * w >= INT32_MAX || c >= INT32_MAX) return cudaErrorInvalidValue;
  return dispatch_floating(dtype, [&]<class T>() {
    const int each = channels_each<T>(c, images);
    return dispatch_width<T>(
        each, [&]<int width>() { return f.template operator()<T, width>(ImageIndex(n, h, w, c, each)); });
  });
}

cudaError_t average(DType dtype, const Pool2dDesc& d, bool adaptive, void* y, const void* x, cudaStream_t stream) {
  const PoolShape shape(d, adaptive);
  return over_pixels(dtype, d.n, d.oh, d.ow, d.c, {y, x}, [&]<class T, int width>(const ImageIndex& index) {
    return launch(average_kernel<T, width>, grid_for(index.count), kBlockThreads, 0, stream, index, shape,
                  static_cast<T*>(y), static_cast<const T*>(x));
  });
}
cudaError_t average_backward(DType dtype, const Pool2dDesc& d, bool adaptive, void* dx, const void* dy,
                             cudaStream_t stream) {
  const PoolShape shape(d, adaptive);
  return over_pixels(dtype, d.n, d.h, d.w, d.c, {dx, dy}, [&]<class T, int width>(const ImageIndex& index) {
    return launch(average_backward_kernel<T, width>, grid_for(index.count), kBlockThreads, 0, stream, index, shape,
                  static_cast<T*>(dx), static_cast<const T*>(dy));
  });
}

}  // namespace

cudaError_t max_pool2d(DType dtype, const Pool2dDesc& d, void* y, std::int32_t* indices, const void* x,
                       cudaStream_t stream) {
  const PoolShape shape(d, false);
  return over_pixels(dtype, d.n, d.oh, d.ow, d.c, {y, x}, [&]<class T, int width>(const ImageIndex& index) {
    return launch(max_kernel<T, width>, grid_for(index.count), kBlockThreads, 0, stream, index, shape,
                  static_cast<T*>(y), indices, static_cast<const T*>(x));
  });
}

cudaError_t max_pool2d_backward(DType dtype, const Pool2dDesc& d, void* dx, const void* dy, const std::int32_t* indices,
                                cudaStream_t stream) {
  const PoolShape shape(d, false);
  return over_pixels(dtype, d.n, d.h, d.w, d.c, {dx, dy}, [&]<class T, int width>(const ImageIndex& index) {
    return launch(max_backward_kernel<T, width>, grid_for(index.count), kBlockThreads, 0, stream, index, shape,
                  static_cast<T*>(dx), static_cast<const T*>(dy), indices);
  });
}

cudaError_t avg_pool2d(DType dtype, const Pool2dDesc& d, void* y, const void* x, cudaStream_t stream) {
  return average(dtype, d, false, y, x, stream);
}
cudaError_t avg_pool2d_backward(DType dtype, const Pool2dDesc& d, void* dx, const void* dy, cudaStream_t stream) {
  return average_backward(dtype, d, false, dx, dy, stream);
}

cudaError_t adaptive_avg_pool2d(DType dtype, const Pool2dDesc& d, void* y, const void* x, cudaStream_t stream) {
  const std::int64_t outputs = d.n * d.oh * d.ow, blocks = outputs * ((d.c + kWarpSize - 1) / kWarpSize);
  if (outputs * d.c == 0 || d.h * d.w < kWideWindow * d.oh * d.ow || blocks > INT32_MAX || d.h * d.w >= INT32_MAX) {
    return average(dtype, d, true, y, x, stream);
  }
  return dispatch_floating(dtype, [&]<class T>() {
    return launch(wide_average_kernel<T>, static_cast<unsigned>(blocks), dim3(kWarpSize, kRows), 0, stream,
                  PoolShape(d, true), static_cast<T*>(y), static_cast<const T*>(x));
  });
}
cudaError_t adaptive_avg_pool2d_backward(DType dtype, const Pool2dDesc& d, void* dx, const void* dy,
                                         cudaStream_t stream) {
  return average_backward(dtype, d, true, dx, dy, stream);
}

}  // namespace limpid::cu
