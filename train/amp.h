// The three precisions of a training run by name: "fp32", "bf16", "fp16". Not here: the scopes themselves
// (autograd/autocast.h) and the scaler (optim/grad_scaler.h).
#pragma once

#include <string>

#include <limpid/autograd/autocast.h>

namespace limpid::train {

// For the forward pass: Autocast amp(autocast_for(settings.amp)). ArgumentError for another name.
AutocastOptions autocast_for(const std::string& precision);
// Whether the gradients need a loss scale: GradScaler scaler({.enabled = needs_scaler(settings.amp)}).
bool needs_scaler(const std::string& precision);

}  // namespace limpid::train
