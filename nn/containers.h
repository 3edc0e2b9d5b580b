// Sequential and Residual: the containers that the shipped models are made of. A model made of them can be listed, cut
// and fused by code, because the data flow is in the structure and not in a forward().
#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>

#include <limpid/nn/chain.h>
#include <limpid/nn/module.h>

namespace limpid::nn {

template <class M>
concept ModuleType = std::derived_from<std::decay_t<M>, Module>;

// A child with its name: {"conv1", nn::Conv2d({...})} or {"conv1", pointer}.
struct NamedModule {
  std::string name;
  std::shared_ptr<Module> module;
  NamedModule(std::string child_name, std::shared_ptr<Module> child)
      : name(std::move(child_name)), module(std::move(child)) {}
  template <ModuleType M>
  NamedModule(std::string child_name, M&& child)
      : name(std::move(child_name)), module(std::make_shared<std::decay_t<M>>(std::forward<M>(child))) {}
};

// Children that run one after the other, and those of them that run as one.
struct ModuleRun {
  std::vector<std::shared_ptr<Module>> steps;
  std::vector<Chain> chains;  // in order; empty unless fused (nn/fuse.h). A changed child empties it.
  // The first `count` of the steps.
  Tensor forward(const Tensor& x, std::size_t count) const;
  Tensor forward(const Tensor& x) const { return forward(x, steps.size()); }
};

// Runs its children one after the other. Children are named "0", "1", ... unless names are given:
//   nn::Sequential net(nn::Linear({.in_features = 4, .out_features = 8}), nn::ReLU());
//   nn::Sequential net({{"fc", nn::Linear({...})}, {"act", nn::ReLU()}});
class Sequential : public Module {
 public:
  Sequential() = default;
  // Modules by value. A single Sequential argument is a move, not a nesting: use push_back for that.
  template <ModuleType... Ms>
  requires(sizeof...(Ms) > 0 && !(sizeof...(Ms) == 1 && (std::same_as<std::decay_t<Ms>, Sequential> &&
                                                         ...))) explicit Sequential(Ms&&... modules) {
    (push_back(std::make_shared<std::decay_t<Ms>>(std::forward<Ms>(modules))), ...);
  }
  Sequential(std::initializer_list<NamedModule> modules);
  explicit Sequential(const std::vector<NamedModule>& modules);

  void push_back(std::shared_ptr<Module> module);  // named by its position
  void push_back(const std::string& name, std::shared_ptr<Module> module);
  template <ModuleType M>
  void push_back(M&& module) {
    push_back(std::make_shared<std::decay_t<M>>(std::forward<M>(module)));
  }
  template <ModuleType M>
  void push_back(const std::string& name, M&& module) {
    push_back(name, std::make_shared<std::decay_t<M>>(std::forward<M>(module)));
  }

  std::size_t size() const { return run_.steps.size(); }
  Module& operator[](std::size_t i) const;  // IndexError
  const std::vector<std::shared_ptr<Module>>& steps() const { return run_.steps; }
  ModuleRun& run() { return run_; }  // for nn/fuse.h
  void replace_child(const std::string& name, std::shared_ptr<Module> child) override;

  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "Sequential"; }

 private:
  ModuleRun run_;
};

struct ResidualOptions {
  std::shared_ptr<Module> shortcut = nullptr;  // null: the input itself
  std::string shortcut_name = "shortcut";
  std::shared_ptr<Module> activation = nullptr;  // after the addition; null: none
  std::string activation_name = "activation";
};

// y = activation(main(x) + shortcut(x)). The main path is one module (child "main"), or a list of named ones, which are
// then direct children, so that a ResNet block has the usual names ("conv1.weight", "downsample.0.weight").
class Residual : public Module {
 public:
  template <ModuleType M>
  explicit Residual(M&& main, const ResidualOptions& options = {})
      : Residual(std::vector<NamedModule>{NamedModule("main", std::forward<M>(main))}, options) {}
  explicit Residual(const std::vector<NamedModule>& main, const ResidualOptions& options = {});

  const std::vector<std::shared_ptr<Module>>& main() const { return main_.steps; }
  ModuleRun& run() { return main_; }  // for nn/fuse.h, as the next two
  const std::optional<Chain>& end() const { return end_; }
  void set_end(std::optional<Chain> end) { end_ = std::move(end); }
  const std::shared_ptr<Module>& shortcut() const { return shortcut_; }      // null: identity
  const std::shared_ptr<Module>& activation() const { return activation_; }  // null: none
  void replace_child(const std::string& name, std::shared_ptr<Module> child) override;

  // ShapeError naming both shapes when the two paths do not end in the same one.
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "Residual"; }

 private:
  ModuleRun main_;
  std::optional<Chain> end_;  // the last step, the addition and the activation as one; empty unless fused
  std::shared_ptr<Module> shortcut_;
  std::shared_ptr<Module> activation_;
};

}  // namespace limpid::nn
