// Reductions and indexing of the CUDA kernel table.
#include <limpid/cuda/adapter_private.h>
#include <limpid/cuda/entries.h>
#include <limpid/cuda/index_errors.h>
#include <limpid/cuda/kernels/index.cuh>
#include <limpid/cuda/kernels/index_error.cuh>
#include <limpid/cuda/kernels/reduce.cuh>

namespace limpid::cu::entries {

void reduce(ReduceOp op, Tensor& out, const Tensor& x, std::uint32_t dims_mask) {
  const Queue queue(out);
  Tensor workspace = raw::workspace(reduce_workspace_bytes(x.shape(), x.strides(), dims_mask), out.device());
  LIMPID_LAUNCH("reduce", queue,
                cu::reduce(op, x.shape(), out.dtype(), output(out), x.dtype(), input(x), dims_mask,
                           workspace.defined() ? workspace.raw_mutable_data() : nullptr, queue));
}
void arg_reduce(bool maximum, Tensor& out, const Tensor& x, int dim) {
  const Queue queue(out);
  LIMPID_LAUNCH(maximum ? "argmax" : "argmin", queue,
                cu::arg_reduce(maximum, x.shape(), output(out), x.dtype(), input(x), dim, queue));
}

namespace {

void check(IndexOp op, const Queue& queue, const Tensor& index, std::int64_t bound) {
  if (index.numel() == 0) return;
  LIMPID_LAUNCH("check_indices", queue,
                check_indices(index_error_record(queue.handle()), op, index.shape(), input(index), bound, 0, queue));
}

// A one-dim index as one of the shape of the result, that changes along `dim` alone.
Input along(const Tensor& index, int dim, int rank) {
  Strides strides = Strides::filled(rank, 0);
  strides[dim] = index.strides()[0];
  return {index.raw_data(), strides};
}

}  // namespace

void gather(Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  const Queue queue(out);
  check(IndexOp::gather, queue, index, x.shape()[dim]);
  LIMPID_LAUNCH("gather", queue,
                cu::gather(out.dtype(), out.shape(), output(out), input(x), dim, x.shape()[dim], input(index), queue));
}
void scatter_add(Tensor& out, int dim, const Tensor& index, const Tensor& source) {
  const Queue queue(out);
  check(IndexOp::scatter_add, queue, index, out.shape()[dim]);
  LIMPID_LAUNCH("scatter_add", queue,
                cu::scatter_add(out.dtype(), index.shape(), output(out), dim, out.shape()[dim], input(index),
                                input(source), queue));
}
void index_select(Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  const Queue queue(out);
  check(IndexOp::index_select, queue, index, x.shape()[dim]);
  LIMPID_LAUNCH("index_select", queue,
                cu::gather(out.dtype(), out.shape(), output(out), input(x), dim, x.shape()[dim],
                           along(index, dim, out.dim()), queue));
}
void index_add(Tensor& out, int dim, const Tensor& index, const Tensor& source) {
  const Queue queue(out);
  check(IndexOp::index_add, queue, index, out.shape()[dim]);
  LIMPID_LAUNCH("index_add", queue,
                cu::scatter_add(out.dtype(), source.shape(), output(out), dim, out.shape()[dim],
                                along(index, dim, out.dim()), input(source), queue));
}
void one_hot(Tensor& out, const Tensor& index) {
  const Queue queue(out);
  check(IndexOp::one_hot, queue, index, out.shape()[out.dim() - 1]);
  LIMPID_LAUNCH("one_hot", queue, cu::one_hot(out.dtype(), out.shape(), output(out), input(index), queue));
}

}  // namespace limpid::cu::entries
