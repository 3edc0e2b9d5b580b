// What a ledger proves: the rules, one after the other.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/data/sampler.h>
#include <limpid/train/ledger.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

constexpr double kWeightTolerance = 1e-6;

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", ratio);
  return text;
}

class Check {
 public:
  explicit Check(const Ledger& ledger) : ledger_(ledger) {}

  LedgerCheck run() {
    for (const LedgerStep& step : ledger_.steps) {
      numbering(step);
      composition(step);
      weights(step);
      schedule(step);
      notes(step);
      result_.samples += step.samples;
    }
    result_.steps = static_cast<std::int64_t>(ledger_.steps.size());
    for (const auto& [epoch, steps] : by_epoch()) samples(epoch, steps);
    return std::move(result_);
  }

 private:
  void violation(const char* rule, const LedgerStep& s, double expected, double found, std::string text) {
    result_.violations.push_back(
        {rule, s.step, s.epoch, expected, found, concat("step ", s.step, " (epoch ", s.epoch, "): ", text)});
  }

  void numbering(const LedgerStep& s) {
    if (s.step != next_step_) {
      violation("step", s, static_cast<double>(next_step_), static_cast<double>(s.step),
                concat("expected step ", next_step_, ": records are missing or repeated"));
    }
    next_step_ = s.step + 1;
  }

  // The parts are the whole.
  void composition(const LedgerStep& s) {
    std::int64_t in_parts = 0;
    for (const MicroBatchRecord& m : s.micro_batches) in_parts += m.samples;
    if (in_parts != s.samples) {
      violation("count", s, static_cast<double>(s.samples), static_cast<double>(in_parts),
                concat("the micro-batches have ", in_parts, " samples, the step ", s.samples));
    }
    const std::int64_t quantum = ledger_.plan.quantum.value_or(0);
    for (std::size_t i = 0; quantum > 0 && i < s.micro_batches.size(); i++) {
      const std::int64_t size = s.micro_batches[i].samples;
      if (size == quantum || (size < quantum && i + 1 == s.micro_batches.size())) continue;
      violation("count", s, static_cast<double>(quantum), static_cast<double>(size),
                concat("piece ", i, " has ", size, " samples, the quantum is ", quantum,
                       ": the bits are not those of the other cuts"));
    }
    if (!s.ids.empty() && static_cast<std::int64_t>(s.ids.size()) != s.samples) {
      violation("count", s, static_cast<double>(s.samples), static_cast<double>(s.ids.size()),
                concat(s.ids.size(), " ids are listed, the step has ", s.samples, " samples"));
    }
    if (!s.ids.empty() && hash_of(s.ids) != s.ids_hash) {
      violation("sample", s, 0, 0, "the listed ids do not have the recorded hash");
    }
  }

  void weights(const LedgerStep& s) {
    if (!s.applied) return;  // weighs nothing, and is noted
    const auto n = static_cast<double>(s.samples);
    for (std::size_t i = 0; i < s.micro_batches.size(); i++) {
      const MicroBatchRecord& m = s.micro_batches[i];
      // The end that is farther off; one that is no number is farther than any.
      const double least = m.weight_min * n, most = m.weight_max * n;
      const double worst = std::abs(most - 1) <= std::abs(least - 1) || std::isnan(least) ? least : most;
      const double error = std::abs(worst - 1);
      if (!(error <= result_.largest_weight_error)) result_.largest_weight_error = error;
      if (error <= kWeightTolerance) continue;
      violation(
          "weight", s, 1 / n, worst / n,
          concat("micro-batch ", i, ": a sample weighs ", ratio_text(worst / n), ", expected 1/", s.samples, " = ",
                 ratio_text(1 / n), ": ", ratio_text(worst), " times too ", worst > 1 ? "much" : "little"));
    }
  }

  void schedule(const LedgerStep& s) {
    if (s.schedule_position != applied_) {
      violation(
          "schedule", s, static_cast<double>(applied_), static_cast<double>(s.schedule_position),
          concat("the learning rate is that of step ", s.schedule_position, ", ", applied_, " steps were applied",
                 applied_ > 0
                     ? concat(": the schedule runs ",
                              ratio_text(static_cast<double>(s.schedule_position) / static_cast<double>(applied_)),
                              " times as fast")
                     : std::string()));
    }
    if (s.applied) applied_++;
  }

  void notes(const LedgerStep& s) {
    const std::string who = concat("step ", s.step);
    if (!s.applied) {
      result_.notes.push_back(concat(who, " was skipped: ", s.skipped.empty() ? "no reason given" : s.skipped, "; ",
                                     s.samples, " samples had no effect"));
    }
    for (const OomRetry& r : s.retries) {
      result_.notes.push_back(concat(who, " ran out of memory at ", r.where,
                                     " and was made again with micro-batches of ", r.next_micro_batch, " instead of ",
                                     r.micro_batch));
    }
  }

  std::map<std::int64_t, std::vector<const LedgerStep*>> by_epoch() const {
    std::map<std::int64_t, std::vector<const LedgerStep*>> epochs;
    for (const LedgerStep& s : ledger_.steps) epochs[s.epoch].push_back(&s);
    for (const LedgerEpoch& e : ledger_.epochs) epochs[e.epoch];
    return epochs;
  }

  const LedgerEpoch* end_of(std::int64_t epoch) const {
    for (const LedgerEpoch& e : ledger_.epochs)
      if (e.epoch == epoch) return &e;
    return nullptr;
  }

  // Every sample once an epoch: by the listed ids, else by the hashes of the planned order.
  void samples(std::int64_t epoch, const std::vector<const LedgerStep*>& steps) {
    const LedgerEpoch* end = end_of(epoch);
    result_.whole_epochs += end != nullptr;
    const bool listed = std::all_of(steps.begin(), steps.end(), [](const LedgerStep* s) { return !s->ids.empty(); });
    if (ledger_.plan.shuffled) planned_order(epoch, steps, end);
    if (listed) every_sample_once(epoch, steps, end);
    if (end && !end->dropped.empty()) {
      result_.notes.push_back(concat("epoch ", epoch, ": drop_last left out ", end->dropped.size(), " samples"));
    }
    if (!end) result_.notes.push_back(concat("epoch ", epoch, " was not finished: ", steps.size(), " steps"));
  }

  void planned_order(std::int64_t epoch, const std::vector<const LedgerStep*>& steps, const LedgerEpoch* end) {
    const LedgerPlan& p = ledger_.plan;
    const data::BatchPlan plan(data::RandomSampler(p.samples, p.seed).order(epoch), p.effective_batch, p.drop_last);
    const auto count = static_cast<std::int64_t>(steps.size());
    if (count > plan.size() || (end && count != plan.size())) {
      result_.violations.push_back({"sample", -1, epoch, static_cast<double>(plan.size()), static_cast<double>(count),
                                    concat("epoch ", epoch, " has ", count, " steps, planned were ", plan.size())});
    }
    for (std::int64_t i = 0; i < std::min(count, plan.size()); i++) {
      const LedgerStep& s = *steps[static_cast<std::size_t>(i)];
      const auto ids = plan.indices(i);
      if (s.ids_hash != hash_of(ids)) {
        violation("order", s, static_cast<double>(ids.size()), static_cast<double>(s.samples),
                  concat("its ", s.samples, " samples are not the ", ids.size(), " that the plan has here"));
      }
    }
    if (end && end->dropped != plan.dropped()) {
      result_.violations.push_back({"sample", -1, epoch, static_cast<double>(plan.dropped().size()),
                                    static_cast<double>(end->dropped.size()),
                                    concat("epoch ", epoch, " dropped ", end->dropped.size(), " samples, planned were ",
                                           plan.dropped().size(), " (or others)")});
    }
  }

  void every_sample_once(std::int64_t epoch, const std::vector<const LedgerStep*>& steps, const LedgerEpoch* end) {
    std::map<std::int64_t, std::int64_t> times;
    for (const LedgerStep* s : steps)
      for (std::int64_t id : s->ids) times[id]++;
    std::int64_t repeated = 0, first_repeated = -1;
    for (const auto& [id, n] : times) {
      if (n == 1) continue;
      if (repeated++ == 0) first_repeated = id;
    }
    if (repeated > 0) {
      result_.violations.push_back({"sample", -1, epoch, 0, static_cast<double>(repeated),
                                    concat("epoch ", epoch, ": ", repeated, " samples were used more than once, first ",
                                           first_repeated, " (", times[first_repeated], " times)")});
    }
    if (!end) return;
    const auto seen = static_cast<std::int64_t>(times.size());
    const auto dropped = static_cast<std::int64_t>(end->dropped.size());
    if (seen + dropped != ledger_.plan.samples) {
      result_.violations.push_back(
          {"sample", -1, epoch, static_cast<double>(ledger_.plan.samples - dropped), static_cast<double>(seen),
           concat("epoch ", epoch, ": ", seen, " of ", ledger_.plan.samples, " samples were used and ", dropped,
                  " dropped by plan: ", ledger_.plan.samples - dropped - seen, " are missing")});
    }
  }

  const Ledger& ledger_;
  LedgerCheck result_;
  std::int64_t next_step_ = 0, applied_ = 0;
};

}  // namespace

LedgerCheck check_ledger(const Ledger& ledger) { return Check(ledger).run(); }

std::string to_string(const LedgerCheck& c) {
  constexpr std::size_t kMost = 20;
  std::string out;
  auto list = [&](const char* title, const auto& items, auto&& text) {
    if (items.empty()) return;
    out += concat(title, "\n");
    for (std::size_t i = 0; i < std::min(items.size(), kMost); i++) out += concat("  ", text(items[i]), "\n");
    if (items.size() > kMost) out += concat("  and ", items.size() - kMost, " more\n");
  };
  out += concat(c.steps, " steps, ", format_count(c.samples), " samples, ", c.whole_epochs,
                " whole epochs; largest |weight N - 1| ", ratio_text(c.largest_weight_error), "\n");
  list("violations", c.violations, [](const Violation& v) { return v.text; });
  list("notes", c.notes, [](const std::string& text) { return text; });
  out += c.violations.empty() ? "ok: every sample was used once an epoch, with the weight 1/N\n"
                              : concat("not ok: ", c.violations.size(), " violations\n");
  return out;
}

std::string to_json(const LedgerCheck& c) {
  detail::Json json;
  json["ok"] = c.violations.empty();
  json["steps"] = c.steps;
  json["samples"] = c.samples;
  json["whole_epochs"] = c.whole_epochs;
  json["largest_weight_error"] = detail::number(c.largest_weight_error);
  json["violations"] = detail::Json::array();
  for (const Violation& v : c.violations) {
    json["violations"].push_back({{"rule", v.rule},
                                  {"step", v.step},
                                  {"epoch", v.epoch},
                                  {"expected", detail::number(v.expected)},
                                  {"found", detail::number(v.found)},
                                  {"text", v.text}});
  }
  json["notes"] = c.notes;
  return json.dump();
}

// ---- LedgerRecorder

void LedgerRecorder::samples(const std::vector<std::int64_t>& ids) {
  collect();
  pending_ = ids;
}

void LedgerRecorder::collect() {
  if (!pending_.empty()) {
    MicroBatchRecord m;
    m.samples = static_cast<std::int64_t>(pending_.size());
    if (const std::vector<double>& rows = weights_.rows(); !rows.empty()) {
      const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
      m.weight_min = *least;
      m.weight_max = *most;
    }
    open_.micro_batches.push_back(m);
    open_.samples += m.samples;
    open_.ids.insert(open_.ids.end(), pending_.begin(), pending_.end());
  }
  pending_.clear();
  weights_.clear();
}

void LedgerRecorder::step(double lr, std::int64_t schedule_position) {
  collect();
  open_.step = static_cast<std::int64_t>(ledger_.steps.size());
  open_.epoch = epoch_;
  open_.ids_hash = hash_of(open_.ids);
  open_.count = static_cast<double>(open_.samples);
  open_.lr = lr;
  open_.schedule_position = schedule_position;
  ledger_.steps.push_back(open_);  // and stays open: without a zero_grad() its gradients are in the next step too
}

void LedgerRecorder::zero_grad() {
  collect();
  open_ = LedgerStep{};
}

void LedgerRecorder::end_epoch() {
  ledger_.epochs.push_back({.epoch = epoch_, .steps = static_cast<std::int64_t>(ledger_.steps.size()), .dropped = {}});
  epoch_++;
}

}  // namespace limpid::train
