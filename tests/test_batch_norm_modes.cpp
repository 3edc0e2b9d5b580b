// Batch norm in micro-batches: exact = the big batch, frozen, momentum, replacement, and what is too small.
#include <doctest/doctest.h>

#include <cmath>

#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>
#include <limpid/nn/replace_norm.h>
#include <limpid/tensor/random.h>
#include <limpid/train/batch_norm_modes.h>

using namespace limpid;
using train::BatchNormMode;
using train::ExactBatchNorm;

namespace {

using Values = std::vector<std::vector<double>>;

// Three batch norms, one of them beside another in a shortcut, and dropout: 8x8 images of 2 channels.
std::shared_ptr<nn::Sequential> residual_net() {
  manual_seed(3);
  auto conv = [](std::int64_t in, std::int64_t out) {
    return nn::Conv2d({.in_channels = in, .out_channels = out, .kernel_size = 3, .padding = 1, .bias = false});
  };
  auto shortcut = std::make_shared<nn::Sequential>(conv(4, 6), nn::BatchNorm2d({.num_features = 6}));
  auto net = std::make_shared<nn::Sequential>();
  net->push_back(conv(2, 4));
  net->push_back(nn::BatchNorm2d({.num_features = 4}));
  net->push_back(nn::Tanh());
  net->push_back(nn::Dropout(0.25));
  net->push_back(nn::Residual({{"conv", conv(4, 6)}, {"bn", nn::BatchNorm2d({.num_features = 6})}},
                              {.shortcut = shortcut, .activation = std::make_shared<nn::Tanh>()}));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear({.in_features = 6 * 64, .out_features = 5}));
  net->to(DType::float64);
  return net;
}

struct Data {
  Tensor x, y;
  explicit Data(std::int64_t n, Shape sample = {2, 8, 8}, std::int64_t classes = 5) {
    Generator g(17);
    std::vector<std::int64_t> shape{n};
    shape.insert(shape.end(), sample.begin(), sample.end());
    x = randn(Shape(shape), {.dtype = float64}, g);
    y = randint(0, classes, {n}, {.dtype = int64}, g);
  }
};

// Forward and backward of samples [first, first + size) of `all`, each weighing 1 / all.
void piece(nn::Module& net, const Data& d, std::int64_t first, std::int64_t size) {
  begin_micro_batch(0, first);
  Tensor loss = cross_entropy(net(narrow(d.x, 0, first, size)), narrow(d.y, 0, first, size),
                              {.reduction = Reduction::sum});
  mul(loss, 1.0 / static_cast<double>(d.x.size(0))).backward();
}

Values gradients_of(nn::Module& net) {
  Values out;
  for (const Tensor& p : net.parameters()) out.push_back(p.grad().to_vector<double>());
  return out;
}

Values buffers_of(nn::Module& net) {
  Values out;
  for (auto& [name, buffer] : net.named_buffers()) out.push_back(buffer.to_vector<double>());
  return out;
}

// || a - b || / || b || over everything.
double difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); i++) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t j = 0; j < a[i].size(); j++) {
      diff += (a[i][j] - b[i][j]) * (a[i][j] - b[i][j]);
      norm += b[i][j] * b[i][j];
    }
  }
  return std::sqrt(diff / norm);
}

struct Run {
  Values gradients, buffers;
};

Run whole(nn::Module& net, const Data& d) {
  net.zero_grad();
  piece(net, d, 0, d.x.size(0));
  return {gradients_of(net), buffers_of(net)};
}

Run in_pieces(nn::Module& net, const Data& d, const std::vector<std::int64_t>& sizes, bool exact,
              std::int64_t* passes = nullptr) {
  net.zero_grad();
  std::vector<std::int64_t> firsts;
  std::int64_t at = 0;
  for (std::int64_t size : sizes) firsts.push_back(at), at += size;
  auto pass = [&](std::size_t i) {
    if (passes) ++*passes;
    piece(net, d, firsts[i], sizes[i]);
  };
  ExactBatchNorm shared(net);
  if (exact) shared.collect(sizes.size(), pass);
  for (std::size_t i = 0; i < sizes.size(); i++) pass(i);
  if (exact) shared.finish();
  return {gradients_of(net), buffers_of(net)};
}

}  // namespace

TEST_CASE("exact batch norm in unequal micro-batches is the big batch: gradients and running statistics") {
  const Data d(30);
  const auto big = residual_net(), small = residual_net(), ghost = residual_net();
  const Run expected = whole(*big, d);
  const std::vector<std::int64_t> sizes{7, 16, 1, 6};
  const Run exact = in_pieces(*small, d, sizes, true);
  CHECK(difference(exact.gradients, expected.gradients) <= 1e-12);
  CHECK(difference(exact.buffers, expected.buffers) <= 1e-12);
  for (auto& [path, layer] : train::batch_norm_layers(*small)) {
    CHECK(layer->num_batches_tracked.item_int() == 1);
    CHECK_FALSE(layer->shared());
  }
  // The layers do matter: each micro-batch with its own statistics gives another gradient.
  const Run micro = in_pieces(*ghost, d, sizes, false);
  CHECK(difference(micro.gradients, expected.gradients) > 0.02);
  CHECK(difference(micro.buffers, expected.buffers) > 0.1);
}

TEST_CASE("a second step of exact batch norm goes on from the first") {
  const Data d(12);
  const auto big = residual_net(), small = residual_net();
  for (int step = 0; step < 2; step++) {
    const Run expected = whole(*big, d), exact = in_pieces(*small, d, {6, 6}, true);
    CHECK(difference(exact.gradients, expected.gradients) <= 1e-12);
    CHECK(difference(exact.buffers, expected.buffers) <= 1e-12);
  }
}

TEST_CASE("exact batch norm: resnet20") {
  const Data d(8, {3, 8, 8}, 10);
  const nn::ModelOptions options{.input = {3, 8, 8}, .classes = 10, .seed = 5};
  const auto big = nn::make_model("resnet20", options), small = nn::make_model("resnet20", options);
  big->to(DType::float64);
  small->to(DType::float64);
  const Run expected = whole(*big, d), exact = in_pieces(*small, d, {4, 4}, true);
  CHECK(difference(exact.gradients, expected.gradients) <= 1e-12);
  CHECK(difference(exact.buffers, expected.buffers) <= 1e-12);
}

TEST_CASE("exact batch norm inside a recompute checkpoint") {
  struct Checkpointed : nn::Module {
    std::shared_ptr<nn::Sequential> body = register_module("body", residual_net());
    Tensor forward(const Tensor& x) override {
      if (!recompute) return (*body)(x);
      return checkpoint([this](const std::vector<Tensor>& in) { return (*body)(in[0]); }, {x});
    }
    bool recompute = true;
  };
  const Data d(12);
  Data e = d;
  e.x.requires_grad_();  // a checkpoint without a differentiable input records nothing
  Checkpointed big, small;
  big.recompute = false;
  const Run expected = whole(big, d), exact = in_pieces(small, e, {5, 7}, true);
  CHECK(difference(exact.gradients, expected.gradients) <= 1e-12);
  CHECK(difference(exact.buffers, expected.buffers) <= 1e-12);
}

TEST_CASE("the cost of exact batch norm is known beforehand and is what is run") {
  const auto net = residual_net();
  const std::vector<std::int64_t> sizes{8, 8, 4};
  const train::ExactCost cost = ExactBatchNorm(*net).cost(sizes);
  CHECK(cost.layers == 3);
  CHECK(cost.micro_batches == 3);
  CHECK(cost.samples == 20);
  CHECK(cost.forward_sweeps == 7);
  CHECK(cost.backward_sweeps == 4);
  CHECK(cost.forward_samples == 140);
  CHECK(cost.backward_samples == 80);
  std::int64_t passes = 0, begun = 0, ended = 0;
  net->register_forward_pre_hook([&](nn::Module&, const Tensor&) { return begun++, Tensor(); });
  net->register_forward_hook([&](nn::Module&, const Tensor&, const Tensor&) { return ended++, Tensor(); });
  in_pieces(*net, Data(20), sizes, true, &passes);
  CHECK(passes == cost.forward_sweeps * cost.micro_batches);
  CHECK(begun == passes);
  CHECK(ended == cost.backward_sweeps * cost.micro_batches);  // the others end at a layer on the way forward
  CHECK(to_string(cost) ==
        "exact batch norm over 3 layers and 3 micro-batches: 7 forward and 4 backward sweeps over 20 samples a step "
        "instead of 1 and 1 (140 samples forward, 80 backward; all sweeps but the last end at a layer, so this is the "
        "most)");
  net->eval();
  CHECK(ExactBatchNorm(*net).cost(sizes).forward_sweeps == 1);
}

TEST_CASE("gradients that are there stay while exact batch norm collects") {
  const Data d(8);
  const auto net = residual_net();
  piece(*net, d, 0, 8);
  const Values before = gradients_of(*net);
  ExactBatchNorm exact(*net);
  exact.collect(2, [&](std::size_t i) { piece(*net, d, static_cast<std::int64_t>(i) * 4, 4); });
  CHECK(gradients_of(*net) == before);
}

TEST_CASE("a failed exact step leaves layers, gradients and running statistics as they were") {
  const Data d(8);
  const auto net = residual_net();
  const Values buffers = buffers_of(*net);
  int calls = 0;
  auto failing = [&](std::size_t i) {
    if (++calls == 9) throw std::runtime_error("out of luck");
    piece(*net, d, static_cast<std::int64_t>(i) * 4, 4);
  };
  ExactBatchNorm exact(*net);
  CHECK_THROWS_AS(exact.collect(2, failing), std::runtime_error);
  CHECK(buffers_of(*net) == buffers);
  for (auto& [path, layer] : train::batch_norm_layers(*net)) CHECK_FALSE(layer->shared());
  for (const Tensor& p : net->parameters()) CHECK_FALSE(p.grad().defined());
  {  // collected, but never finished
    ExactBatchNorm dropped(*net);
    dropped.collect(2, [&](std::size_t i) { piece(*net, d, static_cast<std::int64_t>(i) * 4, 4); });
    CHECK_THROWS_AS(dropped.collect(2, failing), ArgumentError);
    CHECK_THROWS_AS(ExactBatchNorm(*net).collect(2, failing), ArgumentError);
  }
  CHECK(buffers_of(*net) == buffers);
  for (auto& [path, layer] : train::batch_norm_layers(*net)) CHECK_FALSE(layer->shared());
  CHECK_THROWS_AS(exact.collect(0, failing), ArgumentError);
}

TEST_CASE("what exact batch norm cannot do is an error") {
  struct Twice : nn::Module {
    std::shared_ptr<nn::BatchNorm1d> bn = register_module("bn", nn::BatchNorm1d({.num_features = 3}));
    Tensor forward(const Tensor& x) override { return (*bn)((*bn)(x)); }
  };
  Twice twice;
  const Tensor x = randn({6, 3});
  ExactBatchNorm exact(twice);
  auto run = [&](std::size_t) { twice(x).sum().backward(); };
  CHECK_THROWS_WITH_AS(exact.collect(2, run),
                       "[batch_norm] one layer normalises twice in one forward pass: its statistics cannot be shared",
                       ArgumentError);

  nn::Sequential net(nn::BatchNorm1d({.num_features = 3}), nn::BatchNorm1d({.num_features = 3}));
  ExactBatchNorm other(net);
  auto wandering = [&](std::size_t i) { (i == 0 ? net(x) : net[1](x)).sum().backward(); };
  CHECK_THROWS_WITH_AS(other.collect(2, wandering),
                       "[exact batch norm] micro-batch 1 takes another way through the layers than micro-batch 0",
                       ArgumentError);

  nn::Sequential one(nn::BatchNorm1d({.num_features = 3}));
  ExactBatchNorm single(one);
  CHECK_THROWS_AS(single.collect(1, [&](std::size_t) { one(randn({1, 3})).sum().backward(); }), ShapeError);
}

TEST_CASE("layers that exact batch norm does not reach are left alone") {
  auto net = std::make_shared<nn::Sequential>();
  net->push_back(nn::Linear({.in_features = 3, .out_features = 4}));
  net->push_back(nn::BatchNorm1d({.num_features = 4}));
  struct Unused : nn::Module {
    std::shared_ptr<nn::Sequential> used;
    std::shared_ptr<nn::BatchNorm1d> unused = register_module("unused", nn::BatchNorm1d({.num_features = 2}));
    explicit Unused(std::shared_ptr<nn::Sequential> m) : used(register_module("used", std::move(m))) {}
    Tensor forward(const Tensor& x) override { return (*used)(x); }
  } model(net);
  const Tensor x = randn({6, 3});
  ExactBatchNorm exact(model);
  auto run = [&](std::size_t i) { model(narrow(x, 0, static_cast<std::int64_t>(i) * 3, 3)).sum().backward(); };
  exact.collect(2, run);
  for (std::size_t i = 0; i < 2; i++) run(i);
  exact.finish();
  CHECK(train::batch_norm_layers(model)[0].second->num_batches_tracked.item_int() == 1);
  CHECK(model.unused->num_batches_tracked.item_int() == 0);
}

TEST_CASE("k micro-batches move the running statistics like one: 1 - (1-m')^k = m") {
  for (double m : {0.0, 1e-6, 0.01, 0.1, 0.5, 0.9, 1.0}) {
    for (std::int64_t k : {1, 2, 3, 4, 7, 8, 16, 64, 1000}) {
      const double each = nn::micro_batch_momentum(m, k);
      CHECK(each >= 0);
      CHECK(std::abs(1 - std::pow(1 - each, static_cast<double>(k)) - m) <= 1e-15 * static_cast<double>(k));
      // The exact form of the identity, without the rounding of 1 - m' itself.
      if (m < 1) CHECK(std::abs(-std::expm1(static_cast<double>(k) * std::log1p(-each)) - m) <= 1e-15);
    }
  }
  // Four micro-batches with the same statistics: where one batch would be, to rounding; unadjusted they go 3.4 times as far.
  auto moved = [](std::int64_t k, bool adjusted) {
    nn::BatchNorm1d bn({.num_features = 3});
    bn.to(DType::float64);
    if (adjusted) bn.set_micro_batches(k);
    Generator g(4);
    const Tensor x = randn({20, 3}, {.dtype = float64}, g);
    for (std::int64_t i = 0; i < k; i++) bn(x);
    return bn.running_mean.to_vector<double>();
  };
  const auto one = moved(1, false), adjusted = moved(4, true), plain = moved(4, false);
  for (std::size_t c = 0; c < 3; c++) {
    CHECK(adjusted[c] == doctest::Approx(one[c]).epsilon(1e-14));
    CHECK(plain[c] / one[c] == doctest::Approx((1 - std::pow(0.9, 4)) / 0.1).epsilon(1e-12));
  }
  nn::BatchNorm1d bn({.num_features = 3});
  CHECK_THROWS_AS(bn.set_micro_batches(0), ArgumentError);
  nn::BatchNorm1d average({.num_features = 3, .momentum = std::nullopt});
  average.set_micro_batches(4);
  CHECK_FALSE(average.momentum());
}

TEST_CASE("frozen: the running statistics are constants in training") {
  const Data d(12);
  const auto net = residual_net();
  whole(*net, d);  // statistics that differ from 0 and 1
  const Values buffers = buffers_of(*net);
  train::set_batch_norm_mode(*net, BatchNormMode::frozen);
  const Run all = whole(*net, d), pieces = in_pieces(*net, d, {5, 4, 3}, false);
  CHECK(difference(pieces.gradients, all.gradients) <= 1e-12);
  CHECK(buffers_of(*net) == buffers);
  CHECK(ExactBatchNorm(*net).cost({5, 4, 3}).forward_sweeps == 1);  // nothing to share
  train::set_batch_norm_mode(*net, BatchNormMode::micro);
  whole(*net, d);
  CHECK(buffers_of(*net) != buffers);
  nn::BatchNorm1d untracked({.num_features = 3, .track_running_stats = false});
  CHECK_THROWS_AS(untracked.set_frozen(true), ArgumentError);
  CHECK(train::batch_norm_mode_named("exact") == BatchNormMode::exact);
  CHECK_THROWS_WITH_AS(train::batch_norm_mode_named("ghost"),
                       "[batch_norm] the modes are micro, frozen and exact, got ghost", ArgumentError);
}

TEST_CASE("batch norm replaced: names, values, and a gradient that does not depend on the cut") {
  const Data d(12);
  for (nn::SampleNorm kind : {nn::SampleNorm::group, nn::SampleNorm::layer}) {
    const auto net = residual_net();
    auto* first = dynamic_cast<nn::BatchNorm*>(&(*net)[1]);
    REQUIRE(first);
    Tensor(first->weight).detach().fill_(1.5);
    const auto paths = nn::replace_batch_norm(*net, kind);
    CHECK(paths == std::vector<std::string>{"1", "4.bn", "4.shortcut.1"});
    const nn::StateDict state = net->state_dict();
    CHECK(state.at("1.weight").to_vector<double>() == std::vector<double>(4, 1.5));
    CHECK(state.at("4.bn.bias").dtype() == float64);
    CHECK(state.count("4.bn.running_mean") == 0);
    CHECK((*net)[1].path() == "1");
    CHECK(train::batch_norm_layers(*net).empty());
    net->zero_grad();
    piece(*net, d, 0, 12);
    const Values all = gradients_of(*net);
    net->zero_grad();
    for (std::int64_t at : {0, 3, 6, 9}) piece(*net, d, at, 3);
    CHECK(difference(gradients_of(*net), all) <= 1e-14);
  }
  CHECK(nn::usual_groups(16) == 4);
  CHECK(nn::usual_groups(64) == 16);
  CHECK(nn::usual_groups(512) == 32);
  CHECK(nn::usual_groups(7) == 1);
  const auto net = residual_net();
  CHECK_THROWS_AS(nn::replace_batch_norm(*net, nn::SampleNorm::group, 3), ArgumentError);  // 4 channels
  CHECK(train::batch_norm_layers(*net).size() == 3);                                      // nothing was replaced
  nn::BatchNorm1d alone({.num_features = 3});
  CHECK_THROWS_AS(nn::replace_batch_norm(alone, nn::SampleNorm::group), ArgumentError);
  struct Own : nn::Module {
    std::shared_ptr<nn::BatchNorm1d> bn = register_module("bn", nn::BatchNorm1d({.num_features = 3}));
    Tensor forward(const Tensor& x) override { return (*bn)(x); }
  } own;
  CHECK_THROWS_WITH_AS(nn::replace_batch_norm(own, nn::SampleNorm::group),
                       "[replace_batch_norm] bn is a member of a Own: only containers exchange their children",
                       ArgumentError);
  CHECK_THROWS_AS(own.replace_child("bn", std::make_shared<nn::BatchNorm1d>(nn::BatchNormOptions{.num_features = 3})),
                  ArgumentError);
  CHECK_THROWS_AS(net->replace_child("99", std::make_shared<nn::ReLU>()), ArgumentError);
  CHECK_THROWS_AS(net->replace_child("1", nullptr), ArgumentError);
}

TEST_CASE("the lint says what is too small for batch norm") {
  using Severity = train::BatchNormFinding::Severity;
  const auto net = residual_net();
  CHECK(train::lint_batch_norm(*net, {16, 8}, {2, 8, 8}).empty());
  auto noisy = train::lint_batch_norm(*net, {16, 4}, {2, 8, 8});
  REQUIRE(noisy.size() == 3);
  CHECK(noisy[0].layer == "1");
  CHECK(noisy[0].samples == 4);
  CHECK(noisy[0].values == 4 * 64);
  CHECK(noisy[0].severity == Severity::warning);
  CHECK(noisy[0].text == "1 takes mean and variance of 256 values of 4 samples, fewer than 8: the statistics are noisy");
  CHECK(train::lint_batch_norm(*net, {1}, {2, 8, 8})[0].text.find("normalised by itself") != std::string::npos);

  nn::Sequential dense(nn::Linear({.in_features = 3, .out_features = 4}), nn::BatchNorm1d({.num_features = 4}));
  const auto error = train::lint_batch_norm(dense, {8, 1}, {3});
  REQUIRE(error.size() == 1);
  CHECK(error[0].severity == Severity::error);
  CHECK(error[0].text == "1 takes mean and variance of 1 value in a micro-batch of 1 sample: training stops with an error");
  CHECK_THROWS_AS(dense(randn({1, 3})), ShapeError);  // as was said
  CHECK(dense.training());
  CHECK_FALSE(dense[1].has_hooks());

  train::set_batch_norm_mode(*net, BatchNormMode::frozen);
  CHECK(train::lint_batch_norm(*net, {1}, {2, 8, 8}).empty());
  CHECK(train::lint_batch_norm(*nn::make_model("mlp"), {1}, {1, 28, 28}).empty());
  CHECK_THROWS_AS(train::lint_batch_norm(*net, {}, {2, 8, 8}), ArgumentError);
  CHECK_THROWS_AS(train::lint_batch_norm(*net, {0}, {2, 8, 8}), ArgumentError);
}
