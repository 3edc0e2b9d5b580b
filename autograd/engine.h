// The backward pass. Gradients of interior tensors live in the engine while it runs, never on tensors: two backwards give
// twice the gradient, or a clear error. Runs on the calling thread, without recording (no higher-order gradients).
#pragma once

#include <span>

#include <limpid/autograd/node.h>

namespace limpid {

struct BackwardOptions {
  bool retain_graph = false;
};

class Engine {
 public:
  // Sends grads[i] into roots[i] and runs every node they reach, latest first.
  static void run(std::span<const Edge> roots, std::span<const Tensor> grads, const BackwardOptions& options);
  // The same, returning the gradients that pass the `wanted` edges (undefined where none did) instead of adding them to
  // leaves. Other leaves receive theirs only with `other_leaves`. Nests: a run inside a node of another run.
  static std::vector<Tensor> run_for(std::span<const Edge> wanted, bool other_leaves, std::span<const Edge> roots,
                                     std::span<const Tensor> grads, const BackwardOptions& options);
};

// The gradients of `output` with respect to `inputs`, without touching any grad(). An input that is not reached gets an
// undefined tensor.
std::vector<Tensor> gradients(const Tensor& output, const std::vector<Tensor>& inputs, const Tensor& gradient = Tensor(),
                              bool retain_graph = false);

}  // namespace limpid
