// Puts other normalisation in the place of batch norm: layers that look at one sample at a time, so that a gradient does
// not depend on how a batch was cut.
#pragma once

#include <limpid/nn/module.h>

namespace limpid::nn {

enum class SampleNorm : std::uint8_t {
  group,  // GroupNorm
  layer,  // GroupNorm of one group: mean and variance over all channels and pixels, weight and bias a channel
};

// The groups chosen for a number of channels: the most that divide them, at most 32, with 4 channels each or more
// (1 where nothing else divides): 16 -> 4, 64 -> 16, 128 and more -> 32.
std::int64_t usual_groups(std::int64_t channels);

// Replaces every BatchNorm below `model` in containers (Sequential, Residual). The child keeps its name, so state_dict()
// has "NAME.weight" and "NAME.bias" as before, with the values of the batch norm; "NAME.running_mean", "running_var" and
// "num_batches_tracked" are gone. Affine, eps, dtype and device are taken over. Returns the paths. `groups` 0: the usual
// ones. ArgumentError, and nothing is replaced: when a batch norm sits in a module that cannot exchange its children, when
// it is the model itself, or when its channels do not divide into `groups`.
std::vector<std::string> replace_batch_norm(Module& model, SampleNorm norm, std::int64_t groups = 0);

}  // namespace limpid::nn
