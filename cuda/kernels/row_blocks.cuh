// Kernels with a block a row: a warp for short rows, 256 threads for long ones. Which one depends on the length alone,
// and with it the order of the sums.
#pragma once

#include <limpid/cuda/kernels/indexing.cuh>

namespace limpid::cu {

// f.template operator()<threads>()
template <class F>
cudaError_t over_row_blocks(std::int64_t len, F&& f) {
  if (len <= 512) return f.template operator()<kWarpSize>();
  return f.template operator()<kBlockThreads>();
}
// Blocks for `rows`; a kernel takes more rows than blocks by grid stride.
inline unsigned row_grid(std::int64_t rows) { return static_cast<unsigned>(rows < (1 << 20) ? rows : (1 << 20)); }

}  // namespace limpid::cu
