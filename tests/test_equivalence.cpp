// The equivalence check: what it proves, and that each injected mistake gets its own label and its own number.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>
#include <limpid/nn/replace_norm.h>
#include <limpid/tensor/raw.h>
#include <limpid/tensor/random.h>
#include <limpid/train/equivalence.h>

using namespace limpid;
using train::BatchNormMode;
using train::Cause;
using train::EquivalenceProblem;
using train::EquivalenceReport;
using train::LoopBug;

namespace {

enum class Smooth { yes, no };

// Three convolutions with batch norm on 3x8x8 images; smooth: tanh, else ReLU and max pooling.
std::shared_ptr<nn::Sequential> conv_net(Smooth smooth, double dropout = 0) {
  manual_seed(11);
  auto net = std::make_shared<nn::Sequential>();
  std::int64_t channels = 3;
  for (std::int64_t out : {8, 16, 16}) {
    net->push_back(nn::Conv2d({.in_channels = channels, .out_channels = out, .kernel_size = 3, .padding = 1}));
    net->push_back(nn::BatchNorm2d({.num_features = out}));
    if (smooth == Smooth::yes) {
      net->push_back(nn::Tanh());
    } else {
      net->push_back(nn::ReLU());
    }
    channels = out;
  }
  if (smooth == Smooth::no) net->push_back(nn::MaxPool2d({.kernel_size = 2}));
  net->push_back(nn::Flatten());
  if (dropout > 0) net->push_back(nn::Dropout(dropout));
  net->push_back(nn::Linear({.in_features = channels * (smooth == Smooth::yes ? 64 : 16), .out_features = 5}));
  return net;
}

std::shared_ptr<nn::Sequential> group_net(Smooth smooth, double dropout = 0) {
  auto net = conv_net(smooth, dropout);
  nn::replace_batch_norm(*net, nn::SampleNorm::group);
  return net;
}

EquivalenceProblem problem(std::function<std::shared_ptr<nn::Module>()> model, std::vector<std::int64_t> sizes,
                           std::int64_t samples = 64) {
  Generator g(5);
  EquivalenceProblem p;
  p.model = std::move(model);
  p.x = randn({samples, 3, 8, 8}, {}, g);
  p.y = randint(0, 5, {samples}, {.dtype = int64}, g);
  p.micro_batches = std::move(sizes);
  return p;
}

std::vector<std::int64_t> times(std::int64_t k, std::int64_t size) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(k), size);
}

const train::Finding* finding(const EquivalenceReport& r, Cause cause) {
  const auto it = std::find_if(r.findings.begin(), r.findings.end(), [&](auto& f) { return f.cause == cause; });
  return it == r.findings.end() ? nullptr : &*it;
}

std::int64_t flipped(const EquivalenceReport& r) {
  std::int64_t sum = 0;
  for (const train::Flips& f : r.flips) sum += f.flipped;
  return sum;
}

}  // namespace

TEST_CASE("without batch norm the cut does not matter: 1e-12 in f64, 1e-5 in f32") {
  const auto smooth = [] { return group_net(Smooth::yes); };
  for (const auto& sizes : {times(2, 32), times(4, 16), times(64, 1), std::vector<std::int64_t>{13, 1, 30, 20}}) {
    const EquivalenceReport r = train::check_accumulation(problem(smooth, sizes));
    INFO(to_string(r));
    CHECK(r.equal);
    CHECK(r.proof.relative <= 1e-12);
    REQUIRE(r.measured);
    CHECK(r.measured->relative <= 1e-5);
    CHECK(r.measured->relative > 0);  // f32 does round
    CHECK(r.findings.empty());
    REQUIRE(r.weights.size() == sizes.size());
    for (double w : r.weights) CHECK(w == doctest::Approx(1).epsilon(1e-9));
    CHECK(r.batch_norm_layers == 0);
    CHECK_FALSE(r.exact_batch_norm);
  }
  EquivalenceProblem alone = problem(smooth, times(4, 16));
  alone.dtype = float64;
  const EquivalenceReport r = train::check_accumulation(alone);
  CHECK(r.equal);
  CHECK_FALSE(r.measured);
}

TEST_CASE("batch norm is what differs, more the smaller its batch, and nothing is left of it under exact statistics") {
  double before = 0;
  for (std::int64_t k : {2, 4, 8, 16, 32}) {
    const EquivalenceReport r = train::check_accumulation(problem([] { return conv_net(Smooth::yes); }, times(k, 64 / k)));
    INFO(to_string(r));
    CHECK_FALSE(r.equal);
    CHECK(r.proof.relative > 0.01);
    CHECK(r.proof.relative < 2);
    CHECK(r.proof.relative > before);
    before = r.proof.relative;
    REQUIRE(r.findings.size() == 1);
    CHECK(r.findings[0].cause == Cause::batch_norm);
    CHECK(r.findings[0].effect == doctest::Approx(r.proof.relative).epsilon(1e-6));
    CHECK(r.batch_norm_layers == 3);
    for (double w : r.weights) CHECK(w == doctest::Approx(1).epsilon(1e-9));
    REQUIRE(r.exact_batch_norm);
    CHECK(*r.exact_batch_norm <= 1e-12);
  }
  for (BatchNormMode mode : {BatchNormMode::exact, BatchNormMode::frozen}) {
    EquivalenceProblem p = problem([] { return conv_net(Smooth::yes); }, {20, 20, 24});
    p.batch_norm = mode;
    const EquivalenceReport r = train::check_accumulation(p);
    INFO(to_string(r));
    CHECK(r.equal);
    CHECK(r.proof.relative <= 1e-12);
    CHECK(r.findings.empty());
  }
}

TEST_CASE("each mistake of a loop has its own label and number") {
  struct Case {
    LoopBug bug;
    Cause cause;
    const char* text;
  };
  const std::vector<std::int64_t> sizes{8, 8, 8, 4};
  auto check = [&](LoopBug bug, double dropout = 0) {
    EquivalenceProblem p = problem([dropout] { return group_net(Smooth::yes, dropout); }, sizes, 28);
    p.loop = train::loop_with(bug);
    return train::check_accumulation(p);
  };
  const EquivalenceReport sums = check(LoopBug::not_divided);
  INFO(to_string(sums));
  CHECK_FALSE(sums.equal);
  REQUIRE(sums.findings.size() == 1);
  CHECK(sums.findings[0].cause == Cause::normaliser);
  CHECK(sums.findings[0].text ==
        "the loss means of 4 micro-batches were added and not divided: samples weigh 3.5/N to 7/N instead of 1/N");
  CHECK(sums.weights[0] == doctest::Approx(3.5).epsilon(1e-9));
  CHECK(sums.weights[3] == doctest::Approx(7).epsilon(1e-9));

  const EquivalenceReport means = check(LoopBug::mean_of_means);
  REQUIRE(means.findings.size() == 1);
  CHECK(means.findings[0].cause == Cause::normaliser);
  CHECK(means.findings[0].text == "the means of unequal micro-batches were averaged: samples weigh 0.875/N to 1.75/N instead of 1/N");

  const EquivalenceReport lost = check(LoopBug::lost);
  REQUIRE(lost.findings.size() == 1);
  CHECK(lost.findings[0].cause == Cause::normaliser);
  CHECK(lost.findings[0].text == "missing micro-batch 3: samples weigh 0/N to 1/N instead of 1/N");
  CHECK(std::abs(lost.weights[3]) < 1e-9);

  // Dropout masks that start anew in every micro-batch; with the right offsets there is nothing to find.
  const EquivalenceReport rng = check(LoopBug::no_offset, 0.5);
  INFO(to_string(rng));
  REQUIRE(rng.findings.size() == 1);
  CHECK(rng.findings[0].cause == Cause::rng);
  CHECK(rng.findings[0].effect > 0.01);
  EquivalenceProblem right = problem([] { return group_net(Smooth::yes, 0.5); }, sizes, 28);
  const EquivalenceReport same = train::check_accumulation(right);
  INFO(to_string(same));
  CHECK(same.equal);
  CHECK(same.findings.empty());

  const EquivalenceReport bf16 = check(LoopBug::bf16_sums);
  INFO(to_string(bf16));
  REQUIRE(bf16.findings.size() == 1);
  CHECK(bf16.findings[0].cause == Cause::precision);
  CHECK(bf16.findings[0].text == "every element of the gradient is a number of bf16: it was added up in it");
  CHECK(bf16.findings[0].effect > 1e-4);
}

TEST_CASE("two causes at once are told apart") {
  EquivalenceProblem p = problem([] { return conv_net(Smooth::yes, 0.5); }, {16, 16, 16, 16});
  p.loop = train::loop_with(LoopBug::not_divided);
  const EquivalenceReport r = train::check_accumulation(p);
  INFO(to_string(r));
  REQUIRE(finding(r, Cause::normaliser));
  REQUIRE(finding(r, Cause::batch_norm));
  CHECK_FALSE(finding(r, Cause::rng));
  CHECK_FALSE(finding(r, Cause::unexplained));
  CHECK(finding(r, Cause::normaliser)->effect > 2);
  CHECK(finding(r, Cause::batch_norm)->effect < 1);
}

TEST_CASE("a loop that weighs by what no weights explain is called unexplained") {
  EquivalenceProblem p = problem([] { return group_net(Smooth::yes); }, {32, 32});
  p.loop = [](const train::AccumulationWindow& w) {
    train::accumulation_loop(w);
    for (Tensor& parameter : w.model.parameters()) parameter.set_grad(mul(parameter.grad(), parameter.grad()));
  };
  const EquivalenceReport r = train::check_accumulation(p);
  CHECK_FALSE(r.equal);
  CHECK(finding(r, Cause::unexplained));
}

// One linear layer gives each sample the pre-activations that were asked for; the loop moves one sample's input a little,
// as another kernel's rounding would, so that exactly the planned number of ReLU signs turns.
TEST_CASE("the flipped ReLU decisions are counted exactly") {
  constexpr std::int64_t kUnits = 32, kSamples = 16;
  for (std::int64_t flips : {0, 1, 7}) {
    auto model = [] {
      manual_seed(2);
      auto net = std::make_shared<nn::Sequential>();
      net->push_back(nn::Linear({.in_features = kUnits, .out_features = kUnits, .bias = false}));
      net->push_back(nn::ReLU());
      net->push_back(nn::Linear({.in_features = kUnits, .out_features = 5}));
      auto* first = dynamic_cast<nn::Linear*>(&(*net)[0]);
      std::vector<float> identity(kUnits * kUnits, 0);
      for (std::size_t i = 0; i < kUnits; i++) identity[i * kUnits + i] = 1;
      raw::copy(first->weight, from_vector(identity, {kUnits, kUnits}));
      return net;
    };
    Generator g(3);
    std::vector<float> x = randn({kSamples, kUnits}, {}, g).to_vector<float>();
    for (std::int64_t i = 0; i < flips; i++) x[static_cast<std::size_t>(9 * kUnits + i)] = 1e-30F;  // sample 9, just above 0
    EquivalenceProblem p;
    p.model = model;
    p.x = from_vector(x, {kSamples, kUnits});
    p.y = randint(0, 5, {kSamples}, {.dtype = int64}, g);
    p.micro_batches = {8, 8};
    p.loop = [](const train::AccumulationWindow& w) {
      const Tensor moved = w.x.dtype() == float32 ? sub(w.x, 2e-30) : w.x;
      train::accumulation_loop({w.model, moved, w.y, w.micro_batches, w.batch_norm});
    };
    const EquivalenceReport r = train::check_accumulation(p);
    INFO(to_string(r));
    CHECK(flipped(r) == flips);
    CHECK(r.proof.relative <= 1e-12);
    CHECK(r.equal);  // once the decisions are taken out, f32 agrees to rounding
    if (flips == 0) {
      CHECK(r.findings.empty());
      continue;
    }
    REQUIRE(r.flips.size() == 1);
    CHECK(r.flips[0].layer == "1");
    CHECK(r.flips[0].of == kSamples * kUnits);
    CHECK(r.measured->relative > 1e-5);
    REQUIRE(r.without_kinks);
    CHECK(r.without_kinks->relative <= 1e-5);
    REQUIRE(r.findings.size() == 1);
    CHECK(r.findings[0].cause == Cause::kinks);
    CHECK(r.findings[0].text.find(concat(flips, " of 512 ReLU and pooling decisions flipped, the first in 1")) == 0);
  }
}

TEST_CASE("ReLU and max pooling: the flips are reported, and f32 is equal once they are taken out") {
  const EquivalenceReport r = train::check_accumulation(problem([] { return group_net(Smooth::no); }, times(8, 8)));
  INFO(to_string(r));
  CHECK(r.equal);
  CHECK(r.proof.relative <= 1e-12);
  CHECK(r.flips.size() == 4);  // three ReLUs and the pooling
  std::int64_t decisions = 0;
  for (const train::Flips& f : r.flips) decisions += f.of;
  CHECK(decisions == 64 * 64 * (8 + 16 + 16) + 64 * 16 * 16);
  CHECK((r.measured->relative <= 1e-5 || finding(r, Cause::kinks)));
}

TEST_CASE("the report as text and as JSON") {
  EquivalenceProblem p = problem([] { return conv_net(Smooth::yes); }, {32, 32});
  const EquivalenceReport r = train::check_accumulation(p);
  const std::string text = to_string(r);
  CHECK(text.find("1 x 64 against 2 x 32, 3 batch norm layers in mode micro\n") == 0);
  CHECK(text.find("cause: batch norm, ") != std::string::npos);
  CHECK(text.find("3 layers take the statistics of a micro-batch, not of all 64 samples") != std::string::npos);
  CHECK(text.find("NOT equal") != std::string::npos);
  const auto json = nlohmann::json::parse(to_json(r));
  CHECK(json["samples"] == 64);
  CHECK(json["micro_batches"] == nlohmann::json{32, 32});
  CHECK(json["equal"] == false);
  CHECK(json["causes"][0]["cause"] == "batch norm");
  CHECK(json["proof"]["relative"].get<double>() == r.proof.relative);
  CHECK(json["exact_batch_norm"].get<double>() <= 1e-12);
}

TEST_CASE("what cannot be checked is an error with both values") {
  const EquivalenceProblem good = problem([] { return group_net(Smooth::yes); }, {32, 32});
  auto with = [&](auto change) {
    EquivalenceProblem p = good;
    change(p);
    return p;
  };
  CHECK_THROWS_WITH_AS(train::check_accumulation(with([](auto& p) { p.micro_batches = {32, 31}; })),
                       "[equivalence] the micro-batches have 63 samples together, the batch 64", ArgumentError);
  CHECK_THROWS_WITH_AS(train::check_accumulation(with([](auto& p) { p.micro_batches = {64, 0}; })),
                       "[equivalence] a micro-batch has at least 1 sample, got 0", ArgumentError);
  CHECK_THROWS_AS(train::check_accumulation(with([](auto& p) { p.micro_batches.clear(); })), ArgumentError);
  CHECK_THROWS_AS(train::check_accumulation(with([](auto& p) { p.y = narrow(p.y, 0, 0, 63); })), ShapeError);
  CHECK_THROWS_AS(train::check_accumulation(with([](auto& p) { p.x = Tensor(); })), ShapeError);
  CHECK_THROWS_AS(train::check_accumulation(with([](auto& p) { p.dtype = int64; })), DTypeError);
  CHECK_THROWS_AS(train::check_accumulation(with([](auto& p) { p.model = nullptr; })), ArgumentError);
  CHECK_THROWS_WITH_AS(train::loop_bug_named("halved"), doctest::Contains("there is no mistake 'halved'; there are not-divided"),
                       ArgumentError);
  CHECK(train::loop_bug_named("lost") == LoopBug::lost);
}
