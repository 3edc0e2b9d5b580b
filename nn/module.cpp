#include <limpid/nn/module.h>

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <typeinfo>
#include <unordered_set>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/tensor/raw.h>

namespace limpid::nn {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

// "a, b, c", cut after 20 names.
std::string list_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); i++) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
  return text;
}

std::uint64_t next_hook_id() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

template <class Hooks>
void erase_hook(Hooks& hooks, std::uint64_t id) {
  std::erase_if(hooks, [id](const auto& hook) { return hook.first == id; });
}

// Puts other bytes behind the same tensor, so that every handle on it sees them.
void replace(const Tensor& tensor, const Tensor& value, memory::Role role) {
  TensorImpl& impl = *tensor.impl();
  impl.storage = value.storage();
  impl.offset = value.impl()->offset;
  impl.strides = value.strides();
  impl.dtype = value.dtype();
  impl.storage->set_role(role);
  if (impl.name) impl.storage->set_name(impl.name);
}

template <class Convert>
void convert(const Tensor& tensor, const Convert& convert_one) {
  NoGradGuard guard;
  Tensor value = convert_one(tensor.detach());
  if (value.storage() != tensor.storage()) replace(tensor, value, tensor.storage()->role());
  if (tensor.grad().defined()) {
    Tensor grad = convert_one(tensor.grad());
    grad.storage()->set_role(memory::Role::grad);
    Tensor(tensor).set_grad(grad);
  }
}

}  // namespace

// ---- running

Tensor Module::operator()(const Tensor& x) {
  if (!named_) name_tree(path());
  ModuleScope scope(path_);
  if (!has_hooks()) return forward(x);
  Tensor input = x;
  auto pre_hooks = pre_hooks_;  // copies: a hook may remove itself
  for (auto& [id, hook] : pre_hooks) {
    if (Tensor replaced = hook(*this, input); replaced.defined()) input = replaced;
  }
  Tensor output = forward(input);
  auto hooks = hooks_;
  for (auto& [id, hook] : hooks) {
    if (Tensor replaced = hook(*this, input, output); replaced.defined()) output = replaced;
  }
  return output;
}

std::uint64_t Module::register_forward_pre_hook(ForwardPreHook hook) {
  pre_hooks_.emplace_back(next_hook_id(), std::move(hook));
  return pre_hooks_.back().first;
}

std::uint64_t Module::register_forward_hook(ForwardHook hook) {
  hooks_.emplace_back(next_hook_id(), std::move(hook));
  return hooks_.back().first;
}

void Module::remove_hook(std::uint64_t hook) {
  erase_hook(pre_hooks_, hook);
  erase_hook(hooks_, hook);
}

// ---- printing

std::string Module::type_name() const {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status),
                                              std::free);
  std::string name = status == 0 ? text.get() : typeid(*this).name();
  std::size_t colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

std::string Module::describe() const { return type_name() + "()"; }

std::string Module::repr() const {
  if (children_.empty()) return describe();
  std::string text = type_name() + "(\n";
  for (const auto& [name, child] : children_) {
    text += "  (" + name + "): ";
    for (char c : child->repr()) {
      text += c;
      if (c == '\n') text += "  ";
    }
    text += "\n";
  }
  return text + ")";
}

// ---- the tree

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  std::unordered_set<const Module*> seen;
  std::function<void(Module&, const std::string&)> walk = [&](Module& module, const std::string& path) {
    if (!seen.insert(&module).second) return;
    all.emplace_back(path, &module);
    for (auto& [name, child] : module.children_) walk(*child, join(path, name));
  };
  walk(*this, "");
  return all;
}

namespace {
// Keeps the first of equal tensors and drops undefined ones.
void append_unique(NamedTensors& all, std::unordered_set<const TensorImpl*>& seen, const std::string& path,
                   const NamedTensors& own) {
  for (const auto& [name, tensor] : own) {
    if (tensor.defined() && seen.insert(tensor.impl().get()).second) all.emplace_back(join(path, name), tensor);
  }
}
}  // namespace

NamedTensors Module::named_parameters() const {
  NamedTensors all;
  std::unordered_set<const TensorImpl*> seen;
  for (const auto& [path, module] : const_cast<Module*>(this)->named_modules())
    append_unique(all, seen, path, module->parameters_);
  return all;
}

NamedTensors Module::named_buffers() const {
  NamedTensors all;
  std::unordered_set<const TensorImpl*> seen;
  for (const auto& [path, module] : const_cast<Module*>(this)->named_modules())
    append_unique(all, seen, path, module->buffers_);
  return all;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> all;
  for (auto& [name, tensor] : named_parameters()) all.push_back(tensor);
  return all;
}

std::int64_t Module::num_parameters() const {
  std::int64_t count = 0;
  for (const auto& [name, tensor] : named_parameters()) count += tensor.numel();
  return count;
}

void Module::name_tree(const std::string& root) {
  std::unordered_set<const Module*> seen;
  std::function<void(Module&, const std::string&)> walk = [&](Module& module, const std::string& path) {
    if (!seen.insert(&module).second) return;
    module.path_ = intern(path);
    module.named_ = true;
    for (auto* list : {&module.parameters_, &module.buffers_})
      for (auto& [name, tensor] : *list)
        if (tensor.defined()) tensor.set_name(join(path, name));
    for (auto& [name, child] : module.children_) walk(*child, join(path, name));
  };
  walk(*this, root);
}

// ---- state

StateDict Module::state_dict() const {
  StateDict state;
  std::function<void(const Module&, const std::string&)> walk = [&](const Module& module, const std::string& path) {
    for (const auto* list : {&module.parameters_, &module.buffers_})
      for (const auto& [name, tensor] : *list)
        if (tensor.defined()) state.emplace(join(path, name), tensor);
    for (const auto& [name, child] : module.children_) walk(*child, join(path, name));
  };
  walk(*this, "");
  return state;
}

LoadReport Module::load_state_dict(const StateDict& state, bool strict) {
  LoadReport report;
  StateDict own = state_dict();
  for (const auto& [name, tensor] : own)
    if (!state.count(name)) report.missing.push_back(name);
  for (const auto& [name, tensor] : state)
    if (!own.count(name)) report.unexpected.push_back(name);
  if (strict && !report.clean()) {
    std::string text = "[load_state_dict] the names do not agree with the model's:";
    if (!report.missing.empty()) text += " missing " + list_names(report.missing);
    if (!report.unexpected.empty())
      text += (report.missing.empty() ? " unexpected " : "; unexpected ") + list_names(report.unexpected);
    LIMPID_THROW(DataError, text);
  }
  // Everything is checked before the first value changes.
  for (const auto& [name, source] : state) {
    auto target = own.find(name);
    LIMPID_CHECK(source.defined(), DataError, "[load_state_dict] '", name, "' is an undefined tensor");
    if (target == own.end()) continue;
    LIMPID_CHECK(source.shape() == target->second.shape(), ShapeError, "[load_state_dict] '", name, "' is ",
                 target->second.shape(), " in the model, ", source.shape(), " in the state");
    LIMPID_CHECK(is_floating(source.dtype()) == is_floating(target->second.dtype()), DTypeError, "[load_state_dict] '",
                 name, "' is ", target->second.dtype(), " in the model, ", source.dtype(), " in the state");
  }
  for (const auto& [name, source] : state) {
    auto target = own.find(name);
    if (target != own.end()) raw::copy(target->second, source);
  }
  return report;
}

// ---- switches

Module& Module::train(bool on) {
  for (auto& [path, module] : named_modules()) module->training_ = on;
  return *this;
}

Module& Module::to(DType dtype) {
  LIMPID_CHECK(is_floating(dtype), DTypeError, "[to] modules have floating parameters, cannot become ", dtype);
  if (!named_) name_tree(path());
  auto cast_one = [dtype](const Tensor& t) { return is_floating(t.dtype()) ? raw::cast(t, dtype) : t; };
  for (auto& [name, tensor] : named_parameters()) convert(tensor, cast_one);
  for (auto& [name, tensor] : named_buffers()) convert(tensor, cast_one);
  return *this;
}

Module& Module::to(Device device) {
  if (!named_) name_tree(path());
  auto move_one = [device](const Tensor& t) { return t.device() == device ? t : raw::to_device(t, device); };
  for (auto& [name, tensor] : named_parameters()) convert(tensor, move_one);
  for (auto& [name, tensor] : named_buffers()) convert(tensor, move_one);
  return *this;
}

void Module::zero_grad(bool set_to_none) {
  for (Tensor& parameter : parameters()) {
    if (!parameter.grad().defined()) continue;
    if (set_to_none) {
      parameter.set_grad(Tensor());
    } else {
      NoGradGuard guard;
      parameter.mutable_grad().zero_();
    }
  }
}

void Module::requires_grad_(bool on) {
  for (Tensor& parameter : parameters()) parameter.requires_grad_(on);
}

// ---- registration

void Module::check_new_name(const std::string& name) const {
  LIMPID_CHECK(!name.empty() && name.find('.') == std::string::npos, ArgumentError, "[", type_name(),
               "] names of parameters, buffers and children are not empty and have no dot, got '", name, "'");
  auto taken = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& entry) { return entry.first == name; });
  };
  LIMPID_CHECK(!taken(parameters_) && !taken(buffers_) && !taken(children_), ArgumentError, "[", type_name(),
               "] the name '", name, "' is taken already");
}

Tensor Module::register_parameter(const std::string& name, Tensor value) {
  check_new_name(name);
  if (value.defined()) {
    value.requires_grad_();
    value.storage()->set_role(memory::Role::param);
  }
  parameters_.emplace_back(name, value);
  named_ = false;
  return value;
}

Tensor Module::register_buffer(const std::string& name, Tensor value) {
  check_new_name(name);
  if (value.defined()) value.storage()->set_role(memory::Role::param);
  buffers_.emplace_back(name, value);
  named_ = false;
  return value;
}

void Module::add_child(const std::string& name, std::shared_ptr<Module> child) {
  check_new_name(name);
  LIMPID_CHECK(child != nullptr, ArgumentError, "[", type_name(), "] child '", name, "' is a null pointer");
  children_.emplace_back(name, std::move(child));
  named_ = false;
}

std::size_t Module::exchange_child(const std::string& name, std::shared_ptr<Module> child) {
  LIMPID_CHECK(child != nullptr, ArgumentError, "[", type_name(), "] child '", name, "' is a null pointer");
  const auto it = std::find_if(children_.begin(), children_.end(), [&](const auto& entry) { return entry.first == name; });
  LIMPID_CHECK(it != children_.end(), ArgumentError, "[", type_name(), "] has no child '", name, "'");
  it->second = std::move(child);
  named_ = false;
  return static_cast<std::size_t>(it - children_.begin());
}

void Module::replace_child(const std::string& name, std::shared_ptr<Module>) {
  LIMPID_THROW(ArgumentError, "[", type_name(), "] keeps its children in members of its own: '", name,
               "' can only be replaced where the class is written");
}

}  // namespace limpid::nn
