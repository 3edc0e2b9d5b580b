// What a batch size does to learning: the same network trained at many batch sizes, under scaling policies, with several
// seeds, each run over the same number of samples. Training and validation curves, accuracy after a number of samples,
// epochs and seconds to a target, the gap between training and validation, the gradient noise scale at the end.
// The runs are those of the Trainer; nothing is written. What a step costs is in sweep.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <limpid/train/gradient_noise.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/train/settings.h>

namespace limpid::train {

struct LearningSettings {
  // Data, model, optimizer, epochs, warmup, seed (the first one). Of each run, batch, lr_policy, reference_batch and seed are
  // replaced; lr belongs to the reference batch.
  TrainSettings train;
  std::vector<std::int64_t> batches;
  std::vector<ScalingRule> policies = {ScalingRule::none};
  std::int64_t seeds = 1;
  double target_accuracy = 0;      // of the validation samples, in (0, 1]; 0: none
  std::int64_t after_samples = 0;  // accuracy is told after this many; 0: at the end
  std::vector<std::string> search_paths;  // for the data, as make_parts()
};

// After an epoch.
struct LearningPoint {
  std::int64_t epoch = 0;    // finished ones
  std::int64_t samples = 0;  // seen so far
  double seconds = 0;        // of training so far, evaluations left out
  double train_loss = 0, train_accuracy = 0;  // means over the epoch, while the weights moved
  double validation_loss = 0, validation_accuracy = 0;
};

struct LearningRun {
  std::uint64_t seed = 0;
  std::vector<LearningPoint> points;
  bool diverged = false;  // a loss is no finite number
  std::string failure;    // a sentence, when it ran out of memory
  std::optional<GradientNoise> noise;  // at the final weights, in evaluation mode
};

// One batch size under one policy: its runs and what they have in common.
struct LearningRow {
  std::int64_t batch = 0;
  ScalingPolicy policy;
  double lr = 0;  // after the warmup
  std::vector<std::string> warnings;
  std::vector<LearningRun> runs;

  // Of the runs that have it: mean, least and most.
  struct Range {
    double mean = 0, least = 0, most = 0;
    std::int64_t count = 0;
  };
  Range over_runs(const std::function<std::optional<double>(const LearningRun&)>& value) const;
};

struct Learning {
  std::string model, data, optimizer;
  std::vector<std::int64_t> input;  // of a sample
  std::int64_t classes = 0;
  std::int64_t training = 0, validation = 0;  // samples
  std::int64_t epochs = 0;
  std::int64_t after_samples = 0;  // as it came out: the end of an epoch
  double target_accuracy = 0;
  std::vector<LearningRow> rows;
};

// The point of a run after so many samples, and the first one at which validation reached the target.
const LearningPoint* point_after(const LearningRun& run, std::int64_t samples);
const LearningPoint* point_at_target(const LearningRun& run, double target);

// The reference batch is that of the settings, or the smallest of `batches`. ArgumentError for settings out of range.
// `progress` is called before each run.
Learning learn(const LearningSettings& settings,
               const std::function<void(std::int64_t batch, const ScalingPolicy& policy, std::uint64_t seed)>& progress = {});

std::string to_string(const Learning& learning);
std::string to_json(const Learning& learning);

}  // namespace limpid::train
