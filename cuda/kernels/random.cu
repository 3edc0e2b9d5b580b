#include <limpid/cuda/kernels/random.cuh>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/tensor/random_values.h>

namespace limpid::cu {
namespace {

constexpr int kFour = 4;  // numbers of one call of Philox, and so elements of a thread

template <class T>
bool can_store_four(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % (kFour * sizeof(T) < 16 ? kFour * sizeof(T) : 16) == 0;
}

// Four elements from a multiple of four on.
template <class T>
__device__ LIMPID_INLINE void store_four(T* to, const T (&values)[kFour]) {
  constexpr int width = kVectorWidth<T> < kFour ? kVectorWidth<T> : kFour;
#pragma unroll
  for (int i = 0; i < kFour; i += width) {
    Vector<T, width> group;
#pragma unroll
    for (int k = 0; k < width; k++) group.values[k] = values[i + k];
    store_vector(to + i, group);
  }
}
template <class T>
__device__ LIMPID_INLINE void load_four(const T* from, T (&values)[kFour]) {
  constexpr int width = kVectorWidth<T> < kFour ? kVectorWidth<T> : kFour;
#pragma unroll
  for (int i = 0; i < kFour; i += width) {
    const Vector<T, width> group = load_vector<width>(from + i);
#pragma unroll
    for (int k = 0; k < width; k++) values[i + k] = group.values[k];
  }
}

// walk: logical order. dense: element i lies at i, and groups of four are aligned.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) fill_random_kernel(StridedIndex<1> walk, bool dense, bool is_normal,
                                                                    T* out, std::uint64_t key, std::uint64_t first) {
  const std::int64_t groups = (walk.count + kFour - 1) / kFour;
  for (std::int64_t g = first_position(); g < groups; g += position_step()) {
    const Philox4 bits = philox(key, first + static_cast<std::uint64_t>(g));
    T values[kFour];
    if (is_normal) {
      double z[kFour];
      kernel::normal_pair(bits.v[0], bits.v[1], z[0], z[1]);
      kernel::normal_pair(bits.v[2], bits.v[3], z[2], z[3]);
#pragma unroll
      for (int k = 0; k < kFour; k++) values[k] = store_number<T>(z[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kFour; k++) values[k] = kernel::uniform_value<T>(bits.v[k]);
    }
    if (dense && g * kFour + kFour <= walk.count) {
      store_four(out + g * kFour, values);
      continue;
    }
#pragma unroll
    for (int k = 0; k < kFour; k++) {
      if (g * kFour + k >= walk.count) break;
      std::int64_t at[1];
      walk.offsets(g * kFour + k, at);
      out[at[0]] = values[k];
    }
  }
}

// Element i takes number base + i. Operands: out, x, in logical order.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    dropout_kernel(StridedIndex<2> walk, bool dense, T* out, const T* x, float p, compute_t<T> factor,
                   std::uint64_t key, std::uint64_t base) {
  const std::uint64_t first_group = base / kFour;
  const auto groups =
      static_cast<std::int64_t>((base + static_cast<std::uint64_t>(walk.count) + kFour - 1) / kFour - first_group);
  for (std::int64_t g = first_position(); g < groups; g += position_step()) {
    const Philox4 bits = philox(key, first_group + static_cast<std::uint64_t>(g));
    const std::int64_t first = g * kFour - static_cast<std::int64_t>(base % kFour);
    if (dense && first + kFour <= walk.count) {
      T values[kFour];
      load_four(x + first, values);
#pragma unroll
      for (int k = 0; k < kFour; k++) {
        values[k] =
            store_number<T>(uniform_from_bits(bits.v[k]) >= p ? load_number(values[k]) * factor : compute_t<T>(0));
      }
      store_four(out + first, values);
      continue;
    }
#pragma unroll
    for (int k = 0; k < kFour; k++) {
      if (first + k < 0 || first + k >= walk.count) continue;
      std::int64_t at[2];
      walk.offsets(first + k, at);
      out[at[0]] =
          store_number<T>(uniform_from_bits(bits.v[k]) >= p ? load_number(x[at[1]]) * factor : compute_t<T>(0));
    }
  }
}

cudaError_t fill_random(DType dtype, const Shape& shape, const Output& out, bool is_normal, std::uint64_t key,
                        std::uint64_t first, cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  const StridedIndex<1> walk(logical_loop<1>(shape, {&out.strides}));
  return dispatch_floating(dtype, [&]<class T>() {
    const bool dense = is_contiguous(shape, out.strides) && can_store_four<T>(out.data);
    return launch(fill_random_kernel<T>, grid_for((walk.count + kFour - 1) / kFour), kBlockThreads, 0, stream, walk,
                  dense, is_normal, static_cast<T*>(out.data), key, first);
  });
}

}  // namespace

cudaError_t uniform(DType dtype, const Shape& shape, const Output& out, std::uint64_t key, std::uint64_t first,
                    cudaStream_t stream) {
  return fill_random(dtype, shape, out, false, key, first, stream);
}
cudaError_t normal(DType dtype, const Shape& shape, const Output& out, std::uint64_t key, std::uint64_t first,
                   cudaStream_t stream) {
  return fill_random(dtype, shape, out, true, key, first, stream);
}

cudaError_t dropout(DType dtype, const Shape& shape, const Output& out, const Input& x, double p, std::uint64_t key,
                    std::int64_t sample_offset, cudaStream_t stream) {
  const std::int64_t n = shape.numel();
  if (n == 0) return cudaSuccess;
  // Dim 0 counts samples.
  const auto base = static_cast<std::uint64_t>(sample_offset * (shape.empty() ? n : n / shape[0]));
  const StridedIndex<2> walk(logical_loop<2>(shape, {&out.strides, &x.strides}));
  return dispatch_floating(dtype, [&]<class T>() {
    const bool dense = base % kFour == 0 && is_contiguous(shape, out.strides) && is_contiguous(shape, x.strides) &&
                       can_store_four<T>(out.data) && can_store_four<T>(x.data);
    const auto factor = static_cast<compute_t<T>>(p < 1 ? 1.0 / (1.0 - p) : 0.0);
    return launch(dropout_kernel<T>, grid_for(n / kFour + 2), kBlockThreads, 0, stream, walk, dense,
                  static_cast<T*>(out.data), static_cast<const T*>(x.data), static_cast<float>(p), factor, key, base);
  });
}

}  // namespace limpid::cu
