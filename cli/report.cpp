// limpid report: a run as one offline HTML page.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/format.h>

#include "commands.h"
#include "common.h"
#include "report/report_page.h"

namespace limpid::cli {
namespace {

struct ReportOptions {
  std::string run, out;
  bool json = false;
};

int run(const ReportOptions& o) {
  const std::string out = o.out.empty() ? o.run + "/report.html" : o.out;
  refuse_overwriting("--out", out, {o.run});
  write_report(o.run, out);
  const std::uint64_t bytes = std::filesystem::file_size(out);
  std::fprintf(o.json ? stderr : stdout, "wrote %s, %s\n", out.c_str(), format_bytes(bytes).c_str());
  if (o.json) print_json({{"out", out}, {"bytes", bytes}});
  return kOk;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("report", "A run as a page: curves, throughput, memory, every effective batch");
  auto o = std::make_shared<ReportOptions>();
  sub->add_option("RUN", o->run, "Run folder")->required();
  sub->add_option("-o,--out", o->out, "The page to write; default: RUN/report.html");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "The page needs no network and no server: open it in a browser. limpid train writes it at the end of a run.\n"
      "Example:\n"
      "  limpid report run -o report.html");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
