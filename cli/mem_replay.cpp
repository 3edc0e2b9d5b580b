// limpid mem replay: one trace under several policies, side by side.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/replay_scan.h>

#include "common.h"
#include "mem.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;
using memory::CapacityScan;
using memory::ReplayResult;

struct MemReplayOptions : MemOptions {
  std::string policies, granularity;
  bool no_scan = false;
  CLI::Option *given_granularity = nullptr, *given_no_scan = nullptr;
};

struct Outcome {
  std::string policy;
  ReplayResult result;
  std::optional<CapacityScan> scan;
};

std::string ratio(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

std::string bytes_or_none(const std::optional<std::uint64_t>& bytes, bool exact) {
  if (!bytes) return "none found";
  return (exact ? "" : "~") + format_bytes(*bytes);
}

using Cell = std::function<std::string(const Outcome&)>;
struct Row {
  const char* label;
  Cell cell;
};

std::vector<Row> rows(bool scanned, bool failures) {
  auto count = [](auto n) { return format_count(static_cast<std::int64_t>(n)); };
  std::vector<Row> out = {
      {"outcome", [](const Outcome& o) { return std::string(o.result.completed ? "runs" : "out of memory"); }},
      {"peak live", [](const Outcome& o) { return format_bytes(o.result.peak_live); }},
      {"peak reserved", [](const Outcome& o) { return format_bytes(o.result.peak_reserved); }},
      {"  above the lower bound", [](const Outcome& o) { return format_bytes(o.result.fragmentation.excess); }},
  };
  if (failures) {
    out.push_back({"  requests that failed as recorded",
                   [](const Outcome& o) { return format_count(static_cast<std::int64_t>(o.result.failed_before)); }});
  }
  if (scanned) {
    out.push_back({"C*: smallest that runs", [](const Outcome& o) {
                     return o.scan ? bytes_or_none(o.scan->smallest, o.scan->exact()) : std::string("-");
                   }});
    out.push_back({"  without a retry", [](const Outcome& o) {
                     return o.scan ? bytes_or_none(o.scan->smallest_no_retry, o.scan->exact()) : std::string("-");
                   }});
  }
  std::vector<Row> rest = {
      {"utilisation", [](const Outcome& o) { return ratio(o.result.fragmentation.utilisation); }},
      {"at the peak: internal", [](const Outcome& o) { return format_bytes(o.result.fragmentation.at_peak.internal); }},
      {"  external", [](const Outcome& o) { return format_bytes(o.result.fragmentation.at_peak.external); }},
      {"  largest free block",
       [](const Outcome& o) { return format_bytes(o.result.fragmentation.at_peak.largest_free); }},
      {"  BFC fragmentation", [](const Outcome& o) { return ratio(o.result.fragmentation.at_peak.bfc()); }},
      {"  sum of squares", [](const Outcome& o) { return ratio(o.result.fragmentation.at_peak.sum_of_squares); }},
      {"  allocated / reserved",
       [](const Outcome& o) { return ratio(o.result.fragmentation.at_peak.snapshot_ratio()); }},
      {"peak non-releasable",
       [](const Outcome& o) { return format_bytes(o.result.fragmentation.peak_non_releasable); }},
      {"reserved - live, peak", [](const Outcome& o) { return format_bytes(o.result.fragmentation.peak_gap); }},
      {"  mean",
       [](const Outcome& o) { return format_bytes(static_cast<std::uint64_t>(o.result.fragmentation.mean_gap)); }},
      {"  mean at a miss", [](const Outcome& o) { return format_bytes(o.result.fragmentation.mean_gap_at_miss); }},
      {"misses", [count](const Outcome& o) { return count(o.result.fragmentation.misses); }},
      {"device calls", [count](const Outcome& o) { return count(o.result.device_calls()); }},
      {"retries", [count](const Outcome& o) { return count(o.result.retries); }},
      {"modelled time",
       [](const Outcome& o) {
         char text[32];
         std::snprintf(text, sizeof text, "%.2f ms", 1e3 * o.result.modelled_seconds);
         return std::string(text);
       }},
  };
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

Json layout_json(const memory::Layout& l) {
  return {{"reserved", l.reserved},
          {"allocated", l.allocated},
          {"requested", l.requested},
          {"internal", l.internal},
          {"external", l.external},
          {"largest_free", l.largest_free},
          {"free_blocks", l.free_blocks},
          {"segments", l.segments},
          {"bfc", l.bfc()},
          {"sum_of_squares", l.sum_of_squares},
          {"snapshot_ratio", l.snapshot_ratio()}};
}

Json optional_json(const std::optional<std::uint64_t>& value) { return value ? Json(*value) : Json(nullptr); }

Json outcome_json(const memory::ReplayScript& script, const Outcome& o) {
  auto event = [&script](std::uint32_t record) { return script.ops.empty() ? Json(nullptr) : Json(script.event_of(record)); };
  const ReplayResult& r = o.result;
  const memory::Fragmentation& f = r.fragmentation;
  Json json;
  json["policy"] = o.policy;
  json["completed"] = r.completed;
  json["failed_as_recorded"] = r.failed_before;
  json["operations"] = r.operations;
  json["peak_live"] = r.peak_live;
  json["peak_live_event"] = event(r.peak_live_record);
  json["peak_active"] = r.peak_active;
  json["peak_reserved"] = r.peak_reserved;
  json["peak_reserved_event"] = event(r.peak_reserved_record);
  json["fragmentation"] = {{"utilisation", f.utilisation},
                           {"fragmentation_ratio", 1 - f.utilisation},
                           {"excess", f.excess},
                           {"peak_non_releasable", f.peak_non_releasable},
                           {"peak_gap", f.peak_gap},
                           {"mean_gap", f.mean_gap},
                           {"misses", f.misses},
                           {"mean_gap_at_miss", f.mean_gap_at_miss},
                           {"at_peak_reserved", layout_json(f.at_peak)}};
  const auto& c = r.calls;
  json["device_calls"] = {{"reserve", c.reserve},
                          {"release", c.release},
                          {"map", c.map},
                          {"unmap", c.unmap},
                          {"range_reserve", c.range_reserve},
                          {"range_release", c.range_release},
                          {"event_record", c.event_record},
                          {"event_query", c.event_query},
                          {"event_wait", c.event_wait}};
  json["retries"] = r.retries;
  json["modelled_seconds"] = r.modelled_seconds;
  json["failed_before"] = r.failed_before;
  json["rescued"] = r.rescued;
  if (r.failure) {
    json["out_of_memory"] = {{"event", event(r.failure->record)},
                             {"requested", r.failure->info.requested},
                             {"device_free", r.failure->info.device_free},
                             {"layout", layout_json(r.failure->layout)}};
  }
  if (o.scan) {
    json["scan"] = {{"smallest", optional_json(o.scan->smallest)},
                    {"smallest_no_retry", optional_json(o.scan->smallest_no_retry)},
                    {"granularity", o.scan->granularity},
                    {"exact", o.scan->exact()},
                    {"from", o.scan->from},
                    {"to", o.scan->to},
                    {"tries", o.scan->tries},
                    {"failures_above", o.scan->failures_above}};
  }
  return json;
}

void print_table(std::FILE* to, const std::vector<Outcome>& outcomes, bool scanned) {
  constexpr int kLabel = 24, kColumn = 15;
  std::fprintf(to, "%-*s", kLabel, "");
  for (const Outcome& o : outcomes) std::fprintf(to, " %*s", kColumn, o.policy.c_str());
  std::fprintf(to, "\n");
  const bool failures = std::any_of(outcomes.begin(), outcomes.end(),
                                    [](const Outcome& o) { return o.result.failed_before > 0; });
  for (const Row& row : rows(scanned, failures)) {
    std::fprintf(to, "%-*s", kLabel, row.label);
    for (const Outcome& o : outcomes) std::fprintf(to, " %*s", kColumn, row.cell(o).c_str());
    std::fprintf(to, "\n");
  }
}

void print_scan_note(std::FILE* to, const std::vector<Outcome>& outcomes) {
  std::fprintf(to, "\nC* was scanned upward from the lower bound, since best fit is not monotone:");
  for (const Outcome& o : outcomes) {
    if (!o.scan) continue;
    std::fprintf(
        to, "\n  %s: %s to %s by %s, %s tries%s%s", o.policy.c_str(), format_bytes(o.scan->from).c_str(),
        format_bytes(o.scan->to).c_str(), format_bytes(o.scan->granularity).c_str(),
        format_count(static_cast<std::int64_t>(o.scan->tries)).c_str(),
        o.scan->exact() ? "" : " (by 2 MiB just below the answers)",
        o.scan->failures_above > 0 ? concat("; ", o.scan->failures_above, " larger capacities fail").c_str() : "");
  }
  std::fprintf(to, "\n");
}

int run(const MemReplayOptions& o) {
  refuse_both(o.given_granularity, o.given_no_scan, "the one says how to search, the other not to");
  const memory::TraceLog log = open_trace(o.trace);
  const memory::ReplayScript script(log);
  std::vector<std::string> names;
  if (!o.policies.empty()) names = memory::parse_policy_list(o.policies);
  if (names.empty()) names.push_back("");
  memory::CapacityScanOptions scan;
  if (!o.granularity.empty()) scan.granularity = parse_bytes(o.granularity, "--granularity");
  std::vector<Outcome> outcomes;
  for (const std::string& name : names) {
    const memory::ReplayOptions options = replay_options(o, log, name);
    Outcome outcome;
    outcome.result = replay(script, options);
    outcome.policy = outcome.result.policy;
    if (!o.no_scan) outcome.scan = scan_capacity(script, options, scan);
    outcomes.push_back(std::move(outcome));
  }
  std::FILE* to = o.json ? stderr : stdout;
  std::fprintf(to, "%s operations, %s allocations, at most %s blocks live; lower bound %s at %s\n",
               format_count(static_cast<std::int64_t>(script.ops.size())).c_str(),
               format_count(static_cast<std::int64_t>(script.allocations)).c_str(), format_count(script.slots).c_str(),
               format_bytes(script.peak_live).c_str(), describe_event(log, script, script.peak_live_record).c_str());
  const auto recorded = std::count_if(log.records.begin(), log.records.end(),
                                      [](const auto& r) { return r.kind == memory::TraceKind::oom; });
  if (recorded > 0) {
    std::fprintf(to,
                 "in the recorded run %s failed: replayed, they may fail again, and nothing after them is in the trace; "
                 "limpid mem explain says why\n",
                 counted(recorded, "request").c_str());
  }
  std::fprintf(to, "capacity %s\n\n", o.capacity.empty() ? "without limit" : o.capacity.c_str());
  print_table(to, outcomes, !o.no_scan);
  for (const Outcome& outcome : outcomes) {
    const std::string failure = describe_failure(log, script, outcome.result);
    if (!failure.empty()) std::fprintf(to, "\n%s\n", failure.c_str());
  }
  if (!o.no_scan) print_scan_note(to, outcomes);
  if (o.json) {
    Json json;
    json["trace"] = o.trace;
    json["operations"] = script.ops.size();
    json["allocations"] = script.allocations;
    json["unknown_operations"] = script.unknown;
    json["max_live_blocks"] = script.slots;
    json["lower_bound"] = script.peak_live;
    json["capacity"] = o.capacity.empty() ? Json(nullptr) : Json(parse_bytes(o.capacity, "--capacity"));
    json["policies"] = Json::array();
    for (const Outcome& outcome : outcomes) json["policies"].push_back(outcome_json(script, outcome));
    std::printf("%s\n", json.dump().c_str());
  }
  const bool any_runs =
      std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& x) { return x.result.completed; });
  return any_runs ? kOk : kOutOfMemory;
}

}  // namespace

void add_mem_replay(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("replay", "Run a trace again under other policies and capacities");
  auto o = std::make_shared<MemReplayOptions>();
  add_mem_options(*sub, *o, true);
  std::string known;
  for (const memory::PolicyEntry& p : memory::policies()) known += std::string(known.empty() ? "" : ", ") + p.name;
  sub->add_option("--policy", o->policies, "Policies, separated by commas, or all: " + known);
  o->given_granularity = sub->add_option("--granularity", o->granularity,
                  "Steps of the search for the smallest capacity, a multiple of 2MiB; default: as fine as 100 million "
                  "operations a policy allow");
  o->given_no_scan = sub->add_flag("--no-scan", o->no_scan, "Do not search for the smallest capacity");
  sub->footer(
      "Examples:\n"
      "  limpid mem replay run --policy native,nosplit --capacity 512MiB\n"
      "  limpid mem replay snapshot.pickle --policy all --json\n"
      "Exit code 3 when no policy fits the capacity. Times are modelled from orders of magnitude of driver calls.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
