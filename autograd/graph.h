// Looking at a recorded graph: a list of its nodes, and a DOT drawing with the bytes each node keeps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <limpid/autograd/node.h>

namespace limpid {

struct SavedInfo {
  std::string what;        // "x", "weight"
  std::string tensor;      // "f32[16,64,222,222] cpu"
  std::uint64_t bytes = 0;           // of the storage
  const Storage* storage = nullptr;  // to recognise aliases
  Shape shape;
  DType dtype = DType::float32;
  std::string label;                 // the tensor's own name ("conv1.weight"), mostly empty
};
struct NodeInfo {
  std::string name;    // "conv2d"
  std::string module;  // "layer1.0.conv1", empty outside modules
  std::uint64_t sequence = 0;
  std::vector<std::int64_t> inputs;  // position in the list of each input's producer; -1 for leaves, -2 for none
  std::vector<std::string> leaves;   // names of the leaves among the inputs ("conv1.weight", or their description)
  std::vector<SavedInfo> saved;
  std::uint64_t saved_bytes = 0;     // bytes that this node is the first to keep: aliases and parameters count 0
};

// Every node reachable from `root`, latest first.
std::vector<NodeInfo> list_graph(const Tensor& root);
// The same as Graphviz text.
std::string graph_dot(const Tensor& root);

}  // namespace limpid
