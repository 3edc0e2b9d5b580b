// Gradient noise scale: how far the gradients of single samples scatter around their mean. B = tr(S) / |G|^2 is the batch
// at which the scatter of a step's gradient is as large as the gradient itself; steps with far smaller batches are mostly
// noise, far larger ones gain little (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1: the simple noise scale).
// An estimate at given weights, and it grows while a model learns.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid::train {

struct GradientNoise {
  double mean_square = 0;  // |G|^2 of the mean gradient, without bias: by chance it may be negative
  double variance = 0;     // tr(S): the sum of the variances of a single sample's gradient, without bias
  std::int64_t samples = 0;
  // tr(S) / |G|^2; nothing when an estimate is not positive or not finite: more samples are needed.
  std::optional<double> scale() const;
};

// `loss(i)`: the mean loss over part i of `parts` parts of `size` samples each, all of them different. At least two parts. The
// gradients of `parameters` are dropped.
GradientNoise gradient_noise(std::vector<Tensor> parameters, std::int64_t parts, std::int64_t size,
                             const std::function<Tensor(std::int64_t part)>& loss);

}  // namespace limpid::train
