#include <limpid/cuda/kernels/row_norm.cuh>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/cuda/kernels/reduce_block.cuh>
#include <limpid/cuda/kernels/row_blocks.cuh>

namespace limpid::cu {
namespace {

// Adds runs of numbers in Acc, the runs in double.
template <class Acc>
struct RunSum {
  double total = 0;
  Acc run = 0;
  int n = 0;
  __device__ LIMPID_INLINE void add(Acc value) {
    run += value;
    if (++n == 64) total += static_cast<double>(run), run = 0, n = 0;
  }
  __device__ LIMPID_INLINE double sum() const { return total + static_cast<double>(run); }
};

template <class T, int threads>
__global__ void __launch_bounds__(threads) row_norm_kernel(RowNormShape s, T* y, double* mean, double* invstd,
                                                           const T* x, const T* weight, const T* bias, double eps) {
  using Acc = accumulate_t<T>;
  for (std::int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* in = x + row * s.len;
    T* out = y + row * s.len;
    RunSum<Acc> sum, deviations, squares;
    for (std::int64_t i = threadIdx.x; i < s.len; i += threads) sum.add(to_float(in[i]));
    const double n = static_cast<double>(s.len), m = block_reduce<threads>(sum.sum(), 0.0, JoinSum()) / n;
    const Acc shift = static_cast<Acc>(m);
    for (std::int64_t i = threadIdx.x; i < s.len; i += threads) {
      const Acc d = to_float(in[i]) - shift;
      deviations.add(d), squares.add(d * d);
    }
    // The deviations add up to the rounding error of the mean.
    const double error = block_reduce<threads>(deviations.sum(), 0.0, JoinSum());
    const double m2 = block_reduce<threads>(squares.sum(), 0.0, JoinSum()) - error * error / n;
    const double inverse = 1.0 / sqrt((m2 < 0 ? 0 : m2) / n + eps);
    if (threadIdx.x == 0) mean[row] = m, invstd[row] = inverse;
    const Acc scale = static_cast<Acc>(inverse), rest = static_cast<Acc>((static_cast<double>(shift) - m) * inverse);
    const std::int64_t first = row % s.affine_rows * s.slice();
    for (std::int64_t i = threadIdx.x; i < s.len; i += threads) {
      const std::int64_t pair = first + i / s.inner;
      Acc value = (to_float(in[i]) - shift) * scale + rest;
      if (weight) value *= to_float(weight[pair]);
      if (bias) value += to_float(bias[pair]);
      out[i] = from_float<T>(value);
    }
  }
}

template <class T, int threads>
__global__ void __launch_bounds__(threads)
    backward_input_kernel(RowNormShape s, T* dx, const T* dy, const T* x, const double* mean, const double* invstd,
                          const T* weight) {
  using Acc = accumulate_t<T>;
  for (std::int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* in = x + row * s.len;
    const T* grad = dy + row * s.len;
    T* out = dx + row * s.len;
    const double m = mean[row], inverse = invstd[row], n = static_cast<double>(s.len);
    const Acc shift = static_cast<Acc>(m);
    const std::int64_t first = row % s.affine_rows * s.slice();
    auto g = [&](std::int64_t i) {
      return weight ? to_float(grad[i]) * to_float(weight[first + i / s.inner]) : to_float(grad[i]);
    };
    RunSum<Acc> sum, products;
    for (std::int64_t i = threadIdx.x; i < s.len; i += threads) {
      const Acc value = g(i);
      sum.add(value), products.add(value * (to_float(in[i]) - shift));
    }
    const double all = block_reduce<threads>(sum.sum(), 0.0, JoinSum());
    const double rest = static_cast<double>(shift) - m;
    const double all_xhat = (block_reduce<threads>(products.sum(), 0.0, JoinSum()) + rest * all) * inverse;
    // dx = inverse (g - level - (x - shift) tilt)
    const double t = inverse * all_xhat / n;
    const Acc slope = static_cast<Acc>(inverse), tilt = static_cast<Acc>(t),
              level = static_cast<Acc>(all / n + rest * t);
    for (std::int64_t i = threadIdx.x; i < s.len; i += threads) {
      out[i] = from_float<T>(slope * (g(i) - level - (to_float(in[i]) - shift) * tilt));
    }
  }
}

// What one place adds to the gradients of its affine pair.
template <class T>
__device__ LIMPID_INLINE void add_pair(const T* dy, const T* x, std::int64_t at, double mean, double invstd,
                                       double& sum, double& sum_xhat) {
  const double g = static_cast<double>(to_float(dy[at]));
  sum += g;
  sum_xhat += g * (static_cast<double>(to_float(x[at])) - mean) * invstd;
}

// One place a row and pair (layer norm): kWarpSize neighbouring pairs a block, kLanes rows side by side.
constexpr int kLanes = 16;
template <class T>
__global__ void affine_columns_kernel(RowNormShape s, T* dweight, T* dbias, const T* dy, const T* x, const double* mean,
                                      const double* invstd) {
  LIMPID_SHARED_ARRAY_2D(double, sums, kLanes, kWarpSize);
  LIMPID_SHARED_ARRAY_2D(double, sums_xhat, kLanes, kWarpSize);
  const std::int64_t pairs = s.affine_rows * s.slice(), lane = threadIdx.y;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kWarpSize + threadIdx.x;
  double sum = 0, sum_xhat = 0;
  if (pair < pairs) {
    for (std::int64_t row = pair / s.slice() + lane * s.affine_rows; row < s.rows; row += kLanes * s.affine_rows) {
      const std::int64_t at = row * s.len + pair % s.slice() * s.inner;
      for (std::int64_t i = at; i < at + s.inner; i++) add_pair(dy, x, i, mean[row], invstd[row], sum, sum_xhat);
    }
  }
  sums[lane][threadIdx.x] = sum, sums_xhat[lane][threadIdx.x] = sum_xhat;
  __syncthreads();
  if (lane != 0 || pair >= pairs) return;
  for (int l = 1; l < kLanes; l++) sum += sums[l][threadIdx.x], sum_xhat += sums_xhat[l][threadIdx.x];
  if (dweight) dweight[pair] = from_float<T>(static_cast<accumulate_t<T>>(sum_xhat));
  if (dbias) dbias[pair] = from_float<T>(static_cast<accumulate_t<T>>(sum));
}

// Many places a row and pair (group norm): a block a pair.
template <class T>
__global__ void affine_planes_kernel(RowNormShape s, T* dweight, T* dbias, const T* dy, const T* x, const double* mean,
                                     const double* invstd) {
  const std::int64_t pair = blockIdx.x;
  double sum = 0, sum_xhat = 0;
  for (std::int64_t row = pair / s.slice(); row < s.rows; row += s.affine_rows) {
    const std::int64_t at = row * s.len + pair % s.slice() * s.inner;
    for (std::int64_t i = threadIdx.x; i < s.inner; i += kBlockThreads)
      add_pair(dy, x, at + i, mean[row], invstd[row], sum, sum_xhat);
  }
  sum = block_reduce<kBlockThreads>(sum, 0.0, JoinSum());
  sum_xhat = block_reduce<kBlockThreads>(sum_xhat, 0.0, JoinSum());
  if (threadIdx.x != 0) return;
  if (dweight) dweight[pair] = from_float<T>(static_cast<accumulate_t<T>>(sum_xhat));
  if (dbias) dbias[pair] = from_float<T>(static_cast<accumulate_t<T>>(sum));
}
constexpr std::int64_t kPlane = 64;  // places from which a block a pair pays

}  // namespace

cudaError_t row_norm(DType dtype, const RowNormShape& s, void* y, double* mean, double* invstd, const void* x,
                     const void* weight, const void* bias, double eps, cudaStream_t stream) {
  if (s.rows == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    return over_row_blocks(s.len, [&]<int threads>() {
      return launch(row_norm_kernel<T, threads>, row_grid(s.rows), threads, 0, stream, s, static_cast<T*>(y), mean,
                    invstd, static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const T*>(bias), eps);
    });
  });
}

cudaError_t row_norm_backward(DType dtype, const RowNormShape& s, void* dx, void* dweight, void* dbias, const void* dy,
                              const void* x, const double* mean, const double* invstd, const void* weight,
                              cudaStream_t stream) {
  const std::int64_t pairs = s.affine_rows * s.slice();
  return dispatch_floating(dtype, [&]<class T>() {
    const T *grad = static_cast<const T*>(dy), *in = static_cast<const T*>(x);
    if (dx && s.rows * s.len > 0) {
      const cudaError_t error = over_row_blocks(s.len, [&]<int threads>() {
        return launch(backward_input_kernel<T, threads>, row_grid(s.rows), threads, 0, stream, s, static_cast<T*>(dx),
                      grad, in, mean, invstd, static_cast<const T*>(weight));
      });
      if (error != cudaSuccess) return error;
    }
    if ((!dweight && !dbias) || pairs == 0) return cudaSuccess;
    if (pairs > INT32_MAX) return cudaErrorInvalidConfiguration;
    if (s.inner >= kPlane) {
      return launch(affine_planes_kernel<T>, static_cast<unsigned>(pairs), kBlockThreads, 0, stream, s,
                    static_cast<T*>(dweight), static_cast<T*>(dbias), grad, in, mean, invstd);
    }
    return launch(affine_columns_kernel<T>, static_cast<unsigned>((pairs + kWarpSize - 1) / kWarpSize),
                  dim3(kWarpSize, kLanes), 0, stream, s, static_cast<T*>(dweight), static_cast<T*>(dbias), grad, in,
                  mean, invstd);
  });
}

}  // namespace limpid::cu
