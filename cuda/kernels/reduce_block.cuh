// Joining one value a thread to one value a warp or a block, in an order that depends on the number of threads alone.
// Join: a functor (A, A) -> A, associative up to rounding; the lower lane's value is its first operand.
#pragma once

#include <limpid/cuda/cuda_lang.cuh>

namespace limpid::cu {

struct JoinSum {
  template <class A>
  __device__ LIMPID_INLINE A operator()(A a, A b) const {
    return a + b;
  }
};
struct JoinMax {  // a NaN wins
  template <class A>
  __device__ LIMPID_INLINE A operator()(A a, A b) const {
    return (a > b || a != a) ? a : b;
  }
};

// All 32 lanes call it; the result is lane 0's (sum of `value` over the warp for JoinSum), other lanes' are partial.
template <class A, class Join>
__device__ LIMPID_INLINE A warp_reduce(A value, Join join) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    value = join(value, __shfl_down_sync(kFullWarp, value, offset));
  return value;
}

// All threads of a block call it; every thread gets the result. `identity` joins to nothing. kThreads = blockDim.x, a
// multiple of 32. Ends with a barrier, so it may be called again at once.
template <int kThreads, class A, class Join>
__device__ LIMPID_INLINE A block_reduce(A value, A identity, Join join) {
  constexpr int kWarps = kThreads / kWarpSize;
  static_assert(kThreads % kWarpSize == 0 && kWarps <= kWarpSize);
  LIMPID_SHARED_ARRAY(A, warps, kWarps + 1);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  value = warp_reduce(value, join);
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = warp_reduce(lane < kWarps ? warps[lane] : identity, join);
    if (lane == 0) warps[kWarps] = value;
  }
  __syncthreads();
  value = warps[kWarps];
  __syncthreads();  // the next call writes the array
  return value;
}

}  // namespace limpid::cu
