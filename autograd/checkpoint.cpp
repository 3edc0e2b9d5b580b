#include <limpid/autograd/checkpoint.h>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/engine.h>
#include <limpid/autograd/record.h>

namespace limpid {
namespace {

thread_local bool recomputing = false;

class Recomputing {
 public:
  Recomputing() : former_(recomputing) { recomputing = true; }
  ~Recomputing() { recomputing = former_; }

 private:
  bool former_;
};

class CheckpointNode final : public Node {
 public:
  CheckpointNode(CheckpointFunction function, RandomState random)
      : Node(LIMPID_OP("checkpoint")), function_(std::move(function)), random_(std::move(random)) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    std::vector<Tensor> copies;
    std::vector<Edge> wanted;
    for (std::size_t i = 0; i < inputs.size(); i++) {
      Tensor copy = raw::detach(inputs[i].unpack(*this));
      if (needs_input_grad(static_cast<int>(i))) copy.requires_grad_();
      wanted.push_back(edge_to(copy));
      copies.push_back(std::move(copy));
    }
    Tensor output;
    {
      RandomStateScope replay(random_);
      Autocast precision(autocast_);
      Recomputing flag;
      GradModeGuard record(true);
      PhaseScope phase(Phase::forward);
      output = function_(copies);
    }
    LIMPID_CHECK(output.defined() && output.shape() == grads[0].shape() && output.dtype() == grads[0].dtype(), AutogradError,
                 "[checkpoint] the function gave another result when called again: ", output, " for a gradient ", grads[0]);
    if (!output.requires_grad()) return;
    Edge root = edge_to(output);
    output = Tensor();
    std::vector<Tensor> results = Engine::run_for(wanted, true, std::span(&root, 1), grads, {});
    std::move(results.begin(), results.end(), input_grads.begin());
  }
  void visit_saved(const SavedVisitor& visit) const override {
    for (const SavedTensor& s : inputs) visit("input", s);
  }
  void release_saved() override { inputs.clear(); }
  std::vector<SavedTensor> inputs;

 private:
  CheckpointFunction function_;
  RandomState random_;
  AutocastOptions autocast_ = autocast_options();  // of the forward pass
};

}  // namespace

bool is_recomputing() { return recomputing; }

Tensor checkpoint(const CheckpointFunction& function, const std::vector<Tensor>& inputs) {
  LIMPID_CHECK(function != nullptr, ArgumentError, "[checkpoint] the function is empty");
  if (!grad_enabled()) return function(inputs);
  RandomState random = random_state();
  Tensor output;
  {
    NoGradGuard no_grad;
    output = function(inputs);
  }
  for (const Tensor& input : inputs) {
    if (output.is_same(input)) output = raw::detach(output);
  }
  auto node = make_ref<CheckpointNode>(function, std::move(random));
  for (const Tensor& input : inputs) {
    node->add_input(input);
    node->inputs.emplace_back(input);
  }
  node->add_output(output);
  return output;
}

}  // namespace limpid
