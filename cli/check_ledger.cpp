// limpid check ledger: what the ledger of a run proves.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <limpid/train/ledger.h>

#include "check.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct LedgerOptions {
  std::string run;
  bool json = false;
};

int run(const LedgerOptions& o) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(o.run, ignored);
  const train::LedgerCheck check = train::check_ledger(train::read_ledger(folder ? o.run + "/ledger.jsonl" : o.run));
  std::fputs(train::to_string(check).c_str(), o.json ? stderr : stdout);
  if (o.json) print_json(nlohmann::ordered_json::parse(train::to_json(check)));
  return check.violations.empty() ? kOk : kFailedCheck;
}

}  // namespace

void add_check_ledger(CLI::App& check, Action& action) {
  CLI::App* sub = check.add_subcommand("ledger", "Was every sample used once an epoch, with the weight 1/N?");
  auto o = std::make_shared<LedgerOptions>();
  sub->add_option("RUN", o->run, "Run folder, or a ledger.jsonl")->required();
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Example:\n"
      "  limpid check ledger run\n"
      "The ledger has the hash of each step's samples, which the run's seed must give again; with --ledger-ids of\n"
      "limpid train also the samples themselves. Exit code 1: there are violations, 4: the file is damaged.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
