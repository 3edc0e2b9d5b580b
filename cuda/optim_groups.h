// What the optimizers' entries allocate, shared by the kernels' adapters and the dry device: how chunks are put
// together by dtype, gradients that are reordered first, and the bytes of partial sums.
#pragma once

#include <span>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/cuda/optim_plan.h>
#include <limpid/tensor/kernels.h>
#include <limpid/tensor/raw.h>

namespace limpid::cu {

inline constexpr DType kFloating[] = {DType::float64, DType::float32, DType::float16, DType::bfloat16};

// The gradient in the memory order of the parameter: itself, or a copy.
inline Tensor matching(const Tensor& grad, const Tensor& param) {
  if (grad.strides() == param.strides() || (grad.is_contiguous() && param.is_contiguous())) return grad;
  Tensor out = raw::empty_like(param, grad.dtype());
  kernels_for(param.device()).copy(out, grad);
  return out;
}

// The dtype of the chunk's states; the parameter's where it has none.
inline DType state_dtype(const char* rule, const OptimChunk& chunk) {
  DType dtype = chunk.param.dtype();
  bool found = false;
  for (const Tensor* state : {&chunk.state0, &chunk.state1, &chunk.state2}) {
    if (!state->defined()) continue;
    LIMPID_CHECK(!found || state->dtype() == dtype, DTypeError, "[", rule,
                 "] the states of a parameter have one dtype, got ", dtype, " and ", *state);
    dtype = state->dtype();
    found = true;
  }
  return dtype;
}

struct OptimGroup {
  DType param, state;
  std::vector<OptimChunk*> chunks;
  std::vector<Tensor> grads;  // matching ones, which live until the group is done
};
// run(OptimGroup&) for the chunks of each pair of dtypes.
template <class Run>
void for_groups(const char* rule, std::span<OptimChunk> chunks, const Run& run) {
  for (DType param : kFloating) {
    for (DType state : kFloating) {
      OptimGroup group{param, state, {}, {}};
      for (OptimChunk& chunk : chunks) {
        if (chunk.param.dtype() != param || state_dtype(rule, chunk) != state) continue;
        group.grads.push_back(matching(chunk.grad, chunk.param));
        group.chunks.push_back(&chunk);
      }
      if (!group.chunks.empty()) run(group);
    }
  }
}
// The same for the rules with a trust ratio, by the parameters' dtype alone.
template <class Run>
void for_trust_groups(const char* rule, std::span<OptimChunk> chunks, const Run& run) {
  for (const OptimChunk& chunk : chunks) {
    const DType dtype = chunk.param.dtype();
    LIMPID_CHECK(dtype == float32 || dtype == float64, DTypeError, "[", rule, "] parameters are f32 or f64, got ",
                 chunk.param);
  }
  for (DType dtype : {float32, float64}) {
    OptimGroup group{dtype, dtype, {}, {}};
    for (OptimChunk& chunk : chunks) {
      if (chunk.param.dtype() != dtype) continue;
      group.grads.push_back(matching(chunk.grad, chunk.param));
      group.chunks.push_back(&chunk);
    }
    if (!group.chunks.empty()) run(group);
  }
}

inline std::int64_t pieces_of(const OptimGroup& group) {
  std::int64_t pieces = 0;
  for (const OptimChunk* chunk : group.chunks) pieces += pieces_of(chunk->param.numel());
  return pieces;
}
inline Tensor trust_workspace(const OptimGroup& group) {
  return raw::workspace(trust_bytes(static_cast<std::int64_t>(group.chunks.size()), pieces_of(group)),
                        group.grads[0].device());
}

// What sum_of_squares works on.
inline std::vector<Tensor> dense_of(std::span<const Tensor> tensors) {
  std::vector<Tensor> dense;
  for (const Tensor& t : tensors) dense.push_back(t.is_dense() ? t : raw::contiguous(t));
  return dense;
}
inline std::int64_t pieces_of(std::span<const Tensor> dense) {
  std::int64_t pieces = 0;
  for (const Tensor& t : dense) pieces += pieces_of(t.numel());
  return pieces;
}

}  // namespace limpid::cu
