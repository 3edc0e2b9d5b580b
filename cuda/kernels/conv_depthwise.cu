// Convolution with one input channel a group: each output channel is a sum over the filter's places alone, so there is
// nothing to multiply as matrices. Output channel k reads channel k / (outputs a channel).
#include <limpid/cuda/kernels/conv.cuh>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/gemm.cuh>
#include <limpid/cuda/kernels/image_index.cuh>
#include <limpid/cuda/kernels/reduce_block.cuh>

namespace limpid::cu {
namespace {

struct Geometry {
  int h, w, c, oh, ow, k, r, s, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w, each;  // each: outputs a channel
  explicit Geometry(const Conv2dDesc& d)
      : h(int(d.h)),
        w(int(d.w)),
        c(int(d.c)),
        oh(int(d.oh())),
        ow(int(d.ow())),
        k(int(d.k)),
        r(int(d.r)),
        s(int(d.s)),
        stride_h(int(d.stride_h)),
        stride_w(int(d.stride_w)),
        pad_h(int(d.pad_h)),
        pad_w(int(d.pad_w)),
        dil_h(int(d.dil_h)),
        dil_w(int(d.dil_w)),
        each(int(d.k / d.c)) {}
};

// `width` output channels a thread; more than one only for one output a channel.
template <class T, int width>
__global__ void forward_kernel(ImageIndex index, Geometry g, T* y, const T* x, const T* w, const T* bias) {
  for (std::int64_t i = first_position(); i < index.count; i += position_step()) {
    const ImagePlace at = index.place(i);
    accumulate_t<T> sum[width], value[width];
#pragma unroll
    for (int j = 0; j < width; j++) sum[j] = bias ? to_float(bias[at.channel + j]) : accumulate_t<T>(0);
    const T* filter = w + static_cast<std::int64_t>(at.channel) * g.r * g.s;
    const T* channel = x + (width > 1 ? at.channel : at.channel / g.each);
    for (int r = 0; r < g.r; r++) {
      const int ih = at.y * g.stride_h - g.pad_h + r * g.dil_h;
      if (ih < 0 || ih >= g.h) continue;
      for (int s = 0; s < g.s; s++) {
        const int iw = at.x * g.stride_w - g.pad_w + s * g.dil_w;
        if (iw < 0 || iw >= g.w) continue;
        load_channels<width>(channel + ((at.image * g.h + ih) * g.w + iw) * g.c, value);
#pragma unroll
        for (int j = 0; j < width; j++) sum[j] += value[j] * to_float(filter[(j * g.r + r) * g.s + s]);
      }
    }
    store_channels<width>(y + i * width, sum);
  }
}

template <class T, int width>
__global__ void backward_input_kernel(ImageIndex index, Geometry g, T* dx, const T* dy, const T* w) {
  for (std::int64_t i = first_position(); i < index.count; i += position_step()) {
    const ImagePlace at = index.place(i);
    accumulate_t<T> sum[width] = {}, value[width];
    for (int r = 0; r < g.r; r++) {
      const int th = at.y + g.pad_h - r * g.dil_h;
      if (th < 0 || th % g.stride_h != 0 || th / g.stride_h >= g.oh) continue;
      for (int s = 0; s < g.s; s++) {
        const int tw = at.x + g.pad_w - s * g.dil_w;
        if (tw < 0 || tw % g.stride_w != 0 || tw / g.stride_w >= g.ow) continue;
        const T* pixel = dy + ((at.image * g.oh + th / g.stride_h) * g.ow + tw / g.stride_w) * g.k;
        for (int e = 0; e < g.each; e++) {
          const int k = at.channel * g.each + e;
          load_channels<width>(pixel + k, value);
#pragma unroll
          for (int j = 0; j < width; j++)
            sum[j] += value[j] * to_float(w[((static_cast<std::int64_t>(k) + j) * g.r + r) * g.s + s]);
        }
      }
    }
    store_channels<width>(dx + i * width, sum);
  }
}

constexpr int kColumns = 32, kLanes = 8;  // threads of a block: neighbouring channels, and pixels side by side

// The sum of the block's lanes of one column, in order, for lane 0.
template <class Acc>
__device__ Acc sum_lanes(Acc sum) {
  LIMPID_SHARED_ARRAY_2D(Acc, lanes, kLanes, kColumns);
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return sum;
  for (int lane = 1; lane < kLanes; lane++) sum += lanes[lane][threadIdx.x];
  return sum;
}

// Blocks (channels, taps, parts of the pixels): one output channel of one tap a column. partial[part] is laid out like
// dw.
template <class T>
__global__ void backward_weight_kernel(Geometry g, std::int64_t pixels, std::int64_t split_pixels, T* dw,
                                       accumulate_t<T>* partial, const T* x, const T* dy) {
  const int k = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x),
            tap = static_cast<int>(blockIdx.y);
  const int r = tap / g.s, s = tap % g.s;
  const std::int64_t begin = blockIdx.z * split_pixels,
                     end = pixels - begin < split_pixels ? pixels : begin + split_pixels;
  accumulate_t<T> sum = 0;
  if (k < g.k) {
    for (std::int64_t pixel = begin + threadIdx.y; pixel < end; pixel += kLanes) {
      const std::int64_t row = pixel / g.ow, image = row / g.oh;
      const int ih = static_cast<int>(row % g.oh) * g.stride_h - g.pad_h + r * g.dil_h;
      const int iw = static_cast<int>(pixel % g.ow) * g.stride_w - g.pad_w + s * g.dil_w;
      if (ih < 0 || ih >= g.h || iw < 0 || iw >= g.w) continue;
      sum += to_float(dy[pixel * g.k + k]) * to_float(x[((image * g.h + ih) * g.w + iw) * g.c + k / g.each]);
    }
  }
  sum = sum_lanes(sum);
  if (threadIdx.y != 0 || k >= g.k) return;
  const std::int64_t to = static_cast<std::int64_t>(k) * g.r * g.s + tap;
  if (partial) {
    partial[static_cast<std::int64_t>(blockIdx.z) * g.k * g.r * g.s + to] = sum;
  } else {
    dw[to] = from_float<T>(sum);
  }
}

template <class T>
__global__ void column_sum_kernel(accumulate_t<T>* partial, const T* x, std::int64_t rows, std::int64_t columns,
                                  std::int64_t split_rows) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const std::int64_t begin = blockIdx.y * split_rows, end = rows - begin < split_rows ? rows : begin + split_rows;
  accumulate_t<T> sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kLanes) sum += to_float(x[row * columns + column]);
  }
  sum = sum_lanes(sum);
  if (threadIdx.y == 0 && column < columns) partial[blockIdx.y * columns + column] = sum;
}

// One block a group of `width` neighbouring channels, for sums without a workspace: a thread adds every kTallRows-th
// row.
constexpr int kTallRows = 512;
template <class T, int width>
__global__ void __launch_bounds__(kTallRows)
    tall_column_sum_kernel(T* out, const T* x, std::int64_t rows, std::int64_t columns, bool aligned) {
  using Acc = accumulate_t<T>;
  constexpr int warps = kTallRows / kWarpSize;
  LIMPID_SHARED_ARRAY_2D(Acc, parts, warps, width);
  const T* first = x + static_cast<std::int64_t>(blockIdx.x) * width;
  Acc sum[width] = {}, value[width];
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += kTallRows) {
    load_group<width>(first + row * columns, aligned, value);
#pragma unroll
    for (int j = 0; j < width; j++) sum[j] += value[j];
  }
#pragma unroll
  for (int j = 0; j < width; j++) {
    sum[j] = warp_reduce(sum[j], JoinSum());
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize][j] = sum[j];
  }
  __syncthreads();
  if (threadIdx.x >= width) return;
  Acc total = 0;
  for (int w = 0; w < warps; w++) total += parts[w][threadIdx.x];
  out[static_cast<std::int64_t>(blockIdx.x) * width + threadIdx.x] = from_float<T>(total);
}

}  // namespace

cudaError_t depthwise_forward(const Conv2dDesc& d, void* y, const void* x, const void* w, const void* bias,
                              cudaStream_t stream) {
  return dispatch_floating(d.dtype, [&]<class T>() {
    const int each = d.k == d.c ? channels_each<T>(d.k, {x, y}) : 1;
    const ImageIndex index(d.n, d.oh(), d.ow(), d.k, each);
    return dispatch_width<T>(each, [&]<int width>() {
      return launch(forward_kernel<T, width>, grid_for(index.count), kBlockThreads, 0, stream, index, Geometry(d),
                    static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(w),
                    static_cast<const T*>(bias));
    });
  });
}

cudaError_t depthwise_backward_input(const Conv2dDesc& d, void* dx, const void* dy, const void* w,
                                     cudaStream_t stream) {
  return dispatch_floating(d.dtype, [&]<class T>() {
    const int each = d.k == d.c ? channels_each<T>(d.c, {dx, dy}) : 1;
    const ImageIndex index(d.n, d.h, d.w, d.c, each);
    return dispatch_width<T>(each, [&]<int width>() {
      return launch(backward_input_kernel<T, width>, grid_for(index.count), kBlockThreads, 0, stream, index,
                    Geometry(d), static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(w));
    });
  });
}

cudaError_t depthwise_backward_weight(const Conv2dDesc& d, const ConvPlan& plan, void* dw, const void* x,
                                      const void* dy, void* workspace, cudaStream_t stream) {
  const std::int64_t splits = plan.gemm.splits, pixels = d.n * d.oh() * d.ow(), taps = d.r * d.s;
  if (taps > 65535 || splits > 65535) return cudaErrorInvalidConfiguration;
  return dispatch_floating(d.dtype, [&]<class T>() {
    auto* partial = splits > 1 ? static_cast<accumulate_t<T>*>(workspace) : nullptr;
    const dim3 grid(static_cast<unsigned>((d.k + kColumns - 1) / kColumns), static_cast<unsigned>(taps),
                    static_cast<unsigned>(splits));
    const cudaError_t error = launch(backward_weight_kernel<T>, grid, dim3(kColumns, kLanes), 0, stream, Geometry(d),
                                     pixels, partial ? plan.gemm.split_depth : pixels, static_cast<T*>(dw), partial,
                                     static_cast<const T*>(x), static_cast<const T*>(dy));
    if (error != cudaSuccess || !partial) return error;
    return add_splits(d.dtype, dw, partial, splits, d.k * taps, nullptr, 1, false, stream);
  });
}

cudaError_t column_sum(DType dtype, const ColumnSumPlan& plan, void* out, const void* x, std::int64_t rows,
                       std::int64_t columns, void* workspace, cudaStream_t stream) {
  if (columns == 0) return cudaSuccess;
  const std::int64_t blocks = (columns + kColumns - 1) / kColumns;
  if (plan.splits > 65535 || blocks > INT32_MAX / kColumns) return cudaErrorInvalidConfiguration;
  return dispatch_floating(dtype, [&]<class T>() {
    if (plan.splits == 1) {
      const int each = row_layout(columns, dtype).width;
      return dispatch_width<T>(each, [&]<int width>() {
        return launch(tall_column_sum_kernel<T, width>, static_cast<unsigned>(columns / width), kTallRows, 0, stream,
                      static_cast<T*>(out), static_cast<const T*>(x), rows, columns,
                      is_vector_aligned(static_cast<const T*>(x)));
      });
    }
    auto* partial = static_cast<accumulate_t<T>*>(workspace);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.splits));
    const cudaError_t error = launch(column_sum_kernel<T>, grid, dim3(kColumns, kLanes), 0, stream, partial,
                                     static_cast<const T*>(x), rows, columns, plan.split_rows);
    if (error != cudaSuccess) return error;
    return add_splits(dtype, out, partial, plan.splits, columns, nullptr, 1, false, stream);
  });
}

}  // namespace limpid::cu
