// What a batch size does to learning: the runs are the trainer's, what is told of them, the gradient noise scale.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/random.h>
#include <limpid/train/sweep_learning.h>
#include <limpid/train/trainer.h>

using namespace limpid;
using namespace limpid::train;

namespace {

LearningSettings small() {
  LearningSettings s;
  s.train.model = "mlp";
  s.train.data = "synthetic";
  s.train.input = {1, 6, 6};
  s.train.classes = 4;
  s.train.limit = 160;
  s.train.val_fraction = 0.25;
  s.train.epochs = 3;
  s.train.optimizer = "sgd";
  s.train.lr = 0.02;
  s.train.seed = 5;
  s.train.workers = 0;
  s.train.trace = 0;
  s.batches = {8, 32};
  s.policies = {ScalingRule::none, ScalingRule::linear};
  s.seeds = 2;
  return s;
}

LearningRun run_of(std::vector<double> accuracies) {
  LearningRun run;
  for (std::size_t i = 0; i < accuracies.size(); i++) {
    LearningPoint p;
    p.epoch = static_cast<std::int64_t>(i) + 1;
    p.samples = 100 * p.epoch;
    p.seconds = 2.0 * static_cast<double>(p.epoch);
    p.validation_accuracy = accuracies[i];
    run.points.push_back(p);
  }
  return run;
}

}  // namespace

TEST_CASE("gradient noise: with parts of one sample it is the unbiased variance and mean") {
  // The gradient of the loss mean(x w) of a sample is the sample itself.
  manual_seed(3);
  const std::int64_t n = 7;
  const Tensor x = randn({n, 3}, {.dtype = float64});
  Tensor w = zeros({3}, {.dtype = float64});
  w.requires_grad_();
  auto loss = [&](std::int64_t size) {
    return [&, size](std::int64_t part) { return mul(matmul(narrow(x, 0, part * size, size), w.reshape({3, 1})), 1.0).mean(); };
  };
  const GradientNoise noise = gradient_noise({w}, n, 1, loss(1));
  const std::vector<double> v = x.to_vector<double>();
  double mean[3] = {}, variance = 0, square = 0;
  for (std::size_t i = 0; i < v.size(); i++) mean[i % 3] += v[i] / n;
  for (std::size_t i = 0; i < v.size(); i++) variance += (v[i] - mean[i % 3]) * (v[i] - mean[i % 3]) / (n - 1);
  for (double m : mean) square += m * m;
  CHECK(noise.samples == n);
  CHECK(noise.variance == doctest::Approx(variance).epsilon(1e-12));
  CHECK(noise.mean_square == doctest::Approx(square - variance / n).epsilon(1e-12));
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("gradient noise: known mean and variance are found through parts of many samples") {
  // Samples (1, 1) + 2 e: |G|^2 = 2, tr(S) = 8, so the noise scale is 4.
  manual_seed(11);
  const std::int64_t parts = 400, size = 25;
  const Tensor x = add(mul(randn({parts * size, 2}, {.dtype = float64}), 2.0), 1.0);
  Tensor w = zeros({2, 1}, {.dtype = float64});
  w.requires_grad_();
  const GradientNoise noise = gradient_noise({w}, parts, size, [&](std::int64_t part) {
    return matmul(narrow(x, 0, part * size, size), w).mean();
  });
  CHECK(noise.variance == doctest::Approx(8).epsilon(0.2));
  CHECK(noise.mean_square == doctest::Approx(2).epsilon(0.1));
  REQUIRE(noise.scale());
  CHECK(*noise.scale() == doctest::Approx(4).epsilon(0.25));
  CHECK_FALSE(GradientNoise{-1, 2, 9}.scale());
  CHECK_FALSE(GradientNoise{0, 2, 9}.scale());
  CHECK_FALSE(GradientNoise{1, NAN, 9}.scale());
  CHECK_THROWS_WITH_AS(gradient_noise({w}, 1, 4, [](std::int64_t) { return Tensor(); }),
                       "[gradient_noise] wants at least 2 parts of 1 sample, got 1 of 4", ArgumentError);
}

TEST_CASE("the target and the accuracy after some samples are read off the curves") {
  const LearningRun run = run_of({0.5, 0.8, 0.7, 0.9});
  CHECK(point_at_target(run, 0.8)->epoch == 2);  // the first time, though it falls again
  CHECK(point_at_target(run, 0.85)->seconds == 8);
  CHECK(point_at_target(run, 0.95) == nullptr);
  CHECK(point_at_target(run, 0) == nullptr);  // no target
  CHECK(point_after(run, 1)->samples == 100);
  CHECK(point_after(run, 100)->samples == 100);
  CHECK(point_after(run, 101)->samples == 200);
  CHECK(point_after(run, 401) == nullptr);
  LearningRow row;
  row.runs = {run_of({0.5}), run_of({0.9}), run_of({NAN}), run_of({})};
  const LearningRow::Range range = row.over_runs([](const LearningRun& r) -> std::optional<double> {
    return r.points.empty() ? std::nullopt : std::optional<double>(r.points[0].validation_accuracy);
  });
  CHECK(range.count == 2);
  CHECK(range.mean == doctest::Approx(0.7));
  CHECK(range.least == 0.5);
  CHECK(range.most == 0.9);
}

TEST_CASE("the runs of a sweep are those of the trainer") {
  LearningSettings s = small();
  s.target_accuracy = 0.3;
  int runs = 0;
  const Learning l = learn(s, [&](std::int64_t, const ScalingPolicy&, std::uint64_t) { runs++; });
  CHECK(runs == 6);  // at the reference batch, both policies are the same runs
  REQUIRE(l.rows.size() == 4);
  CHECK(l.training == 120);
  CHECK(l.validation == 40);
  CHECK(l.after_samples == 360);
  CHECK(l.rows[0].lr == 0.02);
  CHECK(l.rows[2].lr == 0.02);
  CHECK(l.rows[3].lr == doctest::Approx(0.08));
  CHECK(l.rows[3].policy == ScalingPolicy{ScalingRule::linear, 0.02, 8, 0});
  CHECK(l.rows[2].warnings.size() == 1);  // another batch and no policy
  CHECK(l.rows[0].runs[1].seed == 6);
  for (const LearningRow& row : l.rows) {
    REQUIRE(row.runs.size() == 2);
    for (const LearningRun& run : row.runs) {
      REQUIRE(run.points.size() == 3);
      CHECK(run.points[2].samples == 360);
      CHECK(run.points[2].seconds >= run.points[1].seconds);
      CHECK(run.noise);
      CHECK(run.failure.empty());
    }
  }
  // The same settings given to a trainer lead to the same numbers.
  TrainSettings t = s.train;
  t.batch = 32;
  t.lr_policy = "linear";
  t.reference_batch = 8;
  t.seed = 6;
  t.monitor_every = 0;
  Trainer trainer(t, make_parts(t, {}));
  const TrainResult r = trainer.run();
  const LearningPoint& last = l.rows[3].runs[1].points.back();
  CHECK(last.validation_loss == r.validation->loss);
  CHECK(last.validation_accuracy == r.validation->accuracy);
  CHECK(last.train_loss == *r.train_loss);

  const nlohmann::json json = nlohmann::json::parse(to_json(l));
  const nlohmann::json& row = json["rows"][3];
  CHECK(row["policy_text"] == "linear from 0.02 at batch 8");
  CHECK(row["accuracy"]["runs"] == 2);
  CHECK(row["gap"]["mean"].get<double>() ==
        doctest::Approx((l.rows[3].runs[0].points[2].train_accuracy - l.rows[3].runs[0].points[2].validation_accuracy +
                         last.train_accuracy - last.validation_accuracy) / 2));
  const std::string text = to_string(l);
  CHECK(text.find("after 360 samples; target: validation accuracy of 30.0 %") != std::string::npos);
  CHECK(text.find("warning: batch 32, none: the effective batch is 32, lr 0.02 belongs to a batch of 8") != std::string::npos);
}

TEST_CASE("a run that does not fit, or diverges, is a row that says so") {
  LearningSettings s = small();
  s.seeds = 1;
  s.train.epochs = 1;
  s.batches = {8};
  s.policies = {ScalingRule::none};
  s.train.lr = 1e30;
  const Learning diverged = learn(s);
  CHECK(diverged.rows[0].runs[0].diverged);
  CHECK_FALSE(diverged.rows[0].runs[0].noise);
  CHECK(to_string(diverged).find("diverged: 1 of 1") != std::string::npos);
  CHECK(nlohmann::json::parse(to_json(diverged))["rows"][0]["validation_loss"].is_null());

  s.train.lr = 0.1;
  s.train.model = "lenet";
  s.train.input = {1, 28, 28};
  s.train.classes = 10;
  s.train.memory_cap = 24 << 20;
  const Learning capped = learn(s);
  CHECK(capped.rows[0].runs[0].failure.find("out of memory") != std::string::npos);
  CHECK(to_string(capped).find("out of memory: 1 of 1") != std::string::npos);
  // The cap ends with its run.
  s.train.memory_cap = 0;
  CHECK(learn(s).rows[0].runs[0].failure.empty());
}

TEST_CASE("settings that make no sense are refused") {
  auto refuse = [](auto change) {
    LearningSettings s = small();
    change(s);
    CHECK_THROWS_AS(learn(s), ArgumentError);
  };
  refuse([](LearningSettings& s) { s.batches = {}; });
  refuse([](LearningSettings& s) { s.policies = {}; });
  refuse([](LearningSettings& s) { s.seeds = 0; });
  refuse([](LearningSettings& s) { s.target_accuracy = 1.5; });
  refuse([](LearningSettings& s) { s.after_samples = -1; });
  refuse([](LearningSettings& s) { s.after_samples = 361; });
  refuse([](LearningSettings& s) { s.train.val_fraction = 0; });
  refuse([](LearningSettings& s) { s.train.epochs = 0; });
  refuse([](LearningSettings& s) { s.batches = {0}; });
}
