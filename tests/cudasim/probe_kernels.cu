#include <cudasim/probe_kernels.h>

#include <limpid/cuda/cuda_lang.cuh>

namespace limpid::cudasim {
namespace {
using cu::kFullWarp;

__global__ void count_visits_kernel(int* visits) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  visits[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}

__global__ void probe_kernel(int* visits) { visits[threadIdx.x] += 1; }

__global__ void barrier_votes_kernel(int* out) {
  const bool vote = threadIdx.x % 3 != 0;
  const int count = __syncthreads_count(vote), all = __syncthreads_and(vote), any = __syncthreads_or(vote);
  out[3 * threadIdx.x] = count;
  out[3 * threadIdx.x + 1] = all;
  out[3 * threadIdx.x + 2] = any;
}

__global__ void shuffle_kinds_kernel(double* out) {
  const double v = 0.5 * threadIdx.x;
  double* row = out + 6 * threadIdx.x;
  row[0] = __shfl_sync(kFullWarp, v, 7);
  row[1] = __shfl_up_sync(kFullWarp, v, 3);
  row[2] = __shfl_down_sync(kFullWarp, v, 5);
  row[3] = __shfl_xor_sync(kFullWarp, v, 9);
  row[4] = __shfl_sync(kFullWarp, v, 2, 8);
  row[5] = __shfl_up_sync(kFullWarp, v, 1, 8);
}

__global__ void divergent_warp_kernel(int* out) {
  const int lane = int(threadIdx.x);
  if (lane % 2 == 0) {
    out[lane] = lane + __shfl_xor_sync(0x55555555u, lane, 2);
  } else {
    out[lane] = __popc(__ballot_sync(0xaaaaaaaau, true));
  }
  __syncwarp();
}

__global__ void atomic_kinds_kernel(int* i, float* f, double* d, unsigned long long* u) {
  const int t = int(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&i[0], t);
  atomicSub(&i[1], 1);
  atomicMin(&i[2], t);
  atomicMax(&i[3], t);
  atomicAnd(&i[4], t);
  atomicOr(&i[5], t);
  atomicXor(&i[6], t);
  if (atomicCAS(&i[7], 5, 77) == 5) atomicAdd(&i[8], 1);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd(u, 1ull << 33);
}

__global__ void fresh_shared_kernel(unsigned* out) {
  LIMPID_SHARED_ARRAY(unsigned, s, 32);
  out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
  s[threadIdx.x] = 1234;
}

__global__ void reversal_kernel(int* x) {
  LIMPID_SHARED_ARRAY(int, s, 64);
  s[threadIdx.x] = int(threadIdx.x);
  x[threadIdx.x] = s[63 - threadIdx.x];
}
}  // namespace

cudaError_t count_visits(int* visits, dim3 grid, dim3 block, cudaStream_t stream) {
  return cu::launch(count_visits_kernel, grid, block, 0, stream, visits);
}
cudaError_t probe_launch(int* visits, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  return cu::launch(probe_kernel, grid, block, shared_bytes, stream, visits);
}
cudaError_t barrier_votes(int* out, cudaStream_t stream) { return cu::launch(barrier_votes_kernel, 1, 96, 0, stream, out); }
cudaError_t shuffle_kinds(double* out, cudaStream_t stream) { return cu::launch(shuffle_kinds_kernel, 1, 64, 0, stream, out); }
cudaError_t divergent_warp(int* out, cudaStream_t stream) { return cu::launch(divergent_warp_kernel, 1, 32, 0, stream, out); }
cudaError_t atomic_kinds(int* i, float* f, double* d, unsigned long long* u, cudaStream_t stream) {
  return cu::launch(atomic_kinds_kernel, 4, 64, 0, stream, i, f, d, u);
}
cudaError_t fresh_shared(unsigned* out, cudaStream_t stream) { return cu::launch(fresh_shared_kernel, 2, 32, 0, stream, out); }
cudaError_t reversal_without_barrier(int* x, cudaStream_t stream) { return cu::launch(reversal_kernel, 1, 64, 0, stream, x); }

}  // namespace limpid::cudasim
