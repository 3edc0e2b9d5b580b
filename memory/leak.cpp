#include <limpid/memory/leak.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {

std::optional<LeakReport> LeakCheck::step_done() {
  steps_++;
  // No more blocks than at the last boundary, and no site grew there: no site can have grown twice.
  const auto blocks = static_cast<std::uint64_t>(allocator_.live_blocks());
  const std::uint64_t graph_bytes = graph_.bytes ? graph_.bytes() : 0;
  const bool look = steps_ == 1 || blocks > last_blocks_ || graph_bytes > last_graph_bytes_ || growing_;
  last_blocks_ = blocks;
  const std::uint64_t graph_growth = graph_bytes - std::min(graph_bytes, last_graph_bytes_);
  last_graph_bytes_ = graph_bytes;
  if (!look) return std::nullopt;

  struct Found {
    std::uint64_t blocks = 0, fresh = 0, fresh_bytes = 0, first_id = 0;
  };
  std::map<Site, Found> now;
  std::uint64_t newest = last_id_;
  for (const SegmentInfo& segment : allocator_.snapshot()) {
    for (const BlockInfo& b : segment.blocks) {
      if (b.state != BlockState::allocated || b.role == Role::io) continue;
      Found& found = now[{b.role, b.name, b.module, b.op, b.phase}];
      found.blocks++;
      newest = std::max(newest, b.id);
      if (b.id <= last_id_) continue;
      found.fresh++;
      found.fresh_bytes += b.requested;
      found.first_id = found.first_id == 0 ? b.id : std::min(found.first_id, b.id);
    }
  }
  last_id_ = newest;
  growing_ = false;
  LeakReport report;
  report.step = steps_;
  for (const auto& [site, found] : now) {
    Count& count = counts_[site];
    const bool grew = steps_ > 1 && found.blocks > count.blocks;
    const std::uint64_t more = grew ? found.blocks - count.blocks : 0;
    count.grown = grew ? count.grown + 1 : 0;
    count.blocks = found.blocks;
    growing_ |= grew;
    if (count.grown < 2 || count.reported) continue;
    count.reported = true;
    LeakSite leak;
    leak.role = std::get<0>(site);
    leak.name = name_of(std::get<1>(site));
    leak.layer = name_of(std::get<2>(site));
    leak.op = name_of(std::get<3>(site));
    leak.phase = std::get<4>(site);
    leak.blocks = more;
    // Of the blocks that the step made, as many as the site grew by.
    leak.bytes_per_step = found.fresh == 0 ? 0 : found.fresh_bytes * more / found.fresh;
    leak.first_id = found.first_id;
    report.bytes_per_step += leak.bytes_per_step;
    report.sites.push_back(std::move(leak));
  }
  for (auto it = counts_.begin(); it != counts_.end();) it = now.contains(it->first) ? std::next(it) : counts_.erase(it);
  if (graph_.nodes) look_at_graph(report, graph_growth);
  if (report.sites.empty()) return std::nullopt;
  std::stable_sort(report.sites.begin(), report.sites.end(),
                   [](const LeakSite& a, const LeakSite& b) { return a.bytes_per_step > b.bytes_per_step; });
  return report;
}

void LeakCheck::look_at_graph(LeakReport& report, std::uint64_t grown_bytes) {
  std::map<NameId, std::uint64_t> now;
  for (const auto& [op, nodes] : graph_.nodes()) now[op] = nodes;
  for (const auto& [op, nodes] : now) {
    Count& count = graph_counts_[op];
    const std::uint64_t more = steps_ > 1 && nodes > count.blocks ? nodes - count.blocks : 0;
    count.grown = more > 0 ? count.grown + 1 : 0;
    count.blocks = nodes;
    growing_ |= more > 0;
    if (count.grown < 2 || count.reported) continue;
    count.reported = true;
    report.graph_bytes_per_step = grown_bytes;
    LeakSite site;
    site.graph = true;
    site.op = name_of(op);
    site.blocks = more;
    report.sites.push_back(std::move(site));
  }
  for (auto& [op, count] : graph_counts_) {
    if (!now.contains(op)) count.blocks = 0, count.grown = 0;
  }
}

std::string to_string(const LeakReport& report) {
  std::string out = concat("memory grows: after step ", report.step, " each step keeps ",
                           format_bytes(report.bytes_per_step), " of tensors and ",
                           format_bytes(report.graph_bytes_per_step), " of graph nodes more than the one before");
  bool graph = false;
  for (const LeakSite& s : report.sites) {
    if (s.graph) {
      graph = true;
      out += concat("\n  graph of ", s.op, ": ", s.blocks, s.blocks == 1 ? " node" : " nodes", " a step");
      continue;
    }
    out += concat("\n  ", to_string(s.role), " ", s.name.empty() ? "(unnamed)" : s.name);
    if (!s.op.empty()) out += " of " + s.op;
    if (!s.layer.empty()) out += " in " + s.layer;
    if (s.phase != Phase::none) out += concat(", ", limpid::to_string(s.phase));
    out += concat(": ", format_bytes(s.bytes_per_step), " in ", s.blocks, s.blocks == 1 ? " block" : " blocks",
                  " a step; the last one is allocation ", s.first_id);
  }
  if (graph) out += "\n  a tensor with history keeps these graphs: is a loss summed up without item() or detach()?";
  return out;
}

std::string to_json(const LeakReport& report) {
  nlohmann::ordered_json json;
  json["step"] = report.step;
  json["bytes_per_step"] = report.bytes_per_step;
  json["graph_bytes_per_step"] = report.graph_bytes_per_step;
  json["sites"] = nlohmann::ordered_json::array();
  for (const LeakSite& s : report.sites) {
    json["sites"].push_back({{"graph", s.graph},
                             {"role", to_string(s.role)},
                             {"name", s.name},
                             {"layer", s.layer},
                             {"op", s.op},
                             {"phase", limpid::to_string(s.phase)},
                             {"blocks", s.blocks},
                             {"bytes_per_step", s.bytes_per_step},
                             {"first_id", s.first_id}});
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace limpid::memory
