// limpid check ledger: what the ledger of a run proves.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <limpid/train/ledger.h>
#include <limpid/train/run_folder.h>

#include "check.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct LedgerOptions {
  std::string run;
  bool json = false;
};

// The folder of the run whose ledger this is; empty for a ledger alone.
std::string run_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return path;
  const fs::path folder = fs::path(path).parent_path();
  const std::string name = folder.empty() ? "." : folder.string();
  return fs::path(path).filename() == "ledger.jsonl" && train::RunFolder::holds_run(name) ? name : "";
}

int run(const LedgerOptions& o) {
  const std::string folder = run_of(o.run);
  const train::LedgerCheck check =
      folder.empty() ? train::check_ledger(train::read_ledger(o.run)) : train::check_run_ledger(folder);
  std::fputs(train::to_string(check).c_str(), o.json ? stderr : stdout);
  if (o.json) print_json(nlohmann::ordered_json::parse(train::to_json(check)));
  if (check.damaged) return kBadData;
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
      "limpid train also the samples themselves. Exit code 1: there are violations, 4: the file is damaged or\n"
      "cut, or has no step that was applied.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
