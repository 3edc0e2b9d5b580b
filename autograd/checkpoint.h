// Recompute checkpointing: the activations inside `function` are not kept; backward runs it again. Costs one more forward
// pass of that part, saves everything it would have saved. Random layers draw the same numbers again.
#pragma once

#include <functional>
#include <vector>

#include <limpid/tensor/tensor.h>

namespace limpid {

using CheckpointFunction = std::function<Tensor(const std::vector<Tensor>&)>;

// Runs function(inputs). Parameters used inside receive their gradients during backward. `function` must give the same
// result when called again, and update no state of its own while is_recomputing() (BatchNorm keeps to that).
Tensor checkpoint(const CheckpointFunction& function, const std::vector<Tensor>& inputs);

// True while a checkpoint recomputes its forward: layers with running statistics leave them alone.
bool is_recomputing();

}  // namespace limpid
