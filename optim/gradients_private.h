// The gradients of parameters as fused kernels want them. Internal to optim/.
#pragma once

#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid::optim {

// The gradients that exist, in runs of equal dtype and device. Those that are not dense in memory are replaced by dense
// copies, because the kernels walk memory. `op` leads the error for a gradient that is not floating.
std::vector<std::vector<Tensor>> gradients_of(const char* op, const std::vector<Tensor>& params);

}  // namespace limpid::optim
