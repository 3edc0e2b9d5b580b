// The CUDA language for g++: gives CUDA's names to what device_calls.h offers. Included only by cuda/cuda_lang.cuh, after
// CUDA's own headers, which under g++ make __global__ and __device__ empty and bring the vector and 16-bit types.
//
// What is not here does not compile in an emulated kernel: textures, cooperative groups, dynamic parallelism, inline PTX,
// __activemask (its value says nothing about who will come). The keyword __shared__ is refused as well: shared memory is
// declared with the macros of cuda_lang.cuh.
// What touches memory is always inlined: then the access checker sees it, and names the kernel's line.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <limpid/base/macros.h>

#include <cudasim/device_calls.h>
#include <cudasim/emulator.h>

#undef __shared__
#define __shared__ use_LIMPID_SHARED_ARRAY_or_LIMPID_SHARED_DYNAMIC
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#define threadIdx (::limpid::cudasim::registers.thread_index)
#define blockIdx (::limpid::cudasim::registers.block_index)
#define blockDim (::limpid::cudasim::registers.block_dim)
#define gridDim (::limpid::cudasim::registers.grid_dim)
inline constexpr int warpSize = 32;

#define LIMPID_CUDASIM_SITE (::limpid::cudasim::Site{__FILE__, __LINE__, __COUNTER__})

namespace limpid::cudasim {

enum class Shuffle { index, up, down, butterfly };

template <class T>
T shuffle(Shuffle kind, Site site, unsigned mask, T value, int argument, int width = 32) {
  static_assert(sizeof(T) <= kWarpValueBytes && std::is_trivially_copyable_v<T>);
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    fail(site, cudaErrorLaunchFailure, "a shuffle's width is a power of two up to 32, not %d", width);
  }
  WarpValues all;
  warp_exchange(mask, WarpOp::shuffle, &value, sizeof(T), all, site);
  const int lane = registers.lane, first = lane & ~(width - 1), last = first + width - 1;
  int source = lane;
  switch (kind) {
    case Shuffle::index: source = first + (argument & (width - 1)); break;
    case Shuffle::up: source = lane - argument >= first ? lane - argument : lane; break;
    case Shuffle::down: source = lane + argument <= last ? lane + argument : lane; break;
    case Shuffle::butterfly: source = (lane ^ argument) <= last ? lane ^ argument : lane; break;
  }
  if (!(all.arrived >> source & 1)) {
    fail(site, cudaErrorLaunchFailure, "lane %d reads from lane %d, which is not in mask 0x%08x", lane, source, mask);
  }
  T result;
  std::memcpy(&result, all.values + static_cast<std::size_t>(source) * sizeof(T), sizeof(T));
  return result;
}

inline unsigned ballot(Site site, unsigned mask, bool predicate) {
  const unsigned char vote = predicate;
  WarpValues all;
  warp_exchange(mask, WarpOp::vote, &vote, 1, all, site);
  unsigned result = 0;
  for (int lane = 0; lane < 32; lane++) {
    if ((all.arrived >> lane & 1) && all.values[lane]) result |= 1u << lane;
  }
  return result;
}

template <class T>
unsigned match_any(Site site, unsigned mask, T value) {
  WarpValues all;
  warp_exchange(mask, WarpOp::match, &value, sizeof(T), all, site);
  unsigned result = 0;
  for (std::size_t lane = 0; lane < 32; lane++) {
    if ((all.arrived >> lane & 1) && std::memcmp(all.values + lane * sizeof(T), &value, sizeof(T)) == 0) result |= 1u << lane;
  }
  return result;
}

// __reduce_*_sync: 32-bit integers (sm_80 and later).
template <class T, class Combine>
T reduce(Site site, unsigned mask, T value, Combine combine) {
  static_assert(sizeof(T) == 4 && std::is_integral_v<T>);
  WarpValues all;
  warp_exchange(mask, WarpOp::reduce, &value, sizeof(T), all, site);
  bool any = false;
  T result{};
  for (std::size_t lane = 0; lane < 32; lane++) {
    if (!(all.arrived >> lane & 1)) continue;
    T other;
    std::memcpy(&other, all.values + lane * sizeof(T), sizeof(T));
    result = any ? combine(result, other) : other;
    any = true;
  }
  return result;
}

inline void sync_warp(Site site, unsigned mask = 0xffffffffu) {
  const char nothing = 0;
  WarpValues all;
  warp_exchange(mask, WarpOp::sync, &nothing, 1, all, site);
}

}  // namespace limpid::cudasim

#define __syncthreads() ((void)::limpid::cudasim::sync_threads(LIMPID_CUDASIM_SITE))
#define LIMPID_CUDASIM_VOTE(op, predicate) \
  ::limpid::cudasim::sync_threads(LIMPID_CUDASIM_SITE, ::limpid::cudasim::BarrierOp::op, (predicate) != 0)
#define __syncthreads_count(predicate) LIMPID_CUDASIM_VOTE(count, predicate)
#define __syncthreads_and(predicate) LIMPID_CUDASIM_VOTE(all, predicate)
#define __syncthreads_or(predicate) LIMPID_CUDASIM_VOTE(any, predicate)
#define __syncwarp(...) ::limpid::cudasim::sync_warp(LIMPID_CUDASIM_SITE __VA_OPT__(, ) __VA_ARGS__)
#define LIMPID_CUDASIM_SHUFFLE(kind, ...) \
  ::limpid::cudasim::shuffle(::limpid::cudasim::Shuffle::kind, LIMPID_CUDASIM_SITE, __VA_ARGS__)
#define __shfl_sync(...) LIMPID_CUDASIM_SHUFFLE(index, __VA_ARGS__)
#define __shfl_up_sync(...) LIMPID_CUDASIM_SHUFFLE(up, __VA_ARGS__)
#define __shfl_down_sync(...) LIMPID_CUDASIM_SHUFFLE(down, __VA_ARGS__)
#define __shfl_xor_sync(...) LIMPID_CUDASIM_SHUFFLE(butterfly, __VA_ARGS__)
#define __ballot_sync(mask, predicate) ::limpid::cudasim::ballot(LIMPID_CUDASIM_SITE, mask, (predicate) != 0)
#define __any_sync(mask, predicate) (::limpid::cudasim::ballot(LIMPID_CUDASIM_SITE, mask, (predicate) != 0) != 0)
#define __all_sync(mask, predicate) (::limpid::cudasim::ballot(LIMPID_CUDASIM_SITE, mask, (predicate) == 0) == 0)
#define __match_any_sync(mask, value) ::limpid::cudasim::match_any(LIMPID_CUDASIM_SITE, mask, value)
#define LIMPID_CUDASIM_REDUCE(mask, value, expression) \
  ::limpid::cudasim::reduce(LIMPID_CUDASIM_SITE, mask, value, [](auto a, auto b) { return expression; })
#define __reduce_add_sync(mask, value) LIMPID_CUDASIM_REDUCE(mask, value, a + b)
#define __reduce_min_sync(mask, value) LIMPID_CUDASIM_REDUCE(mask, value, b < a ? b : a)
#define __reduce_max_sync(mask, value) LIMPID_CUDASIM_REDUCE(mask, value, a < b ? b : a)
#define __reduce_and_sync(mask, value) LIMPID_CUDASIM_REDUCE(mask, value, a & b)
#define __reduce_or_sync(mask, value) LIMPID_CUDASIM_REDUCE(mask, value, a | b)
#define __reduce_xor_sync(mask, value) LIMPID_CUDASIM_REDUCE(mask, value, a ^ b)

LIMPID_INLINE void __threadfence() { ::limpid::cudasim::thread_fence(); }
LIMPID_INLINE void __threadfence_block() {}  // orders, as far as one sequential thread after the other can tell, nothing

// ---------------------------------------------------------------- arithmetic
// The device's approximations (__expf and its kin) are exact functions here: results differ from a GPU's in the last bits.
template <class T>
LIMPID_INLINE T __ldg(const T* address) { return *address; }
template <class T>
LIMPID_INLINE T __ldcs(const T* address) { return *address; }
template <class T>
LIMPID_INLINE void __stcs(T* address, T value) { *address = value; }
LIMPID_INLINE float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
LIMPID_INLINE double rsqrt(double x) { return 1.0 / std::sqrt(x); }
LIMPID_INLINE float __expf(float x) { return std::exp(x); }
LIMPID_INLINE float __logf(float x) { return std::log(x); }
LIMPID_INLINE float __fdividef(float a, float b) { return a / b; }
LIMPID_INLINE float __frcp_rn(float x) { return 1.0f / x; }
LIMPID_INLINE float __fsqrt_rn(float x) { return std::sqrt(x); }
LIMPID_INLINE float __fdiv_rn(float a, float b) { return a / b; }
// Products and sums that the compiler may not contract to one rounding.
LIMPID_INLINE float __fmul_rn(float a, float b) { return a * b; }
LIMPID_INLINE float __fadd_rn(float a, float b) { return a + b; }
LIMPID_INLINE float __fsub_rn(float a, float b) { return a - b; }
LIMPID_INLINE float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
LIMPID_INLINE double __dmul_rn(double a, double b) { return a * b; }
LIMPID_INLINE double __dadd_rn(double a, double b) { return a + b; }
LIMPID_INLINE double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
LIMPID_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }  // NaN gives 0
namespace limpid::cudasim {
template <class To, class From>
LIMPID_INLINE To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace limpid::cudasim
LIMPID_INLINE float __int_as_float(int x) { return ::limpid::cudasim::same_bits<float>(x); }
LIMPID_INLINE float __uint_as_float(unsigned x) { return ::limpid::cudasim::same_bits<float>(x); }
LIMPID_INLINE int __float_as_int(float x) { return ::limpid::cudasim::same_bits<int>(x); }
LIMPID_INLINE unsigned __float_as_uint(float x) { return ::limpid::cudasim::same_bits<unsigned>(x); }
LIMPID_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
LIMPID_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
LIMPID_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
LIMPID_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
LIMPID_INLINE int __ffs(int x) { return __builtin_ffs(x); }
LIMPID_INLINE unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32); }
template <class T>
LIMPID_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T>
LIMPID_INLINE T max(T a, T b) { return a < b ? b : a; }

// ---------------------------------------------------------------- atomics (relaxed, as the device's)
namespace limpid::cudasim {
// The new value may depend on the old one; __atomic built-ins, so that the access checker sees an atomic.
template <class T, class Update>
LIMPID_INLINE T atomic_update(T* address, Update update) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  static_assert(sizeof(T) == sizeof(Bits));
  auto* bits = reinterpret_cast<Bits*>(address);
  Bits old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T value = same_bits<T>(old);
    if (__atomic_compare_exchange_n(bits, &old, same_bits<Bits>(static_cast<T>(update(value))), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      return value;
    }
  }
}
template <class T>
using SameType = std::type_identity_t<T>;
}  // namespace limpid::cudasim

#define LIMPID_CUDASIM_ATOMIC(name, expression)                                                   \
  template <class T>                                                                              \
  LIMPID_INLINE T name(T* address, ::limpid::cudasim::SameType<T> value) {                               \
    return ::limpid::cudasim::atomic_update(address, [value](T old) { return T(expression); });   \
  }
LIMPID_CUDASIM_ATOMIC(atomicAdd, old + value)
LIMPID_CUDASIM_ATOMIC(atomicSub, old - value)
LIMPID_CUDASIM_ATOMIC(atomicMin, value < old ? value : old)
LIMPID_CUDASIM_ATOMIC(atomicMax, old < value ? value : old)
LIMPID_CUDASIM_ATOMIC(atomicAnd, old & value)
LIMPID_CUDASIM_ATOMIC(atomicOr, old | value)
LIMPID_CUDASIM_ATOMIC(atomicXor, old ^ value)
LIMPID_CUDASIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef LIMPID_CUDASIM_ATOMIC
template <class T>
LIMPID_INLINE T atomicExch(T* address, ::limpid::cudasim::SameType<T> value) {
  return ::limpid::cudasim::atomic_update(address, [value](T) { return value; });
}
template <class T>
LIMPID_INLINE T atomicCAS(T* address, ::limpid::cudasim::SameType<T> expected, ::limpid::cudasim::SameType<T> value) {
  return ::limpid::cudasim::atomic_update(address, [=](T old) { return old == expected ? value : old; });
}

// ---------------------------------------------------------------- shared memory and launches, for cuda_lang.cuh
#define LIMPID_CUDASIM_SHARED(T, name, bytes)        \
  static const char name##_shared_key = 0;           \
  T const name = static_cast<T>(::limpid::cudasim::static_shared(&name##_shared_key, bytes, LIMPID_CUDASIM_SITE))

namespace limpid::cudasim {

template <class... Parameters, class... Arguments>
cudaError_t launch_emulated(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                            Arguments&&... arguments) {
  using Tuple = std::tuple<std::decay_t<Parameters>...>;
  static_assert(sizeof(Tuple) <= 4096, "kernel parameters exceed 4 KiB");
  auto kept = std::make_shared<Tuple>(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  Kernel packed;
  packed.function = reinterpret_cast<const void*>(kernel);
  // The closure lies in host memory: the access checker shall not see it read.
  packed.body = [kernel, tuple = kept.get()]() __attribute__((no_sanitize("thread"))) {
    auto* const function = kernel;
    Tuple& values = *tuple;
    std::apply(function, values);
  };
  std::apply([&](const auto&... each) { packed.arguments = {Argument{&each, sizeof each}...}; }, *kept);
  packed.storage = kept;
  packed.storage_bytes = sizeof(Tuple);
  return launch_kernel(grid, block, shared_bytes, stream, std::move(packed));
}

}  // namespace limpid::cudasim
