// Runs the walk of tensor/strided.h over N operands on the thread pool: the innermost dim is handed to the caller as a run.
// The partition depends on the shape alone, so it is the same for every thread count. Not for reductions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/strided.h>
#include <limpid/tensor/tensor.h>

namespace limpid::cpu {

// Elements a task: cheap loops are bound by memory, costly ones (exp, log, ...) by arithmetic.
inline constexpr std::int64_t kGrain = 32768;
inline constexpr std::int64_t kGrainCostly = 4096;

using kernel::Loop;
using kernel::plan_loop;

// One range [begin, end) of the walk: run(offset[N], step[N], n) in elements.
template <int N, class Run>
void run_range(const Loop<N>& loop, std::int64_t begin, std::int64_t end, Run&& run) {
  std::int64_t step[N], offset[N];
  for (int k = 0; k < N; k++) step[k] = loop.stride[k][0];
  if (loop.rank == 1) {
    for (int k = 0; k < N; k++) offset[k] = begin * step[k];
    run(offset, step, end - begin);
    return;
  }
  std::int64_t at[kMaxDims];
  std::int64_t rest = begin;
  for (int i = 0; i < loop.rank; i++) {
    at[i] = rest % loop.extent[i];
    rest /= loop.extent[i];
  }
  for (int k = 0; k < N; k++) {
    offset[k] = 0;
    for (int i = 0; i < loop.rank; i++) offset[k] += at[i] * loop.stride[k][i];
  }
  for (std::int64_t position = begin; position < end;) {
    std::int64_t n = std::min(loop.extent[0] - at[0], end - position);
    run(offset, step, n);
    position += n;
    if (position >= end) break;
    for (int k = 0; k < N; k++) offset[k] -= at[0] * step[k];
    at[0] = 0;
    for (int i = 1; i < loop.rank; i++) {
      if (++at[i] < loop.extent[i]) {
        for (int k = 0; k < N; k++) offset[k] += loop.stride[k][i];
        break;
      }
      for (int k = 0; k < N; k++) offset[k] -= (loop.extent[i] - 1) * loop.stride[k][i];
      at[i] = 0;
    }
  }
}

template <int N, class Run>
void run_loop(const Loop<N>& loop, std::int64_t grain, Run&& run) {
  if (loop.numel == 0) return;
  if (loop.numel <= grain) {
    run_range(loop, 0, loop.numel, run);
    return;
  }
  parallel_chunks(loop.numel, grain, [&](std::int64_t begin, std::int64_t end) { run_range(loop, begin, end, run); });
}

// True when all operands walk one dense block in the same order, so that a single run with steps of 1 covers them.
template <class... Tensors>
bool same_dense(const Tensor& first, const Tensors&... others) {
  if (first.numel() == 1) return true;
  if (first.is_contiguous()) return (others.is_contiguous() && ...);
  return ((others.strides() == first.strides()) && ...) && first.is_dense();
}

using kernel::compute_t;
using kernel::constant;
using kernel::kIsNarrow;
using kernel::kOnlyA;
using kernel::kOnlyF;
using kernel::kTakes;

}  // namespace limpid::cpu
