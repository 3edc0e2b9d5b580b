#include <limpid/autograd/graph.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <limpid/autograd/meta.h>
#include <limpid/base/format.h>

namespace limpid {

std::vector<NodeInfo> list_graph(const Tensor& root) {
  std::vector<const Node*> nodes;
  std::unordered_set<const Node*> seen;
  Edge start = edge_to(root);
  std::vector<const Node*> pending;
  if (start.node) pending.push_back(start.node.get());
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    if (!seen.insert(node).second) continue;
    nodes.push_back(node);
    for (const Edge& edge : node->edges()) {
      if (edge.node) pending.push_back(edge.node.get());
    }
  }
  std::sort(nodes.begin(), nodes.end(), [](auto a, auto b) { return a->sequence() > b->sequence(); });
  std::unordered_map<const Node*, std::int64_t> position;
  for (std::size_t i = 0; i < nodes.size(); i++) position[nodes[i]] = static_cast<std::int64_t>(i);

  std::vector<NodeInfo> list(nodes.size());
  std::unordered_set<const Storage*> counted;
  for (std::size_t i = nodes.size(); i-- > 0;) {  // in forward order, so that the first keeper owns the bytes
    const Node* node = nodes[i];
    NodeInfo& info = list[i];
    info.name = node->name();
    info.module = name_of(node->scope().module);
    info.sequence = node->sequence();
    for (const Edge& edge : node->edges()) {
      info.inputs.push_back(edge.node ? position[edge.node.get()] : edge.leaf.defined() ? -1 : -2);
      if (edge.leaf.defined()) info.leaves.push_back(edge.leaf.impl()->name ? edge.leaf.name() : edge.leaf.describe());
    }
    node->visit_saved([&](const char* what, const SavedTensor& saved) {
      if (!saved.defined()) return;
      const Tensor& t = saved.peek();
      const Storage* storage = t.storage().get();
      std::uint64_t bytes = storage->bytes();
      info.saved.push_back({what, t.describe(), bytes, storage, t.shape(), t.dtype(), t.name()});
      if (storage->role() == memory::Role::saved && counted.insert(storage).second) info.saved_bytes += bytes;
    });
  }
  return list;
}

std::string graph_dot(const Tensor& root) {
  std::string out = "digraph graph {\n  rankdir=BT;\n  node [shape=box, fontname=\"monospace\"];\n";
  std::vector<NodeInfo> list = list_graph(root);
  std::size_t leaf = 0;
  for (std::size_t i = 0; i < list.size(); i++) {
    const NodeInfo& node = list[i];
    std::string label = node.name;
    if (!node.module.empty()) label += "\\n" + node.module;
    label += "\\nkeeps " + format_bytes(node.saved_bytes);
    for (const SavedInfo& s : node.saved) label += "\\n" + s.what + " " + s.tensor;
    out += "  n" + std::to_string(i) + " [label=\"" + label + "\"];\n";
    for (std::int64_t input : node.inputs) {
      if (input >= 0) out += "  n" + std::to_string(input) + " -> n" + std::to_string(i) + ";\n";
    }
    for (const std::string& name : node.leaves) {
      std::string id = "l" + std::to_string(leaf++);
      out += "  " + id + " [label=\"" + name + "\", shape=ellipse];\n  " + id + " -> n" + std::to_string(i) + ";\n";
    }
  }
  return out + "}\n";
}

}  // namespace limpid
