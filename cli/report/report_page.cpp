#include "report_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/data/sampler.h>
#include <limpid/train/batch_plan.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/version.h>

#include "report_assets.h"
#include "view/assets.h"
#include "view/page_text.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;
using train::LedgerStep;
using train::RunLog;

// More points than a screen has columns show nothing more.
constexpr std::size_t kMostPoints = 1000;
constexpr std::size_t kMostBatches = 2000;      // of the picture, evenly spaced
constexpr std::size_t kMostMarked = 1000;       // and besides them, steps with something to say
constexpr std::size_t kMostIds = 200'000;       // sample ids in the page
constexpr std::size_t kMostSentences = 100;     // of violations and notes

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(); }

// `count` points in groups of `size`, one after the other; the last may be shorter.
struct Groups {
  explicit Groups(std::size_t points) : count(points), size(std::max<std::size_t>((points + kMostPoints - 1) / kMostPoints, 1)) {}
  template <class OneGroup>
  void each(OneGroup&& one) const {
    for (std::size_t begin = 0; begin < count; begin += size) one(begin, std::min(begin + size, count));
  }
  std::size_t count, size;
};

// Of the finite values in a group; null when there is none.
struct Summary {
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = n == 0 ? value : std::min(low, value);
    high = n == 0 ? value : std::max(high, value);
    sum += value;
    n++;
  }
  Json mean() const { return n > 0 ? Json(sum / static_cast<double>(n)) : Json(); }
  Json smallest() const { return n > 0 ? Json(low) : Json(); }
  Json largest() const { return n > 0 ? Json(high) : Json(); }
  double low = 0, high = 0, sum = 0;
  std::int64_t n = 0;
};

// Mean, smallest and largest value of each group of steps.
template <class Get>
Json band(const std::vector<train::StepRecord>& steps, const Groups& groups, Get get) {
  Json json = {{"mean", Json::array()}, {"low", Json::array()}, {"high", Json::array()}};
  groups.each([&](std::size_t begin, std::size_t end) {
    Summary s;
    for (std::size_t i = begin; i < end; i++) s.add(get(steps[i]));
    json["mean"].push_back(s.mean());
    json["low"].push_back(s.smallest());
    json["high"].push_back(s.largest());
  });
  return json;
}

Json steps_json(const std::vector<train::StepRecord>& steps) {
  const Groups groups(steps.size());
  Json json = {{"count", steps.size()}, {"group", groups.size}, {"first", Json::array()}, {"last", Json::array()}};
  groups.each([&](std::size_t begin, std::size_t end) {
    json["first"].push_back(begin);
    json["last"].push_back(end - 1);
  });
  json["loss"] = band(steps, groups, [](const auto& s) { return s.loss; });
  json["accuracy"] = band(steps, groups, [](const auto& s) { return s.accuracy; });
  json["lr"] = band(steps, groups, [](const auto& s) { return s.lr; });
  json["scale"] = band(steps, groups, [](const auto& s) { return s.scale; });
  return json;
}

Json epochs_json(const std::vector<train::LedgerEpoch>& epochs) {
  Json json = Json::array();
  for (const train::LedgerEpoch& e : epochs) {
    json.push_back({{"epoch", e.epoch},
                    {"step", e.steps - 1},
                    {"train_loss", number(e.train_loss)},
                    {"train_accuracy", number(e.train_accuracy)},
                    {"validation_loss", number(e.validation_loss)},
                    {"validation_accuracy", number(e.validation_accuracy)}});
  }
  return json;
}

// Times of a group are sums, so that shares and rates are those of the whole group; bytes are the largest of the group.
Json monitor_json(const std::vector<train::MonitorRecord>& records) {
  const Groups groups(records.size());
  Json json = {{"count", records.size()}, {"group", groups.size}};
  for (const char* key : {"step", "samples_per_second", "data_wait", "compute", "rest", "busy", "allocated", "reserved",
                          "peak_allocated", "rounding"}) {
    json[key] = Json::array();
  }
  std::array<Json, memory::kRoleCount> roles;
  groups.each([&](std::size_t begin, std::size_t end) {
    train::MonitorTotals t;
    train::MonitorMemory most;
    for (std::size_t i = begin; i < end; i++) {
      const train::MonitorMemory& m = records[i].memory;
      t.add(records[i]);
      most.allocated = std::max(most.allocated, m.allocated);
      most.reserved = std::max(most.reserved, m.reserved);
      most.rounding = std::max(most.rounding, m.rounding);
      most.peak_allocated = std::max(most.peak_allocated, m.peak_allocated);
      for (std::size_t r = 0; r < roles.size(); r++) most.roles[r] = std::max(most.roles[r], m.roles[r]);
    }
    auto share = [&](double part, double whole) { return whole > 0 ? part / whole : 0; };
    json["step"].push_back(records[end - 1].step);
    json["samples_per_second"].push_back(share(static_cast<double>(t.samples), t.seconds));
    json["data_wait"].push_back(share(t.data_wait, t.seconds));
    json["compute"].push_back(share(t.compute, t.seconds));
    json["rest"].push_back(share(t.rest, t.seconds));
    json["busy"].push_back(share(t.cpu_seconds, t.thread_seconds));
    json["allocated"].push_back(most.allocated);
    json["reserved"].push_back(most.reserved);
    json["peak_allocated"].push_back(most.peak_allocated);
    json["rounding"].push_back(most.rounding);
    for (std::size_t r = 0; r < roles.size(); r++) roles[r].push_back(most.roles[r]);
  });
  json["roles"] = Json::object();
  json["peak_roles"] = Json::object();
  // The highest use of all processes of the run: after a resume the count began anew.
  const train::MonitorMemory* peak = nullptr;
  for (const train::MonitorRecord& r : records) {
    if (!peak || r.memory.peak_allocated > peak->peak_allocated) peak = &r.memory;
  }
  for (std::size_t r = 0; r < roles.size(); r++) {
    const char* name = memory::to_string(static_cast<memory::Role>(r));
    json["roles"][name] = roles[r].is_null() ? Json::array() : roles[r];
    json["peak_roles"][name] = peak ? peak->peak_roles[r] : 0;
  }
  json["peak"] = peak ? peak->peak_allocated : 0;
  return json;
}

std::string retry_text(const train::OomRetry& r) {
  return concat("ran out of memory at ", r.where, " (", format_bytes(r.requested), ") with micro-batches of ", r.micro_batch,
                "; taken back and made again with ", r.next_micro_batch);
}

// What is worth a mark, in sentences, by step.
std::map<std::int64_t, std::vector<std::string>> marks_of(const RunLog& log, const train::LedgerCheck& check) {
  std::map<std::int64_t, std::vector<std::string>> marks;
  for (const train::Violation& v : check.violations) {
    if (v.step >= 0) marks[v.step].push_back(concat(v.rule, ": ", v.text));
  }
  for (const LedgerStep& s : log.ledger.steps) {
    for (const train::OomRetry& r : s.retries) marks[s.step].push_back(retry_text(r));
    if (!s.applied) marks[s.step].push_back(concat("skipped: ", s.skipped));
  }
  return marks;
}

// The samples of the steps: listed in the ledger, or those that the seed gives, where their hash is the recorded one. Steps
// are asked for in their order.
class SampleIds {
 public:
  explicit SampleIds(const train::Ledger& ledger) : ledger_(ledger) {}

  // Empty when nobody knows them.
  std::span<const std::int64_t> of(const LedgerStep& s) {
    if (s.epoch != epoch_) {
      epoch_ = s.epoch;
      first_ = s.step;
      const train::LedgerPlan& p = ledger_.plan;
      plan_ = p.shuffled ? data::BatchPlan(data::RandomSampler(p.samples, p.seed).order(epoch_), p.effective_batch, p.drop_last)
                         : data::BatchPlan();
    }
    if (!s.ids.empty()) return s.ids;
    const std::int64_t at = s.step - first_;
    if (at < 0 || at >= plan_.size()) return {};
    const std::span<const std::int64_t> ids = plan_.indices(at);
    return train::hash_of(ids) == s.ids_hash ? ids : std::span<const std::int64_t>();
  }

 private:
  const train::Ledger& ledger_;
  std::int64_t epoch_ = -1, first_ = 0;
  data::BatchPlan plan_;  // of epoch_
};

// Weights are told as multiples of 1/N.
Json batch_json(const LedgerStep& s, std::span<const std::int64_t> ids, const std::vector<std::string>* marks,
                std::size_t& ids_left) {
  const auto n = static_cast<double>(s.samples);
  Json json = {{"step", s.step}, {"epoch", s.epoch}, {"samples", s.samples}, {"count", number(s.count)},
               {"lr", number(s.lr)}, {"scale", number(s.scale)}, {"applied", s.applied},
               {"clip", number(s.clip_coefficient)}, {"norm", number(s.grad_norm)}};
  json["parts"] = Json::array();
  for (const train::MicroBatchRecord& m : s.micro_batches) {
    json["parts"].push_back({m.samples, number(m.weight_min * n), number(m.weight_max * n),
                             number(m.loss_sum / static_cast<double>(std::max<std::int64_t>(m.samples, 1)))});
  }
  if (!ids.empty()) {
    const bool fits = ids.size() <= ids_left;
    if (fits) ids_left -= ids.size();
    json["ids"] = fits ? Json(std::vector<std::int64_t>(ids.begin(), ids.end())) : Json();
    json["listed"] = !s.ids.empty();
  }
  if (marks) json["marks"] = *marks;
  return json;
}

Json batches_json(const RunLog& log, const train::LedgerCheck& check) {
  const std::vector<LedgerStep>& steps = log.ledger.steps;
  const auto marks = marks_of(log, check);
  const std::size_t every = std::max<std::size_t>((steps.size() + kMostBatches - 1) / kMostBatches, 1);
  std::size_t marked = 0, left_out = 0, ids_left = kMostIds;
  SampleIds samples(log.ledger);
  Json list = Json::array();
  for (std::size_t i = 0; i < steps.size(); i++) {
    const std::span<const std::int64_t> ids = samples.of(steps[i]);
    const auto found = marks.find(steps[i].step);
    const bool has_mark = found != marks.end();
    if (i % every != 0 && (!has_mark || marked == kMostMarked)) {
      left_out += has_mark;
      continue;
    }
    marked += has_mark && i % every != 0;
    list.push_back(batch_json(steps[i], ids, has_mark ? &found->second : nullptr, ids_left));
  }
  return {{"total", steps.size()}, {"every", every}, {"marked_left_out", left_out}, {"list", std::move(list)}};
}

// As the loader cuts an epoch.
train::EpochPlan epoch_plan(const train::Ledger& ledger) {
  const train::LedgerPlan& p = ledger.plan;
  train::EpochPlan plan;
  plan.samples = p.samples;
  plan.effective_batch = p.effective_batch;
  const std::int64_t full = p.samples / p.effective_batch, tail = p.samples % p.effective_batch;
  const std::int64_t quantum = std::max<std::int64_t>(p.quantum.value_or(0), 1);
  if (full > 0) plan.micro_batches = data::micro_batch_sizes(p.effective_batch, p.micro_batch, quantum);
  if (tail > 0 && !p.drop_last) {
    plan.tail = tail;
    plan.tail_micro_batches = data::micro_batch_sizes(tail, p.micro_batch, quantum);
  }
  plan.steps = full + (plan.tail > 0);
  if (p.drop_last) plan.dropped.resize(static_cast<std::size_t>(tail));
  return plan;
}

std::vector<std::string> warnings_of(const RunLog& log, const train::EpochPlan& plan, const train::LedgerCheck& check) {
  std::vector<std::string> out;
  if (!check.violations.empty()) {
    out.push_back(concat("the ledger's check found ", check.violations.size(), " violations: see below"));
  }
  std::int64_t not_finite = 0, smallest = INT64_MAX;
  for (const train::StepRecord& s : log.steps) not_finite += !std::isfinite(s.loss);
  if (not_finite > 0) out.push_back(concat(not_finite, " steps have a loss that is no finite number: the training has diverged"));
  for (const LedgerStep& s : log.ledger.steps) {
    if (s.bn_updates == 0) continue;
    for (const train::MicroBatchRecord& m : s.micro_batches) smallest = std::min(smallest, m.samples);
  }
  if (smallest < train::kSmallBatchNorm) {
    out.push_back(concat("batch norm had micro-batches of ", smallest, " samples, fewer than ", train::kSmallBatchNorm,
                         ": its statistics are noisy"));
  }
  if (std::string text = train::batch_warning(plan); !text.empty()) out.push_back(std::move(text));
  const std::vector<std::string> rates = train::rate_warnings(log.settings);
  out.insert(out.end(), rates.begin(), rates.end());
  return out;
}

// What is to be known besides, in sentences.
std::vector<std::string> notes_of(const RunLog& log, const train::EpochPlan& plan, const train::LedgerCheck& check) {
  std::vector<std::string> out = log.notes;
  const auto made = static_cast<std::int64_t>(log.steps.size());
  if (const std::int64_t planned = plan.steps * log.settings.epochs; made < planned) {
    out.push_back(concat("the run has made ", made, " of ", planned, " steps; limpid train --resume goes on with it"));
  }
  if (!log.monitor.empty() && !log.monitor.back().host_to_device) {
    out.push_back("on the CPU a step has no copies to a device, no gaps between launches and nothing to wait for but its data");
  }
  out.insert(out.end(), check.notes.begin(), check.notes.end());
  return out;
}

template <class Items, class Text>
Json sentences(const Items& items, Text text) {
  Json json = Json::array();
  for (std::size_t i = 0; i < std::min(items.size(), kMostSentences); i++) json.push_back(text(items[i]));
  if (items.size() > kMostSentences) json.push_back(concat("and ", items.size() - kMostSentences, " more"));
  return json;
}

Json check_json(const train::LedgerCheck& check) {
  return {{"ok", check.violations.empty()},
          {"largest_weight_error", check.largest_weight_error},
          {"steps", check.steps},
          {"samples", check.samples},
          {"whole_epochs", check.whole_epochs},
          {"violations", sentences(check.violations, [](const train::Violation& v) { return concat(v.rule, ": ", v.text); })}};
}

}  // namespace

std::string report_page(const std::string& title, const RunLog& log) {
  const train::LedgerCheck check = train::check_ledger(log.ledger);
  train::MonitorTotals totals;
  for (const train::MonitorRecord& r : log.monitor) totals.add(r);
  const std::int64_t threads = log.monitor.empty() ? 1 : log.monitor.back().threads;
  const train::EpochPlan plan = epoch_plan(log.ledger);
  const std::optional<train::Diagnosis> diagnosis = train::diagnose(totals, log.settings.workers, threads);

  Json json;
  json["version"] = LIMPID_VERSION;
  json["title"] = title;
  json["run"] = Json::parse(log.run_json);
  json["diagnosis"] = diagnosis ? Json::parse(train::to_json(*diagnosis)) : Json();
  json["check"] = check_json(check);
  json["warnings"] = warnings_of(log, plan, check);
  json["notes"] = sentences(notes_of(log, plan, check), [](const std::string& note) { return note; });
  json["plan"] = Json::parse(train::to_json(plan));
  json["plan"]["text"] = train::to_string(plan);
  json["steps"] = steps_json(log.steps);
  json["epochs"] = epochs_json(log.ledger.epochs);
  json["monitor"] = monitor_json(log.monitor);
  json["batches"] = batches_json(log, check);

  const std::string data = dump_for_script(json), plain_title = escape_html(title), window = plain_title + ": run report";
  return fill_template(report_assets::kTemplate, {{"window", window},
                                                  {"title", plain_title},
                                                  {"style", report_assets::kStyle},
                                                  {"licence", assets::kChartLicence},
                                                  {"chart", assets::kChartJs},
                                                  {"script", report_assets::kScript},
                                                  {"data", data}});
}

void write_report(const std::string& run, const std::string& out) {
  const train::RunLog log = train::read_run(run);
  const std::filesystem::path path = std::filesystem::path(run).lexically_normal();
  const std::string name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  write_file_atomically(out, report_page(name, log));
}

}  // namespace limpid::cli
