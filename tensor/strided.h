// What the elementwise kernels of every backend share: the type in which they compute, how numbers convert, and the
// walk over strided operands. Host code, except where LIMPID_HD says that a device may call it too.
#pragma once

#include <cstdint>
#include <type_traits>

#include <limpid/base/macros.h>
#include <limpid/tensor/half.h>
#include <limpid/tensor/shape.h>

namespace limpid::kernel {

// Arithmetic on integers is done in 64 bits, on 16-bit floats in float.
template <class T>
using compute_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, accumulate_t<T>>;

template <class T>
inline constexpr bool kIsNarrow = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

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

// A number of a compute type as an integer, bool or wide float, as PyTorch converts: to bool is "not zero", floats to
// integers go through i64. Outside of i64 the C++ conversion is undefined: saturate, NaN gives 0.
template <class To, class C>
LIMPID_HD inline To convert_number(C number) {
  if constexpr (std::is_same_v<To, bool>) {
    return number != C(0);
  } else if constexpr (std::is_floating_point_v<C> && std::is_integral_v<To>) {
    std::int64_t whole = 0;
    if (number >= C(9.2233720368547758e18)) {
      whole = INT64_MAX;
    } else if (number <= C(-9.2233720368547758e18)) {
      whole = INT64_MIN;
    } else if (number == number) {
      whole = static_cast<std::int64_t>(number);
    }
    return static_cast<To>(whole);
  } else {
    return static_cast<To>(number);
  }
}

// N strided operands of one shape, walked together: dims are ordered by the first operand's strides, and neighbours
// that can be are merged. Every element of operand 0 is visited once.
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

}  // namespace limpid::kernel
