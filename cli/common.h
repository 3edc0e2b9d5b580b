// What several subcommands share: options with whole numbers, where data sets are looked for, shapes as text, signals,
// results on stdout.
#pragma once

#include <atomic>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/oom.h>

namespace limpid::cli {

// Refuses what is no whole number of the type; the parser alone would clamp or wrap it.
template <class Integer>
std::string integer_problem(const std::string& text) {
  Integer value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && !text.empty()) return "";
  return concat("expected a whole number from ", std::numeric_limits<Integer>::min(), " to ",
                std::numeric_limits<Integer>::max(), ", got ", text);
}

template <class Integer>
CLI::Option* add_integer(CLI::App& app, const std::string& name, Integer& value, const std::string& help) {
  return app.add_option(name, value, help)->check(integer_problem<Integer>, "");
}

// The same for any number: the parser alone would not say what it expects.
std::string real_problem(const std::string& text);
CLI::Option* add_real(CLI::App& app, const std::string& name, double& value, const std::string& help);

// --fuse on|off: neighbouring layers as one operation (nn/fuse.h).
CLI::Option* add_fuse(CLI::App& app, bool& fuse);

// Options that say two things about one matter, or one that means nothing alone: an ArgumentError names both. Whether an
// option was given counts, not its value.
void refuse_both(const CLI::Option* a, const CLI::Option* b, const char* why);
void refuse_without(const CLI::Option* option, const CLI::Option* needed, const char* why);

// --device of the commands that compute. Not given: the first GPU if this build can compute on it, else the CPU.
extern const char* const kDeviceHelp;
std::string chosen_device(const CLI::Option& option, const std::string& given);  // "cuda:0"; ArgumentError, DeviceError

// $LIMPID_DATA (folders separated by ':'), then the system's share/datasets.
std::vector<std::string> data_search_paths();

// "3x224x224" -> {3, 224, 224}; ArgumentError otherwise.
std::vector<std::int64_t> parse_input(const std::string& text);

// What each model is usually fed with, as text: "3x224x224".
std::string usual_input(const std::string& model);

// SIGINT, SIGTERM and SIGHUP set the flag, so that the run ends with a checkpoint. Another one, a second later or more,
// ends the program at once.
const std::atomic<bool>& stop_on_signals();
int stop_signal();  // the one that came, 0 = none

// For every command that writes a file: an ArgumentError when `out` is one of the inputs (files or run folders), or a
// file that a run is made of, of the inputs' run or of the folder that `out` is in. Files are compared, not their
// names.
void refuse_overwriting(const char* option, const std::string& out, const std::vector<std::string>& inputs);

// One JSON object, the last line on stdout. Text that is not UTF-8 (a file name) is shown with replacement characters.
void print_json(const nlohmann::ordered_json& json);

std::string percent(double fraction);  // 0.9012 -> "90.12 %"
// 1 -> "1 step", 3 -> "3 steps"
std::string counted(std::int64_t count, const char* thing);

// Runs `action`; when memory runs out under a cap, the error names the option and what the data takes of it.
template <class Action>
auto under_memory_cap(std::uint64_t cap, bool data_counts, Action&& action) {
  try {
    return action();
  } catch (memory::OutOfMemoryError& error) {
    if (cap > 0 && data_counts) {
      error.add_context(concat("--memory-cap ", format_bytes(cap), ", of which data set and loader (io) take ",
                               format_bytes(memory::io_allocator().ledger().peak_reserved), ": "));
    } else if (cap > 0) {
      error.add_context(concat("--memory-cap ", format_bytes(cap), " for computing: "));
    }
    throw;
  }
}

}  // namespace limpid::cli
