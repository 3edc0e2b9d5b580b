#include <limpid/nn/fuse.h>

#include <algorithm>
#include <typeinfo>

#include <limpid/base/scope.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
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
  const bool has_third = at + 2 < steps.size();
  if (chain.linear != nullptr) {
    chain.function = "linear_relu";
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

// Calls fn(steps) for every container of the tree.
template <class Fn>
void for_containers(Module& model, const Fn& fn) {
  for (auto& [path, module] : model.named_modules()) {
    if (auto* sequential = dynamic_cast<Sequential*>(module)) fn(sequential->run());
    if (auto* residual = dynamic_cast<Residual*>(module)) fn(residual->run());
  }
}

std::string path_of(const Module& module) { return module.path().empty() ? module.type_name() : module.path(); }

}  // namespace

const Module* Chain::hooked() const {
  for (const Module* part : parts)
    if (part->has_hooks()) return part;
  return nullptr;
}

Tensor Chain::forward(const Tensor& x) const {
  ModuleScope scope(parts[0]->path_id());
  if (linear != nullptr) {
    linear->check_input(x);
    return linear_relu(x, linear->weight, linear->bias);
  }
  conv->check_input(x);
  return conv2d_relu(x, conv->weight, conv->bias, conv->call_options(), tail);
}

std::vector<ChainRun> fuse(Module& model) {
  for_containers(model, [](ModuleRun& run) { run.chains = chains_of(run.steps); });
  return chain_runs(model);
}

void unfuse(Module& model) {
  for_containers(model, [](ModuleRun& run) { run.chains.clear(); });
}

std::vector<ChainRun> chain_runs(Module& model) {
  std::vector<ChainRun> runs;
  model.name_tree(model.path());
  for_containers(model, [&](const ModuleRun& run) {
    for (const Chain& chain : run.chains) {
      ChainRun listed{.parts = {}, .function = chain.function, .composed = ""};
      for (const Module* part : chain.parts) listed.parts.push_back(path_of(*part));
      const Tensor& weight = chain.linear != nullptr ? chain.linear->weight : chain.conv->weight;
      if (const Module* hooked = chain.hooked()) {
        listed.composed = concat(path_of(*hooked), " has a hook");
      } else {
        listed.composed = composed_because(weight.device(), weight.dtype());
      }
      runs.push_back(std::move(listed));
    }
  });
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
