#include <limpid/cuda/kernels/gemm.cuh>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/indexing.cuh>
#include <limpid/cuda/kernels/tile_gemm.cuh>

namespace limpid::cu {
namespace {

struct GemmShape {
  std::int64_t batch, m, n, k;
  std::int64_t a_batch, a_row, a_col, b_batch, b_row, b_col;
  std::int64_t tiles_m, tiles_n, splits, split_depth;
  bool a_along_k, a_vectors, b_along_k, b_vectors;  // how the operands are loaded
};

// Block = ((split * batch + b) * tiles_m + tile_m) * tiles_n + tile_n. With splits the sums go to
// partial[split][b][m][n], otherwise to c.
template <class T, class Tile>
__global__ void __launch_bounds__(kGemmThreads)
    gemm_kernel(GemmShape s, T* c, const T* a, const T* b, const T* bias, accumulate_t<T>* partial, bool accumulate) {
  using Acc = accumulate_t<T>;
  std::int64_t block = blockIdx.x;
  const std::int64_t first_n = block % s.tiles_n * Tile::n;
  block /= s.tiles_n;
  const std::int64_t first_m = block % s.tiles_m * Tile::m;
  block /= s.tiles_m;
  const std::int64_t batch = block % s.batch, split = block / s.batch;
  const std::int64_t k = split * s.split_depth, k_end = s.k - k < s.split_depth ? s.k : k + s.split_depth;
  StridedLoader<T, Tile::m> load_a{
      a + batch * s.a_batch + first_m * s.a_row, s.a_row, s.a_col, s.m - first_m, k, k_end, s.a_along_k, s.a_vectors};
  StridedLoader<T, Tile::n> load_b{
      b + batch * s.b_batch + first_n * s.b_col, s.b_col, s.b_row, s.n - first_n, k, k_end, s.b_along_k, s.b_vectors};
  Acc sums[Tile::thread_m][Tile::thread_n] = {};
  multiply_panels<T, Tile>(load_a, load_b, (k_end - k + Panel<T, Tile::m>::depth - 1) / Panel<T, Tile::m>::depth, sums);
  const std::int64_t at = s.splits > 1 ? block * s.m * s.n : batch * s.m * s.n;
  for_tile_rows<Tile>(sums, first_m, first_n, s.m,
                      [&](std::int64_t row, std::int64_t column, const Acc(&values)[Tile::thread_n]) {
                        const std::int64_t to = at + row * s.n + column;
#pragma unroll
                        for (int j = 0; j < Tile::thread_n; j++) {
                          if (column + j >= s.n) break;
                          if (partial) {
                            partial[to + j] = values[j];
                            continue;
                          }
                          Acc value = values[j];
                          if (bias) value += to_float(bias[column + j]);
                          if (accumulate) value += to_float(c[to + j]);
                          c[to + j] = from_float<T>(value);
                        }
                      });
}

template <class T>
__global__ void add_splits_kernel(T* out, const accumulate_t<T>* partial, std::int64_t splits, std::int64_t count,
                                  const T* bias, std::int64_t n, bool accumulate) {
  for (std::int64_t i = first_position(); i < count; i += position_step()) {
    accumulate_t<T> sum = 0;
    for (std::int64_t s = 0; s < splits; s++) sum += partial[s * count + i];
    if (bias) sum += to_float(bias[i % n]);
    if (accumulate) sum += to_float(out[i]);
    out[i] = from_float<T>(sum);
  }
}

// Integers: one thread a number, sums wrap around in 64 bits.
template <class T>
__global__ void integer_gemm_kernel(MatmulDesc d, T* c, const T* a, const T* b, const T* bias, bool accumulate) {
  const std::int64_t count = d.batch * d.m * d.n;
  for (std::int64_t i = first_position(); i < count; i += position_step()) {
    const std::int64_t column = i % d.n, row = i / d.n % d.m, batch = i / d.n / d.m;
    const T* left = a + batch * d.a_batch + row * d.a_row;
    const T* right = b + batch * d.b_batch + column * d.b_col;
    std::uint64_t sum = bias ? static_cast<std::uint64_t>(bias[column]) : 0;
    if (accumulate) sum += static_cast<std::uint64_t>(c[i]);
    for (std::int64_t k = 0; k < d.k; k++) {
      sum += static_cast<std::uint64_t>(left[k * d.a_col]) * static_cast<std::uint64_t>(right[k * d.b_row]);
    }
    c[i] = static_cast<T>(sum);
  }
}

template <class T, class Tile>
cudaError_t run_tiles(GemmShape s, const GemmPlan& plan, T* c, const T* a, const T* b, const T* bias, void* workspace,
                      bool accumulate, cudaStream_t stream) {
  s.tiles_m = (s.m + Tile::m - 1) / Tile::m;
  s.tiles_n = (s.n + Tile::n - 1) / Tile::n;
  s.splits = plan.splits;
  s.split_depth = plan.splits > 1 ? plan.split_depth : s.k;
  const std::int64_t blocks = s.splits * s.batch * s.tiles_m * s.tiles_n;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  auto* partial = s.splits > 1 ? static_cast<accumulate_t<T>*>(workspace) : nullptr;
  const cudaError_t error = launch(gemm_kernel<T, Tile>, static_cast<unsigned>(blocks), kGemmThreads, 0, stream, s, c,
                                   a, b, bias, partial, accumulate);
  if (error != cudaSuccess || !partial) return error;
  return add_splits(dtype_of<T>, c, partial, s.splits, s.batch * s.m * s.n, bias, s.n, accumulate, stream);
}

template <class T>
cudaError_t float_gemm(const MatmulDesc& d, const GemmPlan& plan, T* c, const T* a, const T* b, const T* bias,
                       void* workspace, bool accumulate, cudaStream_t stream) {
  GemmShape s{};
  s.batch = d.batch, s.m = d.m, s.n = d.n, s.k = d.k;
  s.a_batch = d.a_batch, s.a_row = d.a_row, s.a_col = d.a_col;
  s.b_batch = d.b_batch, s.b_row = d.b_row, s.b_col = d.b_col;
  // Vectors run along the dimension whose stride is 1; where neither is, in any direction and by single elements.
  s.a_along_k = d.a_row != 1;
  s.a_vectors = (d.a_row == 1 || d.a_col == 1) && vectors_fit(a, {d.a_batch, s.a_along_k ? d.a_row : d.a_col});
  s.b_along_k = d.b_col != 1;
  s.b_vectors = (d.b_row == 1 || d.b_col == 1) && vectors_fit(b, {d.b_batch, s.b_along_k ? d.b_col : d.b_row});
  const auto run = plan.tile == GemmTile::wide ? run_tiles<T, WideTile> : run_tiles<T, SmallTile>;
  return run(s, plan, c, a, b, bias, workspace, accumulate, stream);
}

}  // namespace

cudaError_t gemm(const MatmulDesc& d, const GemmPlan& plan, void* c, const void* a, const void* b, const void* bias,
                 void* workspace, bool accumulate, cudaStream_t stream) {
  if (d.batch * d.m * d.n == 0) return cudaSuccess;
  return dispatch_numbers(d.dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      return launch(integer_gemm_kernel<T>, grid_for(d.batch * d.m * d.n), kBlockThreads, 0, stream, d,
                    static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(bias),
                    accumulate);
    } else {
      return float_gemm(d, plan, static_cast<T*>(c), static_cast<const T*>(a), static_cast<const T*>(b),
                        static_cast<const T*>(bias), workspace, accumulate, stream);
    }
  });
}

cudaError_t add_splits(DType dtype, void* out, const void* partial, std::int64_t splits, std::int64_t count,
                       const void* bias, std::int64_t n, bool accumulate, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return dispatch_floating(dtype, [&]<class T>() {
    return launch(add_splits_kernel<T>, grid_for(count), kBlockThreads, 0, stream, static_cast<T*>(out),
                  static_cast<const accumulate_t<T>*>(partial), splits, count, static_cast<const T*>(bias), n,
                  accumulate);
  });
}

}  // namespace limpid::cu
