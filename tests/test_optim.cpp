// Optimizers against PyTorch trajectories (golden/make_nn_golden.py), their state, groups and errors; clipping.
#include <functional>
#include <limits>
#include <set>

#include <limpid/memory/allocator.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/loss.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/clip_grad.h>
#include <limpid/optim/rmsprop.h>
#include <limpid/optim/sgd.h>

#include "golden.h"

using namespace limpid;
using Params = std::vector<Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Params&)>;

namespace {

// Three tensors out of 19 numbers: [4,3], [5], [2].
Params split(const Tensor& flat) {
  return {narrow(flat, 0, 0, 12).reshape({4, 3}).clone(), narrow(flat, 0, 12, 5).clone(),
          narrow(flat, 0, 17, 2).clone()};
}

template <class O, class Options>
Make rule(Options options) {
  return [options](const Params& p) { return std::make_unique<O>(p, options); };
}

std::map<std::string, Make> rules() {
  using namespace limpid::optim;
  return {
      {"sgd", rule<SGD>(SGDOptions{.lr = 0.01})},
      {"sgd_momentum", rule<SGD>(SGDOptions{.lr = 0.01, .momentum = 0.9})},
      {"sgd_dampening_decay",
       rule<SGD>(SGDOptions{.lr = 0.01, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.05})},
      {"sgd_nesterov_decay",
       rule<SGD>(SGDOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true})},
      {"adam", rule<Adam>(AdamOptions{.lr = 0.01})},
      {"adam_decay",
       rule<Adam>(AdamOptions{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1})},
      {"adam_amsgrad", rule<Adam>(AdamOptions{.lr = 0.01, .amsgrad = true})},
      {"adamw", rule<AdamW>(AdamWOptions{.lr = 0.01})},
      {"adamw_amsgrad", rule<AdamW>(AdamWOptions{.lr = 0.01, .weight_decay = 0.2, .amsgrad = true})},
      {"rmsprop", rule<RMSprop>(RMSpropOptions{})},
      {"rmsprop_momentum", rule<RMSprop>(RMSpropOptions{.lr = 0.003, .weight_decay = 0.02, .momentum = 0.7})},
      {"rmsprop_centered", rule<RMSprop>(RMSpropOptions{.alpha = 0.9, .eps = 1e-4, .centered = true})},
      {"rmsprop_all",
       rule<RMSprop>(RMSpropOptions{.lr = 0.003, .weight_decay = 0.01, .momentum = 0.5, .centered = true})},
      {"groups",
       [](const Params& p) {
         return std::make_unique<Adam>(std::vector<ParamGroup<AdamOptions>>{
             {.params = {p[0]}, .options = {.lr = 0.01}},
             {.params = {p[1], p[2]}, .options = {.lr = 0.03, .weight_decay = 0.1}}});
       }},
  };
}

// Steps from..to-1 with the recorded gradients: the last tensor has none at every third step, and the rate drops at
// 500.
void advance(optim::Optimizer& optimizer, Params& params, const Tensor& grads, std::int64_t from, std::int64_t to,
             const std::function<void(std::int64_t)>& after = {}) {
  for (std::int64_t step = from; step < to; step++) {
    Params g = split(grads[step]);
    for (std::size_t i = 0; i < params.size(); i++) params[i].set_grad(i == 2 && step % 3 == 2 ? Tensor() : g[i]);
    if (step == 500)
      for (std::size_t group = 0; group < optimizer.num_groups(); group++)
        optimizer.set_lr(group, optimizer.lr(group) * 0.3);
    optimizer.step();
    if (after) after(step);
  }
}

Params start(const golden::Tensors& file) {
  Params params = split(file.at("start"));
  for (Tensor& p : params) p.requires_grad_();
  return params;
}

double distance(const Params& params, const Tensor& row) {
  Params expected = split(row);
  double worst = 0;
  for (std::size_t i = 0; i < params.size(); i++) worst = std::max(worst, golden::difference(params[i], expected[i]));
  return worst;
}

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

Tensor param(std::vector<double> values) {
  Tensor p = from_vector<double>(values, {static_cast<std::int64_t>(values.size())});
  p.requires_grad_();
  return p;
}

}  // namespace

TEST_CASE("1,000 steps agree with PyTorch in double precision") {
  auto file = golden::load("optim");
  std::set<std::string> in_file = {"start", "grads"};
  for (const auto& [name, make] : rules()) {
    CAPTURE(name);
    in_file.insert(name);
    Params params = start(file);
    auto optimizer = make(params);
    std::int64_t row = 0;
    double worst = 0;
    advance(*optimizer, params, file["grads"], 0, 1000, [&](std::int64_t step) {
      if (step == 0 || (step + 1) % 50 == 0) worst = std::max(worst, distance(params, file[name][row++]));
    });
    CHECK(row == 21);
    CHECK(worst <= 1e-12);
    CHECK(optimizer->steps() == 1000);
  }
  CHECK(in_file.size() == file.size());
}

TEST_CASE("state saved and loaded in the middle continues bit for bit") {
  auto file = golden::load("optim");
  for (const auto& [name, make] : rules()) {
    CAPTURE(name);
    Params whole = start(file), first = start(file);
    auto uninterrupted = make(whole);
    advance(*uninterrupted, whole, file["grads"], 0, 120);
    auto before = make(first);
    advance(*before, first, file["grads"], 0, 61);
    Params second;
    for (Tensor& p : first) {
      second.push_back(p.detach().clone());
      second.back().requires_grad_();
    }
    auto after = make(second);
    after->set_lr(0.5);  // the state brings the rate
    after->load_state_dict(before->state_dict());
    CHECK(after->steps() == 61);
    CHECK(after->lr() == before->lr());
    advance(*after, second, file["grads"], 61, 120);
    for (std::size_t i = 0; i < whole.size(); i++) CHECK(whole[i].to_vector<double>() == second[i].to_vector<double>());
  }
}

TEST_CASE("single precision follows double precision") {
  auto file = golden::load("optim");
  for (const auto& [name, make] : rules()) {
    CAPTURE(name);
    Params params;
    for (const Tensor& p : split(file["start"].to(float32))) params.push_back(Tensor(p).requires_grad_());
    auto optimizer = make(params);
    advance(*optimizer, params, file["grads"].to(float32), 0, 100);
    Params expected = split(file[name][2]);
    for (std::size_t i = 0; i < 3; i++) CHECK(golden::difference(params[i].to(float64), expected[i]) <= 2e-4);
  }
}

TEST_CASE("parameters without a gradient and their state stay as they are") {
  Tensor a = param({1, 2}), b = param({3});
  optim::Adam adam({a, b});
  a.set_grad(ones({2}, {.dtype = float64}));
  auto version = b.version();
  adam.step();
  CHECK(b.to_vector<double>() == std::vector<double>{3});
  CHECK(b.version() == version);
  CHECK(a.to_vector<double>() != std::vector<double>{1, 2});
  auto state = adam.state_dict();
  CHECK(state.tensors.at("state.0.step").item_int() == 1);
  CHECK(state.tensors.at("state.1.step").item_int() == 0);
}

TEST_CASE("a step is a write that autograd notices") {
  Tensor w = param({2});
  optim::SGD sgd({w}, {.lr = 0.1});
  Tensor loss = (w * w).sum();
  w.set_grad(ones({1}, {.dtype = float64}));
  sgd.step();
  CHECK_THROWS_AS(loss.backward(), AutogradError);
}

TEST_CASE("state exists from construction, in the optimizer's row") {
  Tensor a = param({1, 2, 3});
  optim::Adam adam({a}, {.amsgrad = true});
  auto state = adam.state_dict();
  std::set<std::string> names;
  for (auto& [name, tensor] : state.tensors) {
    names.insert(name);
    CHECK(tensor.storage()->role() == memory::Role::optimizer);
  }
  CHECK(names ==
        std::set<std::string>{"state.0.step", "state.0.exp_avg", "state.0.exp_avg_sq", "state.0.max_exp_avg_sq"});
  CHECK(adam.state_bytes() == 3 * 3 * sizeof(double));
  CHECK(state.scalars.at("group.0.lr") == 1e-3);
  CHECK(state.scalars.at("group.0.beta2") == 0.999);
  CHECK(state.scalars.at("steps") == 0);
  CHECK(optim::SGD({a}).state_bytes() == 0);
}

TEST_CASE("strided gradients and gradients of another layout are taken by position") {
  Tensor w = zeros({2, 3}, {.dtype = float64});
  w.requires_grad_();
  optim::SGD sgd({w}, {.lr = 1});
  w.set_grad(from_vector<double>({1, 2, 3, 4, 5, 6}, {3, 2}).t());
  sgd.step();
  CHECK(w.to_vector<double>() == std::vector<double>{-1, -3, -5, -2, -4, -6});
}

TEST_CASE("zero_grad in both modes") {
  Tensor w = param({1, 2});
  optim::SGD sgd({w});
  w.set_grad(ones({2}, {.dtype = float64}));
  const void* memory = w.grad().raw_data();
  sgd.zero_grad(false);
  CHECK(w.grad().raw_data() == memory);
  CHECK(w.grad().to_vector<double>() == std::vector<double>{0, 0});
  sgd.zero_grad();
  CHECK_FALSE(w.grad().defined());
  sgd.step();
  CHECK(w.to_vector<double>() == std::vector<double>{1, 2});
}

TEST_CASE("zero_grad: the two memory curves") {
  auto& pool = memory::host_allocator();
  nn::Sequential model(nn::Linear({.in_features = 30, .out_features = 40}), nn::ReLU(),
                       nn::Linear({.in_features = 40, .out_features = 7}));
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  Tensor x = rand({11, 30});
  const std::uint64_t params = 4 * (30 * 40 + 40 + 40 * 7 + 7);
  auto base = pool.ledger();
  // Bytes of gradients and live bytes, both above `base`, after zero_grad, forward, backward and step.
  struct Point {
    std::uint64_t grad, live;
    bool operator==(const Point&) const = default;
  };
  auto curve = [&](bool set_to_none) {
    std::vector<Point> points;
    auto mark = [&] {
      auto now = pool.ledger();
      points.push_back({now.role(memory::Role::grad) - base.role(memory::Role::grad), now.live_total - base.live_total});
    };
    for (int step = 0; step < 3; step++) {
      points.clear();
      sgd.zero_grad(set_to_none);
      mark();
      Tensor loss = model(x).mean();
      mark();
      loss.backward();
      mark();
      loss = Tensor();
      sgd.step();
      mark();
    }
    return points;
  };
  std::vector<Point> none = curve(true), kept = curve(false);
  // Set to none, gradients exist from backward to the next zero_grad; zeroed in place, they always exist.
  CHECK(none[0] == Point{0, 0});
  CHECK(none[1].grad == 0);
  CHECK(none[2].grad == params);
  CHECK(none[3] == Point{params, params});
  CHECK(kept[0] == Point{params, params});
  CHECK(kept[1] == Point{params, none[1].live + params});
  CHECK(kept[2] == none[2]);
  CHECK(kept[3] == none[3]);
}

TEST_CASE("parameter groups have their own options") {
  Tensor a = param({1}), b = param({1});
  optim::SGD sgd(
      {{.params = {a}, .options = {.lr = 0.5}}, {.params = {b}, .options = {.lr = 0.25, .weight_decay = 1}}});
  CHECK(sgd.num_groups() == 2);
  CHECK(sgd.lr(1) == 0.25);
  CHECK(sgd.options(1).weight_decay == 1);
  for (Tensor p : {a, b}) p.set_grad(ones({1}, {.dtype = float64}));
  sgd.step();
  CHECK(a.item() == 0.5);
  CHECK(b.item() == 0.5);
  sgd.set_lr(0.125);
  CHECK(sgd.lr(0) == 0.125);
  CHECK(sgd.lr(1) == 0.125);
  CHECK(sgd.parameters().size() == 2);
  CHECK_THROWS_AS(sgd.lr(2), IndexError);
}

TEST_CASE("bad options and parameters are named") {
  using namespace limpid::optim;
  Params p = {param({1})};
  CHECK(message([&] { Adam(p, {.lr = -1}); }) == "[Adam] lr must be finite and not negative, got -1");
  CHECK(message([&] { AdamW(p, {.beta2 = 1}); }) == "[AdamW] beta2 must be in [0, 1), got 1");
  CHECK(message([&] { SGD(p, {.nesterov = true}); }) ==
        "[SGD] nesterov needs momentum > 0 and dampening 0, got momentum 0 and dampening 0");
  CHECK_THROWS_AS(SGD(p, {.momentum = -0.1}), ArgumentError);
  CHECK_THROWS_AS(SGD(p, {.lr = std::numeric_limits<double>::quiet_NaN()}), ArgumentError);
  CHECK_THROWS_AS(Adam(p, {.beta1 = -0.1}), ArgumentError);
  CHECK_THROWS_AS(Adam(p, {.eps = -1}), ArgumentError);
  CHECK_THROWS_AS(RMSprop(p, {.alpha = 1}), ArgumentError);
  CHECK_THROWS_AS(RMSprop(p, {.weight_decay = -1}), ArgumentError);
  CHECK_THROWS_AS(SGD(Params{}), ArgumentError);
  CHECK_THROWS_AS(SGD(std::vector<ParamGroup<SGDOptions>>{}), ArgumentError);
  CHECK_THROWS_AS(SGD(Params{Tensor()}), ArgumentError);
  CHECK_THROWS_AS(SGD(Params{p[0], p[0]}), ArgumentError);
  CHECK_THROWS_AS(SGD(Params{p[0] * 2.0}), ArgumentError);
  CHECK_THROWS_AS(SGD(Params{zeros({2}, {.dtype = int64})}), DTypeError);
  CHECK_THROWS_AS(SGD(Params{zeros({4, 4}).narrow(1, 0, 2)}), ArgumentError);
  SGD sgd(p);
  CHECK_THROWS_AS(sgd.set_lr(-1), ArgumentError);
  CHECK(message([&] { sgd.set_momentum(0.9); }) ==
        "[SGD] momentum was 0 at construction, so there is no momentum buffer, and it cannot become 0.9");
  CHECK(sgd.options().momentum == 0);
  SGD moving(p, {.momentum = 0.5});
  CHECK(moving.set_momentum(0.8));
  CHECK(moving.options().momentum == 0.8);
  Adam adam(p);
  CHECK(adam.set_momentum(0.7));
  CHECK(adam.options().beta1 == 0.7);
}

TEST_CASE("a state that does not fit changes nothing") {
  using namespace limpid::optim;
  Params p = {param({1, 2})};
  Adam adam(p);
  p[0].set_grad(ones({2}, {.dtype = float64}));
  adam.step();
  auto good = adam.state_dict();
  auto moments = good.tensors.at("state.0.exp_avg").to_vector<double>();
  auto bad = good;
  bad.tensors.erase("state.0.exp_avg");
  bad.tensors["state.1.exp_avg"] = zeros({2});
  CHECK(message([&] { adam.load_state_dict(bad); }) ==
        "[Adam] the state's tensors do not fit this optimizer: missing state.0.exp_avg; unexpected state.1.exp_avg");
  bad = good;
  bad.tensors["state.0.exp_avg_sq"] = zeros({3});
  CHECK_THROWS_AS(adam.load_state_dict(bad), ShapeError);
  bad = good;
  bad.tensors["state.0.exp_avg_sq"] = zeros({2}, {.dtype = int64});
  CHECK_THROWS_AS(adam.load_state_dict(bad), DTypeError);
  bad = good;
  bad.tensors["state.0.step"] = scalar_tensor(-1, {.dtype = int64});
  CHECK_THROWS_AS(adam.load_state_dict(bad), DataError);
  bad = good;
  bad.scalars.erase("group.0.eps");
  CHECK_THROWS_AS(adam.load_state_dict(bad), DataError);
  bad = good;
  bad.scalars["steps"] = 1.5;
  CHECK_THROWS_AS(adam.load_state_dict(bad), DataError);
  bad = good;
  bad.scalars["group.0.beta1"] = 2;
  bad.scalars["group.0.lr"] = 7;
  bad.tensors["state.0.exp_avg"] = zeros({2}, {.dtype = float64});
  CHECK_THROWS_AS(adam.load_state_dict(bad), ArgumentError);
  CHECK(adam.lr() == 1e-3);
  CHECK(adam.state_dict().tensors.at("state.0.exp_avg").to_vector<double>() == moments);
  CHECK_THROWS_AS(SGD(p).load_state_dict(good), DataError);
}

TEST_CASE("clip_grad_norm_ and clip_grad_value_") {
  auto set = [](Tensor p, std::vector<double> g) { p.set_grad(from_vector<double>(g, p.shape())); };
  Tensor a = param({0, 0}), b = param({0}), none = param({0});
  set(a, {3, 0});
  set(b, {4});
  CHECK(optim::clip_grad_norm_({a, b, none}, 10) == doctest::Approx(5));
  CHECK(a.grad().to_vector<double>() == std::vector<double>{3, 0});
  CHECK(optim::clip_grad_norm_({a, b, none}, 1) == doctest::Approx(5));
  double factor = 1 / (5 + 1e-6);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(3 * factor).epsilon(1e-14));
  CHECK(b.grad().item() == doctest::Approx(4 * factor).epsilon(1e-14));
  CHECK_FALSE(none.grad().defined());
  CHECK(optim::clip_grad_norm_({none}, 1) == 0);
  set(b, {INFINITY});
  CHECK_THROWS_AS(optim::clip_grad_norm_({a, b}, 1, true), ArgumentError);
  CHECK(std::isinf(optim::clip_grad_norm_({a, b}, 1)));
  CHECK(std::isnan(b.grad().item()));
  CHECK_THROWS_AS(optim::clip_grad_norm_({a}, -1), ArgumentError);

  set(a, {-7, 0.5});
  optim::clip_grad_value_({a, none}, 2);
  CHECK(a.grad().to_vector<double>() == std::vector<double>{-2, 0.5});
  CHECK_THROWS_AS(optim::clip_grad_value_({a}, -1), ArgumentError);

  // A strided gradient, and single and double precision together.
  Tensor wide = zeros({2, 2}).requires_grad_();
  wide.set_grad(narrow(full({2, 4}, 1.0), 1, 0, 2));
  set(b, {2});
  CHECK(optim::clip_grad_norm_({wide, b}, 100) == doctest::Approx(std::sqrt(8.0)));
}

TEST_CASE("a network trained for 20 steps agrees with PyTorch") {
  using namespace limpid::nn;
  auto file = golden::load("cnn");
  Sequential model(Conv2d({.in_channels = 2, .out_channels = 5, .kernel_size = 3, .padding = 1, .bias = false}),
                   BatchNorm2d({.num_features = 5}), ReLU(), MaxPool2d(2),
                   Conv2d({.in_channels = 5, .out_channels = 6, .kernel_size = 3, .stride = 2}), GELU(),
                   AvgPool2d({.kernel_size = 2, .stride = 1}), Flatten(),
                   Linear({.in_features = 24, .out_features = 8}), LayerNorm({.normalized_shape = {8}}), Tanh(),
                   Linear({.in_features = 8, .out_features = 3}));
  model.to(float64);
  model.load_state_dict(golden::below(file, "start"));
  CrossEntropyLoss criterion({.label_smoothing = 0.1});
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true});
  std::vector<double> expected = file["losses"].to_vector<double>();
  for (double value : expected) {
    optimizer.zero_grad();
    Tensor loss = criterion(model(file["x"]), file["t"]);
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 0.8);
    optimizer.step();
    CHECK(std::abs(loss.item() - value) <= 1e-9);
  }
  auto end = golden::below(file, "end");
  for (auto& [name, tensor] : model.state_dict()) {
    CAPTURE(name);
    CHECK(golden::difference(tensor, end[name]) <= 1e-9);
  }
  model.eval();
  CHECK(golden::difference(model(file["x"]), file["eval"]) <= 1e-9);
}
