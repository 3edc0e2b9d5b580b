#include <limpid/nn/containers.h>

namespace limpid::nn {

Sequential::Sequential(std::initializer_list<NamedModule> modules) {
  for (const NamedModule& entry : modules) push_back(entry.name, entry.module);
}

Sequential::Sequential(const std::vector<NamedModule>& modules) {
  for (const NamedModule& entry : modules) push_back(entry.name, entry.module);
}

void Sequential::push_back(std::shared_ptr<Module> module) {
  push_back(std::to_string(steps_.size()), std::move(module));
}

void Sequential::push_back(const std::string& name, std::shared_ptr<Module> module) {
  add_child(name, module);
  steps_.push_back(std::move(module));
}

Module& Sequential::operator[](std::size_t i) const {
  LIMPID_CHECK(i < steps_.size(), IndexError, "[Sequential] child ", i, " does not exist, there are ", steps_.size());
  return *steps_[i];
}

void Sequential::replace_child(const std::string& name, std::shared_ptr<Module> child) {
  steps_[exchange_child(name, child)] = child;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (auto& step : steps_) y = (*step)(y);
  return y;
}

Residual::Residual(const std::vector<NamedModule>& main, const ResidualOptions& options)
    : shortcut_(options.shortcut), activation_(options.activation) {
  LIMPID_CHECK(!main.empty(), ArgumentError, "[Residual] the main path is empty");
  for (const NamedModule& entry : main) {
    add_child(entry.name, entry.module);
    main_.push_back(entry.module);
  }
  if (shortcut_) add_child(options.shortcut_name, shortcut_);
  if (activation_) add_child(options.activation_name, activation_);
}

// Children stand in the order main path, shortcut, activation.
void Residual::replace_child(const std::string& name, std::shared_ptr<Module> child) {
  const std::size_t at = exchange_child(name, child);
  if (at < main_.size()) {
    main_[at] = child;
  } else if (shortcut_ && at == main_.size()) {
    shortcut_ = child;
  } else {
    activation_ = child;
  }
}

Tensor Residual::forward(const Tensor& x) {
  Tensor y = x;
  for (auto& step : main_) y = (*step)(y);
  Tensor skip = shortcut_ ? (*shortcut_)(x) : x;
  LIMPID_CHECK(y.shape() == skip.shape(), ShapeError, "[Residual] the main path ends in ", y, ", the shortcut in ",
               skip, " (input ", x, ")");
  Tensor sum = add(y, skip);
  return activation_ ? (*activation_)(sum) : sum;
}

}  // namespace limpid::nn
