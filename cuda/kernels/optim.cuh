// Fused optimizer steps: one kernel for up to kTensorsALaunch parameters, with the tables in the kernel's arguments.
// Update rules are those of the CPU (tensor/cpu/optim.cpp). 16-bit parameters and states are read and written as such
// and computed in f32. Nothing is read back: the guard is looked at on the device. The functions return the error of
// the launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda_runtime_api.h>

#include <limpid/tensor/kernels.h>

namespace limpid::cu {

// One parameter: n dense elements in the same memory order everywhere. The gradient has the parameter's dtype. States
// that the rule does not need are null.
struct OptimTensor {
  void* param = nullptr;
  const void* grad = nullptr;
  void* states[3] = {};
  std::int64_t n = 0;
};
// StepGuard on the device; null where there is none.
struct Guard {
  const float* found_inf = nullptr;       // not 0: nothing changes
  const std::int64_t* skipped = nullptr;  // steps that did not happen, taken off the args' `step`
};
struct OptimTypes {
  DType param = DType::float32;
  DType state = DType::float32;  // param, or f32 for 16-bit parameters
};

// Which states each rule keeps is written at the CPU's rules (tensor/cpu/optim.h).
cudaError_t sgd(std::span<const OptimTensor> tensors, OptimTypes types, const SgdArgs& args, Guard guard,
                cudaStream_t stream);
cudaError_t adam(std::span<const OptimTensor> tensors, OptimTypes types, const AdamArgs& args, Guard guard,
                 cudaStream_t stream);
cudaError_t rmsprop(std::span<const OptimTensor> tensors, OptimTypes types, const RmspropArgs& args, Guard guard,
                    cudaStream_t stream);

// Rules with a trust ratio a tensor, of f32 or f64 parameters. The workspace begins with the ratios, one f64 a tensor.
std::size_t trust_workspace_bytes(std::span<const OptimTensor> tensors);
cudaError_t lamb(std::span<const OptimTensor> tensors, DType dtype, const LambArgs& args, void* workspace,
                 cudaStream_t stream);
cudaError_t lars(std::span<const OptimTensor> tensors, DType dtype, const LarsArgs& args, void* workspace,
                 cudaStream_t stream);

// ---- over tables of dense tensors of one floating dtype: `param` and `n` are used
// x *= factor
cudaError_t scale(std::span<const OptimTensor> tensors, DType dtype, double factor, cudaStream_t stream);
// x *= *inv_scale; *found_inf = 1 when an element was not finite before
cudaError_t amp_unscale(std::span<const OptimTensor> tensors, DType dtype, float* found_inf, const float* inv_scale,
                        cudaStream_t stream);
// partials[i] = sum of squares of a fixed part of the tensors, f64; sum_of_squares_parts(tensors) of them
std::int64_t sum_of_squares_parts(std::span<const OptimTensor> tensors);
cudaError_t sum_of_squares(std::span<const OptimTensor> tensors, DType dtype, double* partials, cudaStream_t stream);
// out[0] = sum of the partials, in a fixed order
cudaError_t sum_partials(const double* partials, std::int64_t n, double* out, cudaStream_t stream);

// The rule of the loss scale (tensor/kernels.h); all on the device.
cudaError_t amp_update(float* scale, std::int32_t* growth_tracker, const float* found_inf, double growth,
                       double backoff, std::int64_t interval, cudaStream_t stream);

}  // namespace limpid::cu
