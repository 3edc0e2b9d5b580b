// The shipped models: sizes, names, errors, one training step each; the summary's figures.
#include <doctest/doctest.h>

#include <functional>
#include <set>

#include <limpid/nn/containers.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/summary.h>
#include <limpid/optim/sgd.h>

using namespace limpid;

namespace {

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const nn::LayerSummary& layer(const nn::ModelSummary& summary, const std::string& name) {
  for (const auto& entry : summary.layers)
    if (entry.name == name) return entry;
  FAIL("no layer " << name);
  return summary.layers[0];
}

}  // namespace

TEST_CASE("parameter counts") {
  struct Row {
    const char* name;
    Shape input;
    std::int64_t classes, parameters;
  };
  // Counted by hand from the layers; resnet20 as in He et al. 2016 (0.27 M), resnet50 as torchvision's.
  const Row rows[] = {
      {"mlp", {1, 28, 28}, 10, 784 * 128 + 128 + 128 * 10 + 10},
      {"seed", {3, 224, 224}, 10, 2442},
      {"lenet", {1, 28, 28}, 10, 1199882},
      {"lenet-bn", {1, 28, 28}, 10, 1199882 - 96 + 192},
      {"resnet9", {3, 32, 32}, 10, 6573130},
      {"resnet20", {3, 32, 32}, 10, 269722},
      {"resnet18", {3, 32, 32}, 10, 11173962},
      {"resnet50", {3, 224, 224}, 1000, 25557032},
  };
  std::set<std::string> tested;
  for (const Row& row : rows) {
    CAPTURE(row.name);
    tested.insert(row.name);
    CHECK(nn::make_model(row.name, {.input = row.input, .classes = row.classes})->num_parameters() == row.parameters);
  }
  auto names = nn::model_names();
  CHECK(tested == std::set<std::string>(names.begin(), names.end()));
}

TEST_CASE("state_dict names") {
  auto keys = [](const char* model, Shape input) {
    std::set<std::string> names;
    for (auto& [name, tensor] : nn::make_model(model, {.input = input})->state_dict()) names.insert(name);
    return names;
  };
  CHECK(keys("seed", {3, 8, 8}) == std::set<std::string>{"0.weight", "0.bias", "4.weight", "4.bias"});
  CHECK(keys("mlp", {1, 28, 28}) == std::set<std::string>{"1.weight", "1.bias", "3.weight", "3.bias"});
  CHECK(keys("lenet", {1, 28, 28}) == std::set<std::string>{"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                                            "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"});
  auto resnet = keys("resnet18", {3, 32, 32});
  CHECK(resnet.size() == 122);  // torchvision's resnet18 has 122 entries
  for (const char* name : {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
                           "layer2.0.downsample.1.num_batches_tracked", "layer4.1.bn2.bias", "fc.weight", "fc.bias"}) {
    CAPTURE(name);
    CHECK(resnet.count(name) == 1);
  }
  CHECK(resnet.count("layer1.0.downsample.0.weight") == 0);
  auto resnet50 = keys("resnet50", {3, 32, 32});
  CHECK(resnet50.size() == 320);  // as torchvision's
  CHECK(resnet50.count("layer1.0.downsample.1.running_var") == 1);
  CHECK(resnet50.count("layer4.2.conv3.weight") == 1);
  CHECK(keys("resnet9", {3, 32, 32}).count("res1.0.0.weight") == 1);
  CHECK(keys("resnet20", {3, 32, 32}).count("layer3.2.bn2.weight") == 1);
}

TEST_CASE("every model runs forward and backward and learns something") {
  for (const std::string& name : nn::model_names()) {
    CAPTURE(name);
    auto model = nn::make_model(name, {.input = {2, 11, 9}, .classes = 3, .seed = 4});
    Generator generator(9);
    Tensor x = randn({3, 2, 11, 9}, {}, generator);
    Tensor labels = from_vector<std::int64_t>({0, 2, 1}, {3});
    optim::SGD sgd(model->parameters(), {.lr = name == "resnet50" ? 1e-3 : 0.01});
    double first = 0, last = 0;
    for (int step = 0; step < 4; step++) {
      sgd.zero_grad();
      Tensor y = (*model)(x);
      REQUIRE(y.shape() == Shape{3, 3});
      Tensor loss = cross_entropy(y, labels);
      loss.backward();
      for (auto& [parameter, tensor] : model->named_parameters()) {
        CAPTURE(parameter);
        CHECK(tensor.grad().defined());
      }
      sgd.step();
      (step ? last : first) = loss.item();
    }
    CHECK(last < first);
  }
}

TEST_CASE("a model depends on its seed and leaves the default generator alone") {
  auto weight = [](std::uint64_t seed) {
    return nn::make_model("seed", {.input = {1, 5, 5}, .seed = seed})->state_dict().at("4.weight").to_vector<float>();
  };
  std::uint64_t position = default_generator().position();
  CHECK(weight(1) == weight(1));
  CHECK(weight(1) != weight(2));
  CHECK(default_generator().position() == position);
}

TEST_CASE("make_model's errors") {
  CHECK(message([] { nn::make_model("vgg"); }) ==
        "[make_model] there is no model 'vgg'; there are mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, "
        "resnet50");
  CHECK(message([] {
          nn::make_model("lenet", {.input = {1, 5, 28}});
        }) == "[make_model] lenet needs an input of at least [1,6,6], got [1,5,28]");
  CHECK(nn::make_model("lenet", {.input = {1, 6, 6}})->num_parameters() > 0);
  CHECK_THROWS_AS(nn::make_model("mlp", {.input = {28, 28}}), ShapeError);
  CHECK_THROWS_AS(nn::make_model("mlp", {.input = {0, 28, 28}}), ShapeError);
  CHECK_THROWS_AS(nn::make_model("mlp", {.classes = 0}), ArgumentError);
}

TEST_CASE("smallest inputs run") {
  std::pair<const char*, std::int64_t> sizes[] = {
      {"seed", 3}, {"lenet", 6}, {"lenet-bn", 6}, {"resnet9", 8}, {"resnet20", 4}};
  for (auto [name, size] : sizes) {
    CAPTURE(name);
    auto model = nn::make_model(name, {.input = {1, size, size}});
    CHECK((*model)(zeros({2, 1, size, size})).shape() == Shape{2, 10});
  }
}

TEST_CASE("summary of the seed model") {
  auto model = nn::make_model("seed", {.input = {3, 224, 224}});
  auto summary = nn::summary(*model, {3, 224, 224}, 16);
  CHECK(summary.parameters == 2442);
  CHECK(summary.parameter_bytes == 2442 * 4);
  CHECK(summary.input_bytes == 602112);
  REQUIRE(summary.layers.size() == 5);
  CHECK(summary.layers[0].name == "0");
  CHECK(summary.layers[0].type == "Conv2d");
  CHECK(summary.layers[0].output_shape == Shape{64, 222, 222});
  CHECK(summary.layers[0].output_bytes == 12616704);
  CHECK(summary.layers[0].parameters == 3 * 64 * 9 + 64);
  CHECK(summary.layers[0].flops == 2 * 64ll * 222 * 222 * 3 * 9);
  CHECK(summary.layers[1].type == "ReLU");
  CHECK(summary.layers[1].output_bytes == 12616704);
  CHECK(summary.layers[1].flops == 0);
  CHECK(summary.layers[4].output_shape == Shape{10});
  CHECK(summary.layers[4].flops == 2 * 64 * 10);
  // The convolution keeps its channels_last copy of the input; ReLU keeps its output; Linear keeps 64 numbers.
  CHECK(summary.layers[0].saved_bytes == 602112);
  CHECK(summary.layers[1].saved_bytes == 12616704);
  CHECK(summary.layers[4].saved_bytes + summary.layers[3].saved_bytes + summary.layers[2].saved_bytes == 64 * 4);
  CHECK(summary.saved_total() == 16 * summary.saved_bytes + summary.saved_fixed);
  std::string text = nn::to_string(summary);
  CHECK(text.find("12,616,704") != std::string::npos);
  CHECK(text.find("2,442") != std::string::npos);
}

TEST_CASE("summary leaves the model as it was") {
  auto model = std::make_shared<nn::Sequential>(nn::Linear({.in_features = 4, .out_features = 6}),
                                                nn::BatchNorm1d({.num_features = 6}), nn::Dropout(),
                                                nn::Residual(nn::Linear({.in_features = 6, .out_features = 6})));
  model->eval();
  (*model)[2].train();
  std::map<std::string, std::vector<double>> before;
  for (auto& [name, tensor] : model->state_dict()) before[name] = tensor.to_vector<double>();
  auto& occurrences = random_state().occurrences;
  auto uses = occurrences;
  auto summary = nn::summary(*model, {4});
  for (auto& [name, tensor] : model->state_dict()) CHECK(tensor.to_vector<double>() == before[name]);
  CHECK_FALSE(model->training());
  CHECK((*model)[2].training());
  CHECK(occurrences == uses);
  for (auto& [path, module] : model->named_modules()) CHECK_FALSE(module->has_hooks());
  CHECK(layer(summary, "3").type == "Residual");
  CHECK(layer(summary, "3").output_bytes == 6 * 4);
  CHECK(layer(summary, "3.main").flops == 2 * 6 * 6);
  CHECK(layer(summary, "1").saved_fixed > 0);  // mean and inverse deviation, once a batch
  CHECK_THROWS_AS(nn::summary(*model, {4}, 0), ArgumentError);
  CHECK_THROWS_AS(nn::summary(*model, {5}), ShapeError);
  CHECK_FALSE(model->training());
  for (auto& [path, module] : model->named_modules()) CHECK_FALSE(module->has_hooks());
}

TEST_CASE("summary of a residual network counts each layer once") {
  auto model = nn::make_model("resnet20", {.input = {3, 32, 32}});
  auto summary = nn::summary(*model, {3, 32, 32});
  std::int64_t parameters = 0;
  for (const auto& entry : summary.layers) parameters += entry.parameters;
  CHECK(parameters == 269722);
  CHECK(summary.parameters == 269722);
  // 40.55 M multiply-adds, the usual figure for this network.
  CHECK(summary.flops == 2 * 40551040ll);
}
