// The subcommands. Each adds its options to the parser and, when it was chosen, sets the action that main runs.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace limpid::cli {

// Exit codes of every subcommand.
enum ExitCode : int { kOk = 0, kFailedCheck = 1, kBadArguments = 2, kOutOfMemory = 3, kBadData = 4 };

using Action = std::function<int()>;  // returns an exit code

void add_train(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_predict(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_summary(CLI::App& app, Action& action);
void add_mem(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_sweep(CLI::App& app, Action& action);
void add_diff(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);

}  // namespace limpid::cli
