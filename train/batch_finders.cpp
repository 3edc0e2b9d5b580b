#include <limpid/train/batch_finders.h>

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <limpid/base/format.h>

namespace limpid::train {
namespace {

// What a trial run on the device would show.
struct Trial {
  bool fits = false;
  double before = 0;     // bytes allocated before the first step: parameters, optimizer state, data set
  double allocated = 0;  // highest
  double reserved = 0;
};

class TrialRuns {
 public:
  explicit TrialRuns(const PlanSettings& settings) : settings_(settings) {}
  Trial run(std::int64_t batch, FinderRow& row) {
    row.trials++;
    const Trial trial = look(batch);
    if (!trial.fits) row.ooms++;
    return trial;
  }
  // Without counting it.
  Trial look(std::int64_t batch) {
    const Prediction p = predict(settings_, batch);
    if (!p.fits) return {};
    const MemoryReport& m = p.run.memory;
    std::uint64_t before = m.role(memory::Role::param) + m.role(memory::Role::optimizer);
    for (std::uint64_t bytes : settings_.run.resident) before += bytes;
    return {.fits = true,
            .before = static_cast<double>(before),
            .allocated = static_cast<double>(m.allocated),
            .reserved = static_cast<double>(m.reserved)};
  }

 private:
  PlanSettings settings_;
};

std::int64_t whole(double batch) { return batch >= 1 ? static_cast<std::int64_t>(batch) : 0; }

// max batch = (free - fixed) / peak of one sample, from one run. One sample's peak holds the fixed part once more, and
// what a second sample adds is not what the first one took.
FinderRow rule_of_thumb(TrialRuns& runs, double capacity) {
  FinderRow row{.name = "rule of thumb", .how = "(free - fixed) / peak at B=1"};
  const Trial one = runs.run(1, row);
  if (one.fits) row.answer = whole((capacity - one.before) / one.allocated);
  return row;
}

FinderRow two_point_fit(TrialRuns& runs, double capacity) {
  FinderRow row{.name = "two-point fit", .how = "a line through the peaks at B=4 and B=8"};
  const Trial four = runs.run(4, row), eight = runs.run(8, row);
  if (!four.fits || !eight.fits) return row;
  const double slope = (eight.allocated - four.allocated) / 4;
  if (slope > 0) row.answer = whole((capacity - (four.allocated - 4 * slope)) / slope);
  return row;
}

// utils/autobatch.py of YOLOv5: a line through the reserved bytes at five sizes, 80 % of what is free; the size before
// the first failed one when the line says more; 16 outside 1..1024.
FinderRow yolov5_fit(TrialRuns& runs, double capacity) {
  FinderRow row{.name = "YOLOv5 autobatch", .how = "a line through 1,2,4,8,16; 80 % of free; else 16"};
  constexpr std::int64_t kSizes[] = {1, 2, 4, 8, 16};
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0, before = 0;
  std::int64_t failed = -1;
  for (std::int64_t i = 0; i < 5; i++) {
    const Trial t = runs.run(kSizes[i], row);
    if (!t.fits) {
      if (failed < 0) failed = i;
      continue;
    }
    before = t.before;
    const double x = static_cast<double>(kSizes[i]), y = t.reserved;
    n++, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  const double det = n * sxx - sx * sx;
  if (n >= 2 && det > 0) {
    const double slope = (n * sxy - sx * sy) / det, intercept = (sy - slope * sx) / n;
    // It takes reserved and allocated from the total, although the one lies inside the other.
    const double free = capacity - 2 * before;
    row.answer = slope > 0 ? static_cast<std::int64_t>((free * 0.8 - intercept) / slope) : 0;
  }
  if (failed >= 0 && row.answer >= kSizes[failed]) row.answer = kSizes[std::max<std::int64_t>(failed - 1, 0)];
  if (row.answer < 1 || row.answer > 1024) row.answer = 16;
  return row;
}

FinderRow powers_of_two(TrialRuns& runs) {
  FinderRow row{.name = "powers of two", .how = "2, 4, 8, ... until out of memory"};
  for (std::int64_t batch = 2; batch <= (std::int64_t{1} << 20); batch *= 2) {
    if (!runs.run(batch, row).fits) break;
    row.answer = batch;
  }
  return row;
}

FinderRow halving(TrialRuns& runs, std::int64_t start) {
  FinderRow row{.name = "halving", .how = concat("from ", start, ", halved on out of memory")};
  for (std::int64_t batch = start; batch >= 1; batch /= 2) {
    if (!runs.run(batch, row).fits) continue;
    row.answer = batch;
    break;
  }
  return row;
}

std::string error_text(std::int64_t answer, std::int64_t truth) {
  if (answer == truth) return "exact";
  const double percent = truth ? 100.0 * static_cast<double>(answer - truth) / static_cast<double>(truth) : 0;
  char text[64];
  std::snprintf(text, sizeof text, "%+lld (%+.1f %%)", static_cast<long long>(answer - truth), percent);
  return text;
}

}  // namespace

FinderTable compare_finders(const PlanSettings& given, std::uint64_t capacity, std::int64_t start,
                            const std::function<void(std::int64_t, std::int64_t)>& progress) {
  FinderTable table;
  table.capacity = capacity;
  const MaxBatch best = max_batch(given, capacity, kLargestBatch, progress);
  table.truth = best.batch;
  table.scan_bound = best.bound;
  table.scan_runs = best.runs;
  PlanSettings settings = given;
  settings.run.train.memory_cap = capacity;
  table.safe = best.batch;
  for (std::int64_t batch = std::min(best.batch - 1, FinderTable::kScannedBelow); batch >= 1; batch--) {
    if (progress) progress(batch, best.bound);
    table.scan_runs++;
    if (predict(settings, batch).fits) continue;
    table.holes++;
    table.safe = batch - 1;
  }
  TrialRuns runs(settings);
  const double room = static_cast<double>(capacity);
  table.rows = {rule_of_thumb(runs, room), two_point_fit(runs, room), yolov5_fit(runs, room), powers_of_two(runs),
                halving(runs, start)};
  table.rows.push_back({.name = "limpid plan", .how = "dry scan", .answer = best.batch});
  for (FinderRow& row : table.rows) row.fits = row.answer > 0 && runs.look(row.answer).fits;
  return table;
}

std::string to_string(const FinderTable& t) {
  std::string out = concat(
      "Largest batch in ", format_bytes(t.capacity), ": ", t.truth >= kLargestBatch ? "at least " : "", t.truth,
      ". Run dry, ", t.scan_runs, " times: every larger one up to ", t.scan_bound,
      ", where live bytes alone exceed it, and all ",
      t.truth > FinderTable::kScannedBelow ? concat("up to ", FinderTable::kScannedBelow) : std::string("smaller ones"),
      "\n");
  if (t.holes) {
    out +=
        concat("  ", t.holes, " smaller ones do not run: fitting is not monotone. Up to ", t.safe, " every one runs\n");
  }
  char line[256];
  std::snprintf(line, sizeof line, "  %-17s %8s %7s %6s %6s  %-18s %s\n", "finder", "answer", "trials", "OOMs", "runs?",
                "error", "how");
  out += line;
  for (const FinderRow& r : t.rows) {
    std::snprintf(line, sizeof line, "  %-17s %8lld %7lld %6lld %6s  %-18s %s\n", r.name.c_str(),
                  static_cast<long long>(r.answer), static_cast<long long>(r.trials), static_cast<long long>(r.ooms),
                  r.fits ? "yes" : "no", error_text(r.answer, t.truth).c_str(), r.how.c_str());
    out += line;
  }
  return out;
}

std::string to_json(const FinderTable& t) {
  nlohmann::ordered_json json;
  json["capacity"] = t.capacity;
  json["max_batch"] = t.truth;
  json["scan_bound"] = t.scan_bound;
  json["scan_runs"] = t.scan_runs;
  json["safe_batch"] = t.safe;
  json["holes"] = t.holes;
  json["finders"] = nlohmann::ordered_json::array();
  for (const FinderRow& r : t.rows) {
    json["finders"].push_back({{"name", r.name},
                               {"how", r.how},
                               {"answer", r.answer},
                               {"trials", r.trials},
                               {"ooms", r.ooms},
                               {"fits", r.fits},
                               {"error", r.answer - t.truth}});
  }
  return json.dump();
}

}  // namespace limpid::train
