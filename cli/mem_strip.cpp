// limpid mem strip: the address x time map of a trace, for terminals.
#include <langinfo.h>

#include <clocale>
#include <cstdio>
#include <cstring>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/format.h>
#include <limpid/memory/strip.h>

#include "common.h"
#include "mem.h"

namespace limpid::cli {
namespace {

struct StripCommand : MemOptions {
  memory::StripOptions strip;
  bool ascii = false;
};

bool terminal_has_blocks() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

int run(StripCommand& o) {
  o.strip.unicode = !o.ascii && terminal_has_blocks();
  const memory::TraceLog log = open_trace(o.trace);
  const memory::ReplayScript script(log);
  const memory::Strip strip = draw_strip(script, replay_options(o, log), o.strip);
  const char* bar = o.strip.unicode ? "│" : "|";
  std::FILE* to = o.json ? stderr : stdout;
  std::fprintf(to, "policy %s: peak reserved %s, peak live %s\n\n", strip.result.policy.c_str(),
               format_bytes(strip.result.peak_reserved).c_str(), format_bytes(strip.result.peak_live).c_str());
  for (std::size_t i = 0; i < strip.rows.size(); i++) {
    const std::size_t from_bottom = strip.rows.size() - i;
    std::string label;
    if (i % 4 == 0) label = format_bytes(from_bottom * strip.bytes_a_row);
    std::fprintf(to, "%12s %s%s%s\n", label.c_str(), bar, strip.rows[i].c_str(), bar);
  }
  std::string line;
  for (int c = 0; c < o.strip.width; c++) line += o.strip.unicode ? "─" : "-";
  std::fprintf(to, "%12s %s%s%s\n", "0 B", o.strip.unicode ? "└" : "+", line.c_str(), o.strip.unicode ? "┘" : "+");
  // Steps under the axis, where they begin.
  std::string steps(static_cast<std::size_t>(o.strip.width), ' ');
  std::uint32_t shown = UINT32_MAX;
  std::size_t free_from = 0;
  for (std::size_t i = 0; i < strip.result.operations && i < script.ops.size(); i++) {
    const std::uint32_t step = log.records[script.ops[i].record].step;
    if (step == shown) continue;
    shown = step;
    const auto at = static_cast<std::size_t>(static_cast<double>(i) / strip.operations_a_column);
    const std::string text = std::to_string(step);
    if (at < free_from || at + text.size() > steps.size()) continue;
    steps.replace(at, text.size(), text);
    free_from = at + text.size() + 3;
  }
  std::fprintf(to, "%12s  %s\n", "step", steps.c_str());
  std::fprintf(to, "\na row is %s, a column %.0f operations; %s\n", format_bytes(strip.bytes_a_row).c_str(),
               strip.operations_a_column,
               o.strip.unicode ? "· reserved and free, ░ ▒ ▓ █ up to all in use"
                               : ". reserved and free, - + # @ up to all in use");
  const std::string failure = describe_failure(log, script, strip.result);
  if (!failure.empty()) std::fprintf(to, "\n%s: the map ends there\n", failure.c_str());
  if (o.json) {
    const nlohmann::ordered_json json = {{"policy", strip.result.policy},
                                         {"rows", strip.rows},
                                         {"bytes_a_row", strip.bytes_a_row},
                                         {"operations_a_column", strip.operations_a_column},
                                         {"live", strip.live},
                                         {"reserved", strip.reserved},
                                         {"peak_live", strip.result.peak_live},
                                         {"peak_reserved", strip.result.peak_reserved},
                                         {"completed", strip.result.completed}};
    std::printf("%s\n", json.dump().c_str());
  }
  return strip.result.completed ? kOk : kOutOfMemory;
}

}  // namespace

void add_mem_strip(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("strip", "Draw addresses against time as text");
  auto o = std::make_shared<StripCommand>();
  add_mem_options(*sub, *o, true);
  sub->add_option("--policy", o->policy, "Under which policy; default: the trace's own");
  add_integer(*sub, "--width", o->strip.width, "Columns of the map")->capture_default_str();
  add_integer(*sub, "--height", o->strip.height, "Rows of the map")->capture_default_str();
  sub->add_flag("--ascii", o->ascii, "Plain characters, also where the locale has more");
  sub->footer("Example:\n  limpid mem strip run --policy native --width 120\nExit code 3 when the capacity does not suffice.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
