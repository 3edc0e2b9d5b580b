// limpid check: proofs from records and from runs.
#include "check.h"

#include <CLI/CLI.hpp>

namespace limpid::cli {

void add_check(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("check", "Proofs: an accumulated batch is the batch; every sample weighed 1/N");
  sub->require_subcommand(1);
  add_check_accumulation(*sub, action);
  add_check_ledger(*sub, action);
}

}  // namespace limpid::cli
