// Filling, copying between any strides and dtypes, flipping.
#include <limpid/cuda/kernels/elementwise.cuh>
#include <limpid/cuda/kernels/elementwise_engine.cuh>

namespace limpid::cu {
namespace {

template <class Bits>
struct Fill {
  static constexpr int kWidth = kVectorWidth<Bits>;
  Bits value;
  template <int width>
  __device__ void operator()(Vector<Bits, width>& y) const {
#pragma unroll
    for (int k = 0; k < width; k++) y.values[k] = value;
  }
};

template <class Bits>
struct Move {
  static constexpr int kWidth = kVectorWidth<Bits>;
  template <int width>
  __device__ void operator()(Vector<Bits, width>& y, const Vector<Bits, width>& x) const {
    y = x;
  }
};

// The conversions that training is full of, in groups.
template <class To, class From>
struct Cast {
  static constexpr int kWidth = sizeof(To) > sizeof(From) ? kVectorWidth<To> : kVectorWidth<From>;
  template <int width>
  __device__ void operator()(Vector<To, width>& y, const Vector<From, width>& x) const {
#pragma unroll
    for (int k = 0; k < width; k++) y.values[k] = store_number<To>(load_number(x.values[k]));
  }
};

// All the other pairs of dtypes: one kernel that looks at both at run time. double and i64 hold every number of the
// floating and the integer types, so the result is that of the direct conversion.
__global__ void __launch_bounds__(kBlockThreads)
    any_cast_kernel(StridedIndex<2> index, DType to, void* out, DType from, const void* x) {
  for (std::int64_t i = first_position(); i < index.count; i += position_step()) {
    std::int64_t at[2];
    index.offsets(i, at);
    double real = 0;
    std::int64_t whole = 0;
    switch (from) {
      case DType::float64: real = static_cast<const double*>(x)[at[1]]; break;
      case DType::float32: real = static_cast<const float*>(x)[at[1]]; break;
      case DType::float16: real = to_float(static_cast<const Half*>(x)[at[1]]); break;
      case DType::bfloat16: real = to_float(static_cast<const BFloat16*>(x)[at[1]]); break;
      case DType::int64: whole = static_cast<const std::int64_t*>(x)[at[1]]; break;
      case DType::int32: whole = static_cast<const std::int32_t*>(x)[at[1]]; break;
      case DType::uint8: whole = static_cast<const std::uint8_t*>(x)[at[1]]; break;
      case DType::boolean: whole = static_cast<const bool*>(x)[at[1]]; break;
    }
    const bool is_real = from <= DType::bfloat16;
    switch (to) {
#define LIMPID_STORE(T, name) \
  case DType::name: static_cast<T*>(out)[at[0]] = is_real ? store_number<T>(real) : store_number<T>(whole); break;
      LIMPID_FORALL_DTYPES(LIMPID_STORE)
#undef LIMPID_STORE
    }
  }
}

// Transposed planes: dim 0 is dense in out, dim `fast` in x. A block moves tiles of 32 x 32 through shared memory, so
// that both sides are accessed along their dense dim.
constexpr int kTile = 32;
constexpr int kTileRows = 8;  // of threads

struct Plane {
  std::int64_t tiles = 0, tiles0 = 0, tiles1 = 0;           // all, along dim 0 and along `fast`
  std::int64_t extent0 = 0, extent1 = 0, out1 = 0, x0 = 0;  // sizes; out's step along `fast`, x's along dim 0
  int outer = 0;                                            // the other dims
  std::int64_t extent[kMaxDims] = {}, out_stride[kMaxDims] = {}, x_stride[kMaxDims] = {};
};

template <class Bits>
__global__ void __launch_bounds__(kTile* kTileRows) transpose_kernel(Plane plane, Bits* out, const Bits* x) {
  LIMPID_SHARED_ARRAY_2D(Bits, tile, kTile, kTile + 1);
  const int tx = static_cast<int>(threadIdx.x) % kTile, ty = static_cast<int>(threadIdx.x) / kTile;
  for (std::int64_t t = blockIdx.x; t < plane.tiles; t += gridDim.x) {
    const std::int64_t first0 = t % plane.tiles0 * kTile;
    std::int64_t rest = t / plane.tiles0;
    const std::int64_t first1 = rest % plane.tiles1 * kTile;
    rest /= plane.tiles1;
    Bits* to = out;
    const Bits* from = x;
    for (int i = 0; i < plane.outer; i++) {
      const std::int64_t at = rest % plane.extent[i];
      rest /= plane.extent[i];
      to += at * plane.out_stride[i];
      from += at * plane.x_stride[i];
    }
    for (int row = ty; row < kTile; row += kTileRows) {
      if (first0 + row < plane.extent0 && first1 + tx < plane.extent1) {
        tile[row][tx] = from[(first0 + row) * plane.x0 + first1 + tx];
      }
    }
    __syncthreads();
    for (int row = ty; row < kTile; row += kTileRows) {
      if (first1 + row < plane.extent1 && first0 + tx < plane.extent0) {
        to[(first1 + row) * plane.out1 + first0 + tx] = tile[tx][row];
      }
    }
    __syncthreads();  // the next tile overwrites
  }
}

// Whether the copy is one of transposed planes, large enough for the tiles to pay.
bool find_plane(const kernel::Loop<2>& loop, Plane& plane) {
  int fast = 0;
  for (int i = 1; i < loop.rank; i++) {
    if (loop.stride[1][i] == 1 && loop.extent[i] >= 4) fast = i;
  }
  if (fast == 0 || loop.stride[0][0] != 1 || loop.stride[1][0] <= 1 || loop.extent[0] < 4 || loop.numel < 1024)
    return false;
  plane.extent0 = loop.extent[0], plane.extent1 = loop.extent[fast];
  plane.out1 = loop.stride[0][fast], plane.x0 = loop.stride[1][0];
  plane.tiles0 = (plane.extent0 + kTile - 1) / kTile, plane.tiles1 = (plane.extent1 + kTile - 1) / kTile;
  plane.tiles = plane.tiles0 * plane.tiles1;
  for (int i = 1; i < loop.rank; i++) {
    if (i == fast) continue;
    plane.extent[plane.outer] = loop.extent[i];
    plane.out_stride[plane.outer] = loop.stride[0][i];
    plane.x_stride[plane.outer++] = loop.stride[1][i];
    plane.tiles *= loop.extent[i];
  }
  return true;
}

template <class Bits>
cudaError_t move_bits(const Shape& shape, const Output& out, const Input& x, cudaStream_t stream) {
  Plane plane;
  if (find_plane(kernel::plan_loop<2>(shape, {&out.strides, &x.strides}), plane)) {
    return launch(transpose_kernel<Bits>, grid_for(plane.tiles, 1, kMaxSharingBlocks), kTile * kTileRows, 0, stream,
                  plane, static_cast<Bits*>(out.data), static_cast<const Bits*>(x.data));
  }
  return launch_elementwise(Move<Bits>(), shape, stream, typed<Bits>(out), typed<Bits>(x));
}

template <class To, class From>
cudaError_t cast_groups(const Shape& shape, const Output& out, const Input& x, cudaStream_t stream) {
  return launch_elementwise(Cast<To, From>(), shape, stream, typed<To>(out), typed<From>(x));
}

template <class T>
T number_of(const Scalar& value) {
  if constexpr (kIsNarrow<T>) {
    return T(static_cast<float>(value.floating));
  } else {
    const bool real = value.kind == Scalar::Kind::floating || std::is_floating_point_v<T>;
    return real ? kernel::convert_number<T>(value.floating) : kernel::convert_number<T>(value.integer);
  }
}

}  // namespace

cudaError_t fill(DType dtype, const Shape& shape, const Output& out, const Scalar& value, cudaStream_t stream) {
  std::uint64_t pattern = 0;
  const cudaError_t error = dispatch_all(dtype, [&]<class T>() {
    const T number = number_of<T>(value);
    std::memcpy(&pattern, &number, sizeof number);
    return cudaSuccess;
  });
  if (error != cudaSuccess) return error;
  return dispatch_size(dtype, [&]<class Bits>() {
    Bits bits;
    std::memcpy(&bits, &pattern, sizeof bits);
    return launch_elementwise(Fill<Bits>{bits}, shape, stream, typed<Bits>(out));
  });
}

cudaError_t copy(const Shape& shape, DType out_dtype, const Output& out, DType x_dtype, const Input& x,
                 cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  if (out_dtype == x_dtype) {
    return dispatch_size(out_dtype, [&]<class Bits>() { return move_bits<Bits>(shape, out, x, stream); });
  }
  const auto is_pair = [&](DType to, DType from) { return out_dtype == to && x_dtype == from; };
  if (is_pair(float16, float32)) return cast_groups<Half, float>(shape, out, x, stream);
  if (is_pair(bfloat16, float32)) return cast_groups<BFloat16, float>(shape, out, x, stream);
  if (is_pair(float32, float16)) return cast_groups<float, Half>(shape, out, x, stream);
  if (is_pair(float32, bfloat16)) return cast_groups<float, BFloat16>(shape, out, x, stream);
  if (is_pair(float32, uint8)) return cast_groups<float, std::uint8_t>(shape, out, x, stream);
  if (is_pair(float32, boolean)) return cast_groups<float, bool>(shape, out, x, stream);
  const StridedIndex<2> index(kernel::plan_loop<2>(shape, {&out.strides, &x.strides}));
  return launch(any_cast_kernel, grid_for(index.count), kBlockThreads, 0, stream, index, out_dtype, out.data, x_dtype,
                x.data);
}

cudaError_t flip(DType dtype, const Shape& shape, const Output& out, const Input& x, std::uint32_t dims_mask,
                 cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  return dispatch_size(dtype, [&]<class Bits>() {
    Strides strides = x.strides;
    const Bits* last = static_cast<const Bits*>(x.data);
    for (int d = 0; d < shape.size(); d++) {  // walked from its last element backwards
      if (!(dims_mask >> d & 1u)) continue;
      last += (shape[d] - 1) * strides[d];
      strides[d] = -strides[d];
    }
    return launch_elementwise(Move<Bits>(), shape, stream, typed<Bits>(out), Typed<const Bits>{last, strides});
  });
}

}  // namespace limpid::cu
