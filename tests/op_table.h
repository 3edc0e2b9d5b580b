// The op table: every differentiable function of autograd/functions.h and fused.h with samples, a naive float64 reference and whether
// it has a gradient. tests/test_op_table.cpp drives forward, gradient, dtype, layout and completeness checks from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/fused.h>

namespace limpid::test {

using Inputs = std::vector<Tensor>;

struct OpSample {
  std::string label;                 // "strided", "broadcast", ...
  Inputs inputs;                     // float64; integer tensors stay as they are
  std::function<Tensor(const Inputs&)> run;
  // Expected values in logical order, computed by plain loops; empty function = checked elsewhere (say where in `note`).
  std::function<std::vector<double>(const Inputs&)> reference;
};

struct OpRow {
  std::string name;
  bool differentiable = true;
  std::vector<OpSample> samples;
  double tolerance = 1e-12;    // relative, float64
};

const std::vector<OpRow>& op_table();

}  // namespace limpid::test
