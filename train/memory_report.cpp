#include <limpid/train/memory_report.h>

#include <cstdio>

#include <limpid/base/format.h>
#include <limpid/base/names.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using detail::Json;
using detail::roles_json;

Json scope_json(const Scope& scope) {
  return {{"step", scope.step},
          {"micro_batch", scope.micro_batch},
          {"phase", to_string(scope.phase)},
          {"op", name_of(scope.op)},
          {"layer", name_of(scope.module)}};
}

}  // namespace

memory::Ledger data_ledger(const memory::Allocator& compute, bool at_peak) {
  if (compute.device_name().rfind("cuda", 0) == 0) return {};
  const memory::Allocator& io = memory::io_allocator();
  return at_peak ? io.ledger_at_peak() : io.ledger();
}

MemoryReport memory_report(const memory::Allocator& compute) {
  return memory_report(compute.ledger_at_peak(), data_ledger(compute, true));
}

MemoryReport memory_report(const memory::Ledger& compute, const memory::Ledger& io) {
  MemoryReport report;
  for (std::size_t i = 0; i < report.roles.size(); i++) report.roles[i] = compute.live[i] + io.live[i];
  report.rounding = compute.rounding + compute.slack + io.rounding + io.slack;
  report.io_pool = io.allocated();
  report.io_reserved = io.peak_reserved;
  report.allocated = compute.allocated() + io.allocated();
  report.reserved = compute.peak_reserved + io.peak_reserved;
  report.external = compute.external;
  report.capacity = compute.capacity;
  report.scope = compute.scope;
  return report;
}

std::string describe_instant(const Scope& scope) {
  std::string text = concat("step ", scope.step, ", ", to_string(scope.phase));
  if (scope.op != 0) text += ", " + name_of(scope.op);
  if (scope.module != 0) text += " in " + name_of(scope.module);
  return text;
}

std::string to_string(const MemoryReport& report) {
  struct Row {
    const char* label;
    const char* meaning;
  };
  // In the order of memory::Role.
  static constexpr Row kRows[memory::kRoleCount] = {
      {"params", "weights and buffers"},         {"grads", "gradients of the parameters"},
      {"optimizer", "state of the update rule"}, {"activations", "results in use"},
      {"saved", "kept for the backward pass"},   {"workspace", "scratch of kernels"},
      {"io", "data set and the loader's ring"},  {"temp", "gradients on their way, short-lived results"},
      {"external", "owned by somebody else"},    {"other", "without a role"},
  };
  std::string out = concat("Memory at the peak (", describe_instant(report.scope), ")\n");
  auto line = [&](const char* label, std::uint64_t bytes, const char* note) {
    char text[160];
    const double share =
        report.allocated ? 100.0 * static_cast<double>(bytes) / static_cast<double>(report.allocated) : 0;
    std::snprintf(text, sizeof text, "  %-12s %12s %15s B %5.1f %%  %s\n", label, format_bytes(bytes).c_str(),
                  format_count(static_cast<std::int64_t>(bytes)).c_str(), share, note);
    out += text;
  };
  for (int i = 0; i < memory::kRoleCount; i++) {
    const std::uint64_t bytes = report.roles[static_cast<std::size_t>(i)];
    if (bytes == 0 && i >= static_cast<int>(memory::Role::temp)) continue;
    line(kRows[i].label, bytes, kRows[i].meaning);
  }
  line("rounding", report.rounding, "to the allocator's block sizes");
  line("allocated", report.allocated, "sum of the above");
  out += concat("  reserved     ", format_bytes(report.reserved), " from the system at most, ",
                format_bytes(report.io_reserved), " of it for io\n");
  if (report.external) out += concat("  external     ", format_bytes(report.external), " owned by somebody else\n");
  return out;
}

std::string to_json(const MemoryReport& report) {
  Json json;
  json["roles"] = roles_json(report.roles);
  json["rounding"] = report.rounding;
  json["allocated"] = report.allocated;
  json["reserved"] = report.reserved;
  json["io_pool_allocated"] = report.io_pool;
  json["io_pool_reserved"] = report.io_reserved;
  json["external"] = report.external;
  json["capacity"] = report.capacity;
  json["at"] = scope_json(report.scope);
  return json.dump();
}

std::string memory_line(const memory::Allocator& compute) {
  const memory::Ledger now = compute.ledger();
  Json json;
  json["roles"] = roles_json(now.live);
  json["rounding"] = now.rounding;
  json["slack"] = now.slack;
  json["pending_free"] = now.pending_free;
  json["free_in_used"] = now.free_in_used;
  json["free_whole"] = now.free_whole;
  json["reserved"] = now.reserved;
  json["external"] = now.external;
  json["peak_live"] = now.peak_live;
  json["peak_reserved"] = now.peak_reserved;
  return json.dump();
}

}  // namespace limpid::train
