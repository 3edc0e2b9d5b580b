#include <limpid/autograd/node.h>

#include <algorithm>
#include <array>
#include <atomic>

#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/meta.h>
#include <limpid/tensor/raw.h>

namespace limpid {

// ---- SavedTensor

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  // A result is kept without its history: a node that kept its own output with the grad_fn would be a cycle.
  bool is_result = find_meta(tensor) && find_meta(tensor)->grad_fn;
  tensor_ = is_result ? raw::detach(tensor) : tensor;
  version_ = tensor.version();
  tensor_.storage()->add_saved();
}

SavedTensor::SavedTensor(SavedTensor&& other) noexcept
    : tensor_(std::move(other.tensor_)), version_(other.version_) {}

SavedTensor& SavedTensor::operator=(SavedTensor&& other) noexcept {
  if (this != &other) {
    reset();
    tensor_ = std::move(other.tensor_);
    version_ = other.version_;
  }
  return *this;
}

void SavedTensor::reset() {
  if (!tensor_.defined()) return;
  tensor_.storage()->remove_saved();
  tensor_ = Tensor();
}

const Tensor& SavedTensor::unpack(const Node& node) const {
  LIMPID_CHECK(!tensor_.defined() || tensor_.version() == version_, AutogradError, "[", node.name(),
               "] a tensor saved for its gradient was overwritten: ", tensor_, " is at version ", tensor_.version(),
               ", it was saved at version ", version_);
  return tensor_;
}

// ---- Node

namespace {
std::uint64_t next_sequence() {
  static std::atomic<std::uint64_t> sequence{0};
  return ++sequence;
}

// Edges of nodes that are being destroyed. A chain of nodes is a chain of last references: freeing it by recursion would
// overflow the stack, so destructors hand their edges over and the outermost one drops them in a loop.
thread_local std::vector<Edge>* dying_edges = nullptr;

// Live nodes by operation: names of operations are interned early, so their ids are small. Ids beyond share the last.
constexpr std::size_t kCountedOps = 1024;
std::array<std::atomic<std::int64_t>, kCountedOps> live_nodes;
std::atomic<std::int64_t> live_node_bytes;
std::atomic<std::int64_t>& count_of(NameId op) { return live_nodes[std::min<std::size_t>(op, kCountedOps - 1)]; }
}  // namespace

void* Node::operator new(std::size_t bytes) {
  void* node = ::operator new(bytes);
  live_node_bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  return node;
}

void Node::operator delete(void* node, std::size_t bytes) noexcept {
  live_node_bytes.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  ::operator delete(node, bytes);
}

memory::LiveGraph live_graph() {
  return {.bytes = [] { return static_cast<std::uint64_t>(live_node_bytes.load(std::memory_order_relaxed)); },
          .nodes =
              [] {
                std::vector<std::pair<NameId, std::uint64_t>> out;
                for (std::size_t op = 0; op < kCountedOps; op++) {
                  const std::int64_t n = live_nodes[op].load(std::memory_order_relaxed);
                  if (n > 0) out.emplace_back(static_cast<NameId>(op), static_cast<std::uint64_t>(n));
                }
                return out;
              }};
}

Node::Node(NameId name) : name_(name), scope_(current_scope()), sequence_(next_sequence()) {
  count_of(name).fetch_add(1, std::memory_order_relaxed);
  scope_.op = name;
  edges_.reserve(2);
}

Node::~Node() {
  count_of(name_).fetch_sub(1, std::memory_order_relaxed);
  if (edges_.empty()) return;
  if (dying_edges) {
    for (Edge& edge : edges_) {
      if (edge.node) dying_edges->push_back(std::move(edge));
    }
    return;
  }
  std::vector<Edge> pending = std::move(edges_);
  dying_edges = &pending;
  while (!pending.empty()) {
    Edge edge = std::move(pending.back());
    pending.pop_back();
    edge = Edge();  // may destroy a node, which appends to `pending`
  }
  dying_edges = nullptr;
}

void Node::add_output(Tensor& output) {
  AutogradMeta& meta = get_meta(output);
  meta.grad_fn = Ref<Node>(this);
  meta.output = static_cast<std::uint32_t>(num_outputs_++);
  output.impl()->requires_grad = true;
}

void Node::add_output_hook(std::uint32_t output, std::function<Tensor(const Tensor&)> hook) {
  output_hooks_.emplace_back(output, std::move(hook));
}

Edge edge_to(const Tensor& tensor) {
  Edge edge;
  if (!tensor.defined() || !tensor.impl()->requires_grad) return edge;
  AutogradMeta* meta = find_meta(tensor);
  if (meta && meta->grad_fn) {
    edge.node = meta->grad_fn;
    edge.output = meta->output;
  } else {
    edge.leaf = tensor;
  }
  return edge;
}

bool any_requires_grad(std::initializer_list<const Tensor*> tensors) {
  if (!grad_enabled()) return false;
  for (const Tensor* t : tensors) {
    if (t->requires_grad()) return true;
  }
  return false;
}

}  // namespace limpid
