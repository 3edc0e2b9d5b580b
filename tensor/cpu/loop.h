// Walks N strided operands of one shape together: dims are ordered by the first operand's strides, neighbours that can be
// are merged, and the innermost dim is handed to the caller as a run. The result's partition depends on the shape alone,
// so it is the same for every thread count. Not for reductions: every element of operand 0 is visited once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/tensor.h>

namespace limpid::cpu {

// Elements a task: cheap loops are bound by memory, costly ones (exp, log, ...) by arithmetic.
inline constexpr std::int64_t kGrain = 32768;
inline constexpr std::int64_t kGrainCostly = 4096;

template <int N>
struct Loop {
  int rank = 1;
  std::int64_t numel = 0;
  std::int64_t extent[kMaxDims] = {1};  // innermost first
  std::int64_t stride[N][kMaxDims] = {};
};

template <int N>
Loop<N> plan_loop(const Shape& shape, const Strides* const (&strides)[N]) {
  Loop<N> loop;
  loop.numel = shape.numel();
  if (loop.numel <= 1) {
    loop.extent[0] = loop.numel;
    for (int k = 0; k < N; k++) loop.stride[k][0] = 1;
    return loop;
  }
  // Insertion sort of the dims that matter, by the strides of operand 0, then 1, ...
  int order[kMaxDims];
  int rank = 0;
  for (int d = shape.size() - 1; d >= 0; d--) {
    if (shape[d] == 1) continue;
    int at = rank++;
    for (; at > 0; at--) {
      int before = order[at - 1];
      int k = 0;
      while (k < N && (*strides[k])[d] == (*strides[k])[before]) k++;
      if (k == N || (*strides[k])[d] > (*strides[k])[before]) break;
      order[at] = before;
    }
    order[at] = d;
  }
  int last = -1;
  for (int i = 0; i < rank; i++) {
    int d = order[i];
    bool merge = last >= 0;
    for (int k = 0; merge && k < N; k++) merge = (*strides[k])[d] == loop.stride[k][last] * loop.extent[last];
    if (merge) {
      loop.extent[last] *= shape[d];
      continue;
    }
    last++;
    loop.extent[last] = shape[d];
    for (int k = 0; k < N; k++) loop.stride[k][last] = (*strides[k])[d];
  }
  loop.rank = last + 1;
  return loop;
}

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

// Arithmetic on integers is done in 64 bits, on 16-bit floats in float.
template <class T>
using compute_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, accumulate_t<T>>;

// The two letters of the op rows in functors.h: F takes floating types only, A takes any number.
inline constexpr bool kOnlyF = true;
inline constexpr bool kOnlyA = false;
template <bool kFloatingOnly, class T>
inline constexpr bool kTakes = !kFloatingOnly || std::is_floating_point_v<compute_t<T>>;

// A constant of an op in the compute type; integers saturate, so that clamp(-inf, 3) works.
template <class C>
C constant(double value) {
  if constexpr (std::is_floating_point_v<C>) {
    return static_cast<C>(value);
  } else {
    if (value >= 9.2e18) return INT64_MAX;
    if (value <= -9.2e18) return INT64_MIN;
    return value == value ? static_cast<C>(value) : 0;
  }
}

}  // namespace limpid::cpu
