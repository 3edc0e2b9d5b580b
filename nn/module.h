// Module: a named tree of parameters, buffers and children. Users derive from it outside this tree as well.
//
//   struct Net : nn::Module {
//     std::shared_ptr<nn::Linear> fc = register_module("fc", nn::Linear({.in_features = 4, .out_features = 2}));
//     Tensor forward(const Tensor& x) override { return (*fc)(x); }
//   };
//
// Members are Tensor handles and shared_ptrs, so modules can be moved into containers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <limpid/autograd/functions.h>

namespace limpid::nn {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using StateDict = std::map<std::string, Tensor>;

// What load_state_dict found. With strict, anything here is an error instead.
struct LoadReport {
  std::vector<std::string> missing;     // the module has it, the file does not
  std::vector<std::string> unexpected;  // the file has it, the module does not
  bool clean() const { return missing.empty() && unexpected.empty(); }
};

class Module {
 public:
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;

  virtual Tensor forward(const Tensor& x) = 0;
  // The type's name alone: "Conv2d". By default the C++ class name without namespaces.
  virtual std::string type_name() const;
  // "Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1))": one line without the children. By default type_name() + "()".
  virtual std::string describe() const;
  // The whole tree as PyTorch prints it, one line a module, indented by two spaces.
  std::string repr() const;
  // Runs forward() between the hooks, with this module's path in the scope record.
  Tensor operator()(const Tensor& x);

  // Parameters in registration order, depth first; names are paths ("layer1.0.conv1.weight"). A tensor or a module that
  // is registered twice is listed once, under its first name; state_dict() has it under each.
  std::vector<Tensor> parameters() const;
  NamedTensors named_parameters() const;
  NamedTensors named_buffers() const;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> named_children() const { return children_; }
  // Puts `child` in the place of the child of that name. Containers can; a module that keeps its children in members of
  // their own types cannot: ArgumentError.
  virtual void replace_child(const std::string& name, std::shared_ptr<Module> child);
  // This module ("") and all below it.
  std::vector<std::pair<std::string, Module*>> named_modules();
  std::int64_t num_parameters() const;

  StateDict state_dict() const;  // parameters and buffers; the tensors are shared, not copied
  // Copies values in (casting floats); ShapeError names the key and both shapes; strict: DataError lists the keys.
  LoadReport load_state_dict(const StateDict& state, bool strict = true);

  Module& train(bool on = true);
  Module& eval() { return train(false); }
  bool training() const { return training_; }
  // Moves parameters and buffers; floating ones change dtype. Handles kept elsewhere (optimizers) see the change.
  Module& to(DType dtype);
  Module& to(Device device);
  void zero_grad(bool set_to_none = true);
  void requires_grad_(bool on);

  // Hooks: before forward (may replace the input) and after it (may replace the output) by returning a defined tensor.
  using ForwardPreHook = std::function<Tensor(Module&, const Tensor& input)>;
  using ForwardHook = std::function<Tensor(Module&, const Tensor& input, const Tensor& output)>;
  // The returned number removes the hook again.
  std::uint64_t register_forward_pre_hook(ForwardPreHook hook);
  std::uint64_t register_forward_hook(ForwardHook hook);
  void remove_hook(std::uint64_t hook);
  bool has_hooks() const { return !pre_hooks_.empty() || !hooks_.empty(); }

  // The path of this module below the root ("layer1.0"), set by name_tree(); used by the ledger and in errors.
  const std::string& path() const { return name_of(path_); }
  NameId path_id() const { return path_; }
  // Gives every module its path and labels parameters and buffers with theirs. The first forward of a module that has
  // no names yet does it too, with that module as the root.
  void name_tree(const std::string& root = "");

 protected:
  // Registration; ArgumentError on a second use of a name, an empty name or a name with a dot. Undefined values reserve
  // the name and appear in no list. register_parameter sets requires_grad and role param.
  Tensor register_parameter(const std::string& name, Tensor value);
  Tensor register_buffer(const std::string& name, Tensor value);
  template <class M>
  std::shared_ptr<std::decay_t<M>> register_module(const std::string& name, M&& module) {
    auto child = std::make_shared<std::decay_t<M>>(std::forward<M>(module));
    add_child(name, child);
    return child;
  }
  template <class M>
  std::shared_ptr<M> register_module(const std::string& name, std::shared_ptr<M> child) {
    add_child(name, child);
    return child;
  }
  void add_child(const std::string& name, std::shared_ptr<Module> child);
  // For replace_child(): changes the list of children and returns the place in it.
  std::size_t exchange_child(const std::string& name, std::shared_ptr<Module> child);

 private:
  void check_new_name(const std::string& name) const;
  NamedTensors parameters_;
  NamedTensors buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<std::pair<std::uint64_t, ForwardPreHook>> pre_hooks_;
  std::vector<std::pair<std::uint64_t, ForwardHook>> hooks_;
  NameId path_ = 0;
  bool named_ = false;  // whether path_ and the labels below are current
  bool training_ = true;
};

inline std::string to_string(const Module& module) { return module.repr(); }

}  // namespace limpid::nn
