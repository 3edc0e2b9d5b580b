// Large batches: LAMB and LARS against NumPy (golden/make_lamb_lars_golden.py), and the scaling policy.
#include <functional>
#include <memory>

#include <limpid/autograd/functions.h>
#include <limpid/optim/lamb.h>
#include <limpid/optim/lars.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/tensor/creation.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/train/settings.h>

#include "golden.h"

using namespace limpid;
using namespace limpid::train;
using optim::Lamb;
using optim::LambOptions;
using optim::Lars;
using optim::LarsOptions;
using Params = std::vector<Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Params&)>;

namespace {

// Three tensors out of 19 numbers: [4,3], [5], [2].
Params split(const Tensor& flat) {
  return {narrow(flat, 0, 0, 12).reshape({4, 3}).clone(), narrow(flat, 0, 12, 5).clone(), narrow(flat, 0, 17, 2).clone()};
}

Params start(const golden::Tensors& recorded) {
  Params params = split(recorded.at("start"));
  for (Tensor& p : params) p.requires_grad_();
  return params;
}

Make lamb(LambOptions o) {
  return [o](const Params& p) { return std::make_unique<Lamb>(p, o); };
}
Make lars(LarsOptions o) {
  return [o](const Params& p) { return std::make_unique<Lars>(p, o); };
}

std::map<std::string, Make> rules() {
  return {
      {"lamb", lamb({})},
      {"lamb_no_decay", lamb({.lr = 0.01, .weight_decay = 0})},
      {"lamb_adapt", lamb({.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0, .max_grad_norm = 0, .always_adapt = true})},
      {"lamb_clip", lamb({.lr = 0.01, .weight_decay = 0.1, .trust_clip = true})},
      {"lars", lars({.lr = 0.5, .weight_decay = 0.01})},
      {"lars_plain", lars({.lr = 0.01, .momentum = 0.9})},
      {"lars_momentum", lars({.lr = 0.5, .momentum = 0.9, .dampening = 0.2, .weight_decay = 1e-3, .trust_coefficient = 0.01})},
      {"lars_nesterov", lars({.lr = 0.5, .momentum = 0.8, .nesterov = true, .always_adapt = true})},
      {"larc", lars({.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4, .trust_coefficient = 0.02, .trust_clip = true})},
  };
}

// Steps with the recorded gradients: the last tensor has none at every third step, and the rate drops at 500.
void advance(optim::Optimizer& optimizer, Params& params, const Tensor& grads, std::int64_t from, std::int64_t to,
             const std::function<void(std::int64_t)>& after = {}) {
  for (std::int64_t step = from; step < to; step++) {
    Params g = split(grads[step]);
    for (std::size_t i = 0; i < params.size(); i++) params[i].set_grad(i == 2 && step % 3 == 2 ? Tensor() : g[i]);
    if (step == 500) optimizer.set_lr(optimizer.lr() * 0.3);
    optimizer.step();
    if (after) after(step);
  }
}

double distance(const Params& params, const Tensor& row) {
  Params expected = split(row);
  double worst = 0;
  for (std::size_t i = 0; i < params.size(); i++) worst = std::max(worst, golden::difference(params[i], expected[i]));
  return worst;
}

Tensor param(std::vector<double> values, DType dtype = float64) {
  Tensor p = from_vector<double>(values, {static_cast<std::int64_t>(values.size())}).to(dtype);
  p.requires_grad_();
  return p;
}

std::string warning_of(const ScalingPolicy& policy, std::int64_t batch, const std::string& optimizer) {
  const std::vector<std::string> all = policy.warnings(batch, optimizer);
  return all.empty() ? "" : all[0];
}

}  // namespace

TEST_CASE("LAMB and LARS: 1,000 steps and their trust ratios agree with NumPy") {
  auto recorded = golden::load("optim");
  auto file = golden::load("lamb_lars");
  CHECK(file.size() == 2 * rules().size());
  for (const auto& [name, make] : rules()) {
    CAPTURE(name);
    Params params = start(recorded);
    auto optimizer = make(params);
    std::int64_t row = 0;
    double worst = 0, worst_trust = 0;
    advance(*optimizer, params, recorded["grads"], 0, 1000, [&](std::int64_t step) {
      if (step != 0 && (step + 1) % 50 != 0) return;
      worst = std::max(worst, distance(params, file[name][row]));
      const Tensor trust = from_vector<double>(optimizer->trust_ratios(), {3});
      worst_trust = std::max(worst_trust, golden::difference(trust, file[name + ".trust"][row]));
      row++;
    });
    CHECK(row == 21);
    CHECK(worst <= 1e-12);
    CHECK(worst_trust <= 1e-12);
  }
}

TEST_CASE("LAMB and LARS: state saved and loaded in the middle continues bit for bit") {
  auto recorded = golden::load("optim");
  for (const auto& [name, make] : rules()) {
    CAPTURE(name);
    Params whole = start(recorded), first = start(recorded);
    auto uninterrupted = make(whole), before = make(first);
    advance(*uninterrupted, whole, recorded["grads"], 0, 90);
    advance(*before, first, recorded["grads"], 0, 41);
    Params second;
    for (Tensor& p : first) {
      second.push_back(p.detach().clone());
      second.back().requires_grad_();
    }
    auto after = make(second);
    after->load_state_dict(before->state_dict());
    advance(*after, second, recorded["grads"], 41, 90);
    for (std::size_t i = 0; i < 3; i++) CHECK(second[i].to_vector<double>() == whole[i].to_vector<double>());
  }
}

TEST_CASE("LAMB and LARS in single precision, over tensors of several pieces") {
  const std::int64_t n = 100000;
  manual_seed(3);
  const Tensor values = randn({n}, {.dtype = float64}), grads = randn({n}, {.dtype = float64});
  for (const char* name : {"lamb_adapt", "lars_momentum"}) {
    CAPTURE(name);
    double trust[2];
    Tensor result[2];
    for (DType dtype : {float64, float32}) {
      const std::size_t at = dtype == float32;
      Tensor p = values.to(dtype);
      p = p.detach().clone();
      p.requires_grad_();
      auto optimizer = rules().at(name)({p});
      for (int step = 0; step < 3; step++) {
        p.set_grad(grads.to(dtype));
        optimizer->step();
      }
      trust[at] = optimizer->trust_ratios()[0];
      result[at] = p.detach().to(float64);
    }
    CHECK(trust[1] == doctest::Approx(trust[0]).epsilon(1e-5));
    CHECK(golden::difference(result[1], result[0]) <= 1e-5);
  }
}

TEST_CASE("LAMB and LARS: refusals") {
  Params p = {param({1, 2})};
  CHECK_THROWS_WITH_AS(Lamb(p, {.max_grad_norm = -1}), "[LAMB] max_grad_norm must be finite and not negative, got -1", ArgumentError);
  CHECK_THROWS_AS(Lamb(p, {.beta2 = 1}), ArgumentError);
  CHECK_THROWS_AS(Lamb(std::vector<optim::ParamGroup<LambOptions>>{}), ArgumentError);
  CHECK_THROWS_WITH_AS(Lars(p, {.nesterov = true}), "[LARS] nesterov needs momentum > 0 and dampening 0, got momentum 0 and dampening 0",
                       ArgumentError);
  CHECK_THROWS_AS(Lars(p, {.trust_coefficient = -1}), ArgumentError);
  Lars plain(p);
  CHECK_THROWS_AS(plain.set_momentum(0.5), ArgumentError);
  Tensor narrow_param = param({1, 2}, bfloat16);
  Lamb on_narrow({narrow_param});
  narrow_param.set_grad(ones({2}, {.dtype = bfloat16}));
  CHECK_THROWS_WITH_AS(on_narrow.step(), doctest::Contains("[lamb] parameters are f32 or f64, got"), DTypeError);
  // A rule without a trust ratio has 1.
  CHECK(plain.trust_ratios() == std::vector<double>{1});
}

TEST_CASE("the policy's learning rates: five configurations, step by step") {
  struct Case {
    ScalingPolicy policy;
    std::int64_t batch;
    std::vector<double> lr;  // of steps 0, 1, 2, 3, 4, 5, 100
  };
  const std::vector<Case> cases = {
      {{ScalingRule::none, 1e-3, 0, 0}, 256, {1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3}},
      {{ScalingRule::linear, 1e-3, 32, 0}, 256, {8e-3, 8e-3, 8e-3, 8e-3, 8e-3, 8e-3, 8e-3}},
      {{ScalingRule::linear, 1e-3, 32, 4}, 256, {0, 2e-3, 4e-3, 6e-3, 8e-3, 8e-3, 8e-3}},
      {{ScalingRule::sqrt, 1e-3, 16, 2}, 256, {0, 2e-3, 4e-3, 4e-3, 4e-3, 4e-3, 4e-3}},
      {{ScalingRule::linear, 0.1, 256, 5}, 64, {0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.025}},
  };
  const std::int64_t steps[] = {0, 1, 2, 3, 4, 5, 100};
  for (const Case& c : cases) {
    CAPTURE(c.policy.describe());
    TrainSettings s;
    s.optimizer = "sgd";
    s.lr = c.policy.reference_lr;
    s.lr_policy = to_string(c.policy.rule);
    s.reference_batch = c.policy.reference_batch;
    s.warmup = c.policy.warmup;
    s.batch = c.batch;
    CHECK(scaling_policy(s) == c.policy);
    // What a run does with it is the same.
    Params p = {param({1})};
    auto optimizer = make_optimizer(s, p);
    optim::Scheduler scheduler(*optimizer, make_schedule(s, 200), optim::Unit::step);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < std::size(steps); i++) {
      for (; at < steps[i]; at++) scheduler.step();
      CHECK(c.policy.lr(c.batch, steps[i]) == doctest::Approx(c.lr[i]).epsilon(1e-15));
      CHECK(optimizer->lr() == doctest::Approx(c.lr[i]).epsilon(1e-15));
    }
  }
  CHECK(ScalingPolicy{ScalingRule::linear, 1e-3, 32, 0}.lr(256) == 8e-3);  // the rule's own example
}

TEST_CASE("the policy warns in sentences") {
  const ScalingPolicy none{ScalingRule::none, 1e-3, 32, 0}, linear{ScalingRule::linear, 1e-3, 32, 100},
      root{ScalingRule::sqrt, 1e-3, 32, 0};
  CHECK(warning_of(none, 256, "sgd") == "the effective batch is 256, lr 0.001 belongs to a batch of 32, and no lr policy connects "
                                        "them: --lr-policy linear (SGD) or sqrt (Adam) would");
  CHECK(warning_of(none, 32, "sgd") == "");
  CHECK(warning_of({ScalingRule::none, 1e-3, 0, 0}, 256, "sgd") == "");
  for (const char* optimizer : {"adam", "adamw", "rmsprop", "lamb"})
    CHECK(warning_of(linear, 256, optimizer).starts_with("the linear rule is SGD's; " + std::string(optimizer)));
  CHECK(warning_of(linear, 256, "sgd") == "");
  CHECK(warning_of(linear, 256, "lars") == "");
  CHECK(warning_of(root, 256, "adam") == "");
  CHECK(warning_of(linear, 32, "adam") == "");  // nothing is scaled
  CHECK(warning_of(linear, 16384, "sgd").starts_with("an effective batch of 16384 is beyond 8192"));
  CHECK(warning_of({ScalingRule::linear, 1e-3, 32, 0}, 256, "sgd").find("(--warmup)") != std::string::npos);
}

TEST_CASE("policies that make no sense are refused, and settings keep the policy") {
  CHECK_THROWS_WITH_AS(parse_scaling_rule("square"), "lr-policy is none, linear or sqrt; got square", ArgumentError);
  CHECK_THROWS_WITH_AS((ScalingPolicy{ScalingRule::linear, 1e-3, 0, 0}.lr(32)),
                       "[scaling policy] lr-policy linear needs reference-batch, the batch that lr 0.001 belongs to", ArgumentError);
  CHECK_THROWS_AS((ScalingPolicy{ScalingRule::none, -1, 0, 0}.check()), ArgumentError);
  CHECK_THROWS_AS((ScalingPolicy{ScalingRule::none, 1, -1, 0}.check()), ArgumentError);
  CHECK_THROWS_AS((ScalingPolicy{ScalingRule::none, 1, 0, -1}.check()), ArgumentError);
  CHECK_THROWS_AS((ScalingPolicy{ScalingRule::none, 1, 0, 0}.lr(0)), ArgumentError);
  TrainSettings s;
  s.lr_policy = "linear";
  CHECK_THROWS_AS(check(s), ArgumentError);
  s.reference_batch = 32;
  check(s);
  const TrainSettings back = settings_from_json(to_json(s));
  CHECK(back == s);
  TrainSettings other = s;
  other.lr_policy = "sqrt";
  REQUIRE(conflicts(s, other).size() == 1);
  CHECK(conflicts(s, other)[0] == "lr_policy: \"linear\", now \"sqrt\"");
  for (const char* optimizer : {"lamb", "lars"}) {
    s.optimizer = optimizer;
    check(s);
    Params p = {param({1})};
    CHECK(make_optimizer(s, p)->lr() == 1e-3 * 128 / 32);
  }
}
