#include <limpid/cuda/reduce_plan.h>

#include <algorithm>

namespace limpid::cu {
namespace {

constexpr std::int64_t kWantedBlocks = 512;  // more than a device runs at once, few enough for short second passes
constexpr std::int64_t kValuesAThread = 2 * kReduceRun;  // at least, before a reduction is split further

int power_of_two(std::int64_t at_least, int limit) {
  int n = 1;
  while (n < at_least && n < limit) n *= 2;
  return n;
}

}  // namespace

ReducePlan plan_reduce(const Shape& shape, const Strides& strides, const Strides& out_strides, std::uint32_t mask,
                       int width, const void* data) {
  ReducePlan plan;
  Shape kept = shape, reduced = shape;
  for (int d = 0; d < shape.size(); d++) (mask >> d & 1u ? kept : reduced)[d] = 1;
  plan.kept = kernel::plan_loop<2>(kept, {&strides, &out_strides});
  plan.reduced = kernel::plan_loop<1>(reduced, {&strides});
  ReducePartition& p = plan.partition;
  p.outputs = plan.kept.numel, p.length = plan.reduced.numel;
  p.columns = p.outputs > 1 && p.length > 1 && plan.kept.stride[0][0] < plan.reduced.stride[0][0];
  bool vectors = width > 1 && !p.columns && plan.reduced.rank == 1 && plan.reduced.stride[0][0] == 1 &&
                 p.length >= 2 * width && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (int i = 0; vectors && p.outputs > 1 && i < plan.kept.rank; i++) vectors = plan.kept.stride[0][i] % width == 0;
  if (vectors) {
    plan.width = width;
    p.tail = static_cast<int>(p.length % width);
    p.length /= width;
  }
  p.slots = p.columns ? power_of_two(p.outputs, 32) : kReduceThreads / power_of_two(p.length, kReduceThreads);
  p.lanes = kReduceThreads / p.slots;
  const std::int64_t blocks = (p.outputs + p.slots - 1) / p.slots;
  const std::int64_t most = std::max<std::int64_t>(1, p.length / (p.lanes * kValuesAThread));
  p.splits = std::clamp<std::int64_t>(kWantedBlocks / blocks, 1, most);
  p.chunk = (p.length + p.splits - 1) / p.splits;
  p.splits = std::max<std::int64_t>(1, (p.length + p.chunk - 1) / p.chunk);  // no empty split
  return plan;
}

std::size_t reduce_workspace_bytes(const Shape& shape, const Strides& strides, std::uint32_t dims_mask) {
  if (shape.numel() == 0) return 0;
  // Any width has fewer positions and so at most the splits of width 1. A total has 8 bytes.
  const ReducePartition p = plan_reduce(shape, strides, strides, dims_mask, 1, nullptr).partition;
  return p.splits > 1 ? static_cast<std::size_t>(p.splits * p.outputs) * 8 : 0;
}

}  // namespace limpid::cu
