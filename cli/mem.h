// What the subcommands of `limpid mem` share: opening a trace, and the options of a replay.
#pragma once

#include <string>

#include <limpid/memory/replay.h>
#include <limpid/memory/trace_log.h>

#include "commands.h"

namespace limpid::cli {

struct MemOptions {
  std::string trace;
  std::string policy;    // empty: the one that the trace was made with
  std::string settings;  // empty: those of the trace
  std::string capacity;  // empty: no limit
  bool events_pending = false;
  bool json = false;
};

// Adds TRACE and --json, and with `replays` the options of a replay.
void add_mem_options(CLI::App& sub, MemOptions& options, bool replays);
// The trace, of any format; what it has to say goes to stderr.
memory::TraceLog open_trace(const std::string& path);
// `policy` overrides that of the options. Unknown policies and settings of a trace's own fall back to the defaults,
// with a line on stderr.
memory::ReplayOptions replay_options(const MemOptions& options, const memory::TraceLog& log,
                                     const std::string& policy = "");
// "event 1,234 (step 3, backward, conv2d in layer1)": the operation that this record of the log is, counted as in all
// that the command says and draws (ReplayScript::event_of).
std::string describe_event(const memory::TraceLog& log, const memory::ReplayScript& script, std::uint32_t record);
// Where a replay ran out of memory, as a sentence; "" for one that did not.
std::string describe_failure(const memory::TraceLog& log, const memory::ReplayScript& script,
                             const memory::ReplayResult& result);

void add_mem_summary(CLI::App& mem, Action& action);
void add_mem_replay(CLI::App& mem, Action& action);
void add_mem_export(CLI::App& mem, Action& action);
void add_mem_import(CLI::App& mem, Action& action);
void add_mem_explain(CLI::App& mem, Action& action);
void add_mem_strip(CLI::App& mem, Action& action);
void add_mem_view(CLI::App& mem, Action& action);

}  // namespace limpid::cli
