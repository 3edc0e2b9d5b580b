// How the CUDA backend will do a product or a convolution, decided before anything runs: algorithm, tile, how often the
// summed dimension is split, workspace bytes. Pure functions of the description, built without CUDA's headers, so that
// a dry device plans with the very same code. They decide by shape and dtype alone, never by the device at hand: the
// same sums in the same order on every GPU. Not here: what cuBLASLt and cuDNN would choose.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/tensor/kernels.h>

namespace limpid::cu {

// The tile of the result that one block of 256 threads computes.
enum class GemmTile : std::uint8_t { wide, small };
struct TileSize {
  int m, n;
};
constexpr TileSize tile_size(GemmTile tile) { return tile == GemmTile::wide ? TileSize{128, 64} : TileSize{64, 32}; }
// Depth of the panels that pass through shared memory; a split of the summed dimension is a multiple of it.
constexpr int panel_depth(DType dtype) { return dtype == DType::float64 ? 8 : 16; }

// Blocks that keep a large GPU busy (the H200 has 132 multiprocessors). A constant, so that partitions depend on shape
// only.
inline constexpr std::int64_t kBusyBlocks = 132;

struct GemmPlan {
  GemmTile tile = GemmTile::small;
  std::int64_t splits = 1;          // partial products over parts of k, added in order by a second kernel
  std::int64_t split_depth = 0;     // k of a part, the last one may have less
  std::size_t workspace_bytes = 0;  // [splits][batch][m][n] of the accumulation type; 0 for one split
};
// `cap`: the most workspace; fewer splits keep to it.
GemmPlan plan_gemm(const MatmulDesc& desc, std::size_t cap = SIZE_MAX);

enum class ConvAlgorithm : std::uint8_t {
  gemm,           // 1x1, stride 1, no padding, one group: a product of matrices
  implicit_gemm,  // a product whose left operand is gathered from the image; no im2col buffer
  depthwise       // one input channel a group: direct sums
};
const char* name_of(ConvAlgorithm algorithm);

struct ConvPlan {
  ConvAlgorithm algorithm = ConvAlgorithm::implicit_gemm;
  GemmPlan gemm;                    // the tile; of backward_weight the splits as well
  std::size_t workspace_bytes = 0;  // the repacked weight, or the partial gradients
};
ConvPlan plan_conv(Conv2dPass pass, const Conv2dDesc& desc, std::size_t cap = SIZE_MAX);

// Column sums of a [rows, columns] matrix: partial sums [splits][columns] of the accumulation type.
struct ColumnSumPlan {
  std::int64_t splits = 1;
  std::int64_t split_rows = 0;  // of a part
  std::size_t workspace_bytes = 0;
};
ColumnSumPlan plan_column_sum(std::int64_t rows, std::int64_t columns, DType dtype, std::size_t cap = SIZE_MAX);

// Batch norm's sums over the rows of [pixels, channels]: partial results [splits][3][channels] f64.
struct BatchNormPlan {
  std::int64_t splits = 1;
  std::int64_t split_rows = 0;  // of a part
  std::size_t workspace_bytes = 0;
};
BatchNormPlan plan_batch_norm_parts(std::int64_t pixels, std::int64_t channels, DType dtype,
                                    std::size_t cap = SIZE_MAX);
// How the 256 threads of a block share rows of channels, a shape's property: groups of `width` neighbouring channels,
// `groups` of them side by side, and what is left of the threads side by side over the rows.
struct RowLayout {
  int width = 1, groups = 1;
  int rows() const { return 256 / groups; }
  std::int64_t tiles(std::int64_t channels) const { return (channels + width * groups - 1) / (width * groups); }
};
RowLayout row_layout(std::int64_t channels, DType dtype);

// The entries of the kernel table: the plans above under the workspace cap of the process, whose smallest plan they
// check.
OpPlan plan_matmul(const MatmulDesc& desc);
OpPlan plan_conv2d(Conv2dPass pass, const Conv2dDesc& desc);
std::size_t plan_batch_norm(std::int64_t pixels, std::int64_t channels, DType dtype);

}  // namespace limpid::cu
