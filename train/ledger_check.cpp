// What a ledger proves: the rules, one after the other.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <span>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/data/sampler.h>
#include <limpid/train/ledger.h>
#include <limpid/train/run_folder.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

constexpr double kWeightTolerance = 1e-6;

std::string ratio_text(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", ratio);
  return text;
}

// The highest rate that a policy's text (ScalingPolicy::describe()) allows: no schedule goes above it. Nothing for a
// text of another kind, as a loop of one's own may write.
std::optional<double> highest_rate(const LedgerPlan& plan) {
  char rule[16] = {};
  double rate = 0;
  long long batch = 0;
  if (std::sscanf(plan.lr_policy.c_str(), "none, lr %lf", &rate) == 1) return rate;
  if (std::sscanf(plan.lr_policy.c_str(), "%15s from %lf at batch %lld", rule, &rate, &batch) != 3) return std::nullopt;
  try {
    return ScalingPolicy{parse_scaling_rule(rule), rate, batch, 0}.lr(plan.effective_batch);
  } catch (const ArgumentError&) {
    return std::nullopt;
  }
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

class Check {
 public:
  Check(const Ledger& ledger, const LedgerWitness* witness)
      : ledger_(ledger), witness_(witness), highest_rate_(highest_rate(ledger.plan)) {}

  LedgerCheck run() {
    result_.steps = static_cast<std::int64_t>(ledger_.steps.size());
    applied_at_all();
    for (const LedgerStep& step : ledger_.steps) {
      numbering(step);
      composition(step);
      weights(step);
      rates(step);
      schedule(step);
      notes(step);
      result_.samples = saturating_add(result_.samples, step.samples);
    }
    const std::map<std::int64_t, Epoch> epochs = by_epoch();
    epoch_records(epochs);
    for (const auto& [number, epoch] : epochs) samples(number, epoch, number == epochs.rbegin()->first);
    if (witness_) others_say();
    return std::move(result_);
  }

 private:
  struct Epoch {
    std::vector<const LedgerStep*> steps;
    const LedgerEpoch* end = nullptr;
  };

  void violation(const char* rule, const LedgerStep& s, double expected, double found, std::string text) {
    result_.violations.push_back(
        {rule, s.step, s.epoch, expected, found, concat("step ", s.step, " (epoch ", s.epoch, "): ", text)});
  }

  // What no run writes: the file was cut or changed.
  void damage(const LedgerStep& s, double expected, double found, std::string text) {
    violation("record", s, expected, found, std::move(text));
    result_.damaged = true;
  }
  void damage(std::int64_t epoch, double expected, double found, std::string text) {
    result_.violations.push_back({"record", -1, epoch, expected, found, std::move(text)});
    result_.damaged = true;
  }
  void damage(std::int64_t epoch, std::int64_t expected, std::int64_t found, std::string text) {
    damage(epoch, static_cast<double>(expected), static_cast<double>(found), std::move(text));
  }

  // A ledger in which nothing was trained proves nothing.
  void applied_at_all() {
    const std::int64_t steps = result_.steps;
    if (steps == 0) {
      damage(0, std::int64_t{1}, std::int64_t{0}, "the ledger has a plan and 0 steps: there is nothing to check");
      return;
    }
    std::int64_t without_effect = 0;
    for (const LedgerStep& s : ledger_.steps) {
      if (s.applied) continue;
      result_.skipped++;
      without_effect = saturating_add(without_effect, s.samples);
    }
    if (result_.skipped == steps) {
      damage(0, std::int64_t{1}, std::int64_t{0},
             concat("all ", steps, " steps were skipped: ", without_effect,
                    " samples had no effect, nothing was trained"));
    } else if (result_.skipped > steps / 2) {
      result_.notes.push_back(concat("warning: ", result_.skipped, " of ", steps,
                                     " steps were skipped: ", without_effect, " samples had no effect"));
    }
  }

  void numbering(const LedgerStep& s) {
    if (s.step != next_step_) {
      result_.damaged = true;
      violation("step", s, static_cast<double>(next_step_), static_cast<double>(s.step),
                concat("expected step ", next_step_, ": records are missing or repeated"));
    }
    next_step_ = saturating_add(s.step, 1);
  }

  // The parts are the whole.
  void composition(const LedgerStep& s) {
    std::int64_t in_parts = 0;
    for (std::size_t i = 0; i < s.micro_batches.size(); i++) {
      const std::int64_t size = s.micro_batches[i].samples;
      in_parts = saturating_add(in_parts, size);
      if (size < 1)
        damage(s, 1, static_cast<double>(size),
               concat("micro-batch ", i, " has ", size, " samples, expected 1 or more"));
    }
    if (in_parts != s.samples) {
      result_.damaged = true;
      violation("count", s, static_cast<double>(s.samples), static_cast<double>(in_parts),
                concat("the micro-batches have ", in_parts, " samples, the step ", s.samples));
    }
    if (s.count != static_cast<double>(s.samples)) {
      damage(s, static_cast<double>(s.samples), s.count,
             concat("the sum of gradients was divided by ", s.count, ", the step has ", s.samples, " samples"));
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

  void rates(const LedgerStep& s) {
    if (!std::isfinite(s.lr) || s.lr < 0) {
      damage(s, 0, s.lr, concat("the learning rate is ", s.lr, ", expected a finite number >= 0"));
    } else if (highest_rate_ && s.lr > *highest_rate_ * (1 + 1e-9)) {
      damage(s, *highest_rate_, s.lr, concat("the learning rate is ", s.lr, ", the plan has at most ", *highest_rate_));
    }
    // A norm that is no finite number makes a coefficient that is none: the run has diverged, and its record is right.
    const bool diverged = s.grad_norm && !std::isfinite(*s.grad_norm);
    if (diverged) {
      result_.notes.push_back(concat("step ", s.step, ": the norm of the gradients is ", *s.grad_norm));
    } else if (!(s.clip_coefficient >= 0 && s.clip_coefficient <= 1)) {
      damage(s, 1, s.clip_coefficient,
             concat("the gradients were clipped by ", s.clip_coefficient, ", expected 0 to 1"));
    } else if (!s.grad_norm && s.clip_coefficient != 1) {
      damage(
          s, 1, s.clip_coefficient,
          concat("the gradients were clipped by ", s.clip_coefficient, ", and their norm is not recorded: expected 1"));
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
      result_.notes.push_back(concat(who,
                                     " was skipped: ", s.skipped.empty() ? "no reason given" : printable(s.skipped),
                                     "; ", s.samples, " samples had no effect"));
    }
    for (const OomRetry& r : s.retries) {
      result_.notes.push_back(concat(who, " ran out of memory at ", printable(r.where),
                                     " and was made again with micro-batches of ", r.next_micro_batch, " instead of ",
                                     r.micro_batch));
    }
  }

  std::map<std::int64_t, Epoch> by_epoch() const {
    std::map<std::int64_t, Epoch> epochs;
    for (const LedgerStep& s : ledger_.steps) epochs[s.epoch].steps.push_back(&s);
    for (const LedgerEpoch& e : ledger_.epochs) epochs[e.epoch].end = &e;
    return epochs;
  }

  // One record at the end of each epoch, in order; only the last epoch may be without one.
  void epoch_records(const std::map<std::int64_t, Epoch>& epochs) {
    std::map<std::int64_t, std::int64_t> times;
    for (const LedgerEpoch& e : ledger_.epochs) times[e.epoch]++;
    for (const auto& [number, n] : times) {
      if (n > 1)
        damage(number, std::int64_t{1}, n, concat("epoch ", number, " has ", n, " records of its end, expected 1"));
    }
    std::int64_t expected = 0, steps = 0;
    for (const auto& [number, epoch] : epochs) {
      if (number != expected) {
        damage(number, expected, number,
               concat("epoch ", number, " stands where epoch ", expected, " belongs: records are missing"));
      }
      expected = saturating_add(number, 1);
      steps += static_cast<std::int64_t>(epoch.steps.size());
      if (!epoch.end && number != epochs.rbegin()->first) {
        damage(number, std::int64_t{1}, std::int64_t{0},
               concat("epoch ", number, " has no record of its end, and epoch ", epochs.upper_bound(number)->first,
                      " follows"));
      }
      if (epoch.end && epoch.end->steps != steps) {
        damage(number, steps, epoch.end->steps,
               concat("epoch ", number, " ended after ", epoch.end->steps, " steps by its record, the ledger has ",
                      steps, " up to there"));
      }
    }
  }

  // Steps that the plan makes of an epoch.
  std::int64_t planned_steps() const {
    const LedgerPlan& p = ledger_.plan;
    return p.samples / p.effective_batch + (!p.drop_last && p.samples % p.effective_batch != 0);
  }

  // What the other files of the run folder know of it.
  void others_say() {
    const LedgerWitness& w = *witness_;
    if (w.ledger_bytes < w.checkpoint_bytes) {
      damage(0, static_cast<double>(w.checkpoint_bytes), static_cast<double>(w.ledger_bytes),
             concat("the ledger has ", w.ledger_bytes, " bytes and ", result_.steps, " steps; the checkpoint of step ",
                    w.checkpoint_step, " was written when it had ", w.checkpoint_bytes, " bytes: its end is missing"));
    }
    if (result_.steps < w.logged_steps) {
      damage(0, w.logged_steps, result_.steps,
             concat("the ledger has ", result_.steps, " steps, steps.jsonl beside it ", w.logged_steps,
                    ": its end is missing"));
    }
    std::int64_t planned = 0;
    if (!ledger_.plan.shuffled || __builtin_mul_overflow(planned_steps(), w.epochs, &planned)) return;
    if (result_.steps > planned) {
      damage(0, planned, result_.steps,
             concat("the ledger has ", result_.steps, " steps, run.json plans ", planned, " (", w.epochs, " epochs of ",
                    planned_steps(), ")"));
    } else if (result_.steps < planned || static_cast<std::int64_t>(ledger_.epochs.size()) < w.epochs) {
      result_.notes.push_back(concat("the run did not finish: ", result_.steps, " of ", planned, " steps, ",
                                     ledger_.epochs.size(), " of ", w.epochs, " epochs"));
    }
  }

  // Every sample once an epoch: by the listed ids, else by the hashes of the planned order.
  void samples(std::int64_t epoch, const Epoch& records, bool last) {
    const auto& [steps, end] = records;
    result_.whole_epochs += end != nullptr;
    const bool listed = std::all_of(steps.begin(), steps.end(), [](const LedgerStep* s) { return !s->ids.empty(); });
    if (ledger_.plan.shuffled && (end || last)) planned_order(epoch, steps, end);
    if (listed) every_sample_once(epoch, steps, end);
    if (end && !end->dropped.empty()) {
      result_.notes.push_back(concat("epoch ", epoch, ": drop_last left out ", end->dropped.size(), " samples"));
    }
    if (!end) result_.notes.push_back(concat("epoch ", epoch, " was not finished: ", steps.size(), " steps"));
  }

  void planned_order(std::int64_t epoch, const std::vector<const LedgerStep*>& steps, const LedgerEpoch* end) {
    const LedgerPlan& p = ledger_.plan;
    const auto count = static_cast<std::int64_t>(steps.size());
    auto wrong = [&](std::int64_t expected, std::int64_t found, std::string text) {
      result_.violations.push_back(
          {"sample", -1, epoch, static_cast<double>(expected), static_cast<double>(found), std::move(text)});
    };
    if (count > planned_steps() || (end && count != planned_steps())) {
      wrong(planned_steps(), count, concat("epoch ", epoch, " has ", count, " steps, planned were ", planned_steps()));
    }
    std::int64_t in_steps = 0;
    for (const LedgerStep* s : steps) in_steps = saturating_add(in_steps, s->samples);
    const auto dropped = end ? static_cast<std::int64_t>(end->dropped.size()) : 0;
    const std::int64_t in_all = saturating_add(in_steps, dropped);
    if (in_all > p.samples || (end && in_all != p.samples)) {
      wrong(p.samples, in_all,
            concat("epoch ", epoch, " has ", in_steps, " samples in its steps and ", dropped, " dropped, planned were ",
                   p.samples));
    }
    if (count == 0) return;  // no order to be compared
    const std::vector<std::int64_t> order = data::RandomSampler(p.samples, p.seed).order(epoch);
    const std::span<const std::int64_t> all(order);
    for (std::int64_t i = 0; i < std::min(count, planned_steps()); i++) {
      const LedgerStep& s = *steps[static_cast<std::size_t>(i)];
      const std::int64_t first = i * p.effective_batch;
      const auto ids = all.subspan(static_cast<std::size_t>(first),
                                   static_cast<std::size_t>(std::min(p.effective_batch, p.samples - first)));
      if (s.ids_hash != hash_of(ids)) {
        violation("order", s, static_cast<double>(ids.size()), static_cast<double>(s.samples),
                  concat("its ", s.samples, " samples are not the ", ids.size(), " that the plan has here"));
      }
    }
    if (!end) return;
    const std::int64_t left = p.drop_last ? p.samples % p.effective_batch : 0;
    const auto left_out = all.last(static_cast<std::size_t>(left));
    if (!std::equal(left_out.begin(), left_out.end(), end->dropped.begin(), end->dropped.end())) {
      wrong(left, dropped,
            concat("epoch ", epoch, " dropped ", dropped, " samples, planned were ", left, " (or others)"));
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
  const LedgerWitness* witness_;
  std::optional<double> highest_rate_;
  LedgerCheck result_;
  std::int64_t next_step_ = 0, applied_ = 0;
};

}  // namespace

LedgerCheck check_ledger(const Ledger& ledger, const LedgerWitness* witness) { return Check(ledger, witness).run(); }

LedgerCheck check_run_ledger(const std::string& folder) {
  // Before the ledger, which is written first: what they tell of is in it by then.
  LedgerWitness witness;
  witness.epochs = RunFolder::settings_of(folder).epochs;
  const std::string last = folder + "/ckpt/last", steps = folder + "/steps.jsonl", ledger = folder + "/ledger.jsonl";
  std::error_code ignored;
  if (std::filesystem::exists(last, ignored)) {
    detail::with_file(last, [&] {
      const detail::Json json = detail::parse_object_file(last, std::uint64_t{1} << 20);
      witness.checkpoint_step = detail::read<std::int64_t>(json, "step");
      witness.checkpoint_bytes = detail::read<std::uint64_t>(detail::entry(json, "log_offsets"), "ledger.jsonl");
    });
  }
  if (std::filesystem::exists(steps, ignored)) {
    const std::string text = detail::read_text(steps);
    witness.logged_steps = std::count(text.begin(), text.end(), '\n');
  }
  return detail::with_file(ledger, [&] {
    const std::string text = detail::read_text(ledger);
    witness.ledger_bytes = text.size();
    return check_ledger(parse_ledger(text), &witness);
  });
}

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
  if (!c.violations.empty()) return out + concat("not ok: ", c.violations.size(), " violations\n");
  out += "ok: every sample was used once an epoch, with the weight 1/N";
  if (c.skipped > 0) out += concat("; ", c.skipped, " of ", c.steps, " steps were skipped");
  out += "\n";
  return out;
}

std::string to_json(const LedgerCheck& c) {
  detail::Json json;
  json["ok"] = c.violations.empty();
  json["damaged"] = c.damaged;
  json["steps"] = c.steps;
  json["skipped"] = c.skipped;
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
