// limpid mem export: a trace for other tools.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/memory/trace_export.h>

#include "common.h"
#include "mem.h"

namespace limpid::cli {
namespace {

struct ExportOptions : MemOptions {
  std::string out, to;
  std::vector<CLI::Option*> of_a_replay;  // what only a format with addresses needs
};

std::string format_for(const ExportOptions& o) {
  if (!o.to.empty()) return o.to;
  if (o.out.ends_with(".pickle") || o.out.ends_with(".pkl")) return "pytorch";
  if (o.out.ends_with(".jsonl")) return "jsonl";
  if (o.out.ends_with(".bin")) return "binary";
  LIMPID_THROW(ArgumentError, "--output ", o.out,
               " does not tell the format: give --to pytorch, rmm, minimalloc, jsonl or binary");
}

int run(const ExportOptions& o) {
  const std::string format = format_for(o);
  const bool replayed = format == "pytorch" || format == "rmm";
  for (const CLI::Option* option : o.of_a_replay) {
    LIMPID_CHECK(replayed || option->count() == 0, ArgumentError, option->get_name(), " and the format ", format,
                 " do not go together: the file has no addresses, so nothing is replayed");
  }
  refuse_overwriting("--output", o.out, {o.trace});
  const memory::TraceLog log = open_trace(o.trace);
  AtomicFile file(o.out);
  std::uint64_t size = 0;
  const memory::ByteSink sink = [&](std::string_view bytes) {
    file.write(bytes);
    size += bytes.size();
  };
  memory::ReplayResult replayed_as;
  replayed_as.completed = true;
  if (format == "pytorch") {
    replayed_as = memory::print_torch_snapshot(log, replay_options(o, log), sink);
  } else if (format == "rmm") {
    replayed_as = memory::print_rmm_csv(log, replay_options(o, log), sink);
  } else if (format == "minimalloc") {
    memory::print_minimalloc_csv(log, sink);
  } else if (format == "jsonl") {
    memory::print_trace_jsonl(log, sink);
  } else {
    memory::print_trace_binary(log, sink);
  }
  file.commit();
  std::FILE* to = o.json ? stderr : stdout;
  std::fprintf(to, "%s: %s, %s\n", o.out.c_str(), format.c_str(), format_bytes(size).c_str());
  if (!replayed_as.completed) {
    std::fprintf(to, "%s: the file ends there\n",
                 describe_failure(log, memory::ReplayScript(log), replayed_as).c_str());
  }
  if (o.json) {
    const nlohmann::ordered_json json = {
        {"output", o.out},
        {"format", format},
        {"bytes", size},
        {"records", log.records.size()},
        {"completed", replayed_as.completed}};
    std::printf("%s\n", json.dump().c_str());
  }
  return replayed_as.completed ? kOk : kOutOfMemory;
}

}  // namespace

void add_mem_export(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("export", "Write a trace for PyTorch's memory_viz, RMM, MiniMalloc or scripts");
  auto o = std::make_shared<ExportOptions>();
  add_mem_options(*sub, *o, true);
  sub->add_option("-o,--output", o->out, "The file to write")->required();
  sub->add_option("--to", o->to, "Format; default: by the file's name (.pickle, .jsonl, .bin)")
      ->check(CLI::IsMember({"pytorch", "rmm", "minimalloc", "jsonl", "binary"}));
  o->of_a_replay = {sub->get_option("--settings"), sub->get_option("--capacity"), sub->get_option("--pending-events"),
                    sub->add_option("--policy", o->policy,
                                    "Whose addresses are shown (pytorch, rmm); default: the trace's own policy")};
  sub->footer(
      "Examples:\n"
      "  limpid mem export run -o snapshot.pickle    (then: python -m torch.cuda._memory_viz trace snapshot.pickle)\n"
      "  limpid mem export run -o log.csv --to rmm\n"
      "  limpid mem export run -o buffers.csv --to minimalloc\n"
      "Exit code 3 when the capacity does not suffice: the file then ends with the failure.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
