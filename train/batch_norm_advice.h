// What a run should know about its batch norm before the first step: whether a micro-batch is too small for it, and what
// exact batch norm will cost. In words; nothing is changed but the mode of the layers.
#pragma once

#include <string>

#include <limpid/train/batch_norm_modes.h>
#include <limpid/train/settings.h>

namespace limpid::train {

struct BatchNormAdvice {
  std::string error;    // training would stop with this, at the latest at the end of the first epoch; empty: it will not
  std::string warning;  // the layer with the fewest values per statistic, and how many others; empty: all have enough
  std::string cost;     // of a full step under exact batch norm, the inputs that it keeps included; empty: another mode
};

// For an epoch of `samples` samples of shape `input`. Runs the model on two samples of zeros.
BatchNormAdvice batch_norm_advice(const TrainSettings& settings, nn::Module& model, const Shape& input, std::int64_t samples);

}  // namespace limpid::train
