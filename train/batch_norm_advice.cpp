#include <limpid/train/batch_norm_advice.h>

#include <algorithm>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/data/sampler.h>
#include <limpid/tensor/workspace_cap.h>

namespace limpid::train {
namespace {

// The sizes of the pieces that a step of `samples` is computed in.
std::vector<std::int64_t> pieces_of(const TrainSettings& s, std::int64_t samples) {
  return s.quantum > 0 ? data::micro_batch_sizes(samples, s.quantum, s.quantum) : micro_batches_of(s, samples);
}

}  // namespace

BatchNormAdvice batch_norm_advice(const TrainSettings& s, nn::Module& model, const Shape& input, std::int64_t samples) {
  const BatchNormMode mode = batch_norm_mode_named(s.bn_mode);
  if (mode == BatchNormMode::frozen) set_batch_norm_mode(model, mode);
  std::vector<std::int64_t> steps;  // samples of a full step and of the short last one
  if (samples >= s.batch) steps.push_back(s.batch);
  if (samples % s.batch != 0 && !(s.drop_last && samples > s.batch)) steps.push_back(samples % s.batch);
  LIMPID_CHECK(!steps.empty(), ArgumentError, "[batch_norm] an epoch has at least one sample, got ", samples);
  // What one set of statistics is taken of.
  std::vector<std::int64_t> batches;
  std::int64_t of_full = 0;  // those of a full step
  for (std::int64_t step : steps) {
    const std::vector<std::int64_t> pieces = mode == BatchNormMode::exact ? std::vector{step} : pieces_of(s, step);
    batches.insert(batches.end(), pieces.begin(), pieces.end());
    if (step == s.batch) of_full = static_cast<std::int64_t>(pieces.size());
  }
  const bool tail_is_worse = std::min_element(batches.begin(), batches.end()) - batches.begin() >= of_full;
  BatchNormAdvice advice;
  const WorkspaceCapScope workspace(s.workspace_cap);  // holds for this run of the model too
  const std::vector<BatchNormFinding> findings = lint_batch_norm(model, batches, input);
  if (!findings.empty()) {
    const BatchNormFinding& worst = *std::min_element(findings.begin(), findings.end(),
                                                      [](auto& a, auto& b) { return a.values < b.values; });
    const std::size_t others = findings.size() - 1;
    const std::string more =
        others == 0 ? "" : concat(" (and ", others, others == 1 ? " other layer, with" : " other layers, with", " as many values or more)");
    const std::string tail =
        tail_is_worse ? concat("; the last step of an epoch has ", steps.back(), ": --drop-last leaves it out") : "";
    (worst.severity == BatchNormFinding::Severity::error ? advice.error : advice.warning) = worst.text + more + tail;
  }
  if (mode == BatchNormMode::exact) {
    const ExactCost cost = ExactBatchNorm(model).cost(pieces_of(s, steps.front()));
    const std::uint64_t sample = static_cast<std::uint64_t>(input.numel()) * sizeof(float) + sizeof(std::int64_t);
    if (cost.layers == 0) {
      advice.cost = "bn-mode exact has nothing to do: the model has no batch norm with statistics of the batch";
    } else if (cost.micro_batches == 1) {
      advice.cost =
          concat("bn-mode exact changes nothing: a step is one micro-batch, whose statistics are those of its ",
                 cost.samples, " samples");
    } else {
      advice.cost = concat(to_string(cost), "; the inputs of a step are kept, ",
                           format_bytes(sample * static_cast<std::uint64_t>(cost.samples)));
    }
  }
  return advice;
}

}  // namespace limpid::train
