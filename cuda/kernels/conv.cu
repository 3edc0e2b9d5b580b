#include <limpid/cuda/kernels/conv.cuh>

#include <limpid/cuda/kernels/conv_axis.cuh>
#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/gemm.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/cuda/kernels/tile_gemm.cuh>

namespace limpid::cu {
namespace {

AxisSizes height_of(const Conv2dDesc& d) {
  return {int(d.h), int(d.oh()), int(d.r), int(d.stride_h), int(d.pad_h), int(d.dil_h)};
}
AxisSizes width_of(const Conv2dDesc& d) {
  return {int(d.w), int(d.ow()), int(d.s), int(d.stride_w), int(d.pad_w), int(d.dil_w)};
}
bool fits_32_bits(const Conv2dDesc& d) {
  const std::int64_t reach = (d.r + 1) * d.dil_h + (d.s + 1) * d.dil_w + d.pad_h + d.pad_w;
  return std::max({d.h * d.w, d.oh() * d.ow(), d.c * d.r * d.s, d.k * d.r * d.s, d.h * d.stride_h, d.w * d.stride_w,
                   reach}) < INT32_MAX / 4;
}

// ---------------------------------------------------------------- forward, backward to the input

struct GatherShape {
  AxisSizes height, width;
  bool forward;
  std::int64_t images;
  int groups, channels, columns;   // of a group: channels of the source, columns of the result
  int source_pitch, result_pitch;  // channels of all groups
  int classes_h, classes_w;        // residue classes; 1 each in forward
  int tiles_m, tiles_n;            // of the largest class
  bool vectors, weight_vectors;    // 16-byte loads of the source, and of the weight
};

// A place in the summed dimension, which runs over (tap row, tap column, channel), channels fastest.
struct TapWalk {
  int row, column, channel;
  __device__ TapWalk(int k, int channels, int tap_columns)
      : row(k / channels / tap_columns), column(k / channels % tap_columns), channel(k % channels) {}
  __device__ LIMPID_INLINE void advance(int by, int channels, int tap_columns) {
    channel += by;
    while (channel >= channels) {
      channel -= channels;
      if (++column == tap_columns) column = 0, row++;
    }
  }
};

// Rows: result positions of one class. Depth: taps and channels. Zeros outside of the image.
template <class T, int extent>
struct GatherLoader {
  using P = Panel<T, extent>;
  static constexpr bool along_k = true;
  const T* rows[P::per_thread];  // the image of each of the thread's rows, at the group's first channel
  int base_h[P::per_thread], base_w[P::per_thread];
  ConvAxis h, w;
  int channels, pitch;
  bool vectors;
  TapWalk walk;

  __device__ GatherLoader(const GatherShape& s, const ConvAxis& height, const ConvAxis& width, const T* source,
                          std::int64_t first_row)
      : h(height),
        w(width),
        channels(s.channels),
        pitch(s.source_pitch),
        vectors(s.vectors),
        walk(w.taps > 0 ? P::place(0, true).k : 0, s.channels, w.taps > 0 ? w.taps : 1) {
    const std::int64_t image_rows = static_cast<std::int64_t>(h.results) * w.results;
#pragma unroll
    for (int i = 0; i < P::per_thread; i++) {  // the k of the thread's vectors is the same for all i
      const typename P::Place at = P::place(i, true);
      const std::int64_t row = first_row + at.e, image = row / image_rows;
      const int pixel = static_cast<int>(row % image_rows);
      const bool inside = at.inside && image < s.images;
      rows[i] = source + (inside ? image : 0) * h.source_size * w.source_size * pitch;
      base_h[i] = inside ? pixel / w.results * h.scale + h.origin : INT32_MIN / 2;
      base_w[i] = pixel % w.results * w.scale + w.origin;
    }
  }
  __device__ LIMPID_INLINE const T* element(int i, const TapWalk& at) const {  // null outside
    const int y = base_h[i] + at.row * h.tap_step, x = base_w[i] + at.column * w.tap_step;
    const bool inside = at.row < h.taps && static_cast<unsigned>(y) < static_cast<unsigned>(h.source_size) &&
                        static_cast<unsigned>(x) < static_cast<unsigned>(w.source_size);
    return inside ? rows[i] + static_cast<std::int64_t>(y * w.source_size + x) * pitch + at.channel : nullptr;
  }
  __device__ void fetch(typename P::Fragment& fragment) {
#pragma unroll
    for (int i = 0; i < P::per_thread; i++) {
      if (vectors) {
        const T* from = element(i, walk);
        if (from) {
          fragment[i] = load_vector<P::width>(from);
        } else {
#pragma unroll
          for (int j = 0; j < P::width; j++) fragment[i].values[j] = from_float<T>(0);
        }
        continue;
      }
      TapWalk at = walk;
#pragma unroll
      for (int j = 0; j < P::width; j++) {
        const T* from = element(i, at);
        fragment[i].values[j] = from ? *from : from_float<T>(0);
        at.advance(1, channels, w.taps);
      }
    }
    walk.advance(P::depth, channels, w.taps);
  }
};

// Rows of the repacked weight [r][s][channel][column] of a group, those of the class's taps.
template <class T, int extent>
struct WeightLoader {
  using P = Panel<T, extent>;
  static_assert(P::per_thread == 1);
  static constexpr bool along_k = false;
  const T* weight;
  ConvAxis h, w;
  int kernel_width, channels, columns, left;  // left: columns from the thread's vector on
  bool vectors, inside;
  TapWalk walk;

  __device__ WeightLoader(const GatherShape& s, const ConvAxis& height, const ConvAxis& width, const T* group_weight,
                          int first_column)
      : weight(group_weight + first_column + P::place(0, false).e),
        h(height),
        w(width),
        kernel_width(s.width.kernel),
        channels(s.channels),
        columns(s.columns),
        left(s.columns - first_column - P::place(0, false).e),
        vectors(s.weight_vectors),
        inside(P::place(0, false).inside),
        walk(w.taps > 0 ? P::place(0, false).k : 0, s.channels, w.taps > 0 ? w.taps : 1) {}
  __device__ void fetch(typename P::Fragment& fragment) {
    const int tap = (h.first_tap + walk.row * h.tap_stride) * kernel_width + w.first_tap + walk.column * w.tap_stride;
    const T* from = weight + (static_cast<std::int64_t>(tap) * channels + walk.channel) * columns;
    const int run = inside && walk.row < h.taps ? left : 0;
    if (vectors && run >= P::width) {
      fragment[0] = load_vector<P::width>(from);
    } else {
#pragma unroll
      for (int j = 0; j < P::width; j++) fragment[0].values[j] = j < run ? from[j] : from_float<T>(0);
    }
    walk.advance(P::depth, channels, w.taps);
  }
};

// Block = ((group * classes_h + class_h) * classes_w + class_w) * tiles_m + tile_m) * tiles_n + tile_n: neighbours
// share the image's part of a tile.
template <class T, class Tile>
__global__ void __launch_bounds__(kGemmThreads)
    gather_kernel(GatherShape s, T* result, const T* source, const T* weight, const T* bias) {
  using Acc = accumulate_t<T>;
  std::int64_t block = blockIdx.x;
  const int first_n = static_cast<int>(block % s.tiles_n) * Tile::n;
  block /= s.tiles_n;
  const std::int64_t first_m = block % s.tiles_m * Tile::m;
  block /= s.tiles_m;
  const int class_w = static_cast<int>(block % s.classes_w);
  block /= s.classes_w;
  const int class_h = static_cast<int>(block % s.classes_h), group = static_cast<int>(block / s.classes_h);
  const ConvAxis h = s.forward ? forward_axis(s.height) : backward_axis(s.height, class_h);
  const ConvAxis w = s.forward ? forward_axis(s.width) : backward_axis(s.width, class_w);
  const std::int64_t image_rows = static_cast<std::int64_t>(h.results) * w.results, rows = s.images * image_rows;
  if (first_m >= rows) return;  // the whole block: a smaller class
  GatherLoader<T, Tile::m> load_a(s, h, w, source + group * s.channels, first_m);
  WeightLoader<T, Tile::n> load_b(
      s, h, w, weight + static_cast<std::int64_t>(group) * s.height.kernel * s.width.kernel * s.channels * s.columns,
      first_n);
  Acc sums[Tile::thread_m][Tile::thread_n] = {};
  constexpr int depth = Panel<T, Tile::m>::depth;
  multiply_panels<T, Tile>(load_a, load_b,
                           (static_cast<std::int64_t>(h.taps) * w.taps * s.channels + depth - 1) / depth, sums);
  const std::int64_t result_h = s.forward ? s.height.output : s.height.input,
                     result_w = s.forward ? s.width.output : s.width.input;
  for_tile_rows<Tile>(sums, first_m, first_n, rows,
                      [&](std::int64_t row, std::int64_t column, const Acc(&values)[Tile::thread_n]) {
                        const std::int64_t image = row / image_rows;
                        const int pixel = static_cast<int>(row % image_rows);
                        const std::int64_t y = h.first_result + pixel / w.results * h.result_step,
                                           x = w.first_result + pixel % w.results * w.result_step;
                        const std::int64_t at = group * s.columns + column;
                        T* to = result + ((image * result_h + y) * result_w + x) * s.result_pitch + at;
#pragma unroll
                        for (int j = 0; j < Tile::thread_n; j++) {
                          if (column + j >= s.columns) break;
                          to[j] = from_float<T>(bias ? values[j] + to_float(bias[at + j]) : values[j]);
                        }
                      });
}

// to[group][tap][channel][column] from w[k][c][tap]; forward the channels are c, the columns k, backward the other way
// round.
template <class T>
__global__ void pack_weight_kernel(T* to, const T* w, std::int64_t count, int taps, int channels, int columns,
                                   bool forward) {
  for (std::int64_t i = first_position(); i < count; i += position_step()) {
    const int column = static_cast<int>(i % columns);
    std::int64_t rest = i / columns;
    const int channel = static_cast<int>(rest % channels);
    rest /= channels;
    const int tap = static_cast<int>(rest % taps);
    const std::int64_t group = rest / taps;
    const std::int64_t k = group * (forward ? columns : channels) + (forward ? column : channel);
    to[i] = w[(k * (forward ? channels : columns) + (forward ? channel : column)) * taps + tap];
  }
}

template <class T, class Tile>
cudaError_t run_gather(GatherShape s, T* result, const T* source, const T* weight, const T* bias, cudaStream_t stream) {
  const std::int64_t largest_h = s.forward ? s.height.output : (s.height.input + s.classes_h - 1) / s.classes_h;
  const std::int64_t largest_w = s.forward ? s.width.output : (s.width.input + s.classes_w - 1) / s.classes_w;
  const std::int64_t tiles_m = (s.images * largest_h * largest_w + Tile::m - 1) / Tile::m;
  s.tiles_n = (s.columns + Tile::n - 1) / Tile::n;
  const std::int64_t blocks = tiles_m * s.tiles_n * s.classes_h * s.classes_w * s.groups;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  s.tiles_m = static_cast<int>(tiles_m);
  return launch(gather_kernel<T, Tile>, static_cast<unsigned>(blocks), kGemmThreads, 0, stream, s, result, source,
                weight, bias);
}

template <class T>
cudaError_t gather(const Conv2dDesc& d, const ConvPlan& plan, bool forward, T* result, const T* source, const T* w,
                   const T* bias, void* workspace, cudaStream_t stream) {
  GatherShape s{};
  s.height = height_of(d), s.width = width_of(d);
  s.forward = forward;
  s.images = d.n;
  s.groups = int(d.groups);
  s.source_pitch = int(forward ? d.c : d.k), s.result_pitch = int(forward ? d.k : d.c);
  s.channels = s.source_pitch / s.groups, s.columns = s.result_pitch / s.groups;
  s.classes_h = forward ? 1 : s.height.stride, s.classes_w = forward ? 1 : s.width.stride;
  s.vectors = vectors_fit(source, {s.channels, s.source_pitch});
  T* packed = static_cast<T*>(workspace);
  s.weight_vectors = vectors_fit(packed, {s.columns});
  const std::int64_t count = d.k * (d.c / d.groups) * d.r * d.s;
  const cudaError_t error = launch(pack_weight_kernel<T>, grid_for(count), kBlockThreads, 0, stream, packed, w, count,
                                   int(d.r * d.s), s.channels, s.columns, forward);
  if (error != cudaSuccess) return error;
  const auto run = plan.gemm.tile == GemmTile::wide ? run_gather<T, WideTile> : run_gather<T, SmallTile>;
  return run(s, result, source, packed, bias, stream);
}

// ---------------------------------------------------------------- backward to the weight

struct WeightShape {
  ConvAxis h, w;  // forward axes
  std::int64_t pixels, splits, split_pixels;
  int groups, rows, channels, columns;  // of a group: rows = k, columns = taps * channels
  int x_pitch, dy_pitch, tiles_m, tiles_n;
  bool dy_vectors, x_vectors;
};

// Depth: output pixels. Columns: taps and channels, which stay the same for a thread; the pixel walks.
template <class T, int extent>
struct PatchLoader {
  using P = Panel<T, extent>;
  static_assert(P::per_thread == 1);
  static constexpr bool along_k = false;
  const T* x;  // the group's first channel
  const WeightShape& s;
  std::int64_t image, left;  // pixels left
  int oh, ow, columns_left;
  TapWalk tap;

  __device__ PatchLoader(const WeightShape& shape, const T* group_x, int first_column, std::int64_t pixel,
                         std::int64_t pixel_end)
      : x(group_x), s(shape), columns_left(0), tap(first_column + P::place(0, false).e, shape.channels, shape.w.taps) {
    const typename P::Place at = P::place(0, false);
    const std::int64_t first = pixel + at.k, image_pixels = static_cast<std::int64_t>(s.h.results) * s.w.results;
    image = first / image_pixels;
    left = pixel_end - first;
    oh = static_cast<int>(first % image_pixels) / s.w.results;
    ow = static_cast<int>(first % image_pixels) % s.w.results;
    if (at.inside) columns_left = s.columns - first_column - at.e;
  }
  __device__ LIMPID_INLINE const T* element(const TapWalk& at) const {  // null in the padding
    const int y = oh * s.h.scale + s.h.origin + at.row * s.h.tap_step,
              z = ow * s.w.scale + s.w.origin + at.column * s.w.tap_step;
    const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(s.h.source_size) &&
                        static_cast<unsigned>(z) < static_cast<unsigned>(s.w.source_size);
    return inside ? x + ((image * s.h.source_size + y) * s.w.source_size + z) * s.x_pitch + at.channel : nullptr;
  }
  __device__ void fetch(typename P::Fragment& fragment) {
    const int run = left > 0 ? columns_left : 0;
    const T* first = s.x_vectors && run >= P::width ? element(tap) : nullptr;
    if (first) {
      fragment[0] = load_vector<P::width>(first);
    } else {
      TapWalk at = tap;
#pragma unroll
      for (int j = 0; j < P::width; j++) {
        const T* from = j < run ? element(at) : nullptr;
        fragment[0].values[j] = from ? *from : from_float<T>(0);
        at.advance(1, s.channels, s.w.taps);
      }
    }
    left -= P::depth;
    ow += P::depth;
    while (ow >= s.w.results) {
      ow -= s.w.results;
      if (++oh == s.h.results) oh = 0, image++;
    }
  }
};

// dw[k][c][tap] = sum over output pixels of dy[pixel][k] x[the pixel's tap][c]. Block = ((split * groups + group) *
// tiles_m + tile_m) * tiles_n + tile_n; with splits the sums go to partial[split], laid out like dw.
template <class T, class Tile>
__global__ void __launch_bounds__(kGemmThreads)
    weight_kernel(WeightShape s, T* dw, accumulate_t<T>* partial, const T* x, const T* dy) {
  using Acc = accumulate_t<T>;
  std::int64_t block = blockIdx.x;
  const int first_n = static_cast<int>(block % s.tiles_n) * Tile::n;
  block /= s.tiles_n;
  const int first_m = static_cast<int>(block % s.tiles_m) * Tile::m;
  block /= s.tiles_m;
  const std::int64_t group = block % s.groups, split = block / s.groups;
  const std::int64_t pixel = split * s.split_pixels,
                     end = s.pixels - pixel < s.split_pixels ? s.pixels : pixel + s.split_pixels;
  StridedLoader<T, Tile::m> load_a{
      dy + group * s.rows + first_m, 1, s.dy_pitch, s.rows - first_m, pixel, end, false, s.dy_vectors};
  PatchLoader<T, Tile::n> load_b(s, x + group * s.channels, first_n, pixel, end);
  Acc sums[Tile::thread_m][Tile::thread_n] = {};
  constexpr int depth = Panel<T, Tile::m>::depth;
  multiply_panels<T, Tile>(load_a, load_b, (end - pixel + depth - 1) / depth, sums);
  const int taps = s.h.taps * s.w.taps;
  for_tile_rows<Tile>(sums, first_m, first_n, s.rows,
                      [&](std::int64_t row, std::int64_t column, const Acc(&values)[Tile::thread_n]) {
                        const std::int64_t filter = (group * s.rows + row) * s.columns,
                                           base = split * s.groups * s.rows * s.columns + filter;
#pragma unroll
                        for (int j = 0; j < Tile::thread_n; j++) {
                          if (column + j >= s.columns) break;
                          const int at = static_cast<int>(column) + j, to = at % s.channels * taps + at / s.channels;
                          if (partial) {
                            partial[base + to] = values[j];
                          } else {
                            dw[filter + to] = from_float<T>(values[j]);
                          }
                        }
                      });
}

template <class T, class Tile>
cudaError_t run_weight(WeightShape s, T* dw, accumulate_t<T>* partial, const T* x, const T* dy, cudaStream_t stream) {
  s.tiles_m = (s.rows + Tile::m - 1) / Tile::m;
  s.tiles_n = (s.columns + Tile::n - 1) / Tile::n;
  const std::int64_t blocks = s.splits * s.groups * s.tiles_m * s.tiles_n;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(weight_kernel<T, Tile>, static_cast<unsigned>(blocks), kGemmThreads, 0, stream, s, dw, partial, x, dy);
}

template <class T>
cudaError_t weight_gradient(const Conv2dDesc& d, const ConvPlan& plan, T* dw, const T* x, const T* dy, void* workspace,
                            cudaStream_t stream) {
  WeightShape s{};
  s.h = forward_axis(height_of(d)), s.w = forward_axis(width_of(d));
  s.pixels = d.n * d.oh() * d.ow();
  s.splits = plan.gemm.splits;
  s.split_pixels = s.splits > 1 ? plan.gemm.split_depth : s.pixels;
  s.groups = int(d.groups);
  s.rows = int(d.k / d.groups), s.channels = int(d.c / d.groups), s.columns = int(d.r * d.s) * s.channels;
  s.x_pitch = int(d.c), s.dy_pitch = int(d.k);
  s.dy_vectors = vectors_fit(dy, {s.rows, s.dy_pitch});
  s.x_vectors = vectors_fit(x, {s.channels, s.x_pitch});
  auto* partial = s.splits > 1 ? static_cast<accumulate_t<T>*>(workspace) : nullptr;
  const auto run = plan.gemm.tile == GemmTile::wide ? run_weight<T, WideTile> : run_weight<T, SmallTile>;
  const cudaError_t error = run(s, dw, partial, x, dy, stream);
  if (error != cudaSuccess || !partial) return error;
  return add_splits(dtype_of<T>, dw, partial, s.splits, d.k * s.columns, nullptr, 1, false, stream);
}

// ---------------------------------------------------------------- 1x1 filters as products of matrices

MatmulDesc pixel_product(const Conv2dDesc& d, bool forward) {
  MatmulDesc m{.dtype = d.dtype, .m = d.n * d.h * d.w, .n = forward ? d.k : d.c, .k = forward ? d.c : d.k};
  m.a_row = m.k, m.a_col = 1;
  m.b_row = forward ? 1 : d.c, m.b_col = forward ? d.c : 1;  // w [k][c], transposed in forward
  return m;
}

}  // namespace

cudaError_t conv_forward(const Conv2dDesc& d, const ConvPlan& plan, void* y, const void* x, const void* w,
                         const void* bias, void* workspace, cudaStream_t stream) {
  if (d.n * d.oh() * d.ow() * d.k == 0) return cudaSuccess;
  if (!fits_32_bits(d)) return cudaErrorInvalidValue;
  switch (plan.algorithm) {
    case ConvAlgorithm::gemm:
      return gemm(pixel_product(d, true), plan.gemm, y, x, w, bias, workspace, false, stream);
    case ConvAlgorithm::depthwise:
      return depthwise_forward(d, y, x, w, bias, stream);
    case ConvAlgorithm::implicit_gemm:
      break;
  }
  return dispatch_floating(d.dtype, [&]<class T>() {
    return gather<T>(d, plan, true, static_cast<T*>(y), static_cast<const T*>(x), static_cast<const T*>(w),
                     static_cast<const T*>(bias), workspace, stream);
  });
}

cudaError_t conv_backward_input(const Conv2dDesc& d, const ConvPlan& plan, void* dx, const void* dy, const void* w,
                                void* workspace, cudaStream_t stream) {
  if (d.n * d.h * d.w * d.c == 0) return cudaSuccess;
  if (!fits_32_bits(d)) return cudaErrorInvalidValue;
  switch (plan.algorithm) {
    case ConvAlgorithm::gemm:
      return gemm(pixel_product(d, false), plan.gemm, dx, dy, w, nullptr, workspace, false, stream);
    case ConvAlgorithm::depthwise:
      return depthwise_backward_input(d, dx, dy, w, stream);
    case ConvAlgorithm::implicit_gemm:
      break;
  }
  return dispatch_floating(d.dtype, [&]<class T>() {
    return gather<T>(d, plan, false, static_cast<T*>(dx), static_cast<const T*>(dy), static_cast<const T*>(w), nullptr,
                     workspace, stream);
  });
}

cudaError_t conv_backward_weight(const Conv2dDesc& d, const ConvPlan& plan, void* dw, const void* x, const void* dy,
                                 void* workspace, cudaStream_t stream) {
  if (d.k * d.c * d.r * d.s == 0) return cudaSuccess;
  if (!fits_32_bits(d)) return cudaErrorInvalidValue;
  if (plan.algorithm == ConvAlgorithm::depthwise)
    return depthwise_backward_weight(d, plan, dw, x, dy, workspace, stream);
  return dispatch_floating(d.dtype, [&]<class T>() {
    return weight_gradient<T>(d, plan, static_cast<T*>(dw), static_cast<const T*>(x), static_cast<const T*>(dy),
                              workspace, stream);
  });
}

}  // namespace limpid::cu
