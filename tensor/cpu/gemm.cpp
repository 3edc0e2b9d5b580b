#include <limpid/tensor/cpu/gemm.h>

#include <algorithm>

#include <limpid/tensor/cpu/panel.h>
#include <limpid/tensor/cpu/parallel.h>

namespace limpid::cpu {
namespace {

enum class Path : std::uint8_t { empty, rows, dots, packed };

// Multiply-adds below which packing or a fork costs more than it gains.
constexpr std::int64_t kSmallWork = 32 * 32 * 32;
constexpr std::int64_t kForkWork = 64 * 64 * 64;
// Blocks of the packed path: A block rows x depth and B block depth x cols share the L2 cache (1 MiB).
constexpr std::int64_t kBlockRows = 192, kBlockCols = 256, kBlockDepth = 512;

Path choose_path(const GemmDesc& d) {
  if (d.m <= 0 || d.n <= 0 || d.batch <= 0) return Path::empty;
  const std::int64_t work = d.m * d.n * d.k;
  const bool b_rows = d.b_col == 1 || d.n == 1;
  if (b_rows && (d.m <= 4 || d.k <= 8 || work <= kSmallWork)) return Path::rows;
  const bool dense_dots = (d.a_col == 1 || d.k == 1) && (d.b_row == 1 || d.k == 1);
  if (dense_dots && (d.m <= 8 || d.n <= 4 || work <= kSmallWork)) return Path::dots;
  if (d.k <= 0) return Path::rows;
  return Path::packed;
}

struct Blocks {
  std::int64_t rows, cols, depth, row_blocks, col_blocks, slots;
  std::int64_t tasks() const { return row_blocks * col_blocks; }
};

// Blocks follow from the shape alone. Enough of them for a few threads, unless the product is small.
template <std::int64_t P>
Blocks choose_blocks(const GemmDesc& d) {
  Blocks b{};
  b.row_blocks = ceil_div(d.m, kBlockRows);
  b.col_blocks = ceil_div(d.n, kBlockCols);
  if (d.m * d.n * d.k > kForkWork) {
    while (b.row_blocks * b.col_blocks * d.batch < kMaxSlots) {
      const std::int64_t rows = ceil_div(d.m, b.row_blocks), cols = ceil_div(d.n, b.col_blocks);
      if (cols >= rows && cols >= 4 * P) {
        b.col_blocks *= 2;
      } else if (rows >= 24) {
        b.row_blocks *= 2;
      } else if (cols >= 4 * P) {
        b.col_blocks *= 2;
      } else {
        break;
      }
    }
  }
  b.rows = ceil_div(d.m, b.row_blocks);
  b.cols = round_up(ceil_div(d.n, b.col_blocks), P);
  b.row_blocks = ceil_div(d.m, b.rows);
  b.col_blocks = ceil_div(d.n, b.cols);
  const std::int64_t depth_blocks = ceil_div(d.k, kBlockDepth);
  b.depth = round_up(ceil_div(d.k, depth_blocks), P);
  return b;
}
Blocks choose_blocks(const GemmDesc& d, std::size_t element_size) {
  return element_size == 4 ? choose_blocks<16>(d) : choose_blocks<8>(d);
}

std::int64_t scratch_elements(const Blocks& b) { return b.depth * (b.rows + b.cols); }

std::size_t bytes_of(const Blocks& b, std::size_t element_size) {
  return static_cast<std::size_t>(b.slots * round_up(scratch_elements(b) * static_cast<std::int64_t>(element_size), 64));
}

// Shrinks the blocks until they fit: the larger side of a block, the slots, then the sides down to a register tile. The
// depth stays, and with it the order of every sum. Given the bytes that it led to as the cap, it ends at the same place.
Blocks blocks_within(const GemmDesc& d, std::size_t element_size, std::size_t cap) {
  constexpr std::int64_t kGoodSide = 48, kLeastRows = 6;
  const std::int64_t panel = 64 / static_cast<std::int64_t>(element_size);
  Blocks b = choose_blocks(d, element_size);
  b.slots = std::min(kMaxSlots, b.tasks() * d.batch);
  while (bytes_of(b, element_size) > cap) {
    const bool good = b.rows <= kGoodSide && b.cols <= kGoodSide;
    if (good && b.slots > 1) {
      b.slots = ceil_div(b.slots, 2);
    } else if (b.rows > b.cols && b.rows > kLeastRows) {
      b.rows = ceil_div(b.rows, 2);
    } else if (b.cols > panel) {
      b.cols = round_up(ceil_div(b.cols, 2), panel);
    } else if (b.rows > kLeastRows) {
      b.rows = ceil_div(b.rows, 2);
    } else {
      break;
    }
    b.row_blocks = ceil_div(d.m, b.rows);
    b.col_blocks = ceil_div(d.n, b.cols);
  }
  return b;
}

template <class T>
void multiply_block(const GemmDesc& d, const Blocks& blocks, std::int64_t row_block, std::int64_t col_block, const T* a,
                    const T* b, T* c, const T* bias, T* scratch, const PanelKernels<T>& kernels) {
  constexpr std::int64_t P = kPanel<T>;
  const std::int64_t m0 = row_block * blocks.rows, m = std::min(blocks.rows, d.m - m0);
  const std::int64_t n0 = col_block * blocks.cols, n = std::min(blocks.cols, d.n - n0);
  T* a_pack = scratch;
  T* b_pack = scratch + blocks.depth * blocks.rows;
  // With a bias and an accumulating C, the bias is added to C first.
  Init init = d.accumulate ? Init::load : bias != nullptr ? Init::bias : Init::zero;
  if (d.accumulate && bias != nullptr) {
    for (std::int64_t i = m0; i < m0 + m; ++i) {
      for (std::int64_t j = n0; j < n0 + n; ++j) c[i * d.c_row + j] += bias[j];
    }
  }
  for (std::int64_t k0 = 0; k0 < d.k; k0 += blocks.depth) {
    const std::int64_t depth = std::min(blocks.depth, d.k - k0);
    kernels.pack(m, depth, a + m0 * d.a_row + k0 * d.a_col, d.a_row, d.a_col, a_pack, m * P);
    kernels.pack(depth, n, b + k0 * d.b_row + n0 * d.b_col, d.b_row, d.b_col, b_pack, depth * P);
    kernels.multiply(m, n, depth, a_pack, m * P, b_pack, depth * P, c + m0 * d.c_row + n0, d.c_row, init,
                     bias != nullptr ? bias + n0 : nullptr);
    init = Init::load;
  }
}

bool is_serial(const GemmDesc& d) { return d.m * d.n * d.k * d.batch <= kForkWork; }

// Columns a task of a path that needs no packing.
std::int64_t small_width(const GemmDesc& d, std::size_t element_size) {
  const std::int64_t cut = 256 / static_cast<std::int64_t>(element_size);
  const std::int64_t cuts =
      std::clamp<std::int64_t>(d.batch >= kMaxSlots ? 1 : kMaxSlots / d.batch, 1, ceil_div(d.n, cut));
  return round_up(ceil_div(d.n, cuts), cut);
}

// Runs a path that needs no packing, cut along n when there is work for several threads.
template <class T, class Fn>
void run_small(const GemmDesc& d, const Fn& fn) {
  if (is_serial(d)) {
    for (std::int64_t i = 0; i < d.batch; ++i) fn(i, std::int64_t{0}, d.n);
    return;
  }
  const std::int64_t width = small_width(d, sizeof(T)), blocks = ceil_div(d.n, width);
  parallel_for(d.batch * blocks, [&](std::int64_t task) {
    const std::int64_t n0 = task % blocks * width;
    fn(task / blocks, n0, std::min(width, d.n - n0));
  });
}

}  // namespace

std::size_t gemm_workspace(const GemmDesc& desc, std::size_t element_size, std::size_t cap) {
  if (choose_path(desc) != Path::packed) return 0;
  return bytes_of(blocks_within(desc, element_size, cap), element_size);
}

template <class T>
void gemm(const GemmDesc& d, const T* a, const T* b, T* c, const T* bias, void* workspace, std::size_t cap) {
  const Path path = choose_path(d);
  if (path == Path::empty) return;
  const PanelKernels<T>& kernels = panel_kernels<T>();
  if (path == Path::rows) {
    run_small<T>(d, [&](std::int64_t i, std::int64_t n0, std::int64_t n) {
      kernels.small_rows(d.m, n, d.k, a + i * d.a_batch, d.a_row, d.a_col, b + i * d.b_batch + n0, d.b_row,
                         c + i * d.c_batch + n0, d.c_row, d.accumulate, bias != nullptr ? bias + n0 : nullptr);
    });
    return;
  }
  if (path == Path::dots) {
    run_small<T>(d, [&](std::int64_t i, std::int64_t n0, std::int64_t n) {
      kernels.small_dots(d.m, n, d.k, a + i * d.a_batch, d.a_row, b + i * d.b_batch + n0 * d.b_col, d.b_col,
                         c + i * d.c_batch + n0, d.c_row, d.accumulate, bias != nullptr ? bias + n0 : nullptr);
    });
    return;
  }
  const Blocks blocks = blocks_within(d, sizeof(T), cap);
  const std::int64_t scratch = round_up(scratch_elements(blocks), kPanel<T>);
  const auto block = [&](std::int64_t slot, std::int64_t task) {
    const std::int64_t i = task / blocks.tasks(), t = task % blocks.tasks();
    multiply_block(d, blocks, t / blocks.col_blocks, t % blocks.col_blocks, a + i * d.a_batch, b + i * d.b_batch,
                   c + i * d.c_batch, bias, static_cast<T*>(workspace) + slot * scratch, kernels);
  };
  if (is_serial(d)) {
    for (std::int64_t task = 0; task < d.batch * blocks.tasks(); ++task) block(0, task);
  } else {
    parallel_slots(d.batch * blocks.tasks(), block, blocks.slots);
  }
}

std::int64_t panel_columns(std::size_t element_size) { return element_size == 4 ? kPanel<float> : kPanel<double>; }

TaskList gemm_tasks(const GemmDesc& d, std::size_t element_size) {
  TaskList out;
  const Path path = choose_path(d);
  if (path == Path::empty) return out;
  out.useful = static_cast<double>(d.batch * d.m * d.n * d.k);
  out.serial = is_serial(d);
  const bool packed = path == Path::packed;
  const std::int64_t panel = packed ? panel_columns(element_size) : 1;
  Blocks b{};
  if (packed) {
    b = blocks_within(d, element_size, SIZE_MAX);
  } else {
    b.rows = d.m, b.row_blocks = 1;
    b.cols = out.serial ? d.n : small_width(d, element_size);
    b.col_blocks = ceil_div(d.n, b.cols);
  }
  for (std::int64_t task = 0; task < d.batch * b.tasks(); ++task) {
    const std::int64_t t = task % b.tasks();
    const std::int64_t rows = std::min(b.rows, d.m - t / b.col_blocks * b.rows);
    const std::int64_t cols = std::min(b.cols, d.n - t % b.col_blocks * b.cols);
    out.tasks.push_back(static_cast<double>(rows * round_up(cols, panel) * d.k));
  }
  return out;
}

template void gemm<float>(const GemmDesc&, const float*, const float*, float*, const float*, void*, std::size_t);
template void gemm<double>(const GemmDesc&, const double*, const double*, double*, const double*, void*, std::size_t);

}  // namespace limpid::cpu
