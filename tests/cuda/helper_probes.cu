#include "helper_probes.cuh"

#include <cmath>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/cuda/kernels/reduce_block.cuh>

namespace limpid::cu {
namespace {

__global__ void offsets_kernel(StridedIndex<2> index, std::int64_t* out) {
  for (std::int64_t i = first_position(); i < index.count; i += position_step()) {
    std::int64_t at[2];
    index.offsets(i, at);
    out[2 * i] = at[0], out[2 * i + 1] = at[1];
  }
}

__global__ void divider_kernel(Divider divider, const unsigned* numerators, unsigned* out, int n) {
  for (std::int64_t i = first_position(); i < n; i += position_step()) out[i] = divider.quotient(numerators[i]);
}

__global__ void block_reduce_kernel(const float* x, float* out) {
  const float value = x[threadIdx.x];
  out[2 * threadIdx.x] = block_reduce<128>(value, 0.0f, JoinSum());
  out[2 * threadIdx.x + 1] = block_reduce<128>(value, -INFINITY, JoinMax());
}

}  // namespace

cudaError_t probe_offsets(const Shape& shape, const Strides& a, const Strides& b, bool narrow, std::int64_t* out,
                          cudaStream_t stream) {
  StridedIndex<2> index(kernel::plan_loop<2>(shape, {&a, &b}));
  index.narrow = narrow;
  return launch(offsets_kernel, grid_for(index.count), kBlockThreads, 0, stream, index, out);
}
cudaError_t probe_divider(unsigned divisor, const unsigned* numerators, unsigned* out, int n, cudaStream_t stream) {
  return launch(divider_kernel, grid_for(n), kBlockThreads, 0, stream, Divider(divisor), numerators, out, n);
}
cudaError_t probe_block_reduce(const float* x, float* out, cudaStream_t stream) {
  return launch(block_reduce_kernel, 1, 128, 0, stream, x, out);
}

}  // namespace limpid::cu
