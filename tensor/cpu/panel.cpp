// Targets: the baseline of the build, AVX2 with FMA, AVX-512. The ones between would cost compile time and gain little.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <limpid/tensor/cpu/panel.cpp>
#include <hwy/foreach_target.h>

#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/simd-inl.h>

HWY_BEFORE_NAMESPACE();
namespace limpid::cpu::HWY_NAMESPACE {

// Vectors a panel, and rows of the register tile: as many accumulators as the registers hold beside the operands.
template <class T>
inline constexpr int kVecs = static_cast<int>(kPanel<T>) / kLanes<T>;
#if HWY_TARGET == HWY_AVX3
inline constexpr int kRows = 16;  // 16 x 1 of 32 registers
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kRows = 6;  // 6 x 2 of 16 registers
#else
inline constexpr int kRows = 3;  // 3 x 4 of 16 registers
#endif

// Accumulators are named variables: GCC spills an array of them (70 % instead of 90 % of the FMA peak).
#define LIMPID_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define LIMPID_DECLARE(r) \
  [[maybe_unused]] V c##r##0 = hn::Zero(d), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0;
#define LIMPID_START(r)                                      \
  if constexpr (MR > r) {                                    \
    const T* p = start + r * start_row;                      \
    c##r##0 = hn::LoadU(d, p);                               \
    if constexpr (VR > 1) c##r##1 = hn::LoadU(d, p + L);     \
    if constexpr (VR > 2) c##r##2 = hn::LoadU(d, p + 2 * L); \
    if constexpr (VR > 3) c##r##3 = hn::LoadU(d, p + 3 * L); \
  }
#define LIMPID_STEP(r)                                          \
  if constexpr (MR > r) {                                       \
    const V x = hn::Set(d, element(r));                         \
    c##r##0 = hn::MulAdd(x, b0, c##r##0);                       \
    if constexpr (VR > 1) c##r##1 = hn::MulAdd(x, b1, c##r##1); \
    if constexpr (VR > 2) c##r##2 = hn::MulAdd(x, b2, c##r##2); \
    if constexpr (VR > 3) c##r##3 = hn::MulAdd(x, b3, c##r##3); \
  }
#define LIMPID_STORE(r)                                      \
  if constexpr (MR > r) {                                    \
    T* p = c + r * c_row;                                    \
    hn::StoreU(c##r##0, d, p);                               \
    if constexpr (VR > 1) hn::StoreU(c##r##1, d, p + L);     \
    if constexpr (VR > 2) hn::StoreU(c##r##2, d, p + 2 * L); \
    if constexpr (VR > 3) hn::StoreU(c##r##3, d, p + 3 * L); \
  }

// Tile C[MR][P] = start + sum_k a_k b_k. kTransposed: a runs along the panel's columns (rows of the tile) and k along
// its rows; otherwise rows of the tile are rows of the panel, and k crosses panels every P.
// start: rows of initial values (row stride start_row, 0 repeats one row), or null for zeros.
#if HWY_TARGET == HWY_SCALAR
// Highway has no vectors here: plain arrays, which the compiler vectorises for the build's baseline.
template <class T, int MR, bool kTransposed>
HWY_NOINLINE void tile(std::int64_t k, const T* a, std::int64_t a_stride, const T* b, T* c, std::int64_t c_row,
                       const T* start, std::int64_t start_row) {
  constexpr std::int64_t P = kPanel<T>;
  constexpr std::int64_t row_step = kTransposed ? 1 : P;
  T sums[MR][kPanel<T>] = {};
  if (start != nullptr) {
    for (int r = 0; r < MR; ++r) {
      for (std::int64_t j = 0; j < P; ++j) sums[r][j] = start[r * start_row + j];
    }
  }
  for (std::int64_t i = 0; i < k; ++i, b += P) {
    const T* at = kTransposed ? a + i * P : a + i / P * a_stride + i % P;
    for (int r = 0; r < MR; ++r) {
      const T x = at[r * row_step];
      for (std::int64_t j = 0; j < P; ++j) sums[r][j] += x * b[j];
    }
  }
  for (int r = 0; r < MR; ++r) {
    for (std::int64_t j = 0; j < P; ++j) c[r * c_row + j] = sums[r][j];
  }
}
#else
template <class T, int MR, bool kTransposed>
HWY_NOINLINE void tile(std::int64_t k, const T* a, std::int64_t a_stride, const T* b, T* c, std::int64_t c_row,
                       const T* start, std::int64_t start_row) {
  using V = Vec<T>;
  const Tag<T> d;
  constexpr int P = static_cast<int>(kPanel<T>), L = kLanes<T>, VR = kVecs<T>;
  static_assert(VR <= 4, "a panel is at most four vectors");
  constexpr std::int64_t row_step = kTransposed ? 1 : P, k_step = kTransposed ? P : 1;
  LIMPID_ROWS(LIMPID_DECLARE)
  if (start != nullptr) {
    LIMPID_ROWS(LIMPID_START)
  }
  const auto element = [&](int r) __attribute__((always_inline)) { return a[r * row_step]; };
  const auto step = [&]() HWY_ATTR __attribute__((always_inline)) {
    const V b0 = hn::LoadU(d, b);
    [[maybe_unused]] const V b1 = VR > 1 ? hn::LoadU(d, b + (VR > 1 ? L : 0)) : b0;
    [[maybe_unused]] const V b2 = VR > 2 ? hn::LoadU(d, b + (VR > 2 ? 2 * L : 0)) : b0;
    [[maybe_unused]] const V b3 = VR > 3 ? hn::LoadU(d, b + (VR > 3 ? 3 * L : 0)) : b0;
    LIMPID_ROWS(LIMPID_STEP)
    a += k_step;
    b += P;
  };
  if constexpr (kTransposed) {
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < k; ++i) step();
  } else {
    for (; k >= P; k -= P) {
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) step();
      a += a_stride - P;
    }
    for (; k > 0; --k) step();
  }
  LIMPID_ROWS(LIMPID_STORE)
}
#endif

// Tile C[MR][P] = start + sum over i of a_i b_i, with A where it lies. kTransposed: row r, step i is x[offsets[r] +
// i * x_step]; otherwise it is x[offsets[i] + r * x_step].
template <class T, int MR, bool kTransposed>
HWY_NOINLINE void gathered_tile(std::int64_t k, const T* x_base, const std::int32_t* offsets, std::int64_t x_step,
                                const T* b, T* c, std::int64_t c_row, const T* start, std::int64_t start_row) {
  constexpr int P = static_cast<int>(kPanel<T>);
#if HWY_TARGET == HWY_SCALAR
  T sums[MR][kPanel<T>] = {};
  for (int r = 0; start != nullptr && r < MR; ++r) {
    for (int j = 0; j < P; ++j) sums[r][j] = start[r * start_row + j];
  }
  for (std::int64_t i = 0; i < k; ++i, b += P) {
    for (int r = 0; r < MR; ++r) {
      const T value = kTransposed ? x_base[offsets[r] + i * x_step] : x_base[offsets[i] + r * x_step];
      for (int j = 0; j < P; ++j) sums[r][j] += value * b[j];
    }
  }
  for (int r = 0; r < MR; ++r) {
    for (int j = 0; j < P; ++j) c[r * c_row + j] = sums[r][j];
  }
#else
  using V = Vec<T>;
  const Tag<T> d;
  constexpr int L = kLanes<T>, VR = kVecs<T>;
  LIMPID_ROWS(LIMPID_DECLARE)
  if (start != nullptr) {
    LIMPID_ROWS(LIMPID_START)
  }
  const T* at = x_base;
  const auto element = [&](int r) __attribute__((always_inline)) {
    return kTransposed ? at[offsets[r]] : at[r * x_step];
  };
  for (std::int64_t i = 0; i < k; ++i, b += P) {
    if constexpr (!kTransposed) at = x_base + offsets[i];
    const V b0 = hn::LoadU(d, b);
    [[maybe_unused]] const V b1 = VR > 1 ? hn::LoadU(d, b + (VR > 1 ? L : 0)) : b0;
    [[maybe_unused]] const V b2 = VR > 2 ? hn::LoadU(d, b + (VR > 2 ? 2 * L : 0)) : b0;
    [[maybe_unused]] const V b3 = VR > 3 ? hn::LoadU(d, b + (VR > 3 ? 3 * L : 0)) : b0;
    LIMPID_ROWS(LIMPID_STEP)
    if constexpr (kTransposed) at += x_step;
  }
  LIMPID_ROWS(LIMPID_STORE)
#endif
}

template <class T>
using GatheredFn = void (*)(std::int64_t, const T*, const std::int32_t*, std::int64_t, const T*, T*, std::int64_t,
                            const T*, std::int64_t);
template <class T, bool kTransposed, int... kCounts>
HWY_INLINE GatheredFn<T> pick_gathered(int rows, std::integer_sequence<int, kCounts...>) {
  static constexpr GatheredFn<T> kTable[] = {&gathered_tile<T, kCounts + 1, kTransposed>...};
  return kTable[rows - 1];
}
template <class T, bool kTransposed>
HWY_INLINE GatheredFn<T> gathered_for(int rows) {
  return pick_gathered<T, kTransposed>(rows, std::make_integer_sequence<int, kRows>());
}

template <class T>
using TileFn = void (*)(std::int64_t, const T*, std::int64_t, const T*, T*, std::int64_t, const T*, std::int64_t);

template <class T, bool kTransposed, int... kCounts>
HWY_INLINE TileFn<T> pick(int rows, std::integer_sequence<int, kCounts...>) {
  static constexpr TileFn<T> kTable[] = {&tile<T, kCounts + 1, kTransposed>...};
  return kTable[rows - 1];
}
template <class T, bool kTransposed>
HWY_INLINE TileFn<T> tile_for(int rows) {
  return pick<T, kTransposed>(rows, std::make_integer_sequence<int, kRows>());
}

// Rows of the tile number `index` when m rows are cut into tiles of nearly equal height: no small, slow rest.
struct RowCut {
  std::int64_t count, base, longer;
  explicit RowCut(std::int64_t m) : count((m + kRows - 1) / kRows), base(m / count), longer(m % count) {}
  int rows(std::int64_t index) const { return static_cast<int>(base + (index < longer ? 1 : 0)); }
};

// k steps between two visits of C: a panel slice of B (16 KiB in fp32) stays in the L1 cache meanwhile.
inline constexpr std::int64_t kDepth = 256;

template <class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
              std::int64_t b_stride, T* c, std::int64_t c_row, Init init, const T* bias) {
  constexpr std::int64_t P = kPanel<T>;
  if (m <= 0 || n <= 0) return;
  const RowCut cut(m);
  alignas(64) T buffer[kRows * P];
  alignas(64) T bias_row[P];
  for (std::int64_t k0 = 0; k0 == 0 || k0 < k; k0 += kDepth) {
    const std::int64_t depth = k - k0 < kDepth ? k - k0 : kDepth;
    const Init from = k0 == 0 ? init : Init::load;
    for (std::int64_t n0 = 0; n0 < n; n0 += P) {
      const std::int64_t cols = n - n0 < P ? n - n0 : P;
      const T* bp = b + n0 / P * b_stride + k0 * P;
      if (from == Init::bias) {
        for (std::int64_t j = 0; j < P; ++j) bias_row[j] = j < cols ? bias[n0 + j] : T(0);
      }
      const T* ap = a + k0 / P * a_stride;
      T* cp = c + n0;
      for (std::int64_t i = 0; i < cut.count; ++i) {
        const int rows = cut.rows(i);
        const TileFn<T> fn = tile_for<T, false>(rows);
        if (cols == P) {
          const T* start = from == Init::zero ? nullptr : from == Init::bias ? bias_row : cp;
          fn(depth, ap, a_stride, bp, cp, c_row, start, from == Init::load ? c_row : 0);
        } else {
          if (from == Init::load) {
            for (int r = 0; r < rows; ++r) {
              for (std::int64_t j = 0; j < P; ++j) buffer[r * P + j] = j < cols ? cp[r * c_row + j] : T(0);
            }
          }
          const T* start = from == Init::zero ? nullptr : from == Init::bias ? bias_row : buffer;
          fn(depth, ap, a_stride, bp, buffer, P, start, from == Init::load ? P : 0);
          for (int r = 0; r < rows; ++r) {
            for (std::int64_t j = 0; j < cols; ++j) cp[r * c_row + j] = buffer[r * P + j];
          }
        }
        ap += rows * P;
        cp += rows * c_row;
      }
    }
  }
}

template <class T>
void multiply_panels(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
                     std::int64_t b_stride, T* c, std::int64_t c_stride) {
  constexpr std::int64_t P = kPanel<T>;
  if (m <= 0) return;
  const RowCut cut(m);
  for (std::int64_t k0 = 0; k0 == 0 || k0 < k; k0 += kDepth) {
    const std::int64_t depth = k - k0 < kDepth ? k - k0 : kDepth;
    for (std::int64_t p = 0; p < n / P; ++p) {
      const T* ap = a + k0 / P * a_stride;
      const T* bp = b + p * b_stride + k0 * P;
      T* cp = c + p * c_stride;
      for (std::int64_t i = 0; i < cut.count; ++i) {
        const int rows = cut.rows(i);
        tile_for<T, false>(rows)(depth, ap, a_stride, bp, cp, P, k0 > 0 ? cp : nullptr, P);
        ap += rows * P;
        cp += rows * P;
      }
    }
  }
}

template <class T>
void multiply_transposed(std::int64_t t, std::int64_t rows, std::int64_t cols, const T* a, std::int64_t a_stride,
                         const T* z, std::int64_t z_stride, T* d, std::int64_t d_stride, bool accumulate) {
  constexpr std::int64_t P = kPanel<T>;
  constexpr std::int64_t kSteps = 192;  // a slice of A and of Z: 24 KiB in fp32, inside the L1 cache
  for (std::int64_t t0 = 0; t0 == 0 || t0 < t; t0 += kSteps) {
    const std::int64_t depth = t - t0 < kSteps ? t - t0 : kSteps;
    const bool load = accumulate || t0 > 0;
    for (std::int64_t c0 = 0; c0 < cols; c0 += P) {
      const T* zp = z + c0 / P * z_stride + t0 * P;
      for (std::int64_t r0 = 0; r0 < rows; r0 += P) {
        const T* ap = a + r0 / P * a_stride + t0 * P;
        T* dp = d + c0 / P * d_stride + r0 * P;
        const RowCut cut(rows - r0 < P ? rows - r0 : P);
        for (std::int64_t i = 0; i < cut.count; ++i) {
          const int count = cut.rows(i);
          tile_for<T, true>(count)(depth, ap, 0, zp, dp, P, load ? dp : nullptr, P);
          ap += count;
          dp += count * P;
        }
      }
    }
  }
}

template <class T>
void multiply_gathered(std::int64_t m, std::int64_t n, std::int64_t k, const T* x, const std::int32_t* offsets,
                       std::int64_t step, const T* b, std::int64_t b_stride, T* c, std::int64_t c_row, const T* bias) {
  constexpr std::int64_t P = kPanel<T>;
  if (m <= 0) return;
  const RowCut cut(m);
  alignas(64) T buffer[kRows * P];
  alignas(64) T start[P] = {};
  for (std::int64_t n0 = 0; n0 < n; n0 += P, b += b_stride) {
    const std::int64_t cols = n - n0 < P ? n - n0 : P;
    if (bias != nullptr) {
      for (std::int64_t j = 0; j < P; ++j) start[j] = j < cols ? bias[n0 + j] : T(0);
    }
    const T* at = x;
    T* cp = c + n0;
    for (std::int64_t i = 0; i < cut.count; ++i) {
      const int rows = cut.rows(i);
      const bool whole = cols == P;
      gathered_for<T, false>(rows)(k, at, offsets, step, b, whole ? cp : buffer, whole ? c_row : P, start, 0);
      for (int r = 0; !whole && r < rows; ++r) {
        for (std::int64_t j = 0; j < cols; ++j) cp[r * c_row + j] = buffer[r * P + j];
      }
      at += rows * step;
      cp += rows * c_row;
    }
  }
}

template <class T>
void add_gathered_transposed(std::int64_t t, std::int64_t k, std::int64_t cols, const T* x, const std::int32_t* offsets,
                             std::int64_t step, const T* z, std::int64_t z_stride, T* d, std::int64_t d_stride) {
  constexpr std::int64_t P = kPanel<T>;
  if (k <= 0) return;
  const RowCut cut(k);
  for (std::int64_t c0 = 0; c0 < cols; c0 += P, z += z_stride, d += d_stride) {
    T* dp = d;
    const std::int32_t* at = offsets;
    for (std::int64_t i = 0; i < cut.count; ++i) {
      const int rows = cut.rows(i);
      gathered_for<T, true>(rows)(t, x, at, step, z, dp, P, dp, P);
      at += rows;
      dp += rows * P;
    }
  }
}

// Copies rows into panels; zero fills the last panel.
template <class T>
HWY_INLINE void pack_rows(std::int64_t rows, std::int64_t cols, const T* src, std::int64_t row_stride, T* dst,
                          std::int64_t stride) {
  constexpr std::int64_t P = kPanel<T>;
  const std::int64_t whole = cols / P * P, rest = cols - whole;
  // Row by row: a source row is read as one stream, whatever its stride.
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* in = src + r * row_stride;
    T* out = dst + r * P;
    for (std::int64_t c0 = 0; c0 < whole; c0 += P, in += P, out += stride) {
      for (std::int64_t j = 0; j < P; ++j) out[j] = in[j];
    }
    if (rest > 0) {
      for (std::int64_t j = 0; j < P; ++j) out[j] = j < rest ? in[j] : T(0);
    }
  }
}

template <class T>
void pack(std::int64_t rows, std::int64_t cols, const T* src, std::int64_t row_stride, std::int64_t col_stride, T* dst,
          std::int64_t stride) {
  constexpr std::int64_t P = kPanel<T>;
  if (col_stride == 1) return pack_rows(rows, cols, src, row_stride, dst, stride);
  for (std::int64_t c0 = 0; c0 < cols; c0 += P) {
    T* out = dst + c0 / P * stride;
    const T* in = src + c0 * col_stride;
    if (cols - c0 >= P) {
      if (row_stride == 1) {
        // A cache line of each of the P source rows at a time: with strides of whole pages they evict each other.
        std::int64_t r0 = 0;
        for (; r0 + P <= rows; r0 += P) {
          for (std::int64_t j = 0; j < P; j += 4) {
            for (std::int64_t r = r0; r < r0 + P; r += 4) {
              transpose4(in + j * col_stride + r, col_stride, out + r * P + j, P);
            }
          }
        }
        for (; r0 < rows; ++r0) {
          for (std::int64_t j = 0; j < P; ++j) out[r0 * P + j] = in[j * col_stride + r0];
        }
      } else {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t j = 0; j < P; ++j) out[r * P + j] = in[r * row_stride + j * col_stride];
        }
      }
    } else {
      const std::int64_t n = cols - c0;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < P; ++j) out[r * P + j] = j < n ? in[r * row_stride + j * col_stride] : T(0);
      }
    }
  }
}

// MR rows of C, all of n, four vectors at a time.
template <class T, int MR>
HWY_INLINE void small_tile(std::int64_t n, std::int64_t k, const T* a0, std::int64_t a_row, std::int64_t a_col,
                           const T* b_base, std::int64_t b_row, T* c_base, std::int64_t c_row, bool accumulate,
                           const T* bias) {
  using V = Vec<T>;
  const Tag<T> d;
  constexpr std::int64_t L = kLanes<T>;
  std::int64_t n0 = 0;
  for (; n0 + 4 * L <= n; n0 += 4 * L) {
    V s00 = hn::Zero(d), s01 = s00, s02 = s00, s03 = s00, s10 = s00, s11 = s00, s12 = s00, s13 = s00, s20 = s00,
      s21 = s00, s22 = s00, s23 = s00;
    const T* a = a0;
    const T* b = b_base + n0;
    for (std::int64_t i = 0; i < k; ++i, a += a_col, b += b_row) {
      const V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + L), b2 = hn::LoadU(d, b + 2 * L),
              b3 = hn::LoadU(d, b + 3 * L);
      V x = hn::Set(d, a[0]);
      s00 = hn::MulAdd(x, b0, s00), s01 = hn::MulAdd(x, b1, s01), s02 = hn::MulAdd(x, b2, s02);
      s03 = hn::MulAdd(x, b3, s03);
      if constexpr (MR > 1) {
        x = hn::Set(d, a[a_row]);
        s10 = hn::MulAdd(x, b0, s10), s11 = hn::MulAdd(x, b1, s11), s12 = hn::MulAdd(x, b2, s12);
        s13 = hn::MulAdd(x, b3, s13);
      }
      if constexpr (MR > 2) {
        x = hn::Set(d, a[2 * a_row]);
        s20 = hn::MulAdd(x, b0, s20), s21 = hn::MulAdd(x, b1, s21), s22 = hn::MulAdd(x, b2, s22);
        s23 = hn::MulAdd(x, b3, s23);
      }
    }
    const auto finish = [&](int r, V v0, V v1, V v2, V v3) HWY_ATTR {
      T* c = c_base + r * c_row + n0;
      if (bias != nullptr) {
        v0 = hn::Add(v0, hn::LoadU(d, bias + n0)), v1 = hn::Add(v1, hn::LoadU(d, bias + n0 + L));
        v2 = hn::Add(v2, hn::LoadU(d, bias + n0 + 2 * L)), v3 = hn::Add(v3, hn::LoadU(d, bias + n0 + 3 * L));
      }
      if (accumulate) {
        v0 = hn::Add(v0, hn::LoadU(d, c)), v1 = hn::Add(v1, hn::LoadU(d, c + L));
        v2 = hn::Add(v2, hn::LoadU(d, c + 2 * L)), v3 = hn::Add(v3, hn::LoadU(d, c + 3 * L));
      }
      hn::StoreU(v0, d, c), hn::StoreU(v1, d, c + L), hn::StoreU(v2, d, c + 2 * L), hn::StoreU(v3, d, c + 3 * L);
    };
    finish(0, s00, s01, s02, s03);
    if constexpr (MR > 1) finish(1, s10, s11, s12, s13);
    if constexpr (MR > 2) finish(2, s20, s21, s22, s23);
  }
  for (; n0 < n; n0 += L) {
    const std::int64_t part = n - n0 < L ? n - n0 : L;
    V s0 = hn::Zero(d), s1 = s0, s2 = s0;
    const T* a = a0;
    const T* b = b_base + n0;
    for (std::int64_t i = 0; i < k; ++i, a += a_col, b += b_row) {
      const V b0 = part == L ? hn::LoadU(d, b) : load_part(b, part);
      s0 = hn::MulAdd(hn::Set(d, a[0]), b0, s0);
      if constexpr (MR > 1) s1 = hn::MulAdd(hn::Set(d, a[a_row]), b0, s1);
      if constexpr (MR > 2) s2 = hn::MulAdd(hn::Set(d, a[2 * a_row]), b0, s2);
    }
    const auto finish = [&](int r, V v) HWY_ATTR {
      T* c = c_base + r * c_row + n0;
      if (bias != nullptr) v = hn::Add(v, load_part(bias + n0, part));
      if (accumulate) v = hn::Add(v, load_part(static_cast<const T*>(c), part));
      store_part(v, c, part);
    };
    finish(0, s0);
    if constexpr (MR > 1) finish(1, s1);
    if constexpr (MR > 2) finish(2, s2);
  }
}

template <class T>
void small_rows(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row, std::int64_t a_col,
                const T* b, std::int64_t b_row, T* c, std::int64_t c_row, bool accumulate, const T* bias) {
  std::int64_t i = 0;
  for (; i + 3 <= m; i += 3) {
    small_tile<T, 3>(n, k, a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, accumulate, bias);
  }
  if (m - i == 2) {
    small_tile<T, 2>(n, k, a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, accumulate, bias);
  } else if (m - i == 1) {
    small_tile<T, 1>(n, k, a + i * a_row, a_row, a_col, b, b_row, c + i * c_row, c_row, accumulate, bias);
  }
}

// Columns of B in groups of four, two accumulators each.
template <class T, int NC>
HWY_INLINE void dots(std::int64_t k, const T* a, const T* b, std::int64_t b_col, T* out) {
  using V = Vec<T>;
  const Tag<T> d;
  constexpr std::int64_t L = kLanes<T>;
  const T *p0 = b, *p1 = b + (NC > 1 ? b_col : 0), *p2 = b + (NC > 2 ? 2 * b_col : 0),
          *p3 = b + (NC > 3 ? 3 * b_col : 0);
  V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
  std::int64_t i = 0;
  for (; i + 2 * L <= k; i += 2 * L) {
    const V x = hn::LoadU(d, a + i), y = hn::LoadU(d, a + i + L);
    s0 = hn::MulAdd(x, hn::LoadU(d, p0 + i), s0), t0 = hn::MulAdd(y, hn::LoadU(d, p0 + i + L), t0);
    if constexpr (NC > 1)
      s1 = hn::MulAdd(x, hn::LoadU(d, p1 + i), s1), t1 = hn::MulAdd(y, hn::LoadU(d, p1 + i + L), t1);
    if constexpr (NC > 2)
      s2 = hn::MulAdd(x, hn::LoadU(d, p2 + i), s2), t2 = hn::MulAdd(y, hn::LoadU(d, p2 + i + L), t2);
    if constexpr (NC > 3)
      s3 = hn::MulAdd(x, hn::LoadU(d, p3 + i), s3), t3 = hn::MulAdd(y, hn::LoadU(d, p3 + i + L), t3);
  }
  for (; i < k; i += L) {
    const std::int64_t part = k - i < L ? k - i : L;
    const V x = load_part(a + i, part);
    s0 = hn::MulAdd(x, load_part(p0 + i, part), s0);
    if constexpr (NC > 1) s1 = hn::MulAdd(x, load_part(p1 + i, part), s1);
    if constexpr (NC > 2) s2 = hn::MulAdd(x, load_part(p2 + i, part), s2);
    if constexpr (NC > 3) s3 = hn::MulAdd(x, load_part(p3 + i, part), s3);
  }
  out[0] = sum_of_lanes<T>(hn::Add(s0, t0));
  if constexpr (NC > 1) out[1] = sum_of_lanes<T>(hn::Add(s1, t1));
  if constexpr (NC > 2) out[2] = sum_of_lanes<T>(hn::Add(s2, t2));
  if constexpr (NC > 3) out[3] = sum_of_lanes<T>(hn::Add(s3, t3));
}

template <class T>
void small_dots(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row, const T* b,
                std::int64_t b_col, T* c, std::int64_t c_row, bool accumulate, const T* bias) {
  for (std::int64_t j = 0; j < n; j += 4) {
    const int cols = static_cast<int>(n - j < 4 ? n - j : 4);
    for (std::int64_t i = 0; i < m; ++i) {
      T out[4];
      const T* ai = a + i * a_row;
      const T* bj = b + j * b_col;
      if (cols == 4) dots<T, 4>(k, ai, bj, b_col, out);
      if (cols == 3) dots<T, 3>(k, ai, bj, b_col, out);
      if (cols == 2) dots<T, 2>(k, ai, bj, b_col, out);
      if (cols == 1) dots<T, 1>(k, ai, bj, b_col, out);
      T* ci = c + i * c_row + j;
      for (int q = 0; q < cols; ++q) {
        if (bias != nullptr) out[q] += bias[j + q];
        ci[q] = accumulate ? ci[q] + out[q] : out[q];
      }
    }
  }
}

template <class T>
inline constexpr PanelKernels<T> kPanelKernels = {
    &pack<T>,       &multiply<T>, &multiply_panels<T>, &multiply_transposed<T>, &multiply_gathered<T>, &add_gathered_transposed<T>,
    &small_rows<T>, &small_dots<T>};

const PanelKernels<float>* panel_kernels_float() { return &kPanelKernels<float>; }
const PanelKernels<double>* panel_kernels_double() { return &kPanelKernels<double>; }

}  // namespace limpid::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace limpid::cpu {
HWY_EXPORT(panel_kernels_float);
HWY_EXPORT(panel_kernels_double);

template <>
const PanelKernels<float>& panel_kernels<float>() {
  return *HWY_DYNAMIC_DISPATCH(panel_kernels_float)();
}
template <>
const PanelKernels<double>& panel_kernels<double>() {
  return *HWY_DYNAMIC_DISPATCH(panel_kernels_double)();
}
}  // namespace limpid::cpu
#endif
