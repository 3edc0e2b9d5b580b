// The recorded graph. A Node is one differentiable operation that ran: it keeps what its gradient needs (SavedTensor) and
// the edges to the producers of its inputs. Nodes are named objects, never closures, so that they can be listed, exported
// and asked for their bytes. Interior gradients live in the engine (engine.h), not here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <limpid/base/ref.h>
#include <limpid/base/scope.h>
#include <limpid/memory/leak.h>
#include <limpid/tensor/tensor.h>

namespace limpid {

class Node;

// A tensor kept for the backward pass. Remembers the version; unpack() throws AutogradError when the tensor was
// overwritten since. Its storage counts as role `saved` while kept.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);  // an undefined tensor is fine
  ~SavedTensor() { reset(); }
  SavedTensor(SavedTensor&&) noexcept;
  SavedTensor& operator=(SavedTensor&&) noexcept;
  SavedTensor(const SavedTensor&) = delete;
  SavedTensor& operator=(const SavedTensor&) = delete;

  bool defined() const { return tensor_.defined(); }
  // The tensor without history. `node` names the operation in the error.
  const Tensor& unpack(const Node& node) const;
  const Tensor& peek() const { return tensor_; }  // no version check: for listings
  void reset();

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

// Where a gradient goes: into a node's output slot, or into a leaf's grad().
struct Edge {
  Ref<Node> node;
  std::uint32_t output = 0;  // which output of `node`
  Tensor leaf;               // set for leaves instead of node
  bool defined() const { return node || leaf.defined(); }
};
// The edge that leads to `tensor`'s gradient; undefined when it does not require one.
Edge edge_to(const Tensor& tensor);

class Node : public RefCounted {
 public:
  // Counted, so that a loop that keeps its graphs can be told (memory/leak.h).
  static void* operator new(std::size_t bytes);
  static void operator delete(void* node, std::size_t bytes) noexcept;
  explicit Node(NameId name);
  ~Node() override;  // iterative: a chain of millions of nodes is freed without recursion

  const std::string& name() const { return name_of(name_); }
  NameId name_id() const { return name_; }
  const Scope& scope() const { return scope_; }  // as it was in the forward pass
  std::uint64_t sequence() const { return sequence_; }
  int num_outputs() const { return num_outputs_; }

  // grads[i] is the gradient of output i (undefined = zero). Fills one gradient an input; entries whose edge is not
  // needed may stay undefined. Runs without recording.
  virtual void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) = 0;
  // Every tensor this node keeps: visit("x", saved).
  using SavedVisitor = std::function<void(const char* what, const SavedTensor& saved)>;
  virtual void visit_saved(const SavedVisitor&) const {}
  // Lets the saved tensors go after a backward without retain_graph.
  virtual void release_saved() {}

  bool needs_input_grad(int i) const { return edges_[static_cast<std::size_t>(i)].defined(); }
  const std::vector<Edge>& edges() const { return edges_; }
  bool released() const { return released_; }
  // Hooks on the gradient of one output; a defined result replaces the gradient.
  void add_output_hook(std::uint32_t output, std::function<Tensor(const Tensor&)> hook);

  // ---- building (autograd functions and user-defined ones)
  void add_input(const Tensor& input) { edges_.push_back(edge_to(input)); }
  // Makes `output` a result of this node; call in order of outputs.
  void add_output(Tensor& output);

 private:
  friend class Engine;
  NameId name_;
  Scope scope_;
  std::uint64_t sequence_;
  int num_outputs_ = 0;
  bool released_ = false;
  std::vector<Edge> edges_;
  std::vector<std::pair<std::uint32_t, std::function<Tensor(const Tensor&)>>> output_hooks_;
  // Scratch of the engine: the place of this node in the running backward.
  std::uint64_t run_ = 0;
  std::size_t slot_ = 0;
};

// The nodes that are alive, of all threads: for LeakCheck(allocator, live_graph()).
memory::LiveGraph live_graph();

// True when grad mode is on and any of the tensors requires a gradient.
bool any_requires_grad(std::initializer_list<const Tensor*> tensors);

}  // namespace limpid
