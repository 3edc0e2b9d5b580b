// Elementwise entries, copies and random numbers of the CUDA kernel table.
#include <limpid/cuda/adapter_private.h>
#include <limpid/cuda/entries.h>
#include <limpid/cuda/kernels/elementwise.cuh>
#include <limpid/cuda/kernels/random.cuh>

namespace limpid::cu::entries {

void fill(Tensor& out, const Scalar& value) {
  const Queue queue(out);
  LIMPID_LAUNCH("fill", queue, cu::fill(out.dtype(), out.shape(), output(out), value, queue));
}
void copy(Tensor& out, const Tensor& x) {
  const Queue queue(out);
  LIMPID_LAUNCH("copy", queue, cu::copy(out.shape(), out.dtype(), output(out), x.dtype(), input(x), queue));
}
void flip(Tensor& out, const Tensor& x, std::uint32_t dims_mask) {
  const Queue queue(out);
  LIMPID_LAUNCH("flip", queue, cu::flip(out.dtype(), out.shape(), output(out), input(x), dims_mask, queue));
}

void unary(UnaryOp op, Tensor& out, const Tensor& x, UnaryParams params) {
  const Queue queue(out);
  LIMPID_LAUNCH(raw::op_name(op), queue, cu::unary(op, out.dtype(), out.shape(), output(out), input(x), params, queue));
}
void unary_grad(UnaryOp op, Tensor& out, const Tensor& x, const Tensor& y, const Tensor& grad, UnaryParams params) {
  const Queue queue(out);
  LIMPID_LAUNCH(
      raw::op_name(op), queue,
      cu::unary_grad(op, out.dtype(), out.shape(), output(out), input(x), input(y), input(grad), params, queue));
}
void binary(BinaryOp op, Tensor& out, const Tensor& a, const Tensor& b) {
  const Queue queue(out);
  LIMPID_LAUNCH(raw::op_name(op), queue,
                cu::binary(op, out.dtype(), out.shape(), output(out), input(a), input(b), queue));
}
void binary_grad(BinaryOp op, bool of_b, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& y,
                 const Tensor& grad) {
  const Queue queue(out);
  LIMPID_LAUNCH(raw::op_name(op), queue,
                cu::binary_grad(op, of_b, out.dtype(), out.shape(), output(out), input(a), input(b), input(y),
                                input(grad), queue));
}
void compare(CompareOp op, Tensor& out, const Tensor& a, const Tensor& b) {
  const Queue queue(out);
  LIMPID_LAUNCH(raw::op_name(op), queue,
                cu::compare(op, a.dtype(), out.shape(), output(out), input(a), input(b), queue));
}
void where(Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Queue queue(out);
  LIMPID_LAUNCH("where", queue,
                cu::where(out.dtype(), out.shape(), output(out), input(condition), input(a), input(b), queue));
}
void add_scaled(Tensor& out, const Tensor& x, double alpha) {
  const Queue queue(out);
  LIMPID_LAUNCH("add_scaled", queue, cu::add_scaled(out.dtype(), out.shape(), output(out), input(x), alpha, queue));
}
void is_finite(Tensor& out, const Tensor& x) {
  const Queue queue(out);
  LIMPID_LAUNCH("is_finite", queue, cu::is_finite(x.dtype(), out.shape(), output(out), input(x), queue));
}
bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype()) || x.numel() == 0) return true;
  Tensor each = raw::empty_like(x, DType::boolean);
  is_finite(each, x);
  Tensor all = raw::empty(Shape::filled(x.dim(), 1), DType::boolean, x.device());
  reduce(ReduceOp::all, all, each, (1u << x.dim()) - 1u);
  bool result = false;
  Queue(x).read_back(&result, all.raw_data(), sizeof result);
  return result;
}

void uniform(Tensor& out, std::uint64_t key, std::uint64_t first) {
  const Queue queue(out);
  LIMPID_LAUNCH("uniform", queue, cu::uniform(out.dtype(), out.shape(), output(out), key, first, queue));
}
void normal(Tensor& out, std::uint64_t key, std::uint64_t first) {
  const Queue queue(out);
  LIMPID_LAUNCH("normal", queue, cu::normal(out.dtype(), out.shape(), output(out), key, first, queue));
}
void dropout(Tensor& out, const Tensor& x, double p, std::uint64_t key, std::int64_t sample_offset) {
  const Queue queue(out);
  LIMPID_LAUNCH("dropout", queue,
                cu::dropout(out.dtype(), out.shape(), output(out), input(x), p, key, sample_offset, queue));
}

}  // namespace limpid::cu::entries
