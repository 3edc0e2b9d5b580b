#include <limpid/train/sweep_learning.h>

#include <cmath>

#include <limpid/base/format.h>
#include <limpid/train/sweep_text_private.h>

namespace limpid::train {
namespace {

using detail::format;
using detail::Json;
using Range = LearningRow::Range;

// What is told of a row, over its runs.
struct Summary {
  Range accuracy, train_loss, validation_loss, gap;  // after the samples
  Range epochs, seconds;                             // to the target
  Range noise;
  std::int64_t diverged = 0, failed = 0;
};

Summary summary_of(const LearningRow& row, const Learning& l) {
  auto after = [&](auto value) {
    return row.over_runs([&, value](const LearningRun& run) -> std::optional<double> {
      const LearningPoint* p = point_after(run, l.after_samples);
      return p ? std::optional<double>(value(*p)) : std::nullopt;
    });
  };
  auto to_target = [&](auto value) {
    return row.over_runs([&, value](const LearningRun& run) -> std::optional<double> {
      const LearningPoint* p = point_at_target(run, l.target_accuracy);
      return p ? std::optional<double>(value(*p)) : std::nullopt;
    });
  };
  using P = LearningPoint;
  Summary s;
  s.accuracy = after([](const P& p) { return p.validation_accuracy; });
  s.train_loss = after([](const P& p) { return p.train_loss; });
  s.validation_loss = after([](const P& p) { return p.validation_loss; });
  s.gap = after([](const P& p) { return p.train_accuracy - p.validation_accuracy; });
  s.epochs = to_target([](const P& p) { return static_cast<double>(p.epoch); });
  s.seconds = to_target([](const P& p) { return p.seconds; });
  s.noise = row.over_runs([](const LearningRun& run) { return run.noise ? run.noise->scale() : std::nullopt; });
  for (const LearningRun& run : row.runs) {
    s.diverged += run.diverged;
    s.failed += !run.failure.empty();
  }
  return s;
}

std::string cell(const Range& range, const char* form) { return range.count > 0 ? format(form, range.mean) : std::string("-"); }

Json range_json(const Range& r) {
  if (r.count == 0) return nullptr;
  return {{"mean", r.mean}, {"least", r.least}, {"most", r.most}, {"runs", r.count}};
}

// JSON has no NaN: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

std::vector<std::string> warnings_of(const Learning& l) {
  std::vector<std::string> out;
  for (const LearningRow& row : l.rows) {
    for (const std::string& w : row.warnings) out.push_back(concat("batch ", row.batch, ", ", to_string(row.policy.rule), ": ", w));
  }
  return out;
}

}  // namespace

std::string to_string(const Learning& l) {
  std::string out = concat(l.model, " on ", l.data, ", ", format_count(l.training), " training and ", format_count(l.validation),
                           " validation samples, ", l.epochs, l.epochs == 1 ? " epoch" : " epochs", " a run, ", l.optimizer, "\n");
  const bool target = l.target_accuracy > 0;
  out += concat("accuracy, losses and gap after ", format_count(l.after_samples), " samples",
                target ? format("; target: validation accuracy of %.1f %%", 100 * l.target_accuracy) : std::string(), "\n");
  out += format("%5s  %-6s %9s  %19s  %7s %7s %7s%s  %7s\n", "batch", "policy", "lr", "accuracy (range) %", "train", "valid.",
                "gap pt", target ? "  epochs  seconds  reached" : "", "noise B");
  for (const LearningRow& row : l.rows) {
    const Summary s = summary_of(row, l);
    const std::string range = s.accuracy.count > 1 ? format(" (%.1f-%.1f)", 100 * s.accuracy.least, 100 * s.accuracy.most) : "";
    out += format("%5lld  %-6s %9.5g  %19s  %7s %7s %7s", static_cast<long long>(row.batch), to_string(row.policy.rule), row.lr,
                  (s.accuracy.count > 0 ? format("%.2f", 100 * s.accuracy.mean) + range : "-").c_str(),
                  cell(s.train_loss, "%.4f").c_str(), cell(s.validation_loss, "%.4f").c_str(),
                  s.gap.count > 0 ? format("%+.2f", 100 * s.gap.mean).c_str() : "-");
    if (target)
      out += format("  %6s  %7s  %3lld/%-3zu", cell(s.epochs, "%.1f").c_str(), cell(s.seconds, "%.2f").c_str(),
                    static_cast<long long>(s.epochs.count), row.runs.size());
    out += format("  %7s", cell(s.noise, "%.0f").c_str());
    if (s.diverged > 0) out += concat("  diverged: ", s.diverged, " of ", row.runs.size());
    if (s.failed > 0) out += concat("  out of memory: ", s.failed, " of ", row.runs.size());
    out += "\n";
  }
  out += "means over the seeds; train: of the last epoch, while the weights moved; gap: training minus validation accuracy, points;\n"
         "noise B: gradient noise scale of the final weights, the batch at which noise and gradient are equally large\n";
  for (const std::string& w : warnings_of(l)) out += concat("warning: ", w, "\n");
  return out;
}

std::string to_json(const Learning& l) {
  Json rows = Json::array();
  for (const LearningRow& row : l.rows) {
    const Summary s = summary_of(row, l);
    Json runs = Json::array();
    for (const LearningRun& run : row.runs) {
      Json points = Json::array();
      for (const LearningPoint& p : run.points) {
        points.push_back({{"epoch", p.epoch},
                          {"samples", p.samples},
                          {"seconds", p.seconds},
                          {"train_loss", number(p.train_loss)},
                          {"train_accuracy", p.train_accuracy},
                          {"validation_loss", number(p.validation_loss)},
                          {"validation_accuracy", p.validation_accuracy}});
      }
      const LearningPoint* reached = point_at_target(run, l.target_accuracy);
      runs.push_back({{"seed", run.seed},
                      {"diverged", run.diverged},
                      {"failure", run.failure.empty() ? Json() : Json(run.failure)},
                      {"epochs_to_target", reached ? Json(reached->epoch) : Json()},
                      {"seconds_to_target", reached ? Json(reached->seconds) : Json()},
                      {"noise_scale", run.noise && run.noise->scale() ? Json(*run.noise->scale()) : Json()},
                      {"points", std::move(points)}});
    }
    rows.push_back({{"batch", row.batch},
                    {"policy", to_string(row.policy.rule)},
                    {"policy_text", row.policy.describe()},
                    {"lr", row.lr},
                    {"warnings", row.warnings},
                    {"accuracy", range_json(s.accuracy)},
                    {"train_loss", range_json(s.train_loss)},
                    {"validation_loss", range_json(s.validation_loss)},
                    {"gap", range_json(s.gap)},
                    {"epochs_to_target", range_json(s.epochs)},
                    {"seconds_to_target", range_json(s.seconds)},
                    {"noise_scale", range_json(s.noise)},
                    {"runs", std::move(runs)}});
  }
  const Json json = {{"model", l.model},
                     {"data", l.data},
                     {"optimizer", l.optimizer},
                     {"training_samples", l.training},
                     {"validation_samples", l.validation},
                     {"epochs", l.epochs},
                     {"after_samples", l.after_samples},
                     {"target_accuracy", l.target_accuracy > 0 ? Json(l.target_accuracy) : Json()},
                     {"rows", std::move(rows)}};
  return json.dump();
}

}  // namespace limpid::train
