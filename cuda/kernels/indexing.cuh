// Positions of strided operands inside a kernel, and the size of a grid.
//
//   StridedIndex<2> index(plan_loop<2>(shape, {&out_strides, &x_strides}));    // host
//   for (auto i = first_position(); i < index.count; i += position_step()) {   // device
//     std::int64_t at[2];
//     index.offsets(i, at);
//     out[at[0]] = x[at[1]];
//   }
// Neighbouring threads take neighbours in the innermost dim of operand 0, so its accesses are coalesced.
#pragma once

#include <limpid/cuda/cuda_lang.cuh>
#include <limpid/tensor/strided.h>

namespace limpid::cu {

constexpr int kBlockThreads = 256;
// More blocks than any device runs at once (132 processors x 8 blocks of 256 threads on an H200); the rest is grid
// stride.
constexpr std::int64_t kMaxGridBlocks = 4096;

// Blocks that share memory do more each and need not be so many.
constexpr std::int64_t kMaxSharingBlocks = 1024;

inline unsigned grid_for(std::int64_t positions, int a_block = kBlockThreads, std::int64_t most = kMaxGridBlocks) {
  const std::int64_t blocks = (positions + a_block - 1) / a_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

__device__ LIMPID_INLINE std::int64_t first_position() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ LIMPID_INLINE std::int64_t position_step() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

// Division by a number that is fixed for a launch, of numerators below 2^31, by a multiplication: with s = ceil(log2 d)
// and m = floor(2^32 (2^s - d) / d) + 1, n / d = (mulhi(n, m) + n) >> s (Granlund and Montgomery 1994). An integer
// division takes some 20 instructions more.
struct Divider {
  unsigned divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(std::uint32_t d) : divisor(d) {
    while (shift < 32 && (std::uint64_t(1) << shift) < d) shift++;
    multiplier = static_cast<unsigned>(((std::uint64_t(1) << 32) * ((std::uint64_t(1) << shift) - d)) / d + 1);
  }
  __device__ LIMPID_INLINE unsigned quotient(unsigned n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// A Loop of tensor/strided.h as a kernel parameter. Positions and strides count elements, or groups of `width` elements
// along dim 0 (extents and strides of dim 0 are then those of the groups).
template <int N>
struct StridedIndex {
  std::int64_t count = 0;
  int rank = 1;
  bool narrow = true;  // positions below 2^31: the dividers apply. Offsets are 64-bit in any case.
  Divider divider[kMaxDims];
  std::int64_t extent[kMaxDims] = {};
  std::int64_t stride[N][kMaxDims] = {};

  explicit StridedIndex(const kernel::Loop<N>& loop, int width = 1) : count(loop.numel / width), rank(loop.rank) {
    narrow = count < (std::int64_t(1) << 31);
    for (int i = 0; i < rank; i++) {
      extent[i] = i == 0 ? loop.extent[i] / width : loop.extent[i];
      if (narrow && extent[i] > 0) divider[i] = Divider(static_cast<std::uint32_t>(extent[i]));
      for (int k = 0; k < N; k++) stride[k][i] = i == 0 ? loop.stride[k][i] * width : loop.stride[k][i];
    }
  }

  __device__ LIMPID_INLINE void offsets(std::int64_t position, std::int64_t (&offset)[N]) const {
    if (rank == 1) {
#pragma unroll
      for (int k = 0; k < N; k++) offset[k] = position * stride[k][0];
      return;
    }
#pragma unroll
    for (int k = 0; k < N; k++) offset[k] = 0;
    std::int64_t rest = position;
    for (int i = 0; i < rank - 1; i++) {
      const std::int64_t above =
          narrow ? static_cast<std::int64_t>(divider[i].quotient(static_cast<unsigned>(rest))) : rest / extent[i];
      const std::int64_t at = rest - above * extent[i];
#pragma unroll
      for (int k = 0; k < N; k++) offset[k] += at * stride[k][i];
      rest = above;
    }
#pragma unroll
    for (int k = 0; k < N; k++) offset[k] += rest * stride[k][rank - 1];
  }
};

// The dims in logical (row-major) order, so that position i is element i.
template <int N>
kernel::Loop<N> logical_loop(const Shape& shape, const Strides* const (&strides)[N]) {
  kernel::Loop<N> loop;
  loop.numel = shape.numel();
  const int rank = shape.size();
  loop.rank = rank > 0 ? rank : 1;
  for (int i = 0; i < rank; i++) {
    loop.extent[i] = shape[rank - 1 - i];
    for (int k = 0; k < N; k++) loop.stride[k][i] = (*strides[k])[rank - 1 - i];
  }
  return loop;
}

// Whether groups of `width` neighbours along dim 0 can be one access of every operand: steps of 1 (or 0: one value for
// the whole group), groups that start at multiples of `width`, aligned pointers. elements[k]: the size of one. A loop
// of one dim may leave a rest of fewer elements.
template <int N>
bool can_group(const kernel::Loop<N>& loop, int width, const void* const (&pointers)[N],
               const std::size_t (&elements)[N]) {
  if (loop.rank > 1 && loop.extent[0] % width != 0) return false;
  if (loop.stride[0][0] != 1) return false;  // the output has a place for each element
  for (int k = 0; k < N; k++) {
    if (loop.stride[k][0] == 0) continue;
    if (loop.stride[k][0] != 1) return false;
    const std::size_t bytes = elements[k] * static_cast<std::size_t>(width);
    if (bytes > 16 || reinterpret_cast<std::uintptr_t>(pointers[k]) % bytes != 0) return false;
    for (int i = 1; i < loop.rank; i++) {
      if (loop.stride[k][i] % width != 0) return false;
    }
  }
  return true;
}

}  // namespace limpid::cu
