// What emulated device code calls. Kernels do not include this: device_lang.h gives these calls their CUDA names.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>
#include <vector_types.h>

namespace limpid::cudasim {

// threadIdx and its kin, of the thread that runs now.
struct ThreadRegisters {
  uint3 thread_index{}, block_index{};
  dim3 block_dim{}, grid_dim{};
  int lane = 0;
};
extern ThreadRegisters registers;

// A place in a kernel's source; `id` tells barriers on one line apart.
struct Site {
  const char* file = "";
  int line = 0;
  int id = 0;
};

enum class BarrierOp : std::uint8_t { sync, count, all, any };
// Waits for every thread of the block. The result is that of __syncthreads_count, _and, _or.
int sync_threads(Site site, BarrierOp op = BarrierOp::sync, bool predicate = false);

enum class WarpOp : std::uint8_t { shuffle, vote, sync, match, reduce };
constexpr std::size_t kWarpValueBytes = 16;
// What a warp operation brought together: lane i's value at values + i * bytes, if bit i of `arrived` is set.
struct WarpValues {
  unsigned arrived = 0;
  alignas(16) unsigned char values[32 * kWarpValueBytes];
};
// Every lane of `mask` gives `bytes` <= kWarpValueBytes bytes; returns when all of them have.
void warp_exchange(unsigned mask, WarpOp op, const void* value, std::size_t bytes, WarpValues& out, Site site);

// A static shared array: the same memory for all threads of a block. `key` names the declaration.
void* static_shared(const void* key, std::size_t bytes, Site site);
void* dynamic_shared();
void thread_fence();

// Ends the grid with a finding. `code` is what the launch reports.
[[noreturn]] void fail(Site site, cudaError_t code, const char* format, ...) __attribute__((format(printf, 3, 4)));

}  // namespace limpid::cudasim
