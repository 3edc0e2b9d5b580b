// One kernel over many tensors of different lengths: a table in the kernel's arguments says which block works where.
//
//   for_tensors(tensors, [&](const TensorTable& table, std::int64_t first) { return launch(kernel, table.blocks, ...);
//   });
//   __global__ void kernel(TensorTable table) { const Piece piece = table.piece(blockIdx.x); ... }
#pragma once

#include <algorithm>
#include <span>

#include <limpid/cuda/cuda_lang.cuh>
#include <limpid/cuda/kernels/optim.cuh>
#include <limpid/cuda/optim_plan.h>

namespace limpid::cu {

constexpr int kTensorsALaunch = 64;            // 56 bytes each; arguments of a kernel have 4 KiB
constexpr int kPieceThreads = 256;

// What a block works on: elements [begin, end) of a tensor.
struct Piece {
  int tensor;
  std::int64_t begin, end;
};

struct TensorTable {
  int count = 0;
  unsigned blocks = 0;
  unsigned first_block[kTensorsALaunch + 1] = {};
  OptimTensor tensors[kTensorsALaunch];

  __device__ LIMPID_INLINE Piece piece(unsigned block) const {
    int low = 0, high = count;  // the last tensor whose first block is not above
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    const std::int64_t begin = static_cast<std::int64_t>(block - first_block[low]) * kPieceElements;
    const std::int64_t end = begin + kPieceElements < tensors[low].n ? begin + kPieceElements : tensors[low].n;
    return {low, begin, end};
  }
};
static_assert(sizeof(TensorTable) <= 3900);

// run(table, index of its first tensor) for tables of up to kTensorsALaunch tensors; a table without elements is left
// out.
template <class Run>
cudaError_t for_tensors(std::span<const OptimTensor> tensors, const Run& run) {
  for (std::size_t first = 0; first < tensors.size(); first += kTensorsALaunch) {
    TensorTable table;
    const std::size_t last = std::min(tensors.size(), first + kTensorsALaunch);
    for (std::size_t t = first; t < last; t++) {
      table.tensors[table.count] = tensors[t];
      table.first_block[table.count++] = table.blocks;
      table.blocks += static_cast<unsigned>(pieces_of(tensors[t].n));
    }
    table.first_block[table.count] = table.blocks;
    if (table.blocks == 0) continue;
    const cudaError_t error = run(table, first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Elements of a thread's access: 4, or 2 of f64, where all pointers that are there are aligned to it.
template <class T>
constexpr int kPieceWidth = kVectorWidth<T> < 4 ? kVectorWidth<T> : 4;
template <class T>
__device__ LIMPID_INLINE bool is_piece_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % (sizeof(T) * kPieceWidth<T>) == 0;
}

}  // namespace limpid::cu
