// What several subcommands share: where data sets are looked for, shapes as text, signals.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace limpid::cli {

// $LIMPID_DATA (folders separated by ':'), then the system's share/datasets.
std::vector<std::string> data_search_paths();

// "3x224x224" -> {3, 224, 224}; ArgumentError otherwise.
std::vector<std::int64_t> parse_input(const std::string& text);

// What each model is usually fed with, as text: "3x224x224".
std::string usual_input(const std::string& model);

// The first SIGINT or SIGTERM sets the flag, the second ends the program at once.
const std::atomic<bool>& stop_on_signals();

std::string percent(double fraction);  // 0.9012 -> "90.12 %"

}  // namespace limpid::cli
