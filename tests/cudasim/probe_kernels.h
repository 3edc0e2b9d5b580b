// Kernels that ask the emulator one question each; test_emulator.cpp has the answers.
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>
#include <vector_types.h>

namespace limpid::cudasim {

// visits[global linear thread index] += 1
cudaError_t count_visits(int* visits, dim3 grid, dim3 block, cudaStream_t stream);
// visits[threadIdx.x] += 1, with any configuration.
cudaError_t probe_launch(int* visits, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream);
// 96 threads; out[3t..] = count, and, or of (t % 3 != 0).
cudaError_t barrier_votes(int* out, cudaStream_t stream);
// 64 threads, doubles; out[6t..]: index, up, down, xor; index and up within 8 lanes.
cudaError_t shuffle_kinds(double* out, cudaStream_t stream);
cudaError_t divergent_warp(int* out, cudaStream_t stream);
cudaError_t atomic_kinds(int* i, float* f, double* d, unsigned long long* u, cudaStream_t stream);
// 2 blocks of 32: what a shared array holds before anybody writes; each block then fills it.
cudaError_t fresh_shared(unsigned* out, cudaStream_t stream);
// 64 threads: x[t] = shared[63 - t], the barrier before the read is missing.
cudaError_t reversal_without_barrier(int* x, cudaStream_t stream);

}  // namespace limpid::cudasim
