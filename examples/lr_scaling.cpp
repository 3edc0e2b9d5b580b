// From batch 32 to 256: what becomes of the learning rate? The same network under SGD and Adam, with the rate left as
// it is, scaled linearly (at once, and with a warmup) and by the square root; every run sees the same samples. Exit
// code 0 when rates and warnings are those of the rules, 1 when not; which rule wins is measured, not checked.
//
//   lr_scaling [--samples 2400] [--epochs 4] [--seeds 2]
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;
using train::ScalingRule;

namespace {

constexpr std::int64_t kReference = 32, kLarge = 256, kWarmup = 8;
constexpr double kValidation = 0.2;  // share of the samples

struct Part {
  const char* optimizer;
  double lr, momentum;
  std::int64_t warmup;
  std::vector<ScalingRule> rules;
};
const Part kParts[] = {
    {"sgd", 0.02, 0.9, 0, {ScalingRule::none, ScalingRule::linear}},
    {"sgd", 0.02, 0.9, kWarmup, {ScalingRule::linear}},
    {"adam", 2e-3, 0, 0, {ScalingRule::none, ScalingRule::linear, ScalingRule::sqrt}},
};

train::LearningSettings settings_of(const Part& part, std::int64_t samples, std::int64_t epochs, std::int64_t seeds) {
  train::LearningSettings s;
  s.train.data = "synthetic";
  s.train.input = {1, 12, 12};
  s.train.limit = samples;
  s.train.val_fraction = kValidation;
  s.train.model = "lenet-bn";
  s.train.epochs = epochs;
  s.train.optimizer = part.optimizer;
  s.train.lr = part.lr;
  s.train.momentum = part.momentum;
  s.train.warmup = part.warmup;
  s.train.reference_batch = kReference;
  s.train.seed = 1;
  s.train.workers = 0;
  s.batches = {kReference, kLarge};
  s.policies = part.rules;
  s.seeds = seeds;
  return s;
}

// Exactly the rule's rate, and a warning exactly where the rule does not belong.
bool as_the_rule_says(const train::LearningRow& row, const Part& part) {
  const double ratio = static_cast<double>(row.batch) / kReference;
  const ScalingRule rule = row.policy.rule;
  const bool linear = rule == ScalingRule::linear, adam = std::string(part.optimizer) == "adam";
  const double factor = linear ? ratio : rule == ScalingRule::sqrt ? std::sqrt(ratio) : 1;
  // At the reference batch there is nothing to scale.
  const bool warned = row.batch != kReference && (rule == ScalingRule::none || (linear && (adam || part.warmup == 0)));
  return std::abs(row.lr / (part.lr * factor) - 1) < 1e-12 && warned == !row.warnings.empty();
}

void print_row(const train::LearningRow& row, const Part& part, std::int64_t after) {
  auto value = [&](auto of) {
    return row.over_runs([&](const train::LearningRun& run) -> std::optional<double> {
      const train::LearningPoint* p = point_after(run, after);
      return p ? std::optional<double>(of(*p)) : std::nullopt;
    });
  };
  const auto accuracy = value([](const train::LearningPoint& p) { return p.validation_accuracy; });
  const auto loss = value([](const train::LearningPoint& p) { return p.validation_loss; });
  std::printf("%-5s %5lld  %-6s %6lld %9.4g %11.1f %% %5.1f-%-5.1f %9.4f\n", part.optimizer,
              static_cast<long long>(row.batch), train::to_string(row.policy.rule), static_cast<long long>(part.warmup),
              row.lr, 100 * accuracy.mean, 100 * accuracy.least, 100 * accuracy.most, loss.mean);
}

}  // namespace

static int example(const Arguments& arguments) {
  const std::int64_t samples = arguments["--samples"], epochs = arguments["--epochs"];
  const std::int64_t seeds = arguments["--seeds"];
  // The warmup needs a step behind it at the large batch; val_fraction of the samples is not trained on.
  const std::int64_t training = samples - static_cast<std::int64_t>(kValidation * static_cast<double>(samples));
  const std::int64_t steps = (training + kLarge - 1) / kLarge * epochs;
  LIMPID_CHECK(steps > kWarmup, ArgumentError, "--samples ", samples, " and --epochs ", epochs, " make ", steps,
               " steps of batch ", kLarge, ", and the warmup alone has ", kWarmup, ": give more of either");
  bool ok = true;
  std::vector<std::string> warnings;
  for (const Part& part : kParts) {
    const train::Learning learning = train::learn(settings_of(part, samples, epochs, seeds));
    if (&part == &kParts[0]) {
      std::printf("lenet-bn on %lld generated images, %lld epochs, %lld seeds; rates found at batch %lld\n\n",
                  static_cast<long long>(learning.training), static_cast<long long>(epochs),
                  static_cast<long long>(seeds), static_cast<long long>(kReference));
      std::printf("%-5s %5s  %-6s %6s %9s %13s %11s %9s\n", "", "batch", "rule", "warmup", "lr", "accuracy", "range",
                  "loss");
    }
    ok &= learning.rows.size() == 2 * part.rules.size();
    for (const train::LearningRow& row : learning.rows) {
      ok &= as_the_rule_says(row, part);
      for (const std::string& w : row.warnings)
        warnings.push_back(
            concat(part.optimizer, ", batch ", row.batch, ", ", train::to_string(row.policy.rule), ": ", w));
      if (row.batch == kReference && &row != &learning.rows.front()) continue;  // the rules say the same there
      print_row(row, part, learning.after_samples);
    }
  }
  std::printf("\n");
  for (const std::string& w : warnings) std::printf("warning: %s\n", w.c_str());

  const train::ScalingPolicy policy = {ScalingRule::linear, kParts[1].lr, kReference, kWarmup};
  std::printf("\n%s, at batch %lld:\nstep", policy.describe().c_str(), static_cast<long long>(kLarge));
  for (std::int64_t step = 0; step <= kWarmup + 1; step++) std::printf("%8lld", static_cast<long long>(step));
  std::printf("\nlr  ");
  for (std::int64_t step = 0; step <= kWarmup + 1; step++) {
    const double lr = policy.lr(kLarge, step);
    ok &= std::abs(lr - 8 * policy.reference_lr * static_cast<double>(std::min(step, kWarmup)) / kWarmup) < 1e-15;
    std::printf("%8.3g", lr);
  }
  std::printf("\n");
  return ok ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "From batch 32 to 256: the learning rate left as it is, scaled linearly and by the "
                               "square root, under SGD and Adam.",
                      .options = {{"--samples", 2400, "Images, a fifth of them for validation"},
                                  {"--epochs", 4, "Passes over them"},
                                  {"--seeds", 2, "Runs of each row"}},
                      .small_run = "--samples 1600 --epochs 2 --seeds 1"},
                     example);
}
