// limpid mem view: a trace, under one policy or several, as one offline HTML page.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/memory/placement.h>
#include <limpid/memory/policies.h>

#include "common.h"
#include "mem.h"
#include "view/page.h"

namespace limpid::cli {
namespace {

constexpr std::size_t kMaxColumns = 4;

struct ViewOptions : MemOptions {
  std::vector<std::string> traces;
  std::string out = "view.html", title;
};

struct Column {
  std::string title;
  const memory::TraceLog* log;
  memory::Placement placement;
};

// "runs/first/trace.bin" -> "first/trace.bin": what tells traces apart.
std::string name_of(const std::string& path) {
  const std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  const std::string file = p.filename().string(), folder = p.parent_path().filename().string();
  return file.empty() ? folder : folder.empty() ? file : folder + "/" + file;
}

int run(ViewOptions& o) {
  refuse_overwriting("--out", o.out, o.traces);
  const bool unlimited = o.capacity == "none";
  if (unlimited) o.capacity.clear();
  std::vector<memory::TraceLog> logs;
  for (const std::string& path : o.traces) logs.push_back(open_trace(path));
  std::vector<Column> columns;
  for (std::size_t i = 0; i < logs.size(); i++) {
    const memory::TraceLog& log = logs[i];
    std::vector<std::string> policies = {""};  // as recorded
    if (!o.policy.empty()) policies = memory::parse_policy_list(o.policy);
    for (const std::string& policy : policies) {
      LIMPID_CHECK(columns.size() < kMaxColumns, ArgumentError, "[mem view] a page has at most ", kMaxColumns,
                   " columns: traces times policies");
      memory::ReplayOptions options = replay_options(o, log, policy);
      if (o.capacity.empty() && !unlimited && log.info.capacity > 0) options.capacity = log.info.capacity;
      columns.push_back({"", &log, memory::place(log, options)});
      columns.back().title = concat(name_of(o.traces[i]), ", ", columns.back().placement.replay.policy);
    }
  }
  std::vector<ViewRun> runs;
  for (const Column& c : columns) runs.push_back({c.title, c.log, &c.placement});
  std::string title = o.title;
  if (title.empty()) {
    for (const std::string& path : o.traces) title += (title.empty() ? "" : ", ") + name_of(path);
  }
  const std::string page = view_page(title, runs);
  write_file_atomically(o.out, page);

  std::FILE* to = o.json ? stderr : stdout;
  nlohmann::ordered_json json;
  json["out"] = o.out;
  json["bytes"] = page.size();
  json["runs"] = nlohmann::ordered_json::array();
  for (const Column& c : columns) {
    const memory::ReplayResult& r = c.placement.replay;
    std::fprintf(to, "%s: %s events, peak live %s, peak reserved %s\n", c.title.c_str(),
                 format_count(c.placement.events).c_str(), format_bytes(r.peak_live).c_str(),
                 format_bytes(r.peak_reserved).c_str());
    const std::string failure = describe_failure(*c.log, memory::ReplayScript(*c.log), r);
    if (!failure.empty()) std::fprintf(to, "%s: its picture ends there\n", failure.c_str());
    json["runs"].push_back({{"title", c.title},
                            {"policy", r.policy},
                            {"events", c.placement.events},
                            {"rectangles", c.placement.blocks.size()},
                            {"peak_live_bytes", r.peak_live},
                            {"peak_reserved_bytes", r.peak_reserved},
                            {"peak_live_event", c.placement.peak_event},
                            {"completed", r.completed}});
  }
  std::fprintf(to, "wrote %s, %s\n", o.out.c_str(), format_bytes(page.size()).c_str());
  if (o.json) std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  const bool any_runs =
      std::any_of(columns.begin(), columns.end(), [](const Column& c) { return c.placement.replay.completed; });
  return any_runs ? kOk : kOutOfMemory;
}

}  // namespace

void add_mem_view(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("view", "A page that shows where memory was: map, curves, segments, holders");
  auto o = std::make_shared<ViewOptions>();
  sub->add_option("trace", o->traces,
                  "Run folders or trace files, of any format that limpid mem reads; two stand side by side")
      ->required();
  sub->add_option("-o,--out", o->out, "The page to write")->capture_default_str();
  sub->add_option("--policy", o->policy,
                  "Policies to place the blocks with, e.g. native,expandable; default: as recorded");
  sub->add_option("--settings", o->settings, "Knobs of the policies, e.g. max_split_size_mb:64; default: as recorded");
  sub->add_option("--capacity", o->capacity, "Memory of the device, e.g. 8GiB, or none; default: as recorded");
  sub->add_option("--title", o->title, "Heading of the page; default: names of the traces");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "The page needs no network and no server: open it in a browser. Exit code 3 when no policy fits the capacity.\n"
      "Examples:\n"
      "  limpid mem view run -o view.html\n"
      "  limpid mem view run --policy native,expandable --capacity 256MiB -o policies.html\n"
      "  limpid mem view before/trace.bin after/trace.bin -o two.html");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
