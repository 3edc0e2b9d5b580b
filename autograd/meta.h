// What autograd hangs on a tensor: its gradient, the node that made it, and its hooks. Private to autograd/.
#pragma once

#include <functional>
#include <vector>

#include <limpid/autograd/node.h>

namespace limpid {

using GradHook = std::function<Tensor(const Tensor&)>;

struct AutogradMeta final : AutogradMetaBase {
  Tensor grad;               // leaves
  Ref<Node> grad_fn;         // results
  std::uint32_t output = 0;  // which output of grad_fn
  std::vector<GradHook> hooks;  // leaves; those of results stand in the node, which may outlive the tensor
};

// Null when the tensor has none yet.
inline AutogradMeta* find_meta(const Tensor& tensor) {
  return static_cast<AutogradMeta*>(tensor.impl()->autograd.get());
}
inline AutogradMeta& get_meta(const Tensor& tensor) {
  if (!tensor.impl()->autograd) tensor.impl()->autograd = std::make_unique<AutogradMeta>();
  return *static_cast<AutogradMeta*>(tensor.impl()->autograd.get());
}

}  // namespace limpid
