#include <limpid/cuda/kernels/index.cuh>

#include <algorithm>

#include <limpid/cuda/kernels/dispatch.cuh>
#include <limpid/cuda/kernels/index_error.cuh>
#include <limpid/cuda/kernels/indexing.cuh>

namespace limpid::cu {
namespace {

struct IndexShape {
  int rank = 0;
  std::int64_t dims[kMaxDims] = {};
};

// Every thread lowers the record's position to its first bad one; the block that ends last completes the record.
__global__ void __launch_bounds__(kBlockThreads)
    check_kernel(IndexErrorRecord* record, IndexOp op, StridedIndex<1> walk, IndexShape shape,
                 const std::int64_t* index, std::int64_t bound, std::int64_t ignored) {
  LIMPID_SHARED_ARRAY(bool, is_last, 1);
  if (record->found != 0) return;  // written by an earlier launch: the same for all threads
  for (std::int64_t i = first_position(); i < walk.count; i += position_step()) {
    std::int64_t at[1];
    walk.offsets(i, at);
    const std::int64_t value = index[at[0]];
    if ((value >= 0 && value < bound) || (value == ignored && ignored != 0)) continue;
    atomicMin(reinterpret_cast<unsigned long long*>(&record->position), static_cast<unsigned long long>(i));
    break;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last[0] = atomicAdd(&record->blocks_done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last[0] || threadIdx.x != 0) return;
  record->blocks_done = 0;
  const auto position = static_cast<std::uint64_t>(
      atomicMin(reinterpret_cast<unsigned long long*>(&record->position), ~0ull));  // reads what other blocks wrote
  if (position == IndexErrorRecord::kNone) return;
  std::int64_t at[1];
  walk.offsets(static_cast<std::int64_t>(position), at);
  record->op = op;
  record->value = index[at[0]];
  record->bound = bound;
  record->rank = shape.rank;
#pragma unroll
  for (int d = 0; d < kMaxDims; d++) record->shape[d] = shape.dims[d];
  record->found = 1;
}

// Operands: out, index, x without dim.
template <class Bits>
__global__ void __launch_bounds__(kBlockThreads)
    gather_elements_kernel(StridedIndex<3> walk, Bits* out, const std::int64_t* index, const Bits* x,
                           std::int64_t bound, std::int64_t x_step) {
  for (std::int64_t i = first_position(); i < walk.count; i += position_step()) {
    std::int64_t at[3];
    walk.offsets(i, at);
    const std::int64_t place = index[at[1]];
    out[at[0]] = place >= 0 && place < bound ? x[at[2] + place * x_step] : Bits(0);
  }
}

// The same by groups of 16 bytes: rows that lie densely in x and in out, and have one index.
template <class Bits>
__global__ void __launch_bounds__(kBlockThreads)
    gather_rows_kernel(StridedIndex<3> walk, Bits* out, const std::int64_t* index, const Bits* x, std::int64_t bound,
                       std::int64_t x_step) {
  constexpr int width = kVectorWidth<Bits>;
  for (std::int64_t i = first_position(); i < walk.count; i += position_step()) {
    std::int64_t at[3];
    walk.offsets(i, at);
    const std::int64_t place = index[at[1]];
    Vector<Bits, width> group{};
    if (place >= 0 && place < bound) group = load_vector<width>(x + at[2] + place * x_step);
    store_vector(out + at[0], group);
  }
}

constexpr std::int64_t kScatterThreads = 16384;  // wanted; more than a device needs to hide the latency of the index

// A thread owns targets [first, last) of one lane along dim: it walks the lane's index and adds what falls into its
// range. Operands: out, index, source, all without dim.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    scatter_add_kernel(StridedIndex<3> lanes, std::int64_t ranges, std::int64_t range, std::int64_t bound,
                       std::int64_t length, T* out, std::int64_t out_step, const std::int64_t* index,
                       std::int64_t index_step, const T* source, std::int64_t source_step) {
  for (std::int64_t i = first_position(); i < lanes.count * ranges; i += position_step()) {
    const std::int64_t first = i / lanes.count * range, last = first + range < bound ? first + range : bound;
    std::int64_t at[3];
    lanes.offsets(i % lanes.count, at);
    for (std::int64_t j = 0; j < length; j++) {
      const std::int64_t target = index[at[1] + j * index_step];
      if (target < first || target >= last) continue;
      T& sum = out[at[0] + target * out_step];
      sum = store_number<T>(load_number(sum) + load_number(source[at[2] + j * source_step]));
    }
  }
}

// Operands: out, index with a step of 0 along the classes, and the class itself, whose offset is its number.
template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    one_hot_kernel(StridedIndex<3> walk, T* out, const std::int64_t* index) {
  for (std::int64_t i = first_position(); i < walk.count; i += position_step()) {
    std::int64_t at[3];
    walk.offsets(i, at);
    out[at[0]] = store_number<T>(static_cast<std::int64_t>(index[at[1]] == at[2]));
  }
}

}  // namespace

cudaError_t check_indices(IndexErrorRecord* record, IndexOp op, const Shape& shape, const Input& index,
                          std::int64_t bound, std::int64_t ignored, cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  const StridedIndex<1> walk(logical_loop<1>(shape, {&index.strides}));
  IndexShape dims{shape.size(), {}};
  std::copy(shape.begin(), shape.end(), dims.dims);
  return launch(check_kernel, grid_for(walk.count), kBlockThreads, 0, stream, record, op, walk, dims,
                static_cast<const std::int64_t*>(index.data), bound, ignored);
}

cudaError_t gather(DType dtype, const Shape& shape, const Output& out, const Input& x, int dim, std::int64_t bound,
                   const Input& index, cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  Strides x_strides = x.strides;
  x_strides[dim] = 0;
  const std::int64_t x_step = x.strides[dim];
  const auto loop = kernel::plan_loop<3>(shape, {&out.strides, &index.strides, &x_strides});
  const auto* at_index = static_cast<const std::int64_t*>(index.data);
  return dispatch_size(dtype, [&]<class Bits>() {
    constexpr int width = kVectorWidth<Bits>;
    Bits* to = static_cast<Bits*>(out.data);
    const Bits* from = static_cast<const Bits*>(x.data);
    const bool rows =
        loop.stride[1][0] == 0 && loop.stride[2][0] == 1 && loop.extent[0] % width == 0 && x_step % width == 0 &&
        can_group<3>(loop, width, {out.data, index.data, x.data}, {sizeof(Bits), sizeof(Bits), sizeof(Bits)});
    const StridedIndex<3> walk(loop, rows ? width : 1);
    return launch(rows ? gather_rows_kernel<Bits> : gather_elements_kernel<Bits>, grid_for(walk.count), kBlockThreads,
                  0, stream, walk, to, at_index, from, bound, x_step);
  });
}

cudaError_t scatter_add(DType dtype, const Shape& shape, const Output& out, int dim, std::int64_t bound,
                        const Input& index, const Input& source, cudaStream_t stream) {
  if (shape.numel() == 0 || bound == 0) return cudaSuccess;
  Shape lane_shape = shape;
  lane_shape[dim] = 1;
  const StridedIndex<3> lanes(kernel::plan_loop<3>(lane_shape, {&out.strides, &index.strides, &source.strides}));
  const std::int64_t wanted = std::clamp<std::int64_t>(kScatterThreads / lanes.count, 1, bound);
  const std::int64_t range = (bound + wanted - 1) / wanted, ranges = (bound + range - 1) / range;
  return dispatch_numbers(dtype, [&]<class T>() {
    return launch(scatter_add_kernel<T>, grid_for(lanes.count * ranges), kBlockThreads, 0, stream, lanes, ranges, range,
                  bound, shape[dim], static_cast<T*>(out.data), out.strides[dim],
                  static_cast<const std::int64_t*>(index.data), index.strides[dim], static_cast<const T*>(source.data),
                  source.strides[dim]);
  });
}

cudaError_t one_hot(DType dtype, const Shape& shape, const Output& out, const Input& index, cudaStream_t stream) {
  if (shape.numel() == 0) return cudaSuccess;
  const int last = shape.size() - 1;
  Strides at_index = index.strides, number = Strides::filled(shape.size(), 0);
  if (at_index.size() == last) at_index.push_back(0);
  number[last] = 1;
  const StridedIndex<3> walk(kernel::plan_loop<3>(shape, {&out.strides, &at_index, &number}));
  return dispatch_all(dtype, [&]<class T>() {
    return launch(one_hot_kernel<T>, grid_for(walk.count), kBlockThreads, 0, stream, walk, static_cast<T*>(out.data),
                  static_cast<const std::int64_t*>(index.data));
  });
}

}  // namespace limpid::cu
