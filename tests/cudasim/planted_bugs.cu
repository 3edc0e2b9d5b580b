#include <cudasim/planted_bugs.h>

#include <limpid/cuda/cuda_lang.cuh>

namespace limpid::cudasim {
namespace {
using cu::kFullWarp;
using cu::launch;

// ---------------------------------------------------------------- addresses
__global__ void past_the_end(float* x) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = 1.0f;  // bug: past_the_end
}
__global__ void before_the_start(float* x, float* y) {
  y[threadIdx.x] = x[int(threadIdx.x) - 100];  // bug: before_the_start
}
__global__ void shared_past_the_end(float* x) {
  LIMPID_SHARED_DYNAMIC(float, s);
  s[threadIdx.x + 1] = x[threadIdx.x];  // bug: shared_past_the_end
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x + 1];
}
__global__ void static_shared_past_the_end(float* x) {
  LIMPID_SHARED_ARRAY(float, s, 32);
  s[threadIdx.x] = x[threadIdx.x];  // bug: static_shared_past_the_end
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x / 2];
}
__global__ void misaligned(const float* x, float* y) {
  const auto v = cu::load_vector<4>(x + 1 + 4 * threadIdx.x);  // bug: misaligned
  cu::store_vector(y + 4 * threadIdx.x, v);
}
__global__ void misaligned_float4(const float* x, float* y) {
  reinterpret_cast<float4*>(y)[threadIdx.x] = reinterpret_cast<const float4*>(x + 2)[threadIdx.x];  // bug: misaligned_float4
}
__global__ void host_pointer(const float* on_host, float* y) {
  y[threadIdx.x] = on_host[threadIdx.x];  // bug: host_pointer
}

// ---------------------------------------------------------------- initialisation
__global__ void uninitialised_global(const float* y, float* x) {
  x[threadIdx.x] = y[threadIdx.x];  // bug: uninitialised_global
}
__global__ void uninitialised_shared(float* x) {
  LIMPID_SHARED_ARRAY(float, s, 64);
  if (threadIdx.x < 32) s[threadIdx.x] = 1.0f;
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x];  // bug: uninitialised_shared
}
__global__ void accumulates_into_nothing(const float* x, float* y) {
  atomicAdd(&y[0], x[threadIdx.x]);  // bug: accumulates_into_nothing
}

// ---------------------------------------------------------------- races
__global__ void missing_barrier(float* x) {
  LIMPID_SHARED_ARRAY(float, s, 64);
  s[threadIdx.x] = 0.0f;
  __syncthreads();
  s[threadIdx.x] = x[threadIdx.x];  // bug: missing_barrier
  x[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void missing_second_barrier(float* x) {
  LIMPID_SHARED_ARRAY(float, s, 64);
  for (int round = 0; round < 2; round++) {
    s[threadIdx.x] = x[threadIdx.x];  // overwrites what others still read
    __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x];  // bug: missing_second_barrier
  }
}
// Lanes of a warp in step without saying so, as before Volta.
__global__ void implicit_warp_sync(float* x) {
  LIMPID_SHARED_ARRAY(float, s, 64);
  s[threadIdx.x] = x[threadIdx.x];
  s[threadIdx.x + 32] = 0.0f;
  __syncthreads();
  for (int offset = 16; offset > 0; offset /= 2) s[threadIdx.x] += s[threadIdx.x + unsigned(offset)];  // bug: implicit_warp_sync
  x[threadIdx.x] = s[0];
}
// Each half warp waits for itself only, then reads the other half's values.
__global__ void half_warp_sync(float* x) {
  LIMPID_SHARED_ARRAY(float, s, 32);
  s[threadIdx.x] = 0.0f;
  __syncthreads();
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  x[threadIdx.x] = s[31 - threadIdx.x];  // bug: half_warp_sync
}
__global__ void race_between_blocks(float* x) {
  if (threadIdx.x == 0) x[0] += 1.0f;  // bug: race_between_blocks
}
__global__ void neighbour_of_next_block(float* x) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const float right = i + 1 < 256 ? x[i + 1] : 0.0f;
  x[i] = right;
}
__global__ void plain_beside_atomic(float* x) {
  if (threadIdx.x == 0) x[0] = 5.0f;
  atomicAdd(&x[0], 1.0f);  // bug: plain_beside_atomic
}
// Publishes a block's sum without a fence.
__global__ void missing_fence(float* x, float* y) {
  if (threadIdx.x != 0) return;
  y[blockIdx.x] = x[blockIdx.x];
  if (atomicAdd(reinterpret_cast<unsigned*>(x) + 255, 1u) == 0x3f800000u + gridDim.x - 1) {
    for (unsigned b = 0; b < gridDim.x; b++) x[0] += y[b];  // bug: missing_fence
  }
}

// ---------------------------------------------------------------- barriers and warps
__global__ void barrier_after_exit(float* x) {
  if (threadIdx.x >= 40) return;
  x[threadIdx.x] += 1.0f;
  __syncthreads();  // bug: barrier_after_exit
}
__global__ void barrier_in_branches(float* x) {
  if (threadIdx.x < 40) {
    x[threadIdx.x] += 1.0f;
    __syncthreads();  // bug: barrier_in_branches
  } else {
    x[threadIdx.x] += 2.0f;
    __syncthreads();
  }
}
__global__ void shuffle_after_exit(float* x) {
  if (threadIdx.x >= 20) return;
  x[threadIdx.x] += __shfl_down_sync(kFullWarp, x[threadIdx.x], 1);  // bug: shuffle_after_exit
}
__global__ void shuffle_outside_of_mask(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] += __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 16);  // bug: shuffle_outside_of_mask
}
__global__ void lane_not_in_its_mask(float* x) {
  x[threadIdx.x] += __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);  // bug: lane_not_in_its_mask
}
__global__ void masks_disagree(float* x) {
  const unsigned mask = threadIdx.x < 16 ? kFullWarp : 0xffff0000u;
  x[threadIdx.x] += __shfl_xor_sync(mask, x[threadIdx.x], 1);  // bug: masks_disagree
}
__global__ void masks_wait_for_each_other(float* x) {
  const unsigned mask = threadIdx.x < 16 ? kFullWarp : 0xffff0001u;
  x[threadIdx.x] += __shfl_xor_sync(mask, x[threadIdx.x], 1);  // bug: masks_wait_for_each_other
}
__global__ void deadlock(float* x) {
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) {
      __syncthreads();
    } else {
      __syncwarp();  // bug: deadlock
    }
  }
  x[threadIdx.x] += 1.0f;
}
__global__ void too_much_shared(float* x) {
  LIMPID_SHARED_ARRAY(double, s, 8000);
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = float(s[31 - threadIdx.x]);
}

using P = float*;
using S = cudaStream_t;
}  // namespace

const std::vector<PlantedBug>& planted_bugs() {
  constexpr cudaError_t address = cudaErrorIllegalAddress, failure = cudaErrorLaunchFailure;
  static const std::vector<PlantedBug> bugs = {
      {"past_the_end", "write of 4 bytes, 0 bytes past the end of 1024 bytes of device memory", true, address,
       [](P x, P, S s) { return launch(past_the_end, 5, 64, 0, s, x); }},
      {"before_the_start", "read of 4 bytes outside of device memory", true, address,
       [](P x, P y, S s) { return launch(before_the_start, 1, 32, 0, s, x, y); }},
      {"shared_past_the_end", "past the end of 256 bytes of shared memory", true, address,
       [](P x, P, S s) { return launch(shared_past_the_end, 1, 64, 256, s, x); }},
      {"static_shared_past_the_end", "past the end of 128 bytes of shared memory", true, address,
       [](P x, P, S s) { return launch(static_shared_past_the_end, 1, 64, 0, s, x); }},
      {"misaligned", "4 more than a multiple of 16", true, cudaErrorMisalignedAddress,
       [](P x, P y, S s) { return launch(misaligned, 1, 32, 0, s, x, y); }},
      {"misaligned_float4", "8 more than a multiple of 16", true, cudaErrorMisalignedAddress,
       [](P x, P y, S s) { return launch(misaligned_float4, 1, 32, 0, s, x, y); }},
      {"host_pointer", "outside of device memory", true, address,
       [](P, P y, S s) { return launch(host_pointer, 1, 32, 0, s, std::vector<float>(64).data(), y); }},
      {"uninitialised_global", "read of uninitialised device memory at byte 0", true, failure,
       [](P x, P y, S s) { return launch(uninitialised_global, 1, 32, 0, s, y, x); }},
      {"uninitialised_shared", "read of uninitialised shared memory at byte 128", true, failure,
       [](P x, P, S s) { return launch(uninitialised_shared, 1, 64, 0, s, x); }},
      {"accumulates_into_nothing", "read of uninitialised device memory at byte 0", true, failure,
       [](P x, P y, S s) { return launch(accumulates_into_nothing, 1, 32, 0, s, x, y); }},
      {"missing_barrier", "race in shared memory", true, failure, [](P x, P, S s) { return launch(missing_barrier, 1, 64, 0, s, x); }},
      {"missing_second_barrier", "race in shared memory", true, failure,
       [](P x, P, S s) { return launch(missing_second_barrier, 1, 64, 0, s, x); }},
      {"implicit_warp_sync", "race in shared memory", true, failure,
       [](P x, P, S s) { return launch(implicit_warp_sync, 1, 32, 0, s, x); }},
      {"half_warp_sync", "race in shared memory", true, failure, [](P x, P, S s) { return launch(half_warp_sync, 1, 32, 0, s, x); }},
      {"race_between_blocks", "nothing orders the blocks", true, failure,
       [](P x, P, S s) { return launch(race_between_blocks, 3, 32, 0, s, x); }},
      {"neighbour_of_next_block", "race in device memory", true, failure,
       [](P x, P, S s) { return launch(neighbour_of_next_block, 4, 64, 0, s, x); }},
      {"plain_beside_atomic", "race in device memory", true, failure,
       [](P x, P, S s) { return launch(plain_beside_atomic, 1, 64, 0, s, x); }},
      {"missing_fence", "nothing orders the blocks", true, failure, [](P x, P y, S s) { return launch(missing_fence, 4, 32, 0, s, x, y); }},
      {"barrier_after_exit", "divergent barrier", false, failure,
       [](P x, P, S s) { return launch(barrier_after_exit, 1, 64, 0, s, x); }},
      {"barrier_in_branches", "divergent barrier", false, failure,
       [](P x, P, S s) { return launch(barrier_in_branches, 1, 64, 0, s, x); }},
      {"shuffle_after_exit", "exit", false, failure, [](P x, P, S s) { return launch(shuffle_after_exit, 1, 32, 0, s, x); }},
      {"shuffle_outside_of_mask", "which is not in mask 0x0000ffff", false, failure,
       [](P x, P, S s) { return launch(shuffle_outside_of_mask, 1, 32, 0, s, x); }},
      {"lane_not_in_its_mask", "is not in its own mask", false, failure,
       [](P x, P, S s) { return launch(lane_not_in_its_mask, 1, 32, 0, s, x); }},
      {"masks_disagree", "exits, but lanes of its warp wait for it", false, failure,
       [](P x, P, S s) { return launch(masks_disagree, 1, 32, 0, s, x); }},
      {"masks_wait_for_each_other", "while lanes of it wait for this one with mask", false, failure,
       [](P x, P, S s) { return launch(masks_wait_for_each_other, 1, 32, 0, s, x); }},
      {"deadlock", "deadlock:", false, cudaErrorLaunchTimeout, [](P x, P, S s) { return launch(deadlock, 1, 32, 0, s, x); }},
      {"too_much_shared", "64000 bytes of static shared memory, 49152 are left", false, cudaErrorInvalidValue,
       [](P x, P, S s) { return launch(too_much_shared, 1, 32, 0, s, x); }},
  };
  return bugs;
}

}  // namespace limpid::cudasim
