// The subcommands of `limpid check`.
#pragma once

#include "commands.h"

namespace limpid::cli {

void add_check_accumulation(CLI::App& check, Action& action);
void add_check_ledger(CLI::App& check, Action& action);

}  // namespace limpid::cli
