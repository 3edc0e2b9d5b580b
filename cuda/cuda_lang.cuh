// The one header through which kernels see the CUDA language. nvcc compiles a kernel for GPUs; with LIMPID_CUDA_EMULATED
// defined, g++ compiles the same source for the emulator of tests/cudasim, which runs it on a CPU.
//
// What a kernel source may use, so that both can: the index variables, __syncthreads and its voting forms, __syncwarp, the
// shuffles, votes and reductions with explicit masks, atomics, __threadfence, CUDA's vector and 16-bit types, std:: maths and
// the intrinsics of tests/cudasim/device_lang.h. Launches go through launch(), never <<<>>>; shared memory through the macros
// below, never __shared__. Maths on 16-bit values is done in float. No textures, cooperative groups, dynamic parallelism,
// waiting for another block. docs/cuda_testing.md tells how a kernel is tested.
#pragma once

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <limpid/base/macros.h>
#include <limpid/tensor/half.h>

#if defined(LIMPID_CUDA_EMULATED)
#include <cudasim/device_lang.h>
#elif !defined(__CUDACC__)
#error "a kernel source is compiled by nvcc, or with LIMPID_CUDA_EMULATED for the emulator"
#endif

// `T name[n]` in shared memory; n is a constant. In two dimensions `T name[rows][columns]`.
// The dynamic form is `T* name` at the start of the bytes that the launch asked for, aligned to 16; it has one a kernel.
#if defined(LIMPID_CUDA_EMULATED)
#define LIMPID_SHARED_ARRAY(T, name, n) LIMPID_CUDASIM_SHARED(T*, name, sizeof(T) * (n))
#define LIMPID_SHARED_ARRAY_2D(T, name, rows, columns) \
  using name##_shared_row = T[columns];                \
  LIMPID_CUDASIM_SHARED(name##_shared_row*, name, sizeof(T) * (rows) * (columns))
#define LIMPID_SHARED_DYNAMIC(T, name) T* const name = static_cast<T*>(::limpid::cudasim::dynamic_shared())
#else
#define LIMPID_SHARED_ARRAY(T, name, n) __shared__ __align__(16) T name[n]
#define LIMPID_SHARED_ARRAY_2D(T, name, rows, columns) __shared__ __align__(16) T name[rows][columns]
#define LIMPID_SHARED_DYNAMIC(T, name)                                \
  extern __shared__ __align__(16) unsigned char limpid_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(limpid_dynamic_shared)
#endif

namespace limpid::cu {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;      // mask of all lanes
constexpr std::size_t kDefaultSharedBytes = 48 << 10;  // more needs the function attribute that launch() sets

// Queues kernel(arguments...) on the stream. Returns the call's error: cudaErrorInvalidConfiguration for an empty grid or a
// block that is too large, cudaErrorInvalidValue for more shared memory than a block can have. Errors of the kernel itself
// are reported by the next call that waits for the stream. Arguments are converted to the kernel's parameter types.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   Arguments&&... arguments) {
#if defined(LIMPID_CUDA_EMULATED)
  return cudasim::launch_emulated(kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
#else
  if (shared_bytes > kDefaultSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t launch_config{};
  launch_config.gridDim = grid;
  launch_config.blockDim = block;
  launch_config.dynamicSmemBytes = shared_bytes;
  launch_config.stream = stream;
  return cudaLaunchKernelEx(&launch_config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...);
#endif
}

// ---------------------------------------------------------------- 16-bit storage types, by the device's own conversions
// Round to nearest, ties to even, as limpid::Half and limpid::BFloat16 do on the CPU; a NaN stays a NaN, its bits may differ.
LIMPID_HD LIMPID_INLINE float to_float(Half value) { return __half2float(__half(__half_raw{value.bits})); }
LIMPID_HD LIMPID_INLINE float to_float(BFloat16 value) { return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{value.bits})); }
LIMPID_HD LIMPID_INLINE float to_float(float value) { return value; }
LIMPID_HD LIMPID_INLINE double to_float(double value) { return value; }

// The inverse: accumulate_t<T> to T.
template <class T>
LIMPID_HD LIMPID_INLINE T from_float(accumulate_t<T> value) {
  if constexpr (std::is_same_v<T, Half>) {
    T result;
    result.bits = static_cast<__half_raw>(__float2half_rn(value)).x;
    return result;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    T result;
    result.bits = static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(value)).x;
    return result;
  } else {
    return value;
  }
}

// ---------------------------------------------------------------- vectors
// n elements that are loaded and stored by one instruction: at most 16 bytes, aligned to their size.
template <class T, int n>
struct alignas(sizeof(T) * n) Vector {
  static_assert(sizeof(T) * n <= 16, "the widest load has 16 bytes");
  T values[n];
};
template <class T>
constexpr int kVectorWidth = static_cast<int>(16 / sizeof(T));  // elements of 16 bytes

template <int n, class T>
LIMPID_HD LIMPID_INLINE Vector<T, n> load_vector(const T* address) {
  return *reinterpret_cast<const Vector<T, n>*>(address);
}
template <class T, int n>
LIMPID_HD LIMPID_INLINE void store_vector(T* address, const Vector<T, n>& vector) {
  *reinterpret_cast<Vector<T, n>*>(address) = vector;
}
template <class T>
inline bool is_vector_aligned(const T* address) {  // for 16-byte vectors; host side
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

}  // namespace limpid::cu
