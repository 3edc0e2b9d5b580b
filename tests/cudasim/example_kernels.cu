#include <cudasim/example_kernels.h>

#include <cmath>

#include <limpid/cuda/cuda_lang.cuh>
#include <limpid/tensor/functors.h>

namespace limpid::cudasim {
namespace {
using cu::kFullWarp;

unsigned blocks_for(std::int64_t n, std::int64_t each) {
  const std::int64_t blocks = (n + each - 1) / each;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 64 ? 64 : blocks);
}

template <class T>
__device__ T silu_of(T x) {
  return cu::from_float<T>(functor::silu::forward(cu::to_float(x), accumulate_t<T>(0), accumulate_t<T>(0)));
}

template <class T>
__global__ void silu_kernel(const T* __restrict__ x, T* __restrict__ y, std::int64_t n) {
  constexpr int width = cu::kVectorWidth<T>;
  const std::int64_t first = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t(gridDim.x) * blockDim.x;
  const std::int64_t vectors = n / width;
  for (std::int64_t i = first; i < vectors; i += step) {
    auto v = cu::load_vector<width>(x + i * width);
#pragma unroll
    for (int k = 0; k < width; k++) v.values[k] = silu_of(v.values[k]);
    cu::store_vector(y + i * width, v);
  }
  for (std::int64_t i = vectors * width + first; i < n; i += step) y[i] = silu_of(x[i]);
}

__device__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(kFullWarp, v, offset);
  return v;
}

// The sum of all threads' values, for every thread.
__device__ float block_sum(float v) {
  LIMPID_SHARED_ARRAY(float, warps, 32);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_sum(v);
  __syncthreads();  // the array may still be read from the last call
  if (lane == 0) warps[warp] = v;
  __syncthreads();
  float total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; w++) total += warps[w];
  return total;
}

__device__ float block_max(float v) {
  LIMPID_SHARED_ARRAY(float, warps, 32);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, offset));
  __syncthreads();
  if (lane == 0) warps[warp] = v;
  __syncthreads();
  float largest = warps[0];
  for (unsigned w = 1; w < blockDim.x / 32; w++) largest = fmaxf(largest, warps[w]);
  return largest;
}

__device__ float strided_sum(const float* x, std::int64_t n) {
  float s = 0;
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += std::int64_t(gridDim.x) * blockDim.x) s += x[i];
  return s;
}

__global__ void sum_kernel(const float* x, float* out, std::int64_t n) {
  const float s = block_sum(strided_sum(x, n));
  if (threadIdx.x == 0) atomicAdd(out, s);
}

__global__ void ordered_sum_kernel(const float* x, float* partial, unsigned* counter, float* out, std::int64_t n) {
  LIMPID_SHARED_ARRAY(bool, is_last, 1);
  const float s = block_sum(strided_sum(x, n));
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = s;
    __threadfence();
    is_last[0] = atomicAdd(counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last[0]) return;
  float total = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) total += partial[b];
  total = block_sum(total);
  if (threadIdx.x == 0) {
    out[0] = total;
    *counter = 0;
  }
}

__global__ void softmax_kernel(const float* x, float* y, int columns) {
  const float* row = x + std::int64_t(blockIdx.x) * columns;
  float* result = y + std::int64_t(blockIdx.x) * columns;
  float largest = -INFINITY;
  for (int c = int(threadIdx.x); c < columns; c += int(blockDim.x)) largest = fmaxf(largest, row[c]);
  largest = block_max(largest);
  float s = 0;
  for (int c = int(threadIdx.x); c < columns; c += int(blockDim.x)) s += std::exp(row[c] - largest);
  s = block_sum(s);
  for (int c = int(threadIdx.x); c < columns; c += int(blockDim.x)) result[c] = std::exp(row[c] - largest) / s;
}

__global__ void histogram_kernel(const int* x, int* counts, std::int64_t n, int bins) {
  LIMPID_SHARED_DYNAMIC(int, local);
  for (int b = int(threadIdx.x); b < bins; b += int(blockDim.x)) local[b] = 0;
  __syncthreads();
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += std::int64_t(gridDim.x) * blockDim.x) {
    atomicAdd(&local[x[i]], 1);
  }
  __syncthreads();
  for (int b = int(threadIdx.x); b < bins; b += int(blockDim.x)) {
    if (local[b] != 0) atomicAdd(&counts[b], local[b]);
  }
}

template <int tile>
__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int n, int k) {
  LIMPID_SHARED_ARRAY_2D(float, a_tile, tile, tile);
  LIMPID_SHARED_ARRAY_2D(float, b_tile, tile, tile + 1);
  const int tx = int(threadIdx.x), ty = int(threadIdx.y);
  const int row = int(blockIdx.y) * tile + ty, column = int(blockIdx.x) * tile + tx;
  float s = 0;
  for (int first = 0; first < k; first += tile) {
    a_tile[ty][tx] = row < m && first + tx < k ? a[row * k + first + tx] : 0.0f;
    b_tile[ty][tx] = first + ty < k && column < n ? b[(first + ty) * n + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < tile; i++) s += a_tile[ty][i] * b_tile[i][tx];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = s;
}

__global__ void half_warp_scan_kernel(const int* x, int* y, int n) {
  LIMPID_SHARED_ARRAY(int, sums, 128);
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;  // whole warps leave: n is a multiple of 32
  const int lane = int(threadIdx.x % 16);
  const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  int v = x[i];
  for (int offset = 1; offset < 16; offset *= 2) {
    const int below = __shfl_up_sync(mask, v, offset, 16);
    if (lane >= offset) v += below;
  }
  sums[threadIdx.x] = v;
  __syncwarp(mask);
  y[i] = sums[threadIdx.x ^ 15];
}

// The reductions of sm_80 and later; elsewhere by shuffles.
__device__ int smallest_of_warp(int v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int offset = 16; offset > 0; offset /= 2) v = min(v, __shfl_xor_sync(kFullWarp, v, offset));
  return v;
#else
  return __reduce_min_sync(kFullWarp, v);
#endif
}
__device__ unsigned or_of_warp(unsigned v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int offset = 16; offset > 0; offset /= 2) v |= __shfl_xor_sync(kFullWarp, v, offset);
  return v;
#else
  return __reduce_or_sync(kFullWarp, v);
#endif
}

__global__ void warp_facts_kernel(const int* x, int* out, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const int v = x[i];
  const unsigned positive = __ballot_sync(kFullWarp, v > 0);
  const int smallest = smallest_of_warp(v);
  const unsigned bits = or_of_warp(unsigned(v));
  const bool any = __any_sync(kFullWarp, v > 0), all = __all_sync(kFullWarp, v > 0);
  if (i % 32 == 0) {
    int* row = out + i / 32 * 5;
    row[0] = int(positive), row[1] = smallest, row[2] = int(bits), row[3] = any, row[4] = all;
  }
}

__global__ void packed_axpy_half_kernel(float a, const __half2* x, __half2* y, std::int64_t pairs) {
  const __half2 factor = __float2half2_rn(a);
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += std::int64_t(gridDim.x) * blockDim.x) {
    y[i] = factor * x[i] + y[i];
  }
}
__global__ void packed_axpy_bfloat16_kernel(float a, const __nv_bfloat162* x, __nv_bfloat162* y, std::int64_t pairs) {
  const __nv_bfloat162 factor = __float2bfloat162_rn(a);
  for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += std::int64_t(gridDim.x) * blockDim.x) {
    y[i] = factor * x[i] + y[i];
  }
}

__global__ void integer_mix_kernel(const std::int32_t* a, const std::int32_t* b, std::int64_t* out, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const std::int32_t x = a[i], y = b[i];
  const std::uint32_t ux = static_cast<std::uint32_t>(x), uy = static_cast<std::uint32_t>(y);
  std::int64_t r = std::int64_t(x) * y;
  r += std::int64_t(__umulhi(ux, uy)) << (uy % 13);
  r ^= y != 0 ? x / (y == -1 ? 2 : y) : 7;
  r += std::int64_t(ux % (uy | 1)) * 3;
  r -= (x >> (uy % 32)) ^ std::int32_t(ux >> (uy % 32));
  r += std::int64_t(__popc(ux)) * 1000 + __clz(x) * 100 + std::int8_t(x) * 10 + std::uint8_t(y) + std::int16_t(x ^ y);
  r += static_cast<std::int64_t>(static_cast<double>(x) / 3.0) + static_cast<std::int64_t>(static_cast<float>(uy) * 0.5f);
  r = r < 0 ? -r : (r > (std::int64_t(1) << 40) ? r - (r >> 5) : r);
  out[i] = r + min(x, y) - max(ux, uy);
}

template <class T>
__global__ void math_mix_kernel(const T* x, const T* y, T* out, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const T a = x[i], b = y[i], positive = std::fabs(a);
  T* row = out + i * kMathResults;
  row[0] = std::sin(a);
  row[1] = std::cos(a);
  row[2] = std::exp(b);
  row[3] = std::log(positive);
  row[4] = std::pow(positive, b);
  row[5] = std::tanh(b);
  row[6] = std::erf(b);
  row[7] = std::sqrt(positive);
  row[8] = a / b;
  row[9] = std::nearbyint(a);
}

__global__ void strided_copy_kernel(Strided from, const float* x, float* y, std::int64_t n) {
  const std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float table[16];
  for (int k = 0; k < 16; k++) table[k] = float(k * k);
  std::int64_t rest = i, offset = 0;
  for (int d = from.dims - 1; d >= 0; d--) {
    offset += rest % from.shape[d] * from.stride[d];
    rest /= from.shape[d];
  }
  y[i] = x[offset] + table[i % 16];
}
}  // namespace

template <class T>
cudaError_t silu(const T* x, T* y, std::int64_t n, cudaStream_t stream) {
  return cu::launch(silu_kernel<T>, blocks_for(n, 1024), 128, 0, stream, x, y, n);
}
template cudaError_t silu(const float*, float*, std::int64_t, cudaStream_t);
template cudaError_t silu(const double*, double*, std::int64_t, cudaStream_t);
template cudaError_t silu(const Half*, Half*, std::int64_t, cudaStream_t);
template cudaError_t silu(const BFloat16*, BFloat16*, std::int64_t, cudaStream_t);

cudaError_t sum(const float* x, float* out, std::int64_t n, cudaStream_t stream) {
  return cu::launch(sum_kernel, blocks_for(n, 1024), 256, 0, stream, x, out, n);
}
cudaError_t ordered_sum(const float* x, float* partial, unsigned* counter, float* out, std::int64_t n, int blocks, cudaStream_t stream) {
  return cu::launch(ordered_sum_kernel, unsigned(blocks), 128, 0, stream, x, partial, counter, out, n);
}
cudaError_t softmax(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  return cu::launch(softmax_kernel, unsigned(rows), 128, 0, stream, x, y, columns);
}
cudaError_t histogram(const int* x, int* counts, std::int64_t n, int bins, cudaStream_t stream) {
  return cu::launch(histogram_kernel, blocks_for(n, 1024), 256, std::size_t(bins) * sizeof(int), stream, x, counts, n, bins);
}
cudaError_t matmul(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream) {
  constexpr int tile = 8;
  const dim3 grid(unsigned(n + tile - 1) / tile, unsigned(m + tile - 1) / tile);
  return cu::launch(matmul_kernel<tile>, grid, dim3(tile, tile), 0, stream, a, b, c, m, n, k);
}
cudaError_t half_warp_scan(const int* x, int* y, int n, cudaStream_t stream) {
  return cu::launch(half_warp_scan_kernel, blocks_for(n, 128), 128, 0, stream, x, y, n);
}
cudaError_t warp_facts(const int* x, int* out, int n, cudaStream_t stream) {
  return cu::launch(warp_facts_kernel, blocks_for(n, 64), 64, 0, stream, x, out, n);
}
cudaError_t packed_axpy(float a, const Half* x, Half* y, std::int64_t n, cudaStream_t stream) {
  return cu::launch(packed_axpy_half_kernel, blocks_for(n, 512), 128, 0, stream, a, reinterpret_cast<const __half2*>(x),
                    reinterpret_cast<__half2*>(y), n / 2);
}
cudaError_t packed_axpy(float a, const BFloat16* x, BFloat16* y, std::int64_t n, cudaStream_t stream) {
  return cu::launch(packed_axpy_bfloat16_kernel, blocks_for(n, 512), 128, 0, stream, a, reinterpret_cast<const __nv_bfloat162*>(x),
                    reinterpret_cast<__nv_bfloat162*>(y), n / 2);
}
cudaError_t integer_mix(const std::int32_t* a, const std::int32_t* b, std::int64_t* out, int n, cudaStream_t stream) {
  return cu::launch(integer_mix_kernel, unsigned(n + 63) / 64, 64, 0, stream, a, b, out, n);
}
template <class T>
cudaError_t math_mix(const T* x, const T* y, T* out, int n, cudaStream_t stream) {
  return cu::launch(math_mix_kernel<T>, unsigned(n + 63) / 64, 64, 0, stream, x, y, out, n);
}
template cudaError_t math_mix(const float*, const float*, float*, int, cudaStream_t);
template cudaError_t math_mix(const double*, const double*, double*, int, cudaStream_t);
cudaError_t strided_copy(Strided from, const float* x, float* y, std::int64_t n, cudaStream_t stream) {
  return cu::launch(strided_copy_kernel, unsigned(n + 63) / 64, 64, 0, stream, from, x, y, n);
}

}  // namespace limpid::cudasim
