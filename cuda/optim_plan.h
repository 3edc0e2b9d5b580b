// How the optimizers' kernels divide tensors, and the bytes that their partial sums take. Built without CUDA's headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limpid::cu {

inline constexpr std::int64_t kPieceElements = 4096;  // of a block, at most
constexpr std::int64_t pieces_of(std::int64_t n) { return (n + kPieceElements - 1) / kPieceElements; }

struct Squares {
  double weight, other;  // of the parameter, and of the update (LAMB) or the gradient (LARS)
};

// Rules with a trust ratio: the ratios of all tensors, padded to 16 bytes, and the sums of all pieces.
constexpr std::size_t trust_bytes(std::int64_t tensors, std::int64_t pieces) {
  return static_cast<std::size_t>(tensors + tensors % 2) * sizeof(double) +
         static_cast<std::size_t>(pieces) * sizeof(Squares);
}
// sum_of_squares: the total, and a partial sum a piece.
constexpr std::size_t sum_of_squares_bytes(std::int64_t pieces) {
  return static_cast<std::size_t>(pieces + 1) * sizeof(double);
}

}  // namespace limpid::cu
