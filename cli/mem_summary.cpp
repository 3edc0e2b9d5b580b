// limpid mem summary: what is in a trace, and who holds memory at its peak.
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <unordered_map>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

#include "mem.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;
using memory::TraceKind;
using memory::TraceRecord;

struct Holder {
  memory::Role role;
  std::string label;
  std::uint64_t bytes = 0, count = 0;
};

struct Summary {
  std::array<std::uint64_t, memory::kTraceKindCount> kinds{};
  std::array<std::uint64_t, memory::kRoleCount> roles{};  // live bytes at the peak
  std::vector<Holder> holders;                            // at the peak, largest first
  std::array<std::uint64_t, 64> sizes{};                  // allocations by floor(log2(bytes))
  std::uint64_t live_at_end = 0, blocks_at_end = 0;
  std::uint32_t steps = 0;
};

Summary summarize(const memory::TraceLog& log, std::uint32_t peak) {
  Summary out;
  std::unordered_map<std::uint64_t, TraceRecord> live;
  for (std::uint32_t i = 0; i < log.records.size(); i++) {
    const TraceRecord& r = log.records[i];
    out.kinds[static_cast<std::size_t>(r.kind)]++;
    out.steps = std::max(out.steps, r.step + 1);
    auto it = live.find(r.id);
    if (r.kind == TraceKind::alloc) {
      out.sizes[static_cast<std::size_t>(63 - __builtin_clzll(r.bytes))]++;
      live[r.id] = r;
    } else if (it != live.end() && r.kind == TraceKind::free) {
      live.erase(it);
    } else if (it != live.end() && r.kind == TraceKind::role) {
      it->second.role = r.role;
    } else if (it != live.end() && r.kind == TraceKind::name) {
      it->second.name = r.name;
    }
    if (i != peak) continue;
    std::map<std::pair<memory::Role, std::string>, Holder> holders;
    for (const auto& [id, block] : live) {
      out.roles[static_cast<std::size_t>(block.role)] += block.bytes;
      Holder& h = holders[{block.role, log.label(block)}];
      h.bytes += block.bytes;
      h.count++;
    }
    for (auto& [key, holder] : holders) {
      holder.role = key.first;
      holder.label = key.second;
      out.holders.push_back(holder);
    }
    std::stable_sort(out.holders.begin(), out.holders.end(),
                     [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  }
  for (const auto& [id, block] : live) out.live_at_end += block.bytes;
  out.blocks_at_end = live.size();
  return out;
}

int run(const MemOptions& o) {
  const memory::TraceLog log = open_trace(o.trace);
  const memory::ReplayScript script(log);
  const Summary s = summarize(log, script.peak_live_record);
  auto count = [](std::uint64_t n) { return format_count(static_cast<std::int64_t>(n)); };
  std::FILE* to = o.json ? stderr : stdout;
  std::fprintf(to, "%s trace of %s, policy %s%s%s%s\n", log.info.source.c_str(),
               log.info.device.empty() ? "an unnamed device" : log.info.device.c_str(), log.info.policy.c_str(),
               log.info.settings.empty() ? "" : ", ", log.info.settings.c_str(), log.cut ? "; the file is cut" : "");
  std::fprintf(to, "%s records:", count(log.records.size()).c_str());
  for (int k = 0; k < memory::kTraceKindCount; k++) {
    const std::uint64_t n = s.kinds[static_cast<std::size_t>(k)];
    if (n > 0) std::fprintf(to, " %s %s", count(n).c_str(), memory::to_string(static_cast<TraceKind>(k)));
  }
  std::fprintf(to, "\n%u step%s; at most %s blocks live\n", s.steps, s.steps == 1 ? "" : "s",
               count(script.slots).c_str());
  if (log.info.preexisting > 0) {
    std::fprintf(to, "%s blocks were live before the recording\n", count(log.info.preexisting).c_str());
  }
  std::fprintf(to, "live at the end: %s in %s blocks\n", format_bytes(s.live_at_end).c_str(),
               count(s.blocks_at_end).c_str());
  std::fprintf(to, "\npeak of live bytes: %s at %s\n", format_bytes(script.peak_live).c_str(),
               describe_event(log, script, script.peak_live_record).c_str());
  for (int r = 0; r < memory::kRoleCount; r++) {
    const std::uint64_t bytes = s.roles[static_cast<std::size_t>(r)];
    if (bytes == 0) continue;
    std::fprintf(to, "  %-12s %12s %5.1f %%\n", memory::to_string(static_cast<memory::Role>(r)),
                 format_bytes(bytes).c_str(),
                 100.0 * static_cast<double>(bytes) / static_cast<double>(script.peak_live));
  }
  std::fprintf(to, "\nlargest holders at the peak\n");
  for (std::size_t i = 0; i < std::min<std::size_t>(s.holders.size(), 12); i++) {
    const Holder& h = s.holders[i];
    std::fprintf(to, "  %12s  %-10s %s (%s block%s)\n", format_bytes(h.bytes).c_str(), memory::to_string(h.role),
                 h.label.c_str(), count(h.count).c_str(), h.count == 1 ? "" : "s");
  }
  std::fprintf(to, "\nallocations by size\n");
  for (std::size_t k = 0; k < s.sizes.size(); k++) {
    if (s.sizes[k] == 0) continue;
    std::fprintf(to, "  from %11s %12s\n", format_bytes(std::uint64_t{1} << k).c_str(), count(s.sizes[k]).c_str());
  }
  if (!o.json) return kOk;
  Json json;
  json["source"] = log.info.source;
  json["device"] = log.info.device;
  json["policy"] = log.info.policy;
  json["settings"] = log.info.settings;
  json["capacity"] = log.info.capacity;
  json["preexisting"] = log.info.preexisting;
  json["not_recorded"] = log.info.not_recorded;
  json["cut"] = log.cut;
  json["notes"] = log.notes;
  json["records"] = log.records.size();
  for (int k = 0; k < memory::kTraceKindCount; k++) {
    json["kinds"][memory::to_string(static_cast<TraceKind>(k))] = s.kinds[static_cast<std::size_t>(k)];
  }
  json["steps"] = s.steps;
  json["max_live_blocks"] = script.slots;
  json["live_at_end"] = s.live_at_end;
  json["peak_live"] = script.peak_live;
  json["peak_event"] = script.ops.empty() ? Json(nullptr) : Json(script.event_of(script.peak_live_record));
  json["roles_at_peak"] = Json::object();
  for (int r = 0; r < memory::kRoleCount; r++) {
    json["roles_at_peak"][memory::to_string(static_cast<memory::Role>(r))] = s.roles[static_cast<std::size_t>(r)];
  }
  json["holders_at_peak"] = Json::array();
  for (const Holder& h : s.holders) {
    json["holders_at_peak"].push_back(
        {{"role", memory::to_string(h.role)}, {"label", h.label}, {"bytes", h.bytes}, {"blocks", h.count}});
  }
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  return kOk;
}

}  // namespace

void add_mem_summary(CLI::App& mem, Action& action) {
  CLI::App* sub = mem.add_subcommand("summary", "What is in a trace, and who holds memory at its peak");
  auto o = std::make_shared<MemOptions>();
  add_mem_options(*sub, *o, false);
  sub->footer("Example:\n  limpid mem summary run/trace.bin --json");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
