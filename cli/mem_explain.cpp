// limpid mem explain: why a request failed, what stood in its way, and what would have served it.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/explain.h>

#include "common.h"
#include "mem.h"
#include "progress.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;

int run(const MemOptions& o) {
  const memory::TraceLog log = open_trace(o.trace);
  memory::ReplayOptions options = replay_options(o, log);
  // A run that failed did so at its own capacity.
  if (o.capacity.empty() && log.info.capacity > 0) options.capacity = log.info.capacity;
  Progress progress(false);
  const std::optional<memory::Explanation> explanation =
      memory::explain(log, options, true, [&](const char* trying) { progress.message(concat("replaying: ", trying)); });
  const memory::ReplayScript script(log);
  std::FILE* to = o.json ? stderr : stdout;
  Json json;
  json["trace"] = o.trace;
  json["capacity"] = options.capacity;
  json["failed"] = explanation.has_value();
  if (!explanation) {
    std::fprintf(to, "%s runs in %s: every request is served\n", o.trace.c_str(),
                 format_bytes(options.capacity).c_str());
  } else {
    std::fprintf(to, "%s in %s: %s %s\n\n", o.trace.c_str(), format_bytes(options.capacity).c_str(),
                 describe_event(log, script, explanation->record).c_str(),
                 explanation->recorded ? "failed, as in the recorded run" : "fails");
    std::fprintf(to, "%s", memory::report(explanation->info).c_str());
    json["event"] = script.event_of(explanation->record);
    json["recorded"] = explanation->recorded;
    json["oom"] = Json::parse(memory::to_json(explanation->info));
  }
  if (o.json) print_json(json);
  return explanation ? kOutOfMemory : kOk;
}

}  // namespace

void add_mem_explain(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("explain", "Why a request failed, or would fail in less memory");
  auto o = std::make_shared<MemOptions>();
  add_mem_options(*sub, *o, true);
  sub->add_option("--policy", o->policy, "Replay under this policy; default: that of the trace");
  sub->footer(
      "Examples:\n"
      "  limpid mem explain run                      a run that ended out of memory, at its own capacity\n"
      "  limpid mem explain run --capacity 512MiB    a run that did not, in less memory\n"
      "Every line of advice was replayed and served the request. Exit code 3 when a request fails, 0 when none does.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
