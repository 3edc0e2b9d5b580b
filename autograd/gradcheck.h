// Gradcheck: compares the gradients of backward() with central finite differences, in float64. For users' own functions as
// much as for limpid's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid {

struct GradcheckOptions {
  double eps = 1e-6;
  double atol = 1e-5;
  double rtol = 1e-3;
};

struct GradcheckResult {
  bool ok = true;
  // "input 1, output 3, element 7: backward 0.25, finite difference 0.5" for the worst element.
  std::string message;
  double worst = 0;              // largest |difference| - tolerance
  std::int64_t checked = 0;      // pairs (output element, input element) compared
};

// `function` maps inputs to one tensor. Inputs that require a gradient must be float64 (DTypeError otherwise); they are
// perturbed in place and restored. Kinks (ReLU at 0) must be avoided by the caller's samples.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

}  // namespace limpid
