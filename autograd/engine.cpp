#include <limpid/autograd/engine.h>

#include <algorithm>
#include <atomic>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/check_finite.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/meta.h>
#include <limpid/autograd/watch.h>
#include <limpid/tensor/raw.h>

namespace limpid {
namespace {

// True when nobody else can see this tensor's bytes.
bool is_exclusive(const Tensor& t) { return t.impl()->use_count() == 1 && t.storage()->use_count() == 1; }

void check_gradient_fits(const Tensor& grad, const Tensor& leaf) {
  LIMPID_CHECK(grad.shape() == leaf.shape(), ShapeError, "[backward] gradient ", grad, " does not fit ", leaf);
}

// What a hook returns takes the gradient's place, so it must look like it; undefined keeps the gradient.
void call_hook(const GradHook& hook, Tensor& grad) {
  Tensor replaced = hook(grad);
  if (!replaced.defined()) return;
  LIMPID_CHECK(replaced.shape() == grad.shape() && replaced.dtype() == grad.dtype(), ShapeError,
               "[backward] a hook returned ", replaced, " for the gradient ", grad);
  grad = std::move(replaced);
}

// sum += grad, in place when the buffer is ours alone.
void accumulate(Tensor& sum, Tensor grad) {
  if (!sum.defined()) {
    sum = std::move(grad);
    return;
  }
  LIMPID_CHECK(sum.shape() == grad.shape(), ShapeError, "[backward] gradients of one tensor differ in shape: ", sum,
               " and ", grad);
  if (is_exclusive(sum) && sum.is_dense() && sum.dtype() == grad.dtype()) {
    raw::add_scaled(sum, grad, 1.0);
  } else {
    sum = raw::binary(BinaryOp::add, sum, grad);
  }
}

void accumulate_into_leaf(const Tensor& leaf, Tensor grad) {
  check_gradient_fits(grad, leaf);
  AutogradMeta& meta = get_meta(leaf);
  for (const GradHook& hook : meta.hooks) call_hook(hook, grad);
  if (meta.grad.defined()) {
    check_gradient_fits(meta.grad, leaf);  // mutable_grad() hands it out
    raw::add_scaled(meta.grad, raw::cast(grad, meta.grad.dtype()), 1.0);
    return;
  }
  grad = raw::cast(grad, leaf.dtype());
  bool take = is_exclusive(grad) && grad.is_contiguous() == leaf.is_contiguous() && grad.is_dense();
  if (!take) {
    Tensor copy = raw::empty_like(leaf);
    raw::copy(copy, grad);
    grad = std::move(copy);
  }
  grad.storage()->set_role(memory::Role::grad);
  if (leaf.impl()->name) {
    grad.impl()->name = leaf.impl()->name;
    grad.storage()->set_name(leaf.impl()->name);
  }
  meta.grad = std::move(grad);
}

// Gradients that a caller wants handed over instead of added to grad(). Captures nest as runs do: a run inside a node of
// another one (a checkpoint) offers each gradient to its own capture and to the outer ones.
struct Capture {
  std::span<const Edge> wanted;
  std::span<Tensor> results;
  bool other_leaves;  // leaves that nobody wants receive their gradient as usual
  const Capture* outer;

  // Hands `grad` to everyone who wants this edge; true when it must not go into the leaf as well.
  bool take(const Edge& edge, const Tensor& grad) const {
    bool taken = !other_leaves;
    for (std::size_t i = 0; i < wanted.size(); i++) {
      bool same = edge.node ? wanted[i].node == edge.node && wanted[i].output == edge.output
                            : wanted[i].leaf.defined() && wanted[i].leaf.is_same(edge.leaf);
      if (!same) continue;
      accumulate(results[i], grad);
      taken = true;
    }
    return (outer && outer->take(edge, grad)) || taken;
  }
};
thread_local const Capture* capture = nullptr;

struct Task {
  Ref<Node> node;
  std::vector<Tensor> grads;  // one an output of the node
};

}  // namespace

void Engine::run(std::span<const Edge> roots, std::span<const Tensor> grads, const BackwardOptions& options) {
  static std::atomic<std::uint64_t> runs{0};
  const std::uint64_t run = ++runs;
  NoGradGuard no_grad;
  AutocastPause as_it_was;  // the gradients have the dtypes of the forward pass

  // Sequence numbers grow along the forward pass, so the highest waiting node has received all its gradients: every
  // consumer of its outputs has a higher number and was popped before.
  std::vector<Task> tasks;
  std::vector<std::size_t> free_slots;
  std::vector<Node*> heap;
  auto earlier = [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); };

  auto send = [&](const Edge& edge, Tensor grad) {
    bool taken = capture && capture->take(edge, grad);
    if (!edge.node) {
      if (!taken) accumulate_into_leaf(edge.leaf, std::move(grad));
      return;
    }
    Node* node = edge.node.get();
    if (node->run_ != run) {
      node->run_ = run;
      if (free_slots.empty()) {
        node->slot_ = tasks.size();
        tasks.emplace_back();
      } else {
        node->slot_ = free_slots.back();
        free_slots.pop_back();
      }
      tasks[node->slot_].node = edge.node;
      tasks[node->slot_].grads.assign(static_cast<std::size_t>(node->num_outputs()), Tensor());
      heap.push_back(node);
      std::push_heap(heap.begin(), heap.end(), earlier);
    }
    accumulate(tasks[node->slot_].grads[edge.output], std::move(grad));
  };

  for (std::size_t i = 0; i < roots.size(); i++) send(roots[i], grads[i]);

  std::vector<Tensor> input_grads;
  std::vector<Tensor> output_grads;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), earlier);
    Node* node = heap.back();
    heap.pop_back();
    Ref<Node> keep = std::move(tasks[node->slot_].node);
    output_grads.swap(tasks[node->slot_].grads);
    free_slots.push_back(node->slot_);
    node->run_ = 0;

    LIMPID_CHECK(!node->released_, AutogradError, "[backward] the graph of ", node->name(),
                 " was freed by an earlier backward; pass retain_graph = true there to run it twice");
    Scope scope = node->scope_;
    scope.phase = Phase::backward;
    ScopeGuard guard(scope);
    for (auto& [output, hook] : node->output_hooks_) {
      Tensor& grad = output_grads[output];
      if (grad.defined()) call_hook(hook, grad);
    }
    input_grads.assign(node->edges_.size(), Tensor());
    node->backward(output_grads, input_grads);
    if (LIMPID_UNLIKELY(detail::watcher != nullptr)) detail::watcher->on_backward(*node, output_grads, input_grads);
    output_grads.clear();
    if (!options.retain_graph) {
      node->release_saved();
      node->released_ = true;
    }
    for (std::size_t i = 0; i < input_grads.size(); i++) {
      if (!node->edges_[i].defined() || !input_grads[i].defined()) continue;
      if (check_finite_enabled()) check_finite(input_grads[i], "gradient of input", static_cast<int>(i));
      send(node->edges_[i], std::move(input_grads[i]));
    }
    input_grads.clear();
  }
}

std::vector<Tensor> Engine::run_for(std::span<const Edge> wanted, bool other_leaves, std::span<const Edge> roots,
                                    std::span<const Tensor> grads, const BackwardOptions& options) {
  std::vector<Tensor> results(wanted.size());
  Capture mine{wanted, results, other_leaves, capture};
  struct Restore {
    const Capture* former;
    ~Restore() { capture = former; }
  } restore{capture};
  capture = &mine;
  run(roots, grads, options);
  return results;
}

namespace {

Tensor seed_gradient(const Tensor& output, const Tensor& gradient) {
  LIMPID_CHECK(output.requires_grad(), AutogradError, "[backward] ", output, " does not require a gradient and has no graph");
  if (gradient.defined()) {
    check_gradient_fits(gradient, output);
    return gradient;
  }
  LIMPID_CHECK(output.numel() == 1, AutogradError, "[backward] a gradient must be given for ", output,
               ": only a tensor of one element has an implied gradient of 1");
  Tensor ones = raw::empty(output.shape(), output.dtype(), output.device());
  raw::fill(ones, 1);
  return ones;
}

}  // namespace

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  PhaseScope phase(Phase::backward);
  Tensor seed = seed_gradient(*this, gradient);
  Edge root = edge_to(*this);
  // The engine owns the only handle where it can, so that it may add in place.
  Tensor grads[1] = {std::move(seed)};
  Engine::run(std::span(&root, 1), grads, {.retain_graph = retain_graph});
}

std::vector<Tensor> gradients(const Tensor& output, const std::vector<Tensor>& inputs, const Tensor& gradient,
                              bool retain_graph) {
  PhaseScope phase(Phase::backward);
  Tensor seed = seed_gradient(output, gradient);
  std::vector<Edge> wanted;
  for (const Tensor& input : inputs) {
    LIMPID_CHECK(input.requires_grad(), AutogradError, "[gradients] ", input, " does not require a gradient");
    wanted.push_back(edge_to(input));
  }
  Edge root = edge_to(output);
  Tensor grads[1] = {std::move(seed)};
  return Engine::run_for(wanted, false, std::span(&root, 1), grads, {.retain_graph = retain_graph});
}

}  // namespace limpid
