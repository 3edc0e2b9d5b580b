// ScalingPolicy: which learning rate belongs to an effective batch, as an object that a run records, not a habit: a rate is
// found at a reference batch, and the rule says what it becomes at another one.
//   linear: lr = reference_lr N / reference_batch       Goyal et al. 2017, for SGD, up to about 8192 on ImageNet
//   sqrt:   lr = reference_lr sqrt(N / reference_batch)  keeps the noise of an update; the usual rule for Adam
//   none:   lr = reference_lr
// With a warmup in optimizer steps (not micro-batches): step k of W has lr k/W. Not a schedule: that starts from this rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace limpid::train {

struct TrainSettings;

enum class ScalingRule : std::uint8_t { none, linear, sqrt };
const char* to_string(ScalingRule rule);
ScalingRule parse_scaling_rule(const std::string& name);  // ArgumentError lists the names

struct ScalingPolicy {
  ScalingRule rule = ScalingRule::none;
  double reference_lr = 1e-3;
  std::int64_t reference_batch = 0;  // samples a step that reference_lr was found at; 0 = not told (only with none)
  std::int64_t warmup = 0;           // optimizer steps

  // ArgumentError names the first value outside its range.
  void check() const;
  double lr(std::int64_t effective_batch) const;                     // after the warmup
  double lr(std::int64_t effective_batch, std::int64_t step) const;  // of step `step`, from 0
  // "linear from 0.001 at batch 32, warmup 100 steps"
  std::string describe() const;
  // Sentences: what is likely to be wrong with this policy at this batch under this optimizer ("adam", "sgd", ...).
  std::vector<std::string> warnings(std::int64_t effective_batch, const std::string& optimizer) const;

  bool operator==(const ScalingPolicy&) const = default;
};

// ArgumentError when a rule scales for more samples than the training set, so any step, has.
void check_scaled_batch(const TrainSettings& settings, std::int64_t training_samples);
// That of a run's settings.
ScalingPolicy scaling_policy(const TrainSettings& settings);
// The policy's warnings, one where the weights of `init` were trained with another effective batch and no policy
// connects the two, and one where LAMB or LARS have nothing to adapt.
std::vector<std::string> rate_warnings(const TrainSettings& settings);

}  // namespace limpid::train
