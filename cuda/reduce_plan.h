// How a reduction on a GPU is divided into threads, blocks and splits: a function of shape, strides and alignment alone,
// so that the sums have the same order on every device. Built without CUDA's headers: a dry device plans with it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/tensor/strided.h>

namespace limpid::cu {

inline constexpr int kReduceThreads = 256;  // of a block
inline constexpr int kReduceRun = 8;        // values that a thread loads before it joins them

// A block reduces `slots` outputs with `lanes` threads each. Neighbouring threads take neighbours in memory: lanes of
// one output where the reduced dim is the dense one (rows), else outputs (columns).
struct ReducePartition {
  std::int64_t outputs = 0, length = 0;  // of x; length in groups of the vector width
  int lanes = 1, slots = 1;
  bool columns = false;
  std::int64_t splits = 1, chunk = 0;  // grid.y parts of `chunk` positions
  int tail = 0;                        // elements behind the last group
};

struct ReducePlan {
  kernel::Loop<2> kept;     // x, out
  kernel::Loop<1> reduced;  // x
  int width = 1;
  ReducePartition partition;
};

// width: elements of a vector load, used where rows allow it. data may be null: taken as aligned.
ReducePlan plan_reduce(const Shape& shape, const Strides& strides, const Strides& out_strides, std::uint32_t mask,
                       int width, const void* data);

// Bytes of workspace that reduce() needs for a tensor of that shape and those strides; 0 for most.
std::size_t reduce_workspace_bytes(const Shape& shape, const Strides& strides, std::uint32_t dims_mask);

}  // namespace limpid::cu
