// limpid mem: what a memory trace shows, and what would have happened under another policy.
#include "mem.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <CLI/CLI.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/trace_import.h>

namespace limpid::cli {

void add_mem_options(CLI::App& sub, MemOptions& o, bool replays) {
  sub.add_option(
         "trace", o.trace,
         "A run folder, a limpid trace (binary or JSONL), a PyTorch memory snapshot, an RMM log or a MiniMalloc "
         "list")
      ->required();
  sub.add_flag("--json", o.json, "Last line on stdout: one JSON object");
  if (!replays) return;
  sub.add_option("--settings", o.settings,
                 "Knobs of the policy, in PyTorch's form: max_split_size_mb:64,roundup_power2_divisions:4; default: "
                 "those of the trace");
  sub.add_option("--capacity", o.capacity, "Size of the device, e.g. 8GiB; default: no limit");
  sub.add_flag("--pending-events", o.events_pending,
               "Freed blocks that other streams used come back only when the policy waits for them; default: at once");
}

memory::TraceLog open_trace(const std::string& path) {
  std::string file = path;
  if (std::filesystem::is_directory(path)) file += "/trace.bin";
  memory::TraceLog log = memory::read_trace(file);
  for (const std::string& note : log.notes) std::fprintf(stderr, "note: %s\n", printable(note).c_str());
  if (log.info.not_recorded > 0) {
    std::fprintf(stderr, "note: the file had reached its limit; %s later events were not recorded\n",
                 format_count(static_cast<std::int64_t>(log.info.not_recorded)).c_str());
  }
  return log;
}

memory::ReplayOptions replay_options(const MemOptions& o, const memory::TraceLog& log, const std::string& policy) {
  memory::ReplayOptions options;
  const std::string wanted = policy.empty() ? o.policy : policy;
  if (!wanted.empty()) {
    options.policy = memory::policy_named(wanted);
  } else {
    const auto& known = memory::policies();
    const auto it = std::find_if(known.begin(), known.end(), [&](const auto& p) { return p.name == log.info.policy; });
    if (it != known.end()) {
      options.policy = it->make;
    } else {
      std::fprintf(stderr, "note: the trace's policy '%s' is not known here; replaying under native\n",
                   printable(log.info.policy).c_str());
    }
  }
  if (!o.settings.empty()) {
    options.settings = memory::parse_allocator_settings(o.settings);
  } else {
    try {
      options.settings = memory::parse_allocator_settings(log.info.settings);
    } catch (const ArgumentError& error) {
      std::fprintf(stderr, "note: the trace's settings are not used: %s\n", printable(error.what()).c_str());
    }
  }
  if (!o.capacity.empty()) options.capacity = parse_bytes(o.capacity, "--capacity");
  options.events_pending = o.events_pending;
  return options;
}

std::string describe_event(const memory::TraceLog& log, const memory::ReplayScript& script, std::uint32_t record) {
  if (script.ops.empty()) return "no event";
  const memory::TraceRecord& r = log.records.at(record);
  std::string text = concat("event ", format_count(script.event_of(record)), " (step ", r.step);
  if (r.phase != Phase::none) text += concat(", ", limpid::to_string(r.phase));
  if (r.op != 0) text += ", " + printable(log.name(r.op));
  if (r.module != 0) text += " in " + printable(log.name(r.module));
  if (r.op == 0 && r.module == 0 && r.name != 0) text += ", " + printable(log.name(r.name));
  return text + ")";
}

std::string describe_failure(const memory::TraceLog& log, const memory::ReplayScript& script,
                             const memory::ReplayResult& result) {
  if (!result.failure) return "";
  const memory::ReplayFailure& f = *result.failure;
  return concat(result.policy, " ran out of memory at ", describe_event(log, script, f.record), ": ",
                format_bytes(f.info.requested), " for ", log.label(log.records[f.record]), "; free on the device ",
                format_bytes(f.info.device_free), ", largest free block ", format_bytes(f.layout.largest_free), " of ",
                format_bytes(f.layout.external));
}

void add_mem(CLI::App& app, Action& action) {
  CLI::App* mem = app.add_subcommand("mem", "Look into a memory trace, replay it under other policies, convert it");
  mem->require_subcommand(1);
  add_mem_summary(*mem, action);
  add_mem_replay(*mem, action);
  add_mem_explain(*mem, action);
  add_mem_strip(*mem, action);
  add_mem_view(*mem, action);
  add_mem_export(*mem, action);
  add_mem_import(*mem, action);
  mem->footer(
      "Examples:\n"
      "  limpid train --data synthetic --input 3x32x32 --model resnet9 --limit 512 --epochs 1 --out run\n"
      "  limpid mem summary run\n"
      "  limpid mem replay run --policy all --capacity 512MiB\n"
      "  limpid mem explain run --capacity 256MiB\n"
      "  limpid mem strip run\n"
      "  limpid mem view run -o view.html\n"
      "  limpid mem export run -o snapshot.pickle");
}

}  // namespace limpid::cli
