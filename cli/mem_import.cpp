// limpid mem import: a trace of another tool as a limpid trace.
#include <climits>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/memory/trace_file.h>
#include <limpid/memory/trace_import.h>

#include "common.h"
#include "mem.h"

namespace limpid::cli {
namespace {

struct ImportOptions : MemOptions {
  std::string out;
  int device = INT_MIN;  // not given
};

memory::TraceLog read(const ImportOptions& o) {
  if (o.device == ImportOptions().device) return open_trace(o.trace);
  LIMPID_CHECK(o.device >= 0, ArgumentError, "--device is the number of a device, got ", o.device);
  const auto bytes = read_file(o.trace);
  const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  LIMPID_CHECK(memory::format_of(view) == memory::TraceFormat::pytorch, ArgumentError,
               "--device is for PyTorch snapshots, ", o.trace, " is a ", memory::format_of(view));
  memory::TraceLog log = memory::parse_torch_snapshot(view, o.device);
  LIMPID_CHECK(!log.records.empty(), ArgumentError, "--device ", o.device, ": ", o.trace, " has nothing of that device");
  for (const std::string& note : log.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  return log;
}

int run(const ImportOptions& o) {
  LIMPID_CHECK(o.out.ends_with(".bin") || o.out.ends_with(".jsonl"), ArgumentError, "--output must end in .bin or ",
               ".jsonl, got ", o.out);
  refuse_overwriting("--output", o.out, {o.trace});
  const memory::TraceLog log = read(o);
  memory::write_trace(o.out, log);
  std::fprintf(o.json ? stderr : stdout, "%s: %s records from a %s trace\n", o.out.c_str(),
               format_count(static_cast<std::int64_t>(log.records.size())).c_str(), log.info.source.c_str());
  if (o.json) {
    const nlohmann::ordered_json json = {{"output", o.out},
                                         {"source", log.info.source},
                                         {"records", log.records.size()},
                                         {"preexisting", log.info.preexisting},
                                         {"notes", log.notes}};
    std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  }
  return kOk;
}

}  // namespace

void add_mem_import(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("import", "Turn a PyTorch snapshot, an RMM log or a MiniMalloc list into a trace");
  auto o = std::make_shared<ImportOptions>();
  add_mem_options(*sub, *o, false);
  sub->add_option("-o,--output", o->out, "The trace to write: .bin or .jsonl")->required();
  add_integer(*sub, "--device", o->device, "PyTorch snapshots: which device; default: the one with most events");
  sub->footer(
      "Examples:\n"
      "  limpid mem import snapshot.pickle -o trace.bin\n"
      "  limpid mem import rmm_log.csv -o trace.jsonl\n"
      "A snapshot is read as data: nothing in it is ever run.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
