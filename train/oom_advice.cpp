#include <limpid/train/oom_advice.h>

#include <algorithm>
#include <chrono>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/policies.h>

namespace limpid::train {
namespace {

// How long every smaller batch is tried before larger steps are made.
constexpr std::chrono::seconds kBatchSearch{20};

}  // namespace

void advise(memory::OutOfMemoryInfo& info, const PlanSettings& failed, const std::string& policy,
            const std::function<void(const std::string&)>& progress) {
  const RehearsalSettings& run = failed.run;
  LIMPID_CHECK(run.train.memory_cap > 0, ArgumentError, "[advise] the failed run has no capacity");
  info.advice.clear();
  info.advice_note.clear();
  auto trying = [&](const std::string& what) {
    if (progress) progress(what);
  };
  auto fits = [&](const char* kind, const std::string& change, const PlanSettings& changed) {
    const Prediction p = predict(changed);
    if (!p.fits) return false;
    const std::int64_t reserved = p.run.stats.get(memory::Metric::reserved_bytes).peak;
    info.advice.push_back({kind, change, static_cast<std::uint64_t>(reserved)});
    return true;
  };

  trying("the run itself, then other policies");
  if (predict(failed).fits) {
    info.advice_note = "none: a dry run of the same settings fits, so what failed lies outside the training loop";
    return;
  }
  for (const memory::PolicyEntry& entry : memory::policies()) {
    if (entry.name == policy) continue;
    PlanSettings changed = failed;
    changed.policy = entry.make;
    fits("policy", concat("with policy ", entry.name), changed);
  }
  std::stable_sort(info.advice.begin(), info.advice.end(),
                   [](const auto& a, const auto& b) { return a.peak_reserved < b.peak_reserved; });
  if (run.validation > 0 && !run.evaluate_first) {
    trying("validation first");
    PlanSettings changed = failed;
    changed.run.evaluate_first = true;
    fits("eval_first", "if validation runs before the first step", changed);
  }
  trying("smaller batches");
  // One after the other downward, so that the answer is the largest; coarser once that has taken long.
  PlanSettings smaller = failed;
  const auto start = std::chrono::steady_clock::now();
  bool skipped = false;
  for (std::int64_t batch = run.train.batch - 1; batch >= 1;) {
    smaller.run.train.batch = batch;
    smaller.run.train.micro_batch = run.train.quantum > 0 ? 0 : std::min(run.train.micro_batch, batch);
    smaller.run.train.quantum = std::min(run.train.quantum, batch);
    if (fits("batch", concat("with batch ", batch, skipped ? " (not every larger one was tried)" : ""), smaller)) break;
    const bool late = std::chrono::steady_clock::now() - start > kBatchSearch;
    const std::int64_t step = late ? std::max<std::int64_t>(1, batch / 16) : 1;
    skipped |= step > 1;
    batch -= step;
  }
  trying("micro-batches");
  // The same samples a step, fewer at once.
  const std::int64_t at_once = evaluation_batch(run.train);
  for (std::int64_t parts = 2; parts <= at_once; parts *= 2) {
    PlanSettings changed = failed;
    const std::int64_t micro = (at_once + parts - 1) / parts;
    std::int64_t pieces = 0;
    if (run.train.quantum > 0) {  // it alone decides
      changed.run.train.quantum = micro;
      if (run.accumulate == 1) changed.run.train.micro_batch = micro;
      if (run.accumulate == 1 || run.train.batch % micro == 0) {
        if (fits("micro_batches", concat("with a quantum of ", micro), changed)) break;
      }
      continue;
    }
    if (run.accumulate > 1) {
      changed.run.accumulate = pieces = run.accumulate * parts;
      changed.run.train.batch = micro;
    } else {
      changed.run.train.micro_batch = micro;
      pieces = static_cast<std::int64_t>(data::micro_batch_sizes(run.train.batch, micro).size());
    }
    if (fits("micro_batches", concat("with ", pieces, " micro-batches of ", micro), changed)) break;
  }
  if (info.advice.empty()) info.advice_note = "none: not even one sample a step fits, under no policy";
}

}  // namespace limpid::train
