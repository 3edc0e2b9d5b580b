#include <limpid/nn/fuse.h>

#include <algorithm>
#include <optional>
#include <typeinfo>

#include <limpid/base/scope.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>

namespace limpid::nn {
namespace {

// Exactly of this type: a derived one may compute something else.
template <class M>
M* as(const std::shared_ptr<Module>& module) {
  return typeid(*module) == typeid(M) ? static_cast<M*>(module.get()) : nullptr;
}

bool is_pool2(const std::shared_ptr<Module>& module) {
  const auto* pool = as<MaxPool2d>(module);
  return pool != nullptr && pool->options().kernel_size == Pair(2) && pool->options().stride == Pair(2) &&
         pool->options().padding == Pair(0) && pool->options().dilation == Pair(1) && !pool->options().ceil_mode;
}
bool is_mean(const std::shared_ptr<Module>& module) {
  const auto* pool = as<AdaptiveAvgPool2d>(module);
  return pool != nullptr && pool->output_size() == Pair(1);
}

// The longest chain that begins at steps[at]; no parts: none does.
Chain chain_at(const std::vector<std::shared_ptr<Module>>& steps, std::size_t at) {
  Chain chain;
  const auto take = [&](std::size_t count) {
    chain.first = at;
    for (std::size_t i = 0; i < count; i++) chain.parts.push_back(steps[at + i].get());
  };
  if (at + 1 >= steps.size() || as<ReLU>(steps[at + 1]) == nullptr) return chain;
  chain.conv = as<Conv2d>(steps[at]);
  chain.linear = as<Linear>(steps[at]);
  chain.norm = as<BatchNorm2d>(steps[at]);
  const bool has_third = at + 2 < steps.size();
  if (chain.linear != nullptr || chain.norm != nullptr) {
    chain.function = chain.norm != nullptr ? "batch_norm_relu" : "linear_relu";
    take(2);
  } else if (chain.conv != nullptr && has_third && is_pool2(steps[at + 2])) {
    chain.function = "conv2d_relu_max_pool2d";
    chain.tail = ConvTail::relu_max_pool;
    take(3);
  } else if (chain.conv != nullptr && has_third && is_mean(steps[at + 2])) {
    chain.function = "conv2d_relu_mean";
    chain.tail = ConvTail::relu_mean;
    take(3);
  } else if (chain.conv != nullptr) {
    chain.function = "conv2d_relu";
    take(2);
  }
  return chain;
}

std::vector<Chain> chains_of(const std::vector<std::shared_ptr<Module>>& steps) {
  std::vector<Chain> chains;
  for (std::size_t i = 0; i < steps.size();) {
    Chain chain = chain_at(steps, i);
    i += std::max<std::size_t>(1, chain.count());
    if (chain.count() > 0) chains.push_back(std::move(chain));
  }
  return chains;
}

// The last batch norm of a block, the addition and the activation; nothing where there is something else.
std::optional<Chain> end_of(const Residual& block) {
  const std::shared_ptr<Module>& last = block.main().back();
  if (!block.activation() || as<ReLU>(block.activation()) == nullptr || as<BatchNorm2d>(last) == nullptr) return std::nullopt;
  Chain chain;
  chain.first = block.main().size() - 1;
  chain.parts = {last.get(), block.activation().get()};
  chain.function = "batch_norm_relu with the addition";
  chain.norm = as<BatchNorm2d>(last);
  return chain;
}

// Calls fn(steps) for every container of the tree.
template <class Fn>
void for_containers(Module& model, const Fn& fn) {
  for (auto& [path, module] : model.named_modules()) {
    if (auto* sequential = dynamic_cast<Sequential*>(module)) fn(sequential->run());
    if (auto* residual = dynamic_cast<Residual*>(module)) fn(residual->run());
  }
}
template <class Fn>
void for_residuals(Module& model, const Fn& fn) {
  for (auto& [path, module] : model.named_modules())
    if (auto* residual = dynamic_cast<Residual*>(module)) fn(*residual);
}

std::string path_of(const Module& module) { return module.path().empty() ? module.type_name() : module.path(); }

}  // namespace

const Module* Chain::hooked() const {
  for (const Module* part : parts)
    if (part->has_hooks()) return part;
  return nullptr;
}

Tensor Chain::forward(const Tensor& x, const Tensor& residual) const {
  ModuleScope scope(parts[0]->path_id());
  if (norm != nullptr) return norm->forward_relu(x, residual);
  if (linear != nullptr) {
    linear->check_input(x);
    return linear_relu(x, linear->weight, linear->bias);
  }
  conv->check_input(x);
  return conv2d_relu(x, conv->weight, conv->bias, conv->call_options(), tail);
}

std::vector<ChainRun> fuse(Module& model) {
  for_containers(model, [](ModuleRun& run) { run.chains = chains_of(run.steps); });
  for_residuals(model, [](Residual& block) { block.set_end(end_of(block)); });
  return chain_runs(model);
}

void unfuse(Module& model) {
  for_containers(model, [](ModuleRun& run) { run.chains.clear(); });
  for_residuals(model, [](Residual& block) { block.set_end(std::nullopt); });
}

std::vector<ChainRun> chain_runs(Module& model) {
  std::vector<ChainRun> runs;
  model.name_tree(model.path());
  const auto list = [&](const Chain& chain) {
    ChainRun run{.parts = {}, .function = chain.function, .composed = ""};
    for (const Module* part : chain.parts) run.parts.push_back(path_of(*part));
    if (const Module* hooked = chain.hooked()) {
      run.composed = concat(path_of(*hooked), " has a hook");
    } else if (const auto weights = chain.parts[0]->parameters(); !weights.empty()) {
      run.composed = composed_because(weights[0].device(), weights[0].dtype());
    }
    runs.push_back(std::move(run));
  };
  for (auto& [path, module] : model.named_modules()) {
    auto* sequential = dynamic_cast<Sequential*>(module);
    auto* residual = dynamic_cast<Residual*>(module);
    if (sequential != nullptr) std::for_each(sequential->run().chains.begin(), sequential->run().chains.end(), list);
    if (residual != nullptr) std::for_each(residual->run().chains.begin(), residual->run().chains.end(), list);
    if (residual != nullptr && residual->end()) list(*residual->end());
  }
  return runs;
}

std::string to_string(const std::vector<ChainRun>& runs) {
  std::string text;
  for (const ChainRun& run : runs) {
    for (std::size_t i = 0; i < run.parts.size(); i++) text += (i ? " + " : "") + run.parts[i];
    text += ": " + run.function + (run.composed.empty() ? "" : ", one by one: " + run.composed) + "\n";
  }
  return text;
}

}  // namespace limpid::nn
