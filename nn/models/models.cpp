#include <limpid/nn/models/models.h>

#include <algorithm>

#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/models/resnet.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>

namespace limpid::nn {
namespace {

// 784-128-10 for a 28x28 image of one channel.
std::shared_ptr<Module> make_mlp(const ModelOptions& options) {
  return std::make_shared<Sequential>(Flatten(), Linear({.in_features = options.input.numel(), .out_features = 128}),
                                      ReLU(), Linear({.in_features = 128, .out_features = options.classes}));
}

std::shared_ptr<Module> make_seed(const ModelOptions& options) {
  return std::make_shared<Sequential>(Conv2d({.in_channels = options.input[0], .out_channels = 64, .kernel_size = 3}),
                                      ReLU(), AdaptiveAvgPool2d(1), Flatten(),
                                      Linear({.in_features = 64, .out_features = options.classes}));
}

std::shared_ptr<Module> lenet(const ModelOptions& options, bool batch_norm) {
  std::int64_t features = 64 * ((options.input[1] - 4) / 2) * ((options.input[2] - 4) / 2);
  auto net = std::make_shared<Sequential>();
  net->push_back("conv1",
                 Conv2d({.in_channels = options.input[0], .out_channels = 32, .kernel_size = 3, .bias = !batch_norm}));
  if (batch_norm) net->push_back("bn1", BatchNorm2d({.num_features = 32}));
  net->push_back("relu1", ReLU());
  net->push_back("conv2", Conv2d({.in_channels = 32, .out_channels = 64, .kernel_size = 3, .bias = !batch_norm}));
  if (batch_norm) net->push_back("bn2", BatchNorm2d({.num_features = 64}));
  net->push_back("relu2", ReLU());
  net->push_back("pool", MaxPool2d(2));
  net->push_back("flatten", Flatten());
  net->push_back("fc1", Linear({.in_features = features, .out_features = 128}));
  net->push_back("relu3", ReLU());
  net->push_back("fc2", Linear({.in_features = 128, .out_features = options.classes}));
  return net;
}
std::shared_ptr<Module> make_lenet(const ModelOptions& options) { return lenet(options, false); }
std::shared_ptr<Module> make_lenet_bn(const ModelOptions& options) { return lenet(options, true); }

struct Entry {
  const char* name;
  std::int64_t smallest;  // height and width for which every layer has an output
  std::shared_ptr<Module> (*make)(const ModelOptions&);
};
constexpr Entry kModels[] = {
    {"mlp", 1, make_mlp},           {"seed", 3, make_seed},         {"lenet", 6, make_lenet},
    {"lenet-bn", 6, make_lenet_bn}, {"resnet9", 8, make_resnet9},   {"resnet20", 1, make_resnet20},
    {"resnet18", 1, make_resnet18}, {"resnet50", 1, make_resnet50},
};

// Layers draw their start values from the default generator; it gets the model's seed for a while.
class SeedGuard {
 public:
  explicit SeedGuard(std::uint64_t seed) : former_(default_generator()) { default_generator().set(seed); }
  ~SeedGuard() { default_generator() = former_; }
  SeedGuard(const SeedGuard&) = delete;
  SeedGuard& operator=(const SeedGuard&) = delete;

 private:
  Generator former_;
};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.push_back(entry.name);
  return names;
}

std::shared_ptr<Module> make_model(const std::string& name, const ModelOptions& options) {
  const Entry* entry =
      std::find_if(std::begin(kModels), std::end(kModels), [&](const Entry& e) { return name == e.name; });
  if (entry == std::end(kModels)) {
    std::string list;
    for (const Entry& known : kModels) list += concat(list.empty() ? "" : ", ", known.name);
    LIMPID_THROW(ArgumentError, "[make_model] there is no model '", name, "'; there are ", list);
  }
  LIMPID_CHECK(options.input.size() == 3, ShapeError, "[make_model] the input must be [channels,height,width], got ",
               options.input);
  LIMPID_CHECK(options.classes >= 1, ArgumentError, "[make_model] classes must be at least 1, got ", options.classes);
  const Shape& input = options.input;
  LIMPID_CHECK(input[0] >= 1 && input[1] >= entry->smallest && input[2] >= entry->smallest, ShapeError, "[make_model] ",
               name, " needs an input of at least [1,", entry->smallest, ",", entry->smallest, "], got ", input);
  SeedGuard seed(options.seed);
  std::shared_ptr<Module> model = entry->make(options);
  model->name_tree();
  return model;
}

}  // namespace limpid::nn
