// One kernel for all elementwise operations: out = f(in...), over strided operands.
//
// f has `kWidth`, the most elements that it takes at a time, and
//   template <int width> void operator()(Vector<Out, width>& out, const Vector<In, width>&... in) const;
// Where the operands allow it (indexing.cuh: can_group) a thread loads, computes and stores groups of kWidth elements,
// up to 16 bytes an access; operands with a step of 0 along the innermost dim give one value for the group. Otherwise
// one element at a time.
#pragma once

#include <cstddef>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/cuda/kernels/operands.cuh>

namespace limpid::cu {

// For kernels with many operations inside, whose code grows with the width: at most 4, and integers, which no step of a
// training computes with, one by one.
template <class T>
constexpr int kSmallWidth = std::is_integral_v<T> ? 1
                            : kVectorWidth<T> < 4 ? kVectorWidth<T>
                                                  : 4;

// `valid` elements from `first` on, the rest as the first one. many: steps of 1, else of 0.
template <int width, class T>
__device__ LIMPID_INLINE Vector<T, width> load_group(const T* first, bool many, int valid) {
  if (width > 1 && many && valid == width) return load_vector<width>(first);
  Vector<T, width> group;
#pragma unroll
  for (int k = 0; k < width; k++) group.values[k] = many && k < valid ? first[k] : first[0];
  return group;
}
template <int width, class T>
__device__ LIMPID_INLINE void store_group(T* first, const Vector<T, width>& group, int valid) {
  if (valid == width) return store_vector(first, group);
#pragma unroll
  for (int k = 0; k < width; k++) {
    if (k < valid) first[k] = group.values[k];
  }
}

namespace detail {
template <int width, class F, class Out, class... In, std::size_t... k>
__device__ LIMPID_INLINE void apply_group(const F& f, const StridedIndex<1 + sizeof...(In)>& index,
                                          std::int64_t position, int valid, std::index_sequence<k...>, Out* out,
                                          const In*... in) {
  std::int64_t at[1 + sizeof...(In)];
  index.offsets(position, at);
  Vector<Out, width> result{};
  f.template operator()<width>(result, load_group<width>(in + at[1 + k], index.stride[1 + k][0] != 0, valid)...);
  store_group(out + at[0], result, valid);
}
}  // namespace detail

// index counts groups; `tail` more elements follow the last one (only where the loop has one dim).
template <int width, class F, class Out, class... In>
__global__ void __launch_bounds__(kBlockThreads)
    elementwise_kernel(F f, StridedIndex<1 + sizeof...(In)> index, int tail, Out* out, const In*... in) {
  const std::int64_t groups = index.count + (width > 1 && tail > 0);
  for (std::int64_t i = first_position(); i < groups; i += position_step()) {
    const int valid = i < index.count ? width : tail;
    detail::apply_group<width>(f, index, i, valid, std::index_sequence_for<In...>(), out, in...);
  }
}

template <class T>
struct Typed {
  T* data;
  const Strides& strides;
};
template <class T>
Typed<T> typed(const Output& out) {
  return {static_cast<T*>(out.data), out.strides};
}
template <class T>
Typed<const T> typed(const Input& in) {
  return {static_cast<const T*>(in.data), in.strides};
}

template <class F, class Out, class... In>
cudaError_t launch_elementwise(const F& f, const Shape& shape, cudaStream_t stream, Typed<Out> out,
                               Typed<const In>... in) {
  if (shape.numel() == 0) return cudaSuccess;
  constexpr int kOperands = 1 + sizeof...(In), kWidth = F::kWidth;
  const kernel::Loop<kOperands> loop = kernel::plan_loop<kOperands>(shape, {&out.strides, &in.strides...});
  if constexpr (kWidth > 1) {
    if (can_group<kOperands>(loop, kWidth, {out.data, in.data...}, {sizeof(Out), sizeof(In)...})) {
      const StridedIndex<kOperands> groups(loop, kWidth);
      return launch(elementwise_kernel<kWidth, F, Out, In...>, grid_for(groups.count), kBlockThreads, 0, stream, f,
                    groups, static_cast<int>(loop.numel % kWidth), out.data, in.data...);
    }
  }
  const StridedIndex<kOperands> index(loop);
  return launch(elementwise_kernel<1, F, Out, In...>, grid_for(index.count), kBlockThreads, 0, stream, f, index, 0,
                out.data, in.data...);
}

}  // namespace limpid::cu
