// Host/device macros. Everything that must compile under g++ and nvcc alike uses these and nothing else.
#pragma once

#if defined(__CUDACC__)
#define LIMPID_HD __host__ __device__
#else
#define LIMPID_HD
#endif

#define LIMPID_NOINLINE __attribute__((noinline))
#define LIMPID_INLINE inline __attribute__((always_inline))
#define LIMPID_LIKELY(x) __builtin_expect(!!(x), 1)
#define LIMPID_UNLIKELY(x) __builtin_expect(!!(x), 0)
