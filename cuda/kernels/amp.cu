// What mixed precision and gradient clipping need: scaling, unscaling with a look for what is not finite, the rule of
// the loss scale, and the sum of squares of many tensors.
#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/multi_tensor.cuh>
#include <limpid/cuda/kernels/optim.cuh>
#include <limpid/cuda/kernels/reduce_block.cuh>

namespace limpid::cu {
namespace {

// f(Vector&) on groups of a piece, in place; f reads only unless kWrites.
template <bool kWrites, class T, class F>
__device__ LIMPID_INLINE void for_groups(void* data, const Piece& piece, F f) {
  constexpr int width = kPieceWidth<T>;
  T* x = static_cast<T*>(data);
  const std::int64_t groups_end =
      is_piece_aligned<T>(data) ? piece.begin + (piece.end - piece.begin) / width * width : piece.begin;
  for (std::int64_t i = piece.begin + static_cast<std::int64_t>(threadIdx.x) * width; i < groups_end;
       i += kPieceThreads * width) {
    Vector<T, width> group = load_vector<width>(static_cast<const T*>(x + i));
#pragma unroll
    for (int k = 0; k < width; k++) f(group.values[k]);
    if (kWrites) store_vector(x + i, group);
  }
  for (std::int64_t i = groups_end + threadIdx.x; i < piece.end; i += kPieceThreads) {
    T value = x[i];
    f(value);
    if (kWrites) x[i] = value;
  }
}

template <class T>
__global__ void __launch_bounds__(kPieceThreads) scale_kernel(TensorTable table, compute_t<T> factor) {
  const Piece piece = table.piece(blockIdx.x);
  for_groups<true, T>(table.tensors[piece.tensor].param, piece,
                      [&](T& x) { x = store_number<T>(load_number(x) * factor); });
}

template <class T>
__global__ void __launch_bounds__(kPieceThreads)
    unscale_kernel(TensorTable table, float* found_inf, const float* inv_scale) {
  using C = compute_t<T>;
  const Piece piece = table.piece(blockIdx.x);
  const float factor = *inv_scale;
  bool finite = true;
  for_groups<true, T>(table.tensors[piece.tensor].param, piece, [&](T& x) {
    const C value = load_number(x);
    finite = finite && value - value == C(0);  // infinity and NaN give NaN
    x = store_number<T>(factor == 1.0f ? value : value * static_cast<C>(factor));
  });
  if (__syncthreads_or(!finite) && threadIdx.x == 0) atomicExch(found_inf, 1.0f);  // all who write, write the same
}

template <class T>
__global__ void __launch_bounds__(kPieceThreads) squares_kernel(TensorTable table, double* partials) {
  const Piece piece = table.piece(blockIdx.x);
  double sum = 0;
  for_groups<false, T>(table.tensors[piece.tensor].param, piece, [&](T& x) {
    const double value = static_cast<double>(load_number(x));
    sum += value * value;
  });
  sum = block_reduce<kPieceThreads>(sum, 0.0, JoinSum());
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kPieceThreads)
    sum_partials_kernel(const double* partials, std::int64_t n, double* out) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kPieceThreads) sum += partials[i];
  sum = block_reduce<kPieceThreads>(sum, 0.0, JoinSum());
  if (threadIdx.x == 0) out[0] = sum;
}

__global__ void amp_update_kernel(float* scale, std::int32_t* growth_tracker, const float* found_inf, double growth,
                                  double backoff, std::int64_t interval) {
  if (*found_inf != 0.0f) {
    *scale = static_cast<float>(static_cast<double>(*scale) * backoff);
    *growth_tracker = 0;
    return;
  }
  const std::int32_t steps = *growth_tracker + 1;
  *growth_tracker = steps == interval ? 0 : steps;
  if (steps != interval) return;
  const float grown = static_cast<float>(static_cast<double>(*scale) * growth);
  if (grown - grown == 0.0f) *scale = grown;  // finite
}

}  // namespace

cudaError_t scale(std::span<const OptimTensor> tensors, DType dtype, double factor, cudaStream_t stream) {
  return dispatch_floating(dtype, [&]<class T>() {
    return for_tensors(tensors, [&](const TensorTable& table, std::size_t) {
      return launch(scale_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, static_cast<compute_t<T>>(factor));
    });
  });
}

cudaError_t amp_unscale(std::span<const OptimTensor> tensors, DType dtype, float* found_inf, const float* inv_scale,
                        cudaStream_t stream) {
  return dispatch_floating(dtype, [&]<class T>() {
    return for_tensors(tensors, [&](const TensorTable& table, std::size_t) {
      return launch(unscale_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, found_inf, inv_scale);
    });
  });
}

std::int64_t sum_of_squares_parts(std::span<const OptimTensor> tensors) {
  std::int64_t parts = 0;
  for (const OptimTensor& t : tensors) parts += pieces_of(t.n);
  return parts;
}
cudaError_t sum_of_squares(std::span<const OptimTensor> tensors, DType dtype, double* partials, cudaStream_t stream) {
  return dispatch_floating(dtype, [&]<class T>() {
    return for_tensors(tensors, [&](const TensorTable& table, std::size_t) {
      double* part = partials;
      partials += table.blocks;
      return launch(squares_kernel<T>, table.blocks, kPieceThreads, 0, stream, table, part);
    });
  });
}
cudaError_t sum_partials(const double* partials, std::int64_t n, double* out, cudaStream_t stream) {
  return launch(sum_partials_kernel, 1, kPieceThreads, 0, stream, partials, n, out);
}

cudaError_t amp_update(float* scale, std::int32_t* growth_tracker, const float* found_inf, double growth,
                       double backoff, std::int64_t interval, cudaStream_t stream) {
  return launch(amp_update_kernel, 1, 1, 0, stream, scale, growth_tracker, found_inf, growth, backoff, interval);
}

}  // namespace limpid::cu
