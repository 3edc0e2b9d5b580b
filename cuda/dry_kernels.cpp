// The kernel table of dry:cuda. Most entries allocate nothing; those that do on a GPU (adapters_*.cpp) take the same
// blocks here, from the same functions, and those that read back wait as there.
#include <limpid/cuda/optim_groups.h>
#include <limpid/cuda/plans.h>
#include <limpid/cuda/reduce_plan.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/dry.h>

namespace limpid {
namespace {

const Kernels& silent() {
  static const Kernels table = silenced(cpu_kernels(), "dry:cuda");
  return table;
}

void reduce(ReduceOp op, Tensor& out, const Tensor& x, std::uint32_t dims_mask) {
  const Tensor workspace = raw::workspace(cu::reduce_workspace_bytes(x.shape(), x.strides(), dims_mask), out.device());
  silent().reduce(op, out, x, dims_mask);
}

bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype()) || x.numel() == 0) return true;
  const Tensor each = raw::empty_like(x, DType::boolean);
  Tensor all = raw::empty(Shape::filled(x.dim(), 1), DType::boolean, x.device());
  reduce(ReduceOp::all, all, each, (1u << x.dim()) - 1u);
  dry::synchronize(x.device());
  return true;
}

template <auto Entry, class Args>
void step(std::span<OptimChunk> chunks, const Args& args) {
  cu::for_groups("optimizer step", chunks, [](cu::OptimGroup&) {});
  (silent().*Entry)(chunks, args);
}
template <auto Entry, class Args>
void trust_step(std::span<OptimChunk> chunks, const Args& args) {
  cu::for_trust_groups("optimizer step", chunks, [](cu::OptimGroup& group) {
    const Tensor workspace = cu::trust_workspace(group);
    dry::synchronize(kDryCuda);
  });
  (silent().*Entry)(chunks, args);
}

double sum_of_squares(std::span<const Tensor> tensors) {
  if (tensors.empty()) return 0;
  const std::vector<Tensor> dense = cu::dense_of(tensors);
  const std::int64_t parts = cu::pieces_of(std::span<const Tensor>(dense));
  if (parts == 0) return 0;
  const Tensor workspace = raw::workspace(cu::sum_of_squares_bytes(parts), dense[0].device());
  dry::synchronize(kDryCuda);
  return 0;
}

}  // namespace

const Kernels& dry_cuda_kernels() {
  static const Kernels table = [] {
    Kernels k = silent();
    k.plan_matmul = cu::plan_matmul;
    k.plan_conv2d = cu::plan_conv2d;
    k.plan_batch_norm = cu::plan_batch_norm;
    k.reduce = reduce;
    k.all_finite = all_finite;
    k.sgd = step<&Kernels::sgd, SgdArgs>;
    k.adam = step<&Kernels::adam, AdamArgs>;
    k.rmsprop = step<&Kernels::rmsprop, RmspropArgs>;
    k.lamb = trust_step<&Kernels::lamb, LambArgs>;
    k.lars = trust_step<&Kernels::lars, LarsArgs>;
    k.sum_of_squares = sum_of_squares;
    return k;
  }();
  return table;
}

}  // namespace limpid
