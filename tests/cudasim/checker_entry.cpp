// Where compiled kernels report their accesses. g++ -fsanitize=thread calls these functions before every load, store and
// atomic; libtsan, which defines them otherwise, is not linked: this file takes its place and asks the access checker.
// Compiled without any sanitizer.
#include <cstddef>
#include <cstdint>

#include <cudasim/checker.h>

namespace {
using limpid::cudasim::check_access;

inline void plain(const void* address, std::size_t bytes, bool write, unsigned align, const void* code) {
  check_access(address, bytes, {.write = write, .atomic = false, .align = align, .every_byte = true}, {.code = code, .site = {}});
}
inline void atomic(const volatile void* address, std::size_t bytes, bool write, const void* code) {
  check_access(const_cast<const void*>(address), bytes, {.write = write, .atomic = true, .align = static_cast<unsigned>(bytes), .every_byte = true},
               {.code = code, .site = {}});
}
}  // namespace

#define CODE __builtin_return_address(0)
#define LOADS_AND_STORES(N)                                                                         \
  void __tsan_read##N(void* p) { plain(p, N, false, N, CODE); }                                     \
  void __tsan_write##N(void* p) { plain(p, N, true, N, CODE); }                                     \
  void __tsan_volatile_read##N(void* p) { plain(p, N, false, N, CODE); }                            \
  void __tsan_volatile_write##N(void* p) { plain(p, N, true, N, CODE); }                            \
  void __tsan_unaligned_read##N(void* p) { plain(p, N, false, 1, CODE); }                           \
  void __tsan_unaligned_write##N(void* p) { plain(p, N, true, 1, CODE); }                           \
  void __tsan_unaligned_volatile_read##N(void* p) { plain(p, N, false, 1, CODE); }                  \
  void __tsan_unaligned_volatile_write##N(void* p) { plain(p, N, true, 1, CODE); }

// The emulator runs one thread at a time, so the operation itself need not be atomic.
#define UPDATE(BITS, T, name, expression)                                           \
  T __tsan_atomic##BITS##_##name(volatile T* p, T v, int) {                         \
    atomic(p, sizeof(T), true, CODE);                                               \
    const T old = *p;                                                               \
    *p = static_cast<T>(expression);                                                \
    return old;                                                                     \
  }
#define EXCHANGE(BITS, T, name)                                                     \
  int __tsan_atomic##BITS##_##name(volatile T* p, T* expected, T v, int, int) {     \
    atomic(p, sizeof(T), true, CODE);                                               \
    if (*p == *expected) {                                                          \
      *p = v;                                                                       \
      return 1;                                                                     \
    }                                                                               \
    *expected = *p;                                                                 \
    return 0;                                                                       \
  }
#define ATOMICS(BITS, T)                                                            \
  T __tsan_atomic##BITS##_load(const volatile T* p, int) {                          \
    atomic(p, sizeof(T), false, CODE);                                              \
    return *p;                                                                      \
  }                                                                                 \
  void __tsan_atomic##BITS##_store(volatile T* p, T v, int) {                       \
    atomic(p, sizeof(T), true, CODE);                                               \
    *p = v;                                                                         \
  }                                                                                 \
  UPDATE(BITS, T, exchange, v)                                                      \
  UPDATE(BITS, T, fetch_add, old + v)                                               \
  UPDATE(BITS, T, fetch_sub, old - v)                                               \
  UPDATE(BITS, T, fetch_and, old & v)                                               \
  UPDATE(BITS, T, fetch_or, old | v)                                                \
  UPDATE(BITS, T, fetch_xor, old ^ v)                                               \
  EXCHANGE(BITS, T, compare_exchange_strong)                                        \
  EXCHANGE(BITS, T, compare_exchange_weak)                                          \
  T __tsan_atomic##BITS##_compare_exchange_val(volatile T* p, T expected, T v, int, int) { \
    atomic(p, sizeof(T), true, CODE);                                               \
    const T old = *p;                                                               \
    if (old == expected) *p = v;                                                    \
    return old;                                                                     \
  }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, std::size_t bytes) { plain(p, bytes, false, 1, CODE); }
void __tsan_write_range(void* p, std::size_t bytes) { plain(p, bytes, true, 1, CODE); }
LOADS_AND_STORES(1)
LOADS_AND_STORES(2)
LOADS_AND_STORES(4)
LOADS_AND_STORES(8)
LOADS_AND_STORES(16)
ATOMICS(8, std::uint8_t)
ATOMICS(16, std::uint16_t)
ATOMICS(32, std::uint32_t)
ATOMICS(64, std::uint64_t)
}
