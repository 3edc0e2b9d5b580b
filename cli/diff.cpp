// limpid diff: where two runs part.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <limpid/train/run_diff.h>

#include "commands.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct DiffOptions {
  std::string a, b;
  bool json = false;
};

int run(const DiffOptions& o) {
  const train::RunDiff diff = train::diff_runs(o.a, o.b);
  std::fputs(train::to_string(diff).c_str(), o.json ? stderr : stdout);
  if (o.json) print_json(nlohmann::ordered_json::parse(train::to_json(diff)));
  return diff.equal() ? kOk : kFailedCheck;
}

}  // namespace

void add_diff(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("diff", "The first step and field in which two runs differ");
  auto o = std::make_shared<DiffOptions>();
  sub->add_option("A", o->a, "Run folder, or a ledger.jsonl")->required();
  sub->add_option("B", o->b, "Another one")->required();
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Example:\n"
      "  limpid diff run1 run2\n"
      "Compared are the ledgers: samples, their weights, losses, rates, statistics, random numbers, step by step. Exit "
      "code "
      "0:\n"
      "they are equal, 1: they differ.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
