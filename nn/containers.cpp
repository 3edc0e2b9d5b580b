#include <limpid/nn/containers.h>

namespace limpid::nn {

Tensor ModuleRun::forward(const Tensor& x, std::size_t count) const {
  Tensor y = x;
  auto chain = chains.begin();
  for (std::size_t i = 0; i < count;) {
    if (chain != chains.end() && chain->first == i) {
      const Chain& one = *chain++;
      if (!one.hooked()) {
        y = one.forward(y);
        i += one.count();
        continue;
      }
    }
    y = (*steps[i++])(y);
  }
  return y;
}

Sequential::Sequential(std::initializer_list<NamedModule> modules) {
  for (const NamedModule& entry : modules) push_back(entry.name, entry.module);
}

Sequential::Sequential(const std::vector<NamedModule>& modules) {
  for (const NamedModule& entry : modules) push_back(entry.name, entry.module);
}

void Sequential::push_back(std::shared_ptr<Module> module) {
  push_back(std::to_string(size()), std::move(module));
}

void Sequential::push_back(const std::string& name, std::shared_ptr<Module> module) {
  add_child(name, module);
  run_.steps.push_back(std::move(module));
  run_.chains.clear();
}

Module& Sequential::operator[](std::size_t i) const {
  LIMPID_CHECK(i < size(), IndexError, "[Sequential] child ", i, " does not exist, there are ", size());
  return *run_.steps[i];
}

void Sequential::replace_child(const std::string& name, std::shared_ptr<Module> child) {
  run_.steps[exchange_child(name, child)] = child;
  run_.chains.clear();
}

Tensor Sequential::forward(const Tensor& x) {
  return run_.forward(x);
}

Residual::Residual(const std::vector<NamedModule>& main, const ResidualOptions& options)
    : shortcut_(options.shortcut), activation_(options.activation) {
  LIMPID_CHECK(!main.empty(), ArgumentError, "[Residual] the main path is empty");
  for (const NamedModule& entry : main) {
    add_child(entry.name, entry.module);
    main_.steps.push_back(entry.module);
  }
  if (shortcut_) add_child(options.shortcut_name, shortcut_);
  if (activation_) add_child(options.activation_name, activation_);
}

// Children stand in the order main path, shortcut, activation.
void Residual::replace_child(const std::string& name, std::shared_ptr<Module> child) {
  const std::size_t at = exchange_child(name, child);
  main_.chains.clear();
  end_.reset();
  if (at < main_.steps.size()) {
    main_.steps[at] = child;
  } else if (shortcut_ && at == main_.steps.size()) {
    shortcut_ = child;
  } else {
    activation_ = child;
  }
}

Tensor Residual::forward(const Tensor& x) {
  const bool fused_end = end_ && end_->hooked() == nullptr;
  Tensor y = main_.forward(x, fused_end ? end_->first : main_.steps.size());
  Tensor skip = shortcut_ ? (*shortcut_)(x) : x;
  LIMPID_CHECK(y.shape() == skip.shape(), ShapeError, "[Residual] the main path ends in ", y, ", the shortcut in ",
               skip, " (input ", x, ")");
  if (fused_end) return end_->forward(y, skip);
  Tensor sum = add(y, skip);
  return activation_ ? (*activation_)(sum) : sum;
}

}  // namespace limpid::nn
