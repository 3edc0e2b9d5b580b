// Module: names, state, hooks, conversion; containers.
#include <doctest/doctest.h>

#include <cmath>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/norm.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/sgd.h>

using namespace limpid;

namespace {

struct Net : nn::Module {
  std::shared_ptr<nn::Linear> first = register_module("first", nn::Linear({.in_features = 4, .out_features = 3}));
  std::shared_ptr<nn::Sequential> rest =
      register_module("rest", nn::Sequential(nn::ReLU(), nn::Linear({.in_features = 3, .out_features = 2})));
  Tensor scale = register_parameter("scale", ones({2}));
  Tensor count = register_buffer("count", zeros({}, {.dtype = int64}));
  Tensor forward(const Tensor& x) override { return (*rest)((*first)(x)) * scale; }
};

std::vector<std::string> names(const nn::NamedTensors& tensors) {
  std::vector<std::string> out;
  for (auto& [name, tensor] : tensors) out.push_back(name);
  return out;
}
std::vector<std::string> keys(const nn::StateDict& state) {
  std::vector<std::string> out;
  for (auto& [name, tensor] : state) out.push_back(name);
  return out;
}
std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("names, parameters, buffers, modules") {
  Net net;
  CHECK(names(net.named_parameters()) == Names{"scale", "first.weight", "first.bias", "rest.1.weight", "rest.1.bias"});
  CHECK(names(net.named_buffers()) == Names{"count"});
  CHECK(keys(net.state_dict()) ==
        Names{"count", "first.bias", "first.weight", "rest.1.bias", "rest.1.weight", "scale"});
  CHECK(net.num_parameters() == 2 + 12 + 3 + 6 + 2);
  CHECK(net.parameters().size() == 5);
  Names modules;
  for (auto& [path, module] : net.named_modules()) modules.push_back(path);
  CHECK(modules == Names{"", "first", "rest", "rest.0", "rest.1"});
  CHECK(net.type_name() == "Net");
  CHECK(net.describe() == "Net()");
  CHECK(net.repr().starts_with(
      "Net(\n  (first): Linear(in_features=4, out_features=3, bias=True)\n  (rest): Sequential(\n"));
  for (Tensor& p : net.parameters()) {
    CHECK(p.requires_grad());
    CHECK(p.storage()->role() == memory::Role::param);
  }
  CHECK_FALSE(net.count.requires_grad());
}

TEST_CASE("state_dict names equal PyTorch's for Sequential models") {
  nn::Sequential net(
      nn::Conv2d({.in_channels = 2, .out_channels = 3, .kernel_size = 3, .bias = false}),
      nn::BatchNorm2d({.num_features = 3}), nn::ReLU(), nn::Flatten(),
      nn::Sequential(nn::Linear({.in_features = 3, .out_features = 2}), nn::LayerNorm({.normalized_shape = {2}})));
  // torch.nn.Sequential(Conv2d(2,3,3,bias=False), BatchNorm2d(3), ReLU(), Flatten(), Sequential(Linear(3,2),
  // LayerNorm(2)))
  CHECK(keys(net.state_dict()) == Names{"0.weight", "1.bias", "1.num_batches_tracked", "1.running_mean",
                                        "1.running_var", "1.weight", "4.0.bias", "4.0.weight", "4.1.bias",
                                        "4.1.weight"});
}

TEST_CASE("paths and labels follow the tree") {
  Net net;
  (void)net(zeros({1, 4}));
  CHECK(net.first->path() == "first");
  CHECK((*net.rest)[1].path() == "rest.1");
  CHECK(net.first->weight.name() == "first.weight");
  net.name_tree("model");
  CHECK((*net.rest)[1].path() == "model.rest.1");
  CHECK(net.first->weight.name() == "model.first.weight");
  // A module used alone first is renamed by the tree that takes it in.
  auto inner = std::make_shared<nn::Linear>(nn::LinearOptions{.in_features = 2, .out_features = 2});
  (void)(*inner)(zeros({1, 2}));
  CHECK(inner->path() == "");
  nn::Sequential outer;
  outer.push_back("inner", inner);
  (void)outer(zeros({1, 2}));
  CHECK(inner->path() == "inner");
  CHECK(inner->weight.name() == "inner.weight");
}

TEST_CASE("the scope carries the module's path during forward") {
  nn::Sequential net({{"a", nn::ReLU()}, {"b", nn::Sequential(nn::Tanh())}});
  Names seen;
  for (auto& [path, module] : net.named_modules()) {
    module->register_forward_hook([&](nn::Module&, const Tensor&, const Tensor&) {
      seen.push_back(name_of(current_scope().module));
      return Tensor();
    });
  }
  (void)net(zeros({2}));
  CHECK(seen == Names{"a", "b.0", "b", ""});
  CHECK(current_scope().module == 0);
}

TEST_CASE("hooks see, replace and go away") {
  nn::ReLU layer;
  int before = 0, after = 0;
  auto first = layer.register_forward_pre_hook([&](nn::Module& m, const Tensor& x) {
    CHECK(&m == &layer);
    before++;
    return x * 2.0;
  });
  auto second = layer.register_forward_hook([&](nn::Module&, const Tensor& x, const Tensor& y) {
    CHECK(x.item() == 6);
    CHECK(y.item() == 6);
    after++;
    return y + 1.0;
  });
  CHECK(layer.has_hooks());
  CHECK(layer(scalar_tensor(3.0)).item() == 7);
  layer.remove_hook(second);
  CHECK(layer(scalar_tensor(3.0)).item() == 6);
  layer.remove_hook(first);
  CHECK_FALSE(layer.has_hooks());
  CHECK(layer(scalar_tensor(3.0)).item() == 3);
  CHECK(before == 2);
  CHECK(after == 1);
  // A hook may remove itself while it runs.
  std::uint64_t once = 0;
  once = layer.register_forward_hook([&](nn::Module& m, const Tensor&, const Tensor& y) {
    m.remove_hook(once);
    return y * 10.0;
  });
  CHECK(layer(scalar_tensor(3.0)).item() == 30);
  CHECK(layer(scalar_tensor(3.0)).item() == 3);
}

TEST_CASE("load_state_dict: copies, casts, reports") {
  Net a, b;
  CHECK(b.load_state_dict(a.state_dict()).clean());
  CHECK(b.first->weight.to_vector<float>() == a.first->weight.to_vector<float>());
  CHECK_FALSE(b.first->weight.storage() == a.first->weight.storage());
  auto state = a.state_dict();
  state["first.bias"] = from_vector<double>({1, 2, 3}, {3});
  b.load_state_dict(state);
  CHECK(b.first->bias.dtype() == float32);
  CHECK(b.first->bias.to_vector<double>() == std::vector<double>{1, 2, 3});
  CHECK(b.first->bias.requires_grad());

  state.erase("scale");
  state["extra.weight"] = zeros({1});
  CHECK(message([&] { b.load_state_dict(state); }) ==
        "[load_state_dict] the names do not agree with the model's: missing scale; unexpected extra.weight");
  CHECK_THROWS_AS(b.load_state_dict(state), DataError);
  state["first.bias"] = from_vector<double>({4, 5, 6}, {3});
  auto report = b.load_state_dict(state, false);
  CHECK(report.missing == Names{"scale"});
  CHECK(report.unexpected == Names{"extra.weight"});
  CHECK(b.first->bias.to_vector<double>() == std::vector<double>{4, 5, 6});

  // Nothing changes when one entry does not fit.
  state = a.state_dict();
  state["first.bias"] = from_vector<double>({7, 8, 9}, {3});
  state["scale"] = zeros({3});
  CHECK(message([&] { b.load_state_dict(state); }) ==
        "[load_state_dict] 'scale' is [2] in the model, [3] in the state");
  CHECK_THROWS_AS(b.load_state_dict(state), ShapeError);
  CHECK(b.first->bias.to_vector<double>() == std::vector<double>{4, 5, 6});
  state["scale"] = zeros({2}, {.dtype = int64});
  CHECK_THROWS_AS(b.load_state_dict(state), DTypeError);
  state["scale"] = Tensor();
  CHECK_THROWS_AS(b.load_state_dict(state), DataError);
}

TEST_CASE("to(dtype) is seen by handles and by an optimizer made before") {
  Net net;
  Tensor handle = net.first->weight;
  auto values = handle.to_vector<double>();
  optim::Adam adam(net.parameters(), {.lr = 0.5});
  net(ones({2, 4})).sum().backward();
  adam.step();
  net.to(float64);
  CHECK(handle.dtype() == float64);
  CHECK(handle.is_same(net.first->weight));
  CHECK(handle.requires_grad());
  CHECK(handle.storage()->role() == memory::Role::param);
  CHECK(handle.grad().dtype() == float64);
  CHECK(net.count.dtype() == int64);
  CHECK(net.state_dict().at("first.weight").dtype() == float64);
  CHECK(net(ones({2, 4}, {.dtype = float64})).dtype() == float64);
  auto before = net.rest->parameters()[1].to_vector<double>();
  net.zero_grad();
  net(ones({2, 4}, {.dtype = float64})).sum().backward();
  adam.step();
  CHECK(net.rest->parameters()[1].to_vector<double>() != before);
  CHECK(adam.state_dict().tensors.at("state.0.exp_avg").dtype() == float64);
  CHECK_THROWS_AS(net.to(int64), DTypeError);
}

TEST_CASE("train and eval reach every child") {
  Net net;
  CHECK(net.training());
  net.eval();
  for (auto& [path, module] : net.named_modules()) CHECK_FALSE(module->training());
  net.train();
  for (auto& [path, module] : net.named_modules()) CHECK(module->training());
}

TEST_CASE("zero_grad in both modes, requires_grad_") {
  Net net;
  auto run = [&] { net(ones({2, 4})).sum().backward(); };
  run();
  CHECK(net.scale.grad().defined());
  const void* memory = net.scale.grad().raw_data();
  net.zero_grad(false);
  CHECK(net.scale.grad().raw_data() == memory);
  CHECK(net.scale.grad().to_vector<float>() == std::vector<float>{0, 0});
  net.zero_grad();
  CHECK_FALSE(net.scale.grad().defined());
  net.requires_grad_(false);
  CHECK_FALSE(net(ones({2, 4})).requires_grad());
  net.requires_grad_(true);
  CHECK(net(ones({2, 4})).requires_grad());
}

TEST_CASE("shared modules and tensors are listed once") {
  auto shared = std::make_shared<nn::Linear>(nn::LinearOptions{.in_features = 2, .out_features = 2});
  nn::Sequential net;
  net.push_back(shared);
  net.push_back(shared);
  CHECK(names(net.named_parameters()) == Names{"0.weight", "0.bias"});
  CHECK(keys(net.state_dict()) == Names{"0.bias", "0.weight", "1.bias", "1.weight"});
  CHECK(net.num_parameters() == 6);
  net(ones({1, 2})).sum().backward();
  CHECK(shared->weight.grad().defined());
}

TEST_CASE("registration errors") {
  struct Twice : nn::Module {
    explicit Twice(const std::string& name) {
      register_parameter("weight", ones({1}));
      register_buffer(name, ones({1}));
    }
    Tensor forward(const Tensor& x) override { return x; }
  };
  CHECK(message([] { Twice("weight"); }) == "[Twice] the name 'weight' is taken already");
  CHECK_THROWS_AS(Twice("a.b"), ArgumentError);
  CHECK_THROWS_AS(Twice(""), ArgumentError);
  nn::Sequential net;
  CHECK_THROWS_AS(net.push_back(std::shared_ptr<nn::Module>()), ArgumentError);
  net.push_back("a", nn::ReLU());
  CHECK_THROWS_AS(net.push_back("a", nn::ReLU()), ArgumentError);
  CHECK_THROWS_AS(net[1], IndexError);
  CHECK(net.size() == 1);
}

TEST_CASE("Residual adds, projects and activates") {
  Tensor x = from_vector<float>({-3, 2}, {1, 2});
  CHECK(nn::Residual(nn::ReLU())(x).to_vector<float>() == std::vector<float>{-3, 4});
  nn::Residual block({{"conv1", nn::ReLU()}, {"conv2", nn::Tanh()}}, {.shortcut = std::make_shared<nn::ReLU>(),
                                                                      .shortcut_name = "downsample",
                                                                      .activation = std::make_shared<nn::Sigmoid>(),
                                                                      .activation_name = "act"});
  Names children;
  for (auto& [name, child] : block.named_children()) children.push_back(name);
  CHECK(children == Names{"conv1", "conv2", "downsample", "act"});
  auto y = block(x).to_vector<double>();
  CHECK(y[0] == doctest::Approx(0.5));
  CHECK(y[1] == doctest::Approx(1 / (1 + std::exp(-(std::tanh(2.0) + 2)))));
  nn::Residual wrong(nn::Linear({.in_features = 2, .out_features = 3}));
  CHECK(message([&] { wrong(x); }) ==
        "[Residual] the main path ends in f32[1,3] cpu, the shortcut in f32[1,2] cpu (input f32[1,2] cpu)");
  CHECK_THROWS_AS(nn::Residual(std::vector<nn::NamedModule>{}), ArgumentError);
}

TEST_CASE("an empty Sequential is the identity") {
  Tensor x = ones({2});
  CHECK(nn::Sequential()(x).is_same(x));
}
