#include <limpid/train/scaling_policy.h>

#include <algorithm>
#include <cmath>

#include <limpid/base/error.h>
#include <limpid/train/settings.h>

namespace limpid::train {
namespace {

// The largest effective batch for which Goyal et al. 2017 found the linear rule to hold (ResNet-50 on ImageNet).
constexpr std::int64_t kLargestLinear = 8192;

// With a reference batch the user has said where lr comes from, and the policy warns by itself.
std::string init_warning(const TrainSettings& s) {
  if (s.init_batch == 0 || s.init_batch == s.batch || s.lr_policy != "none" || s.reference_batch > 0) return "";
  return concat("the weights of ", s.init, " were trained with an effective batch of ", s.init_batch, " (lr ",
                s.init_lr, "); this run has ", s.batch,
                " and no lr policy connects them: --lr-policy linear (SGD) or sqrt (Adam) with --reference-batch ",
                s.init_batch, " would");
}

bool scales_by_moments(const std::string& optimizer) {
  return optimizer == "adam" || optimizer == "adamw" || optimizer == "rmsprop" || optimizer == "lamb";
}

}  // namespace

const char* to_string(ScalingRule rule) {
  switch (rule) {
    case ScalingRule::linear:
      return "linear";
    case ScalingRule::sqrt:
      return "sqrt";
    case ScalingRule::none:
      break;
  }
  return "none";
}

ScalingRule parse_scaling_rule(const std::string& name) {
  for (ScalingRule rule : {ScalingRule::none, ScalingRule::linear, ScalingRule::sqrt})
    if (name == to_string(rule)) return rule;
  LIMPID_THROW(ArgumentError, "lr-policy is none, linear or sqrt; got ", name);
}

void ScalingPolicy::check() const {
  LIMPID_CHECK(reference_lr >= 0 && std::isfinite(reference_lr), ArgumentError,
               "[scaling policy] the reference lr must be finite and not negative, got ", reference_lr);
  LIMPID_CHECK(reference_batch >= 0, ArgumentError, "[scaling policy] reference-batch must be at least 1, got ",
               reference_batch);
  LIMPID_CHECK(warmup >= 0, ArgumentError, "[scaling policy] warmup must be at least 0 steps, got ", warmup);
  LIMPID_CHECK(rule == ScalingRule::none || reference_batch > 0, ArgumentError, "[scaling policy] lr-policy ",
               to_string(rule), " needs reference-batch, the batch that lr ", reference_lr, " belongs to");
}

double ScalingPolicy::lr(std::int64_t effective_batch) const {
  check();
  LIMPID_CHECK(effective_batch > 0, ArgumentError, "[scaling policy] an effective batch has at least 1 sample, got ",
               effective_batch);
  if (rule == ScalingRule::none) return reference_lr;
  const double ratio = static_cast<double>(effective_batch) / static_cast<double>(reference_batch);
  return reference_lr * (rule == ScalingRule::linear ? ratio : std::sqrt(ratio));
}

double ScalingPolicy::lr(std::int64_t effective_batch, std::int64_t step) const {
  LIMPID_CHECK(step >= 0, ArgumentError, "[scaling policy] steps count from 0, got ", step);
  const double peak = lr(effective_batch);
  return step < warmup ? peak * static_cast<double>(step) / static_cast<double>(warmup) : peak;
}

std::string ScalingPolicy::describe() const {
  std::string out = rule == ScalingRule::none ? concat("none, lr ", reference_lr)
                                              : concat(to_string(rule), " from ", reference_lr, " at batch ", reference_batch);
  if (rule == ScalingRule::none && reference_batch > 0) out += concat(" found at batch ", reference_batch);
  if (warmup > 0) out += concat(", warmup ", warmup, warmup == 1 ? " step" : " steps");
  return out;
}

std::vector<std::string> ScalingPolicy::warnings(std::int64_t effective_batch, const std::string& optimizer) const {
  std::vector<std::string> out;
  if (rule == ScalingRule::none) {
    if (reference_batch > 0 && reference_batch != effective_batch) {
      out.push_back(concat("the effective batch is ", effective_batch, ", lr ", reference_lr, " belongs to a batch of ",
                           reference_batch, ", and no lr policy connects them: --lr-policy linear (SGD) or sqrt (Adam) would"));
    }
    return out;
  }
  if (effective_batch == reference_batch) return out;
  const double scaled = lr(effective_batch);
  if (rule == ScalingRule::linear && scales_by_moments(optimizer)) {
    const ScalingPolicy root{ScalingRule::sqrt, reference_lr, reference_batch, warmup};
    out.push_back(concat("the linear rule is SGD's; ", optimizer, " divides by the size of the gradients, and linear makes lr ",
                         scaled, " where sqrt makes ", root.lr(effective_batch)));
  }
  if (rule == ScalingRule::linear && effective_batch > kLargestLinear) {
    out.push_back(concat("an effective batch of ", effective_batch, " is beyond ", kLargestLinear,
                         ", up to which the linear rule was found to hold"));
  }
  if (rule == ScalingRule::linear && warmup == 0 && effective_batch >= 4 * reference_batch) {
    out.push_back(concat("lr ", scaled, " is ", scaled / reference_lr,
                         " times the reference and starts at once: the linear rule was found with a warmup (--warmup)"));
  }
  return out;
}

ScalingPolicy scaling_policy(const TrainSettings& s) {
  return {parse_scaling_rule(s.lr_policy), s.lr, s.reference_batch, s.warmup};
}

void check_scaled_batch(const TrainSettings& s, std::int64_t training_samples) {
  const ScalingPolicy policy = scaling_policy(s);
  LIMPID_CHECK(policy.rule == ScalingRule::none || s.batch <= training_samples, ArgumentError, "[train] lr-policy ",
               to_string(policy.rule), " would scale lr for a batch of ", s.batch, ", but the training set has ",
               training_samples, " samples, and no step more: give a batch of at most ", training_samples);
}

std::vector<std::string> rate_warnings(const TrainSettings& s) {
  std::vector<std::string> out = scaling_policy(s).warnings(s.batch, s.optimizer);
  if (std::string text = init_warning(s); !text.empty()) out.push_back(std::move(text));
  if ((s.optimizer == "lamb" || s.optimizer == "lars") && s.weight_decay == 0 && !s.always_adapt) {
    out.push_back(concat(s.optimizer, " adapts what has weight decay, and there is none: every trust ratio will be 1; give "
                         "--weight-decay, or --always-adapt"));
  }
  return out;
}

}  // namespace limpid::train
