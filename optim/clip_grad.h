// Gradient clipping and scaling, in place, over the parameters that have a gradient.
#pragma once

#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid::optim {

// Scales all gradients by min(1, max_norm / (norm + 1e-6)), norm being the L2 norm of all of them together, and returns
// norm as it was. A norm that is not finite is an ArgumentError when asked; else it goes into the gradients, as in
// PyTorch.
double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, bool error_if_nonfinite = false);
// The L2 norm of all gradients together; 0 when there are none.
double grad_norm(const std::vector<Tensor>& params);
// min(1, max_norm / (norm + 1e-6)): what the gradients are multiplied by.
double clip_coefficient(double norm, double max_norm);
// Multiplies all gradients.
void scale_grad_(const std::vector<Tensor>& params, double factor);
// Clamps every element to [-limit, limit].
void clip_grad_value_(const std::vector<Tensor>& params, double limit);

}  // namespace limpid::optim
