#include <limpid/nn/replace_norm.h>

#include <algorithm>
#include <map>

#include <limpid/autograd/grad_mode.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/norm.h>
#include <limpid/tensor/raw.h>

namespace limpid::nn {
namespace {

std::shared_ptr<GroupNorm> in_place_of(const BatchNorm& old, std::int64_t groups) {
  const BatchNormOptions& o = old.options();
  auto norm = std::make_shared<GroupNorm>(GroupNormOptions{
      .num_groups = groups, .num_channels = o.num_features, .eps = o.eps, .affine = o.affine});
  if (o.affine) {
    norm->to(old.weight.dtype());
    norm->to(old.weight.device());
    NoGradGuard guard;
    raw::copy(norm->weight, old.weight);
    raw::copy(norm->bias, old.bias);
  }
  norm->train(old.training());
  return norm;
}

}  // namespace

std::int64_t usual_groups(std::int64_t channels) {
  constexpr std::int64_t kMost = 32, kChannels = 4;
  for (std::int64_t groups = std::min(kMost, channels / kChannels); groups > 1; groups--)
    if (channels % groups == 0) return groups;
  return 1;
}

std::vector<std::string> replace_batch_norm(Module& model, SampleNorm norm, std::int64_t groups) {
  LIMPID_CHECK(groups >= 0, ArgumentError, "[replace_batch_norm] groups must not be negative, got ", groups);
  LIMPID_CHECK(!dynamic_cast<BatchNorm*>(&model), ArgumentError,
               "[replace_batch_norm] the model itself is a ", model.type_name(), ": there is nothing to put another into");
  struct Place {
    Module* parent;
    std::string name, path;
    std::shared_ptr<GroupNorm> norm;
  };
  std::vector<Place> places;  // all are made before the first is replaced
  std::map<const BatchNorm*, std::shared_ptr<GroupNorm>> made;  // a layer used in two places stays one layer
  for (auto& [path, module] : model.named_modules()) {
    for (auto& [name, child] : module->named_children()) {
      const auto* old = dynamic_cast<BatchNorm*>(child.get());
      if (!old) continue;
      const std::string full = path.empty() ? name : path + "." + name;
      LIMPID_CHECK(dynamic_cast<Sequential*>(module) || dynamic_cast<Residual*>(module), ArgumentError,
                   "[replace_batch_norm] ", full, " is a member of a ", module->type_name(),
                   ": only containers exchange their children");
      const std::int64_t channels = old->options().num_features;
      const std::int64_t count = norm == SampleNorm::layer ? 1 : groups ? groups : usual_groups(channels);
      if (!made[old]) made[old] = in_place_of(*old, count);
      places.push_back({module, name, full, made[old]});
    }
  }
  std::vector<std::string> paths;
  for (Place& p : places) {
    p.parent->replace_child(p.name, p.norm);
    paths.push_back(p.path);
  }
  model.name_tree(model.path());
  return paths;
}

}  // namespace limpid::nn
