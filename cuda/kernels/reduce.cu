#include <limpid/cuda/kernels/reduce.cuh>

#include <algorithm>
#include <cmath>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/elementwise.cuh>
#include <limpid/cuda/kernels/indexing.cuh>

namespace limpid::cu {
namespace {

constexpr int kThreads = kReduceThreads;
constexpr int kRun = kReduceRun;
using Plan = ReducePlan;
using Partition = ReducePartition;

// ---- operations: identity, an element's value, and how two values join

// Floats and integers in their widest type.
template <class T>
using Widest = std::conditional_t<std::is_floating_point_v<compute_t<T>>, double, std::int64_t>;

template <class T>
struct Sum {  // the hot one: short runs in float
  using Run = compute_t<T>;
  using Total = Widest<T>;
  __device__ Run value(Run x) const { return x; }
  template <class A>
  __device__ A identity() const {
    return 0;
  }
  template <class A>
  __device__ A join(A a, A b) const {
    return a + b;
  }
};

template <class A>
LIMPID_HD inline A identity_of(ReduceOp op) {
  A lowest, highest;
  if constexpr (std::is_floating_point_v<A>) {
    highest = HUGE_VAL, lowest = -HUGE_VAL;
  } else {
    highest = INT64_MAX, lowest = INT64_MIN;
  }
  switch (op) {
    case ReduceOp::prod:
    case ReduceOp::all: return 1;
    case ReduceOp::max: return lowest;
    case ReduceOp::min: return highest;
    default: return 0;
  }
}

template <class T>
struct AnyReduce {  // any op, chosen at run time
  using Run = Widest<T>;
  using Total = Widest<T>;
  ReduceOp op;
  __device__ Run value(Run x) const {
    switch (op) {
      case ReduceOp::sum_squares: return x * x;
      case ReduceOp::any:
      case ReduceOp::all: return x != Run(0) ? Run(1) : Run(0);
      default: return x;
    }
  }
  template <class A>
  __device__ A identity() const {
    return identity_of<A>(op);
  }
  template <class A>
  __device__ A join(A a, A b) const {
    switch (op) {
      case ReduceOp::prod: return a * b;
      case ReduceOp::max: return (a > b || a != a) ? a : b;  // NaN wins
      case ReduceOp::min: return (a < b || a != a) ? a : b;
      case ReduceOp::any: return (a != A(0) || b != A(0)) ? A(1) : A(0);
      case ReduceOp::all: return (a != A(0) && b != A(0)) ? A(1) : A(0);
      default: return a + b;
    }
  }
};

template <class A>
__device__ void store_total(DType dtype, void* out, std::int64_t at, A value) {
  switch (dtype) {
#define LIMPID_STORE(T, name) \
  case DType::name: static_cast<T*>(out)[at] = store_number<T>(value); break;
    LIMPID_FORALL_DTYPES(LIMPID_STORE)
#undef LIMPID_STORE
  }
}

// Joins the `lanes` values of each slot in shared memory; all threads of the slot get the result.
template <class Join, class A>
__device__ A join_lanes(A value, int lane, int slot, int lanes, const Join& join, A* shared) {
  A* mine = shared + slot * lanes;
  mine[lane] = value;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) mine[lane] = join(mine[lane], mine[lane + half]);
    __syncthreads();
  }
  value = mine[0];
  __syncthreads();  // the next outputs write the array
  return value;
}

// partial: [splits][outputs] totals, or null where there is one split.
template <int width, class T, class Op>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Op op, Partition p, StridedIndex<2> kept, StridedIndex<1> reduced, const T* x,
                  typename Op::Total* partial, DType out_dtype, void* out) {
  using Run = typename Op::Run;
  using Total = typename Op::Total;
  LIMPID_SHARED_ARRAY(Total, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = p.columns ? thread / p.slots : thread % p.lanes,
            slot = p.columns ? thread % p.slots : thread / p.lanes;
  const std::int64_t begin = blockIdx.y * p.chunk, end = begin + p.chunk < p.length ? begin + p.chunk : p.length;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * p.slots; first < p.outputs;
       first += static_cast<std::int64_t>(gridDim.x) * p.slots) {
    const std::int64_t output = first + slot;
    Total total = op.template identity<Total>();
    std::int64_t at[2] = {0, 0};
    if (output < p.outputs) {
      kept.offsets(output, at);
      const T* from = x + at[0];
      for (std::int64_t r = begin + lane; r < end; r += static_cast<std::int64_t>(p.lanes) * kRun) {
        Vector<T, width> values[kRun];
#pragma unroll
        for (int k = 0; k < kRun; k++) {
          const std::int64_t position = r + static_cast<std::int64_t>(k) * p.lanes;
          std::int64_t offset[1];
          reduced.offsets(position < end ? position : r, offset);
          values[k] = load_vector<width>(from + offset[0]);
        }
        Run run = op.template identity<Run>();
#pragma unroll
        for (int k = 0; k < kRun; k++) {
          if (r + static_cast<std::int64_t>(k) * p.lanes >= end) break;
#pragma unroll
          for (int i = 0; i < width; i++)
            run = op.join(run, op.value(static_cast<Run>(load_number(values[k].values[i]))));
        }
        total = op.join(total, static_cast<Total>(run));
      }
      if (width > 1 && lane < p.tail && end == p.length) {
        total =
            op.join(total, static_cast<Total>(op.value(static_cast<Run>(load_number(from[p.length * width + lane])))));
      }
    }
    total = join_lanes(
        total, lane, slot, p.lanes, [&](Total a, Total b) { return op.join(a, b); }, shared);
    if (lane != 0 || output >= p.outputs) continue;
    if (partial != nullptr) {
      partial[blockIdx.y * p.outputs + output] = total;
    } else {
      store_total(out_dtype, out, at[1], total);
    }
  }
}

// A warp an output joins the splits.
template <class Op>
__global__ void __launch_bounds__(kThreads)
    join_splits_kernel(Op op, std::int64_t splits, StridedIndex<2> kept, const typename Op::Total* partial,
                       DType out_dtype, void* out) {
  using Total = typename Op::Total;
  LIMPID_SHARED_ARRAY(Total, shared, kThreads);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, slot = static_cast<int>(threadIdx.x) / kWarpSize;
  constexpr int kSlots = kThreads / kWarpSize;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSlots; first < kept.count;
       first += static_cast<std::int64_t>(gridDim.x) * kSlots) {
    const std::int64_t output = first + slot;
    Total total = op.template identity<Total>();
    if (output < kept.count) {
      for (std::int64_t s = lane; s < splits; s += kWarpSize) total = op.join(total, partial[s * kept.count + output]);
    }
    total = join_lanes(
        total, lane, slot, kWarpSize, [&](Total a, Total b) { return op.join(a, b); }, shared);
    if (lane != 0 || output >= kept.count) continue;
    std::int64_t at[2];
    kept.offsets(output, at);
    store_total(out_dtype, out, at[1], total);
  }
}

template <int width, class T, class Op>
cudaError_t run(const Op& op, const Plan& plan, const T* x, DType out_dtype, void* out, void* workspace,
                cudaStream_t stream) {
  const Partition& p = plan.partition;
  const StridedIndex<2> kept(plan.kept);
  const StridedIndex<1> reduced(plan.reduced, width);
  auto* partial = p.splits > 1 ? static_cast<typename Op::Total*>(workspace) : nullptr;
  const dim3 grid(grid_for(p.outputs, p.slots, kMaxSharingBlocks), static_cast<unsigned>(p.splits));
  const cudaError_t error =
      launch(reduce_kernel<width, T, Op>, grid, kThreads, 0, stream, op, p, kept, reduced, x, partial, out_dtype, out);
  if (error != cudaSuccess || partial == nullptr) return error;
  return launch(join_splits_kernel<Op>, grid_for(p.outputs, kThreads / kWarpSize, kMaxSharingBlocks), kThreads, 0,
                stream, op, p.splits, kept, static_cast<const typename Op::Total*>(partial), out_dtype, out);
}

// ---- the place of the extreme value

template <class C>
struct Extreme {
  C value;
  std::int64_t place;  // -1: none yet
};

template <class C>
__device__ bool comes_first(bool maximum, const Extreme<C>& a, const Extreme<C>& b) {
  if (a.place < 0 || b.place < 0) return b.place < 0;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.value != b.value) return maximum ? a.value > b.value : a.value < b.value;
  return a.place < b.place;
}

template <class T>
__global__ void __launch_bounds__(kThreads) arg_reduce_kernel(bool maximum, Partition p, StridedIndex<2> kept,
                                                              std::int64_t step, const T* x, std::int64_t* out) {
  using Candidate = Extreme<compute_t<T>>;
  LIMPID_SHARED_ARRAY(Candidate, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = p.columns ? thread / p.slots : thread % p.lanes,
            slot = p.columns ? thread % p.slots : thread / p.lanes;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * p.slots; first < p.outputs;
       first += static_cast<std::int64_t>(gridDim.x) * p.slots) {
    const std::int64_t output = first + slot;
    Candidate best{0, -1};
    std::int64_t at[2] = {0, 0};
    if (output < p.outputs) {
      kept.offsets(output, at);
      for (std::int64_t r = lane; r < p.length; r += p.lanes) {
        const Candidate candidate{load_number(x[at[0] + r * step]), r};
        if (comes_first(maximum, candidate, best)) best = candidate;
      }
    }
    best = join_lanes(
        best, lane, slot, p.lanes,
        [&](const Candidate& a, const Candidate& b) { return comes_first(maximum, a, b) ? a : b; }, shared);
    if (lane == 0 && output < p.outputs) out[at[1]] = best.place;
  }
}

}  // namespace

cudaError_t reduce(ReduceOp op, const Shape& shape, DType out_dtype, const Output& out, DType dtype, const Input& x,
                   std::uint32_t dims_mask, void* workspace, cudaStream_t stream) {
  Shape kept = shape;
  for (int d = 0; d < shape.size(); d++) {
    if (dims_mask >> d & 1u) kept[d] = 1;
  }
  if (kept.numel() == 0) return cudaSuccess;
  if (shape.numel() == 0) return fill(out_dtype, kept, out, identity_of<std::int64_t>(op), stream);
  return dispatch_all(dtype, [&]<class T>() {
    const T* data = static_cast<const T*>(x.data);
    if constexpr (std::is_floating_point_v<compute_t<T>>) {
      if (op == ReduceOp::sum) {
        const Plan plan = plan_reduce(shape, x.strides, out.strides, dims_mask, kVectorWidth<T>, data);
        if (plan.width > 1) return run<kVectorWidth<T>>(Sum<T>(), plan, data, out_dtype, out.data, workspace, stream);
        return run<1>(Sum<T>(), plan, data, out_dtype, out.data, workspace, stream);
      }
    }
    const Plan plan = plan_reduce(shape, x.strides, out.strides, dims_mask, 1, data);
    return run<1>(AnyReduce<T>{op}, plan, data, out_dtype, out.data, workspace, stream);
  });
}

cudaError_t arg_reduce(bool maximum, const Shape& shape, const Output& out, DType dtype, const Input& x, int dim,
                       cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  const std::uint32_t mask = shape.size() == 0 ? 0 : 1u << dim;
  const Plan plan = plan_reduce(shape, x.strides, out.strides, mask, 1, x.data);
  const StridedIndex<2> kept(plan.kept);
  return dispatch_all(dtype, [&]<class T>() {
    return launch(arg_reduce_kernel<T>, grid_for(plan.partition.outputs, plan.partition.slots, kMaxSharingBlocks),
                  kThreads, 0, stream, maximum, plan.partition, kept, plan.reduced.stride[0][0],
                  static_cast<const T*>(x.data), static_cast<std::int64_t*>(out.data));
  });
}

}  // namespace limpid::cu
