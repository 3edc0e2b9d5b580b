// Optimizer steps and loss scaling of the CUDA kernel table: chunks are put together by dtype, so that one kernel takes
// many.
#include <array>
#include <vector>

#include <limpid/cuda/adapter_private.h>
#include <limpid/cuda/entries.h>
#include <limpid/cuda/kernels/optim.cuh>
#include <limpid/cuda/optim_groups.h>

namespace limpid::cu::entries {
namespace {

Guard guard_of(const StepGuard& guard) {
  return {guard.found_inf.defined() ? guard.found_inf.data<float>() : nullptr,
          guard.skipped.defined() ? guard.skipped.data<std::int64_t>() : nullptr};
}

OptimTensor table_row(OptimChunk& chunk, const Tensor& grad) {
  OptimTensor row{
      .param = chunk.param.raw_mutable_data(), .grad = grad.raw_data(), .states = {}, .n = chunk.param.numel()};
  Tensor* const states[] = {&chunk.state0, &chunk.state1, &chunk.state2};
  for (int i = 0; i < 3; i++) {
    if (states[i]->defined()) row.states[i] = states[i]->raw_mutable_data();
  }
  return row;
}

std::vector<OptimTensor> table_of(OptimGroup& group) {
  std::vector<OptimTensor> rows;
  for (std::size_t i = 0; i < group.chunks.size(); i++) rows.push_back(table_row(*group.chunks[i], group.grads[i]));
  return rows;
}

// step(rows, types) for each group.
template <class Step>
void run(const char* rule, std::span<OptimChunk> chunks, const Step& step) {
  for_groups(rule, chunks, [&](OptimGroup& group) {
    const std::vector<OptimTensor> rows = table_of(group);
    const Queue queue(group.grads[0]);
    LIMPID_LAUNCH(rule, queue,
                  step(std::span<const OptimTensor>(rows), OptimTypes{group.param, group.state}, queue));
  });
}

// The same for the rules with a trust ratio, which is read back.
template <class Step>
void run_trust(const char* rule, std::span<OptimChunk> chunks, const Step& step) {
  for_trust_groups(rule, chunks, [&](OptimGroup& group) {
    const std::vector<OptimTensor> rows = table_of(group);
    const Queue queue(group.grads[0]);
    Tensor workspace = trust_workspace(group);
    LIMPID_LAUNCH(rule, queue,
                  step(std::span<const OptimTensor>(rows), group.param, workspace.raw_mutable_data(), queue));
    std::vector<double> trust(rows.size());
    queue.read_back(trust.data(), workspace.raw_data(), trust.size() * sizeof(double));
    for (std::size_t i = 0; i < trust.size(); i++) group.chunks[i]->trust = trust[i];
  });
}

// Dense tensors by dtype: run(dtype, rows).
template <class Tensors, class Run>
void by_dtype(const char* op, Tensors tensors, const Run& run_group) {
  std::array<std::vector<OptimTensor>, std::size(kFloating)> groups;
  for (auto& t : tensors) {
    LIMPID_CHECK(is_floating(t.dtype()), DTypeError, "[", op, "] expects a floating dtype, got ", t);
    groups[static_cast<std::size_t>(t.dtype())].push_back(
        {.param = const_cast<void*>(t.raw_data()), .grad = nullptr, .states = {}, .n = t.numel()});
  }
  for (DType dtype : kFloating) {
    const std::vector<OptimTensor>& rows = groups[static_cast<std::size_t>(dtype)];
    if (!rows.empty()) run_group(dtype, std::span<const OptimTensor>(rows));
  }
}

}  // namespace

void sgd(std::span<OptimChunk> chunks, const SgdArgs& a) {
  run("sgd", chunks, [&](std::span<const OptimTensor> rows, OptimTypes types, cudaStream_t stream) {
    return cu::sgd(rows, types, a, guard_of(a.guard), stream);
  });
}
void adam(std::span<OptimChunk> chunks, const AdamArgs& a) {
  run("adam", chunks, [&](std::span<const OptimTensor> rows, OptimTypes types, cudaStream_t stream) {
    return cu::adam(rows, types, a, guard_of(a.guard), stream);
  });
}
void rmsprop(std::span<OptimChunk> chunks, const RmspropArgs& a) {
  run("rmsprop", chunks, [&](std::span<const OptimTensor> rows, OptimTypes types, cudaStream_t stream) {
    return cu::rmsprop(rows, types, a, guard_of(a.guard), stream);
  });
}
void lamb(std::span<OptimChunk> chunks, const LambArgs& a) {
  run_trust("lamb", chunks, [&](std::span<const OptimTensor> rows, DType dtype, void* workspace, cudaStream_t stream) {
    return cu::lamb(rows, dtype, a, workspace, stream);
  });
}
void lars(std::span<OptimChunk> chunks, const LarsArgs& a) {
  run_trust("lars", chunks, [&](std::span<const OptimTensor> rows, DType dtype, void* workspace, cudaStream_t stream) {
    return cu::lars(rows, dtype, a, workspace, stream);
  });
}

double sum_of_squares(std::span<const Tensor> tensors) {
  if (tensors.empty()) return 0;
  std::vector<Tensor> dense = dense_of(tensors);
  const Device device = dense[0].device();
  const std::int64_t parts = pieces_of(std::span<const Tensor>(dense));
  if (parts == 0) return 0;
  const Queue queue(device);
  Tensor workspace = raw::workspace(sum_of_squares_bytes(parts), device);  // the total, the parts
  double* total = static_cast<double*>(workspace.raw_mutable_data());
  double* part = total + 1;
  by_dtype("sum_of_squares", std::span<Tensor>(dense), [&](DType dtype, std::span<const OptimTensor> rows) {
    LIMPID_LAUNCH("sum_of_squares", queue, cu::sum_of_squares(rows, dtype, part, queue));
    part += sum_of_squares_parts(rows);
  });
  LIMPID_LAUNCH("sum_of_squares", queue, sum_partials(total + 1, parts, total, queue));
  double result = 0;
  queue.read_back(&result, total, sizeof result);
  return result;
}

void scale(std::span<Tensor> tensors, double factor) {
  std::vector<Tensor> dense;
  for (Tensor& t : tensors) {
    if (t.is_dense() && is_floating(t.dtype())) {
      t.raw_mutable_data();  // counts a version
      dense.push_back(t);
    } else {
      unary(UnaryOp::mul_scalar, t, t, {factor, 0});
    }
  }
  if (dense.empty()) return;
  const Queue queue(dense[0]);
  by_dtype("scale", std::span<Tensor>(dense), [&](DType dtype, std::span<const OptimTensor> rows) {
    LIMPID_LAUNCH("scale", queue, cu::scale(rows, dtype, factor, queue));
  });
}

void amp_unscale(std::span<Tensor> grads, Tensor& found_inf, const Tensor& inv_scale) {
  const Queue queue(found_inf);
  for (Tensor& grad : grads) grad.raw_mutable_data();  // counts a version
  float* found = found_inf.mutable_data<float>();
  by_dtype("amp_unscale", grads, [&](DType dtype, std::span<const OptimTensor> rows) {
    LIMPID_LAUNCH("amp_unscale", queue, cu::amp_unscale(rows, dtype, found, inv_scale.data<float>(), queue));
  });
}

void amp_update(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth, double backoff,
                std::int64_t interval) {
  const Queue queue(scale);
  LIMPID_LAUNCH("amp_update", queue,
                cu::amp_update(scale.mutable_data<float>(), growth_tracker.mutable_data<std::int32_t>(),
                               found_inf.data<float>(), growth, backoff, interval, queue));
}

}  // namespace limpid::cu::entries
