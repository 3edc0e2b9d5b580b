// Reductions over any dims. Floats accumulate in double, integers in 64 bits. Blocks have fixed sizes, so the order of
// summation depends on shape and strides alone: the same bits for every thread count. No heap, no workspace: partial
// results of a block live on the stack.
#include <algorithm>
#include <cmath>
#include <limits>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>
#include <limpid/tensor/cpu/math_loops.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kBlock = 16384;    // elements a block of a long reduction
constexpr std::int64_t kMaxBlocks = 256;  // partial results a output
constexpr std::int64_t kColumns = 64;     // columns a tile
constexpr std::int64_t kRowBlocks = 32;   // row blocks a tile, where tiles are few

// The dims of x ordered by its strides, split into kept and reduced ones and merged where possible; innermost first.
struct Plan {
  int kept = 0, reduced = 0;
  std::int64_t kept_extent[kMaxDims], kept_in[kMaxDims], kept_out[kMaxDims];
  std::int64_t reduced_extent[kMaxDims], reduced_in[kMaxDims];
  std::int64_t outputs = 1, length = 1;
};

Plan make_plan(const Tensor& out, const Tensor& x, std::uint32_t mask) {
  Plan plan;
  int order[kMaxDims];
  int rank = 0;
  for (int d = x.dim() - 1; d >= 0; d--) {
    if (mask >> d & 1u) {
      plan.length *= x.shape()[d];
    } else {
      plan.outputs *= x.shape()[d];
    }
    if (x.shape()[d] == 1) continue;
    int at = rank++;
    for (; at > 0 && x.strides()[order[at - 1]] > x.strides()[d]; at--) order[at] = order[at - 1];
    order[at] = d;
  }
  for (int i = 0; i < rank; i++) {
    int d = order[i];
    std::int64_t extent = x.shape()[d], in = x.strides()[d];
    if (mask >> d & 1u) {
      int last = plan.reduced - 1;
      if (last >= 0 && in == plan.reduced_in[last] * plan.reduced_extent[last]) {
        plan.reduced_extent[last] *= extent;
        continue;
      }
      plan.reduced_extent[plan.reduced] = extent;
      plan.reduced_in[plan.reduced++] = in;
    } else {
      std::int64_t to = out.strides()[d];
      int last = plan.kept - 1;
      if (last >= 0 && in == plan.kept_in[last] * plan.kept_extent[last] &&
          to == plan.kept_out[last] * plan.kept_extent[last]) {
        plan.kept_extent[last] *= extent;
        continue;
      }
      plan.kept_extent[plan.kept] = extent;
      plan.kept_in[plan.kept] = in;
      plan.kept_out[plan.kept++] = to;
    }
  }
  if (plan.reduced == 0) {
    plan.reduced = 1;
    plan.reduced_extent[0] = plan.length;
    plan.reduced_in[0] = 1;
  }
  if (plan.kept == 0) {
    plan.kept = 1;
    plan.kept_extent[0] = 1;
    plan.kept_in[0] = plan.kept_out[0] = 1;
  }
  return plan;
}

// Calls run(offset, step, n) for the reduced positions [begin, end) in the plan's order.
template <class Run>
void walk_reduced(const Plan& plan, std::int64_t begin, std::int64_t end, Run run) {
  std::int64_t at[kMaxDims];
  std::int64_t rest = begin, offset = 0;
  for (int i = 0; i < plan.reduced; i++) {
    at[i] = rest % plan.reduced_extent[i];
    rest /= plan.reduced_extent[i];
    offset += at[i] * plan.reduced_in[i];
  }
  for (std::int64_t position = begin; position < end;) {
    std::int64_t n = std::min(plan.reduced_extent[0] - at[0], end - position);
    run(offset, plan.reduced_in[0], n);
    position += n;
    offset -= at[0] * plan.reduced_in[0];
    at[0] = 0;
    for (int i = 1; i < plan.reduced; i++) {
      offset += plan.reduced_in[i];
      if (++at[i] < plan.reduced_extent[i]) break;
      offset -= plan.reduced_extent[i] * plan.reduced_in[i];
      at[i] = 0;
    }
  }
}

// ---- the operations: identity, an element's value, and how two values join

template <class T>
using Acc = std::conditional_t<std::is_floating_point_v<compute_t<T>>, double, std::int64_t>;

struct Sum {
  template <class A>
  static constexpr A identity() { return 0; }
  template <class A>
  static A value(A x) { return x; }
  template <class A>
  static A join(A a, A b) { return a + b; }
};
struct SumSquares : Sum {
  template <class A>
  static A value(A x) { return x * x; }
};
struct Prod : Sum {
  template <class A>
  static constexpr A identity() { return 1; }
  template <class A>
  static A join(A a, A b) { return a * b; }
};
template <class A>
constexpr A highest() {
  return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity() : std::numeric_limits<A>::max();
}
struct Max : Sum {  // NaN wins
  template <class A>
  static constexpr A identity() {
    return std::numeric_limits<A>::has_infinity ? -highest<A>() : std::numeric_limits<A>::lowest();
  }
  template <class A>
  static A join(A a, A b) { return (a > b || a != a) ? a : b; }
};
struct Min : Sum {
  template <class A>
  static constexpr A identity() { return highest<A>(); }
  template <class A>
  static A join(A a, A b) { return (a < b || a != a) ? a : b; }
};
struct Any : Sum {
  template <class A>
  static A value(A x) { return x != A(0) ? A(1) : A(0); }
  template <class A>
  static A join(A a, A b) { return (a != A(0) || b != A(0)) ? A(1) : A(0); }
};
struct All : Any {
  template <class A>
  static constexpr A identity() { return 1; }
  template <class A>
  static A join(A a, A b) { return (a != A(0) && b != A(0)) ? A(1) : A(0); }
};

// ---- the inner loops

// One run along the reduced dim: eight lanes where it is dense and long.
template <class Op, class T>
Acc<T> reduce_run(const T* x, std::int64_t step, std::int64_t n, Acc<T> start) {
  using A = Acc<T>;
  auto value = [](T v) { return Op::template value<A>(static_cast<A>(static_cast<compute_t<T>>(v))); };
  std::int64_t i = 0;
  if constexpr (std::is_same_v<Op, Sum> && std::is_floating_point_v<T>) {
    if (step == 1 && n >= 64) return start + math_loops<T>().sum(n, x);
  }
  if (step == 1 && n >= 16) {
    A lanes[8];
    for (auto& lane : lanes) lane = Op::template identity<A>();
    for (; i + 8 <= n; i += 8) {
      for (int j = 0; j < 8; j++) lanes[j] = Op::join(lanes[j], value(x[i + j]));
    }
    for (int width = 4; width >= 1; width /= 2) {
      for (int j = 0; j < width; j++) lanes[j] = Op::join(lanes[j], lanes[j + width]);
    }
    start = Op::join(start, lanes[0]);
  }
  for (; i < n; i++) start = Op::join(start, value(x[i * step]));
  return start;
}

// `rows` steps along the reduced dim for `columns` neighbouring outputs.
template <class Op, class T>
void reduce_columns(const T* x, std::int64_t row_step, std::int64_t rows, std::int64_t column_step,
                    std::int64_t columns, Acc<T>* acc) {
  using A = Acc<T>;
  auto value = [](T v) { return Op::template value<A>(static_cast<A>(static_cast<compute_t<T>>(v))); };
  for (std::int64_t r = 0; r < rows; r++, x += row_step) {
    if (column_step == 1) {
      for (std::int64_t c = 0; c < columns; c++) acc[c] = Op::join(acc[c], value(x[c]));
    } else {
      for (std::int64_t c = 0; c < columns; c++) acc[c] = Op::join(acc[c], value(x[c * column_step]));
    }
  }
}

template <class Op, class T, class R>
void run(const Plan& plan, R* out, const T* x) {
  using A = Acc<T>;
  auto store = [](A value) {
    if constexpr (std::is_same_v<R, bool>) {
      return value != A(0);
    } else if constexpr (std::is_same_v<R, Half> || std::is_same_v<R, BFloat16>) {
      return R(static_cast<float>(value));
    } else {
      return static_cast<R>(value);
    }
  };
  // Offsets of output number `index` of the kept dims from `first` on.
  auto place = [&](std::int64_t index, int first, std::int64_t& in, std::int64_t& to) {
    in = to = 0;
    for (int i = first; i < plan.kept; i++) {
      std::int64_t at = index % plan.kept_extent[i];
      index /= plan.kept_extent[i];
      in += at * plan.kept_in[i];
      to += at * plan.kept_out[i];
    }
  };
  auto reduce_range = [&](const T* from, std::int64_t begin, std::int64_t end) {
    A acc = Op::template identity<A>();
    walk_reduced(plan, begin, end, [&](std::int64_t offset, std::int64_t step, std::int64_t n) {
      acc = reduce_run<Op>(from + offset, step, n, acc);
    });
    return acc;
  };

  const bool columns = plan.outputs > 1 && plan.length > 1 && plan.kept_in[0] < plan.reduced_in[0];
  if (columns) {
    const std::int64_t width = plan.kept_extent[0];
    const std::int64_t tiles = (width + kColumns - 1) / kColumns;
    const std::int64_t jobs = tiles * (plan.outputs / width);
    auto reduce_tile = [&](const T* from, std::int64_t n, std::int64_t begin, std::int64_t end, A* acc) {
      for (std::int64_t c = 0; c < n; c++) acc[c] = Op::template identity<A>();
      walk_reduced(plan, begin, end, [&](std::int64_t offset, std::int64_t step, std::int64_t rows) {
        reduce_columns<Op>(from + offset, step, rows, plan.kept_in[0], n, acc);
      });
    };
    auto tile = [&](std::int64_t job, const T*& from, R*& to) {
      std::int64_t in, at;
      place(job / tiles, 1, in, at);
      std::int64_t first = job % tiles * kColumns;
      from = x + in + first * plan.kept_in[0];
      to = out + at + first * plan.kept_out[0];
      return std::min(kColumns, width - first);
    };
    const std::int64_t block = std::max<std::int64_t>((plan.length + kRowBlocks - 1) / kRowBlocks,
                                                      kBlock / std::min(width, kColumns));
    if (jobs >= 8 || plan.length <= block) {
      std::int64_t work = std::min(width, kColumns) * plan.length;
      parallel_chunks(jobs, std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(work, 1)),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t job = begin; job < end; job++) {
                          const T* from;
                          R* to;
                          A acc[kColumns];
                          std::int64_t n = tile(job, from, to);
                          reduce_tile(from, n, 0, plan.length, acc);
                          for (std::int64_t c = 0; c < n; c++) to[c * plan.kept_out[0]] = store(acc[c]);
                        }
                      });
      return;
    }
    A parts[kRowBlocks][kColumns];
    const std::int64_t blocks = (plan.length + block - 1) / block;
    for (std::int64_t job = 0; job < jobs; job++) {
      const T* from;
      R* to;
      std::int64_t n = tile(job, from, to);
      parallel_for(blocks, [&](std::int64_t b) {
        reduce_tile(from, n, b * block, std::min(plan.length, (b + 1) * block), parts[b]);
      });
      for (std::int64_t c = 0; c < n; c++) {
        A acc = parts[0][c];
        for (std::int64_t b = 1; b < blocks; b++) acc = Op::join(acc, parts[b][c]);
        to[c * plan.kept_out[0]] = store(acc);
      }
    }
    return;
  }

  const std::int64_t block = std::max<std::int64_t>(kBlock, (plan.length + kMaxBlocks - 1) / kMaxBlocks);
  if (plan.length <= block || plan.outputs >= 16) {
    std::int64_t grain = std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(plan.length, 1));
    auto outputs = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i++) {
        std::int64_t in, to;
        place(i, 0, in, to);
        out[to] = store(reduce_range(x + in, 0, plan.length));
      }
    };
    if (plan.outputs <= grain) {
      outputs(0, plan.outputs);
    } else {
      parallel_chunks(plan.outputs, grain, outputs);
    }
    return;
  }
  A parts[kMaxBlocks];
  const std::int64_t blocks = (plan.length + block - 1) / block;
  for (std::int64_t i = 0; i < plan.outputs; i++) {
    std::int64_t in, to;
    place(i, 0, in, to);
    parallel_for(blocks, [&](std::int64_t b) {
      parts[b] = reduce_range(x + in, b * block, std::min(plan.length, (b + 1) * block));
    });
    A acc = parts[0];
    for (std::int64_t b = 1; b < blocks; b++) acc = Op::join(acc, parts[b]);
    out[to] = store(acc);
  }
}

// Sums of the columns of a dense [rows, columns], the gradient of every bias: row blocks with the processor's own loops.
template <class T>
bool column_sums(const Plan& plan, T* out, const T* x) {
  constexpr std::int64_t kCapacity = 8192;  // doubles on the stack
  const std::int64_t columns = plan.kept_extent[0], rows = plan.length;
  bool fits = plan.kept == 1 && plan.reduced == 1 && plan.kept_in[0] == 1 && plan.kept_out[0] == 1 &&
              plan.reduced_in[0] == columns && columns >= 4 && columns <= kCapacity / 2 && rows > 1;
  if (!fits) return false;
  const std::int64_t blocks = std::clamp<std::int64_t>(rows * columns / kBlock, 1, std::min(kRowBlocks, kCapacity / columns));
  const std::int64_t step = (rows + blocks - 1) / blocks;
  double parts[kCapacity];
  parallel_for(blocks, [&](std::int64_t b) {
    const std::int64_t begin = std::min(rows, b * step), end = std::min(rows, begin + step);
    math_loops<T>().column_sum(end - begin, columns, x + begin * columns, parts + b * columns);
  });
  for (std::int64_t b = 1; b < blocks; b++) {
    for (std::int64_t c = 0; c < columns; c++) parts[c] += parts[b * columns + c];
  }
  for (std::int64_t c = 0; c < columns; c++) out[c] = static_cast<T>(parts[c]);
  return true;
}

template <class Op, class T, class R>
void run_as(const Plan& plan, Tensor& out, const Tensor& x) {
  run<Op, T, R>(plan, out.mutable_data<R>(), x.data<T>());
}

// The first of the extreme elements along a dim; the first NaN wins, as in PyTorch.
template <class T>
std::int64_t first_extreme(bool maximum, const T* x, std::int64_t step, std::int64_t n) {
  using C = compute_t<T>;
  std::int64_t best = 0;
  C top = static_cast<C>(x[0]);
  for (std::int64_t i = 1; i < n; i++) {
    if (top != top) break;
    C v = static_cast<C>(x[i * step]);
    if (v != v || (maximum ? v > top : v < top)) {
      top = v;
      best = i;
    }
  }
  return best;
}

}  // namespace

void reduce(ReduceOp op, Tensor& out, const Tensor& x, std::uint32_t dims_mask) {
  if (out.numel() == 0) return;
  if (x.numel() == 0) {
    bool one = op == ReduceOp::prod || op == ReduceOp::all;
    return fill(out, one ? 1 : 0);
  }
  Plan plan = make_plan(out, x, dims_mask);
  visit_dtype(x.dtype(), [&]<class T>() {
    // Sums of integers are i64, of floats the dtype itself, or f64 where the caller wants it unrounded.
    using SumType = std::conditional_t<std::is_floating_point_v<compute_t<T>>, T, std::int64_t>;
    if constexpr (std::is_floating_point_v<compute_t<T>> && !std::is_same_v<T, double>) {
      if (op == ReduceOp::sum && out.dtype() == DType::float64) return run_as<Sum, T, double>(plan, out, x);
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (op == ReduceOp::sum && column_sums<T>(plan, out.mutable_data<T>(), x.data<T>())) return;
    }
    switch (op) {
      case ReduceOp::sum: return run_as<Sum, T, SumType>(plan, out, x);
      case ReduceOp::sum_squares: return run_as<SumSquares, T, SumType>(plan, out, x);
      case ReduceOp::prod: return run_as<Prod, T, SumType>(plan, out, x);
      case ReduceOp::max: return run_as<Max, T, T>(plan, out, x);
      case ReduceOp::min: return run_as<Min, T, T>(plan, out, x);
      case ReduceOp::any: return run_as<Any, T, bool>(plan, out, x);
      case ReduceOp::all: return run_as<All, T, bool>(plan, out, x);
    }
  });
}

void arg_reduce(bool maximum, Tensor& out, const Tensor& x, int dim) {
  std::int64_t* y = out.mutable_data<std::int64_t>();
  std::int64_t n = x.dim() == 0 ? 1 : x.shape()[dim], step = x.dim() == 0 ? 1 : x.strides()[dim];
  auto loop = plan_loop<2>(out.shape(), {&out.strides(), &x.strides()});
  visit_dtype(x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    run_loop(loop, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(n, 1)),
             [&](const std::int64_t (&at)[2], const std::int64_t (&steps)[2], std::int64_t count) {
               for (std::int64_t i = 0; i < count; i++) {
                 y[at[0] + i * steps[0]] = first_extreme(maximum, in + at[1] + i * steps[1], step, n);
               }
             });
  });
}

}  // namespace limpid::cpu
