#include <limpid/cuda/kernels/batch_norm.cuh>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/gemm.cuh>
#include <limpid/cuda/kernels/image_index.cuh>

namespace limpid::cu {
namespace {

constexpr int kRun = 64;  // rows that a thread adds in accumulate_t<T> before it goes on in double

// A thread's place in a RowLayout: `width` channels from `channel` on, every `step`-th row from `row` to `end`.
struct Rows {
  std::int64_t channels, split_rows, pixels;
  int groups, tiles;
  bool aligned;  // groups of channels are vectors of 16 bytes in every image
};
struct Place {
  std::int64_t channel, row, end, step;
};
template <int width>
__device__ LIMPID_INLINE Place place_of(const Rows& rows) {
  const int group = static_cast<int>(threadIdx.x) % rows.groups, lane = static_cast<int>(threadIdx.x) / rows.groups;
  const std::int64_t tile = blockIdx.x % rows.tiles, begin = blockIdx.x / rows.tiles * rows.split_rows;
  const std::int64_t end = rows.pixels - begin < rows.split_rows ? rows.pixels : begin + rows.split_rows;
  return {(tile * rows.groups + group) * width, begin + lane, end, kBlockThreads / rows.groups};
}

__device__ double parameter(const void* values, DType dtype, std::int64_t i, double missing) {
  if (!values) return missing;
  switch (dtype) {
    case DType::float64:
      return static_cast<const double*>(values)[i];
    case DType::float32:
      return static_cast<double>(static_cast<const float*>(values)[i]);
    case DType::float16:
      return static_cast<double>(to_float(static_cast<const Half*>(values)[i]));
    default:
      return static_cast<double>(to_float(static_cast<const BFloat16*>(values)[i]));
  }
}

// Joins (count, mean, M2) to the running statistics: Chan, Golub and LeVeque, 1983.
__device__ LIMPID_INLINE void merge(double count, double mean, double m2, double& count_all, double& mean_all,
                                    double& m2_all) {
  if (count == 0) return;
  const double total = count_all + count, delta = mean - mean_all;
  mean_all += delta * (count / total);
  m2_all += m2 + delta * delta * (count_all * count / total);
  count_all = total;
}

// stats[part][3][channels], a part a block and tile. Runs are added as differences to their first value: no
// cancellation.
template <class T, int width>
__global__ void __launch_bounds__(kBlockThreads) statistics_kernel(Rows rows, double* stats, const T* x) {
  using Acc = accumulate_t<T>;
  constexpr int numbers = kBlockThreads * width;
  LIMPID_SHARED_ARRAY(double, means, numbers);
  LIMPID_SHARED_ARRAY(double, squares, numbers);
  const Place at = place_of<width>(rows);
  double mean[width] = {}, m2[width] = {}, count[width] = {};
  if (at.channel < rows.channels) {
    for (std::int64_t first = at.row; first < at.end; first += kRun * at.step) {
      Acc pivot[width], sum[width] = {}, square[width] = {}, value[width];
      load_group<width>(x + first * rows.channels + at.channel, rows.aligned, pivot);
      const std::int64_t last = at.end - first < kRun * at.step ? at.end : first + kRun * at.step;
      int n = 1;
#pragma unroll 4
      for (std::int64_t row = first + at.step; row < last; row += at.step, n++) {
        load_group<width>(x + row * rows.channels + at.channel, rows.aligned, value);
#pragma unroll
        for (int j = 0; j < width; j++) {
          const Acc d = value[j] - pivot[j];
          sum[j] += d, square[j] += d * d;
        }
      }
#pragma unroll
      for (int j = 0; j < width; j++) {
        const double s = static_cast<double>(sum[j]), spread = static_cast<double>(square[j]) - s * s / n;
        // A negative spread is rounding; NaN passes on.
        merge(n, static_cast<double>(pivot[j]) + s / n, spread < 0 ? 0 : spread, count[j], mean[j], m2[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < width; j++) {
    means[static_cast<int>(threadIdx.x) * width + j] = mean[j];
    squares[static_cast<int>(threadIdx.x) * width + j] = m2[j];
  }
  __syncthreads();
  // One thread a channel joins the lanes in order.
  const int in_tile = static_cast<int>(threadIdx.x), tile_channels = rows.groups * width;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x % rows.tiles) * tile_channels + in_tile;
  if (in_tile >= tile_channels || channel >= rows.channels) return;
  const std::int64_t part = blockIdx.x / rows.tiles, begin = part * rows.split_rows;
  double count_all = 0, mean_all = 0, m2_all = 0;
  for (int lane = 0; lane < kBlockThreads / rows.groups; lane++) {
    const std::int64_t left = at.end - begin - lane;
    merge(left > 0 ? static_cast<double>((left + at.step - 1) / at.step) : 0, means[lane * tile_channels + in_tile],
          squares[lane * tile_channels + in_tile], count_all, mean_all, m2_all);
  }
  double* to = stats + part * 3 * rows.channels + channel;
  to[0] = count_all, to[rows.channels] = mean_all, to[2 * rows.channels] = m2_all;
}

__global__ void combine_kernel(double* stats, const double* parts, std::int64_t n, std::int64_t channels) {
  for (std::int64_t c = first_position(); c < channels; c += position_step()) {
    double count = 0, mean = 0, m2 = 0;
    for (std::int64_t p = 0; p < n; p++) {
      const double* part = parts + p * 3 * channels + c;
      merge(part[0], part[channels], part[2 * channels], count, mean, m2);
    }
    stats[c] = count, stats[channels + c] = mean, stats[2 * channels + c] = m2;
  }
}

template <class T, int width>
__global__ void __launch_bounds__(kBlockThreads)
    apply_kernel(Rows rows, T* y, const T* x, const T* residual, bool relu, const double* mean, const double* invstd,
                 AffineParams affine) {
  using Acc = accumulate_t<T>;
  const Place at = place_of<width>(rows);
  if (at.channel >= rows.channels) return;
  Acc shift[width], scale[width], offset[width], value[width], other[width];
#pragma unroll
  for (int j = 0; j < width; j++) {
    const double m = mean[at.channel + j],
                 slope = invstd[at.channel + j] * parameter(affine.weight, affine.dtype, at.channel + j, 1);
    shift[j] = static_cast<Acc>(m), scale[j] = static_cast<Acc>(slope);
    // The rounding of the mean is moved into the offset.
    offset[j] = static_cast<Acc>(parameter(affine.bias, affine.dtype, at.channel + j, 0) +
                                 (static_cast<double>(shift[j]) - m) * slope);
  }
  for (std::int64_t row = at.row; row < at.end; row += at.step) {
    const std::int64_t i = row * rows.channels + at.channel;
    load_group<width>(x + i, rows.aligned, value);
    if (residual) load_group<width>(residual + i, rows.aligned, other);
#pragma unroll
    for (int j = 0; j < width; j++) {
      value[j] = (value[j] - shift[j]) * scale[j] + offset[j];
      if (residual) value[j] += other[j];
      if (relu) value[j] = value[j] < Acc(0) ? Acc(0) : value[j];
    }
    store_group<width>(y + i, rows.aligned, value);
  }
}

// g of one row: dy, without the places that a relu closed.
template <int width, class T>
__device__ LIMPID_INLINE void load_gradient(const T* dy, const T* y, std::int64_t i, bool aligned,
                                            accumulate_t<T> (&g)[width]) {
  load_group<width>(dy + i, aligned, g);
  if (!y) return;
  accumulate_t<T> open[width];
  load_group<width>(y + i, aligned, open);
#pragma unroll
  for (int j = 0; j < width; j++) g[j] = open[j] > accumulate_t<T>(0) ? g[j] : accumulate_t<T>(0);
}

// sums[part][2][channels]
template <class T, int width>
__global__ void __launch_bounds__(kBlockThreads)
    backward_reduce_kernel(Rows rows, double* sums, const T* x, const T* dy, const T* y, const double* mean,
                           const double* invstd) {
  using Acc = accumulate_t<T>;
  constexpr int numbers = kBlockThreads * width;
  LIMPID_SHARED_ARRAY(double, all_g, numbers);
  LIMPID_SHARED_ARRAY(double, all_gx, numbers);
  const Place at = place_of<width>(rows);
  double sum_g[width] = {}, sum_gx[width] = {};  // of g, and of g (x - shift)
  if (at.channel < rows.channels) {
    Acc shift[width], value[width], grad[width];
#pragma unroll
    for (int j = 0; j < width; j++) shift[j] = static_cast<Acc>(mean[at.channel + j]);
    for (std::int64_t first = at.row; first < at.end; first += kRun * at.step) {
      const std::int64_t last = at.end - first < kRun * at.step ? at.end : first + kRun * at.step;
      Acc g[width] = {}, gx[width] = {};
#pragma unroll 4
      for (std::int64_t row = first; row < last; row += at.step) {
        const std::int64_t i = row * rows.channels + at.channel;
        load_gradient<width>(dy, y, i, rows.aligned, grad);
        load_group<width>(x + i, rows.aligned, value);
#pragma unroll
        for (int j = 0; j < width; j++) g[j] += grad[j], gx[j] += grad[j] * (value[j] - shift[j]);
      }
#pragma unroll
      for (int j = 0; j < width; j++) sum_g[j] += static_cast<double>(g[j]), sum_gx[j] += static_cast<double>(gx[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < width; j++) {
    all_g[static_cast<int>(threadIdx.x) * width + j] = sum_g[j];
    all_gx[static_cast<int>(threadIdx.x) * width + j] = sum_gx[j];
  }
  __syncthreads();
  const int in_tile = static_cast<int>(threadIdx.x), tile_channels = rows.groups * width;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x % rows.tiles) * tile_channels + in_tile;
  if (in_tile >= tile_channels || channel >= rows.channels) return;
  double g = 0, gx = 0;
  for (int lane = 0; lane < kBlockThreads / rows.groups; lane++) {
    g += all_g[lane * tile_channels + in_tile];
    gx += all_gx[lane * tile_channels + in_tile];
  }
  // (x - mean) was taken with the rounded mean: put the difference back, then scale.
  const double rounding = static_cast<double>(static_cast<Acc>(mean[channel])) - mean[channel];
  double* to = sums + blockIdx.x / rows.tiles * 2 * rows.channels + channel;
  to[0] = g, to[rows.channels] = (gx + rounding * g) * invstd[channel];
}

template <class T, int width>
__global__ void __launch_bounds__(kBlockThreads)
    backward_apply_kernel(Rows rows, T* dx, T* dresidual, const T* x, const T* dy, const T* y, const double* mean,
                          const double* invstd, AffineParams affine, const double* sums, double count) {
  using Acc = accumulate_t<T>;
  const Place at = place_of<width>(rows);
  if (at.channel >= rows.channels) return;
  // dx = slope * (g - (x - shift) * tilt - level)
  Acc shift[width], slope[width], tilt[width], level[width], value[width], grad[width];
#pragma unroll
  for (int j = 0; j < width; j++) {
    const std::int64_t c = at.channel + j;
    shift[j] = static_cast<Acc>(mean[c]);
    slope[j] = static_cast<Acc>(invstd[c] * parameter(affine.weight, affine.dtype, c, 1));
    tilt[j] = level[j] = 0;
    if (count > 0) {
      const double t = invstd[c] * sums[rows.channels + c] / count;
      tilt[j] = static_cast<Acc>(t);
      level[j] = static_cast<Acc>(sums[c] / count + (static_cast<double>(shift[j]) - mean[c]) * t);
    }
  }
  for (std::int64_t row = at.row; row < at.end; row += at.step) {
    const std::int64_t i = row * rows.channels + at.channel;
    load_gradient<width>(dy, y, i, rows.aligned, grad);
    if (dresidual) store_group<width>(dresidual + i, rows.aligned, grad);
    load_group<width>(x + i, rows.aligned, value);
#pragma unroll
    for (int j = 0; j < width; j++) value[j] = slope[j] * (grad[j] - (value[j] - shift[j]) * tilt[j] - level[j]);
    store_group<width>(dx + i, rows.aligned, value);
  }
}

// f.template operator()<T, width>(rows) for the layout of the shape; `images` decide how rows are loaded, not in what
// order.
template <class F>
cudaError_t over_rows(DType dtype, std::int64_t pixels, std::int64_t channels, std::int64_t split_rows,
                      std::initializer_list<const void*> images, F&& f) {
  return dispatch_floating(dtype, [&]<class T>() {
    const RowLayout layout = row_layout(channels, dtype);
    Rows rows{channels, split_rows, pixels, layout.groups, static_cast<int>(layout.tiles(channels)), true};
    rows.aligned = layout.width > 1 && channels_each<T>(channels, images) > 1;
    return dispatch_width<T>(layout.width, [&]<int width>() { return f.template operator()<T, width>(rows); });
  });
}

// Blocks of an elementwise pass: enough to fill a device, each with several rows a thread.
std::int64_t apply_rows(std::int64_t pixels, std::int64_t channels, DType dtype) {
  const RowLayout layout = row_layout(channels, dtype);
  const std::int64_t parts = std::max<std::int64_t>(1, kMaxGridBlocks / layout.tiles(channels));
  return std::max<std::int64_t>(4 * layout.rows(), (pixels + parts - 1) / parts);
}
unsigned blocks_for(const Rows& rows) {
  return static_cast<unsigned>(rows.tiles * ((rows.pixels + rows.split_rows - 1) / rows.split_rows));
}

}  // namespace

cudaError_t batch_norm_statistics(DType dtype, const BatchNormPlan& plan, double* stats, const void* x,
                                  std::int64_t pixels, std::int64_t channels, void* workspace, cudaStream_t stream) {
  if (channels == 0) return cudaSuccess;
  if (pixels == 0) return batch_norm_combine(stats, nullptr, 0, channels, stream);
  auto* parts = plan.splits > 1 ? static_cast<double*>(workspace) : stats;
  const cudaError_t error = over_rows(dtype, pixels, channels, plan.splits > 1 ? plan.split_rows : pixels, {x},
                                      [&]<class T, int width>(const Rows& rows) {
                                        return launch(statistics_kernel<T, width>, blocks_for(rows), kBlockThreads, 0,
                                                      stream, rows, parts, static_cast<const T*>(x));
                                      });
  if (error != cudaSuccess || plan.splits <= 1) return error;
  return batch_norm_combine(stats, parts, plan.splits, channels, stream);
}

cudaError_t batch_norm_combine(double* stats, const double* parts, std::int64_t n, std::int64_t channels,
                               cudaStream_t stream) {
  if (channels == 0) return cudaSuccess;
  return launch(combine_kernel, grid_for(channels), kBlockThreads, 0, stream, stats, parts, n, channels);
}

cudaError_t batch_norm_apply(DType dtype, void* y, const void* x, const void* residual, bool relu, const double* mean,
                             const double* invstd, const AffineParams& affine, std::int64_t pixels,
                             std::int64_t channels, cudaStream_t stream) {
  if (pixels * channels == 0) return cudaSuccess;
  return over_rows(dtype, pixels, channels, apply_rows(pixels, channels, dtype), {y, x, residual},
                   [&]<class T, int width>(const Rows& rows) {
                     return launch(apply_kernel<T, width>, blocks_for(rows), kBlockThreads, 0, stream, rows,
                                   static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(residual), relu,
                                   mean, invstd, affine);
                   });
}

cudaError_t batch_norm_backward_reduce(DType dtype, const BatchNormPlan& plan, double* sums, const void* x,
                                       const void* dy, const void* y, const double* mean, const double* invstd,
                                       std::int64_t pixels, std::int64_t channels, void* workspace,
                                       cudaStream_t stream) {
  if (channels == 0) return cudaSuccess;
  if (pixels == 0) return add_splits(DType::float64, sums, nullptr, 0, 2 * channels, nullptr, 1, false, stream);
  auto* parts = plan.splits > 1 ? static_cast<double*>(workspace) : sums;
  const cudaError_t error = over_rows(
      dtype, pixels, channels, plan.splits > 1 ? plan.split_rows : pixels, {x, dy, y},
      [&]<class T, int width>(const Rows& rows) {
        return launch(backward_reduce_kernel<T, width>, blocks_for(rows), kBlockThreads, 0, stream, rows, parts,
                      static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<const T*>(y), mean, invstd);
      });
  if (error != cudaSuccess || plan.splits <= 1) return error;
  return add_splits(DType::float64, sums, parts, plan.splits, 2 * channels, nullptr, 1, false, stream);
}

cudaError_t batch_norm_backward_apply(DType dtype, void* dx, void* dresidual, const void* x, const void* dy,
                                      const void* y, const double* mean, const double* invstd,
                                      const AffineParams& affine, const double* sums, double count, std::int64_t pixels,
                                      std::int64_t channels, cudaStream_t stream) {
  if (pixels * channels == 0) return cudaSuccess;
  return over_rows(dtype, pixels, channels, apply_rows(pixels, channels, dtype), {dx, dresidual, x, dy, y},
                   [&]<class T, int width>(const Rows& rows) {
                     return launch(backward_apply_kernel<T, width>, blocks_for(rows), kBlockThreads, 0, stream, rows,
                                   static_cast<T*>(dx), static_cast<T*>(dresidual), static_cast<const T*>(x),
                                   static_cast<const T*>(dy), static_cast<const T*>(y), mean, invstd, affine, sums,
                                   count);
                   });
}

}  // namespace limpid::cu
