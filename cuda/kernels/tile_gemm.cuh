// One block's share of a matrix product: a tile of the result in registers, panels of both operands through
// double-buffered shared memory. Where the operands come from is the business of loaders, so that matrices with any
// strides (gemm.cu) and convolutions, which gather an operand from the image (conv.cu), share the arithmetic. Sums run
// in accumulate_t<T> in the order of k: they depend on the tile and the split, never on the run.
#pragma once

#include <limpid/cuda/cuda_lang.cuh>
#include <limpid/cuda/plans.h>

namespace limpid::cu {

constexpr int kGemmThreads = 256;

// A block computes m x n numbers, each thread thread_m x thread_n of them.
template <int m_, int n_, int thread_m_, int thread_n_>
struct Tile {
  static constexpr int m = m_, n = n_, thread_m = thread_m_, thread_n = thread_n_;
  static constexpr int threads_n = n / thread_n;
  static_assert((m / thread_m) * threads_n == kGemmThreads);
};
using WideTile = Tile<tile_size(GemmTile::wide).m, tile_size(GemmTile::wide).n, 8, 4>;
using SmallTile = Tile<tile_size(GemmTile::small).m, tile_size(GemmTile::small).n, 4, 2>;

// The panel of an operand: `extent` rows (or columns) of the tile by `depth` of the summed dimension. Threads fetch
// vectors of 16 bytes, which run along k or along the extent, whichever is contiguous in memory.
template <class T, int extent_>
struct Panel {
  static constexpr int extent = extent_;
  static constexpr int width = kVectorWidth<T>;
  static constexpr int depth = panel_depth(dtype_of<T>);
  static constexpr int pitch = extent + kVectorWidth<accumulate_t<T>>;  // padded against bank conflicts, still aligned
  static constexpr int vectors = extent * depth / width;
  static constexpr int per_thread = (vectors + kGemmThreads - 1) / kGemmThreads;
  using Fragment = Vector<T, width>[per_thread];  // one thread's part of a panel
  struct Place {
    int e, k;
    bool inside;  // false for the threads that a small panel does not need
  };
  static __device__ Place place(int i, bool along_k) {
    const int v = static_cast<int>(threadIdx.x) + i * kGemmThreads;
    const bool inside = v < vectors;
    if (along_k) return {v / (depth / width), v % (depth / width) * width, inside};
    return {v % (extent / width) * width, v / (extent / width), inside};
  }
  static __device__ void store(accumulate_t<T> (*panel)[pitch], const Fragment& fragment, bool along_k) {
#pragma unroll
    for (int i = 0; i < per_thread; i++) {
      const Place at = place(i, along_k);
      if (!at.inside) continue;
#pragma unroll
      for (int j = 0; j < width; j++) {
        const accumulate_t<T> value = to_float(fragment[i].values[j]);
        if (along_k) {
          panel[at.k + j][at.e] = value;
        } else {
          panel[at.k][at.e + j] = value;
        }
      }
    }
  }
};

// `count` consecutive numbers from shared memory, aligned to 16 bytes or to their own size.
template <int count, class Acc>
__device__ LIMPID_INLINE void read_shared(const Acc* from, Acc (&to)[count]) {
  constexpr int width = count < kVectorWidth<Acc> ? count : kVectorWidth<Acc>;
#pragma unroll
  for (int i = 0; i < count; i += width) {
    const Vector<Acc, width> v = load_vector<width>(from + i);
#pragma unroll
    for (int j = 0; j < width; j++) to[i + j] = v.values[j];
  }
}

// sums += A B over the next `steps` panels of the loaders. A loader has along_k (the direction of its vectors) and
// fetch(fragment), which reads its panel, zeros outside of the matrix, and moves on to the next.
template <class T, class Tile, class LoaderA, class LoaderB>
__device__ void multiply_panels(LoaderA& a, LoaderB& b, std::int64_t steps,
                                accumulate_t<T> (&sums)[Tile::thread_m][Tile::thread_n]) {
  using Acc = accumulate_t<T>;
  using PanelA = Panel<T, Tile::m>;
  using PanelB = Panel<T, Tile::n>;
  constexpr int depth = PanelA::depth, pitch_a = PanelA::pitch, pitch_b = PanelB::pitch;
  LIMPID_SHARED_ARRAY_2D(Acc, panels_a, 2 * depth, pitch_a);
  LIMPID_SHARED_ARRAY_2D(Acc, panels_b, 2 * depth, pitch_b);
  const int row = static_cast<int>(threadIdx.x) / Tile::threads_n * Tile::thread_m;
  const int column = static_cast<int>(threadIdx.x) % Tile::threads_n * Tile::thread_n;
  typename PanelA::Fragment next_a;
  typename PanelB::Fragment next_b;
  if (steps > 0) {
    a.fetch(next_a);
    b.fetch(next_b);
    PanelA::store(panels_a, next_a, a.along_k);
    PanelB::store(panels_b, next_b, b.along_k);
  }
  __syncthreads();
  for (std::int64_t step = 0; step < steps; step++) {
    const int now = static_cast<int>(step % 2) * depth, later = depth - now;
    const bool more = step + 1 < steps;
    if (more) {  // on their way while the arithmetic runs
      a.fetch(next_a);
      b.fetch(next_b);
    }
#pragma unroll
    for (int k = 0; k < depth; k++) {
      Acc left[Tile::thread_m], right[Tile::thread_n];
      read_shared(&panels_a[now + k][row], left);
      read_shared(&panels_b[now + k][column], right);
#pragma unroll
      for (int i = 0; i < Tile::thread_m; i++) {
#pragma unroll
        for (int j = 0; j < Tile::thread_n; j++) sums[i][j] += left[i] * right[j];
      }
    }
    if (more) {  // into the other buffer: all threads have left it at the last barrier
      PanelA::store(panels_a + later, next_a, a.along_k);
      PanelB::store(panels_b + later, next_b, b.along_k);
    }
    __syncthreads();
  }
}

// write(row, column, values of thread_n neighbouring columns) for the thread's rows of a tile that starts at
// (first_row, first_column); rows at or past `rows` are left out.
template <class Tile, class Acc, class Write>
__device__ LIMPID_INLINE void for_tile_rows(const Acc (&sums)[Tile::thread_m][Tile::thread_n], std::int64_t first_row,
                                            std::int64_t first_column, std::int64_t rows, Write write) {
  const std::int64_t row = first_row + static_cast<int>(threadIdx.x) / Tile::threads_n * Tile::thread_m;
  const std::int64_t column = first_column + static_cast<int>(threadIdx.x) % Tile::threads_n * Tile::thread_n;
#pragma unroll
  for (int i = 0; i < Tile::thread_m; i++) {
    if (row + i < rows) write(row + i, column, sums[i]);
  }
}

// Panels of a matrix with any strides: element (e, k) stands at data + e * step_e + k * step_k.
template <class T, int extent>
struct StridedLoader {
  using P = Panel<T, extent>;
  const T* data;  // of the tile's first row
  std::int64_t step_e, step_k;
  std::int64_t rows;      // of the matrix from there on; more is zeros
  std::int64_t k, k_end;  // the next panel's first k, and where k ends
  bool along_k;           // the vectors' direction
  bool vectors;           // they are contiguous and aligned

  __device__ void fetch(typename P::Fragment& fragment) {
#pragma unroll
    for (int i = 0; i < P::per_thread; i++) {
      const typename P::Place at = P::place(i, along_k);
      const std::int64_t first_k = k + at.k;
      const T* from = data + at.e * step_e + first_k * step_k;
      const std::int64_t left_e = rows - at.e, left_k = at.inside ? k_end - first_k : 0;
      const std::int64_t run = along_k ? (left_e > 0 ? left_k : 0) : (left_k > 0 ? left_e : 0),
                         step = along_k ? step_k : step_e;
      if (vectors && run >= P::width) {
        fragment[i] = load_vector<P::width>(from);
        continue;
      }
#pragma unroll
      for (int j = 0; j < P::width; j++) {
        fragment[i].values[j] = j < run ? from[j * step] : from_float<T>(0);
      }
    }
    k += P::depth;
  }
};

// Whether 16-byte vectors along one dimension, of stride 1, may be loaded from a matrix at `data` whose other strides
// these are.
template <class T>
inline bool vectors_fit(const T* data, std::initializer_list<std::int64_t> other_strides) {
  bool fit = is_vector_aligned(data);
  for (std::int64_t stride : other_strides) fit = fit && stride % kVectorWidth<T> == 0;
  return fit;
}

}  // namespace limpid::cu
