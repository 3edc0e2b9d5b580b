// The shipped models by name, all made of containers. Not a model zoo: no weights are shipped.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <limpid/nn/module.h>

namespace limpid::nn {

struct ModelOptions {
  Shape input = {1, 28, 28};  // channels, height, width
  std::int64_t classes = 10;
  std::uint64_t seed = 0;  // of the start values; default_generator() is left as it was
};

// mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18 (3x3 stem for small images), resnet50 (ImageNet stem; names
// of torchvision). ArgumentError lists the names when `name` is unknown; ShapeError when the input is too small.
std::shared_ptr<Module> make_model(const std::string& name, const ModelOptions& options = {});
std::vector<std::string> model_names();

}  // namespace limpid::nn
