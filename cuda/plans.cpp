#include <limpid/cuda/plans.h>

#include <algorithm>

#include <limpid/tensor/workspace_cap.h>

namespace limpid::cu {
namespace {

constexpr std::int64_t kSmallestSplit = 256;  // of k: below, adding the parts costs more than the parts save

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::size_t accumulate_size(DType dtype) { return dtype == DType::float64 ? sizeof(double) : sizeof(float); }

std::int64_t blocks_of(GemmTile tile, std::int64_t batch, std::int64_t m, std::int64_t n) {
  return batch * ceil_div(m, tile_size(tile).m) * ceil_div(n, tile_size(tile).n);
}
// The wide tile reads each operand less often, but only where there are enough of them.
GemmTile choose_tile(std::int64_t batch, std::int64_t m, std::int64_t n) {
  return blocks_of(GemmTile::wide, batch, m, n) >= kBusyBlocks && n > tile_size(GemmTile::small).n ? GemmTile::wide
                                                                                                   : GemmTile::small;
}

// Parts of `depth`, multiples of `unit` and at least `smallest`, so that `blocks` times the parts keep the device busy.
// Fewer when `bytes_each` a part would pass the cap. Returns the number of parts, and their depth in `part`.
std::int64_t choose_splits(std::int64_t depth, std::int64_t blocks, std::int64_t smallest, std::int64_t unit,
                           std::size_t bytes_each, std::size_t cap, std::int64_t& part) {
  const std::int64_t wanted = ceil_div(2 * kBusyBlocks, std::max<std::int64_t>(blocks, 1));
  std::int64_t splits =
      blocks >= kBusyBlocks ? 1 : std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(depth / smallest, 1));
  if (bytes_each > 0)
    splits = std::min(splits, static_cast<std::int64_t>(std::min<std::size_t>(cap / bytes_each, 1u << 20)));
  splits = std::max<std::int64_t>(splits, 1);
  part = std::max(unit, ceil_div(ceil_div(depth, splits), unit) * unit);
  return std::max<std::int64_t>(ceil_div(depth, part), 1);
}

GemmPlan plan_product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype,
                      std::size_t cap) {
  GemmPlan plan;
  plan.tile = choose_tile(batch, m, n);
  const std::size_t bytes = static_cast<std::size_t>(batch * m * n) * accumulate_size(dtype);
  plan.splits = choose_splits(k, blocks_of(plan.tile, batch, m, n), kSmallestSplit, panel_depth(dtype), bytes, cap,
                              plan.split_depth);
  plan.workspace_bytes = plan.splits > 1 ? static_cast<std::size_t>(plan.splits) * bytes : 0;
  return plan;
}

std::size_t workspace_limit() { return workspace_cap() > 0 ? workspace_cap() : SIZE_MAX; }

}  // namespace

GemmPlan plan_gemm(const MatmulDesc& desc, std::size_t cap) {
  return plan_product(desc.batch, desc.m, desc.n, desc.k, desc.dtype, cap);
}

const char* name_of(ConvAlgorithm algorithm) {
  switch (algorithm) {
    case ConvAlgorithm::gemm:
      return "gemm_1x1";
    case ConvAlgorithm::implicit_gemm:
      return "implicit_gemm";
    case ConvAlgorithm::depthwise:
      return "depthwise";
  }
  return "unknown";
}

ConvPlan plan_conv(Conv2dPass pass, const Conv2dDesc& d, std::size_t cap) {
  ConvPlan plan;
  const std::int64_t group_in = d.c / d.groups, group_out = d.k / d.groups, taps = d.r * d.s;
  const std::int64_t pixels_in = d.n * d.h * d.w, pixels_out = d.n * d.oh() * d.ow();
  const std::size_t weights = static_cast<std::size_t>(d.k * group_in * taps);
  if (taps == 1 && d.stride_h == 1 && d.stride_w == 1 && d.pad_h == 0 && d.pad_w == 0 && d.groups == 1) {
    plan.algorithm = ConvAlgorithm::gemm;
  } else if (group_in == 1 && d.groups > 1) {
    plan.algorithm = ConvAlgorithm::depthwise;
  }
  if (pass == Conv2dPass::backward_weight) {
    if (plan.algorithm == ConvAlgorithm::depthwise) {
      const std::int64_t blocks = ceil_div(d.k, 32) * taps;  // conv_depthwise.cu: 32 channels of one tap each
      const std::size_t bytes = weights * accumulate_size(d.dtype);
      plan.gemm.splits = choose_splits(pixels_out, blocks, kSmallestSplit, 1, bytes, cap, plan.gemm.split_depth);
      plan.gemm.workspace_bytes = plan.gemm.splits > 1 ? static_cast<std::size_t>(plan.gemm.splits) * bytes : 0;
    } else {
      plan.gemm = plan_product(d.groups, group_out, taps * group_in, pixels_out, d.dtype, cap);
    }
    plan.workspace_bytes = plan.gemm.workspace_bytes;
    return plan;
  }
  const bool forward = pass == Conv2dPass::forward;
  if (plan.algorithm == ConvAlgorithm::gemm) {
    plan.gemm = plan_product(1, pixels_out, forward ? d.k : d.c, forward ? d.c : d.k, d.dtype, cap);
    plan.workspace_bytes = plan.gemm.workspace_bytes;
  } else if (plan.algorithm == ConvAlgorithm::implicit_gemm) {
    plan.gemm.tile = choose_tile(d.groups, forward ? pixels_out : pixels_in, forward ? group_out : group_in);
    plan.workspace_bytes = weights * size_of(d.dtype);  // conv.cu: the weight with the taps outermost
  }
  return plan;
}

ColumnSumPlan plan_column_sum(std::int64_t rows, std::int64_t columns, DType dtype, std::size_t cap) {
  ColumnSumPlan plan;
  const std::size_t bytes = static_cast<std::size_t>(columns) * accumulate_size(dtype);
  plan.splits = choose_splits(rows, ceil_div(columns, 32), 64, 1, bytes, cap, plan.split_rows);
  plan.workspace_bytes = plan.splits > 1 ? static_cast<std::size_t>(plan.splits) * bytes : 0;
  return plan;
}

RowLayout row_layout(std::int64_t channels, DType dtype) {
  RowLayout layout;
  const int width = static_cast<int>(16 / size_of(dtype));  // a vector of 16 bytes
  layout.width = channels % width == 0 ? width : 1;
  while (layout.groups < 32 && layout.groups * layout.width < channels) layout.groups *= 2;
  return layout;
}

BatchNormPlan plan_batch_norm_parts(std::int64_t pixels, std::int64_t channels, DType dtype, std::size_t cap) {
  BatchNormPlan plan;
  const std::size_t bytes = static_cast<std::size_t>(3 * channels) * sizeof(double);
  const RowLayout layout = row_layout(channels, dtype);
  const std::int64_t smallest = std::max<std::int64_t>(8 * layout.rows(), 64);  // of rows: a few for every thread
  plan.splits = choose_splits(pixels, layout.tiles(channels), smallest, 1, bytes, cap, plan.split_rows);
  plan.workspace_bytes = plan.splits > 1 ? static_cast<std::size_t>(plan.splits) * bytes : 0;
  return plan;
}

OpPlan plan_matmul(const MatmulDesc& desc) {
  if (!is_floating(desc.dtype)) return {"integer", 0};
  const GemmPlan plan = plan_gemm(desc, workspace_limit());
  check_workspace_cap("matmul", plan.workspace_bytes);
  return {plan.splits > 1 ? "gemm_split" : "gemm", plan.workspace_bytes};
}

OpPlan plan_conv2d(Conv2dPass pass, const Conv2dDesc& desc) {
  const ConvPlan plan = plan_conv(pass, desc, workspace_limit());
  check_workspace_cap("conv2d", plan.workspace_bytes);
  return {name_of(plan.algorithm), plan.workspace_bytes};
}

std::size_t plan_batch_norm(std::int64_t pixels, std::int64_t channels, DType dtype) {
  const std::size_t bytes = plan_batch_norm_parts(pixels, channels, dtype, workspace_limit()).workspace_bytes;
  check_workspace_cap("batch_norm", bytes);
  return bytes;
}

}  // namespace limpid::cu
