// Predictions and curves as tables and as JSON.
#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <limpid/base/format.h>
#include <limpid/train/plan.h>

namespace limpid::train {
namespace {

using Json = nlohmann::ordered_json;

std::string bytes(std::uint64_t n) { return format_bytes(n); }
std::string count(std::uint64_t n) { return format_count(static_cast<std::int64_t>(n)); }

std::string place(const Scope& scope) {
  std::string text = to_string(scope.phase);
  if (scope.op) text += ", " + name_of(scope.op);
  if (scope.module) text += " in " + name_of(scope.module);
  return text;
}

Json scope_json(const Scope& scope) {
  return {{"step", scope.step},
          {"micro_batch", scope.micro_batch},
          {"phase", to_string(scope.phase)},
          {"op", name_of(scope.op)},
          {"layer", name_of(scope.module)}};
}

const char* end_name(CurvePiece::End end) {
  switch (end) {
    case CurvePiece::End::crossing:
      return "crossing";
    case CurvePiece::End::plan:
      return "plan";
    case CurvePiece::End::range:
      break;
  }
  return "range";
}

// Columns as wide as they must be; the first `left` of them are flush left.
std::string table(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> width;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); i++) {
      if (i == width.size()) width.push_back(0);
      width[i] = std::max(width[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); i++) {
      const std::string space(width[i] - row[i].size(), ' ');
      line += (i ? "  " : "") + (i < left || i + 1 == row.size() ? row[i] + space : space + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace

std::string to_string(const Prediction& p) {
  if (!p.fits) return concat("batch ", p.batch, " does not fit: ", memory::to_string(*p.oom), "\n");
  const memory::Stats& stats = p.run.stats;
  auto peak = [&](memory::Metric m) { return static_cast<std::uint64_t>(stats.get(m).peak); };
  std::string out = to_string(p.run.memory);
  out += "Tensors and workspaces alone (the compute pool)\n";
  out += table({{"requested at most", bytes(p.run.live_peak), count(p.run.live_peak) + " B"},
                {"allocated at most", bytes(peak(memory::Metric::allocated_bytes)),
                 count(peak(memory::Metric::allocated_bytes)) + " B"},
                {"reserved at most", bytes(peak(memory::Metric::reserved_bytes)),
                 concat(count(peak(memory::Metric::reserved_bytes)), " B in ", stats.get(memory::Metric::segment).peak,
                        " segments")},
                {"device calls", concat(stats.num_device_alloc + stats.num_device_free),
                 concat(stats.num_alloc_retries, " retries")},
                {"steady from step", p.run.steady_step ? concat(*p.run.steady_step) : std::string("-"),
                 "from there on every full step finds the pool as the one before"}},
               1);
  return out;
}

std::string to_json(const Prediction& p) {
  Json json;
  json["batch"] = p.batch;
  json["fits"] = p.fits;
  if (!p.fits) {
    json["oom"] = {{"requested", p.oom->requested},  {"reserved", p.oom->reserved},
                   {"capacity", p.oom->capacity},    {"largest_free", p.oom->largest_free},
                   {"at", scope_json(p.oom->scope)}, {"message", memory::to_string(*p.oom)},
                   {"verdict", Json::parse(memory::to_json(*p.oom))}};
    return json.dump();
  }
  const memory::Stats& stats = p.run.stats;
  auto peak = [&](memory::Metric m) { return stats.get(m).peak; };
  json["parameters"] = p.run.parameters;
  json["peak_allocated_bytes"] = p.run.memory.allocated;  // the names of `limpid train --json`
  json["peak_reserved_bytes"] = p.run.memory.reserved;
  const Json memory = Json::parse(to_json(p.run.memory));
  json["memory_at_peak"] = memory.at("roles");
  json["rounding_at_peak_bytes"] = memory.at("rounding");
  json["peak_at"] = memory.at("at");
  json["io_reserved_bytes"] = p.run.memory.io_reserved;
  json["compute"] = {{"live_peak", p.run.live_peak},
                     {"allocated_peak", peak(memory::Metric::allocated_bytes)},
                     {"reserved_peak", peak(memory::Metric::reserved_bytes)},
                     {"segments_peak", peak(memory::Metric::segment)},
                     {"device_allocs", stats.num_device_alloc},
                     {"device_frees", stats.num_device_free},
                     {"retries", stats.num_alloc_retries}};
  json["steady_step"] = p.run.steady_step ? Json(*p.run.steady_step) : Json(nullptr);
  json["steps"] = Json::array();
  for (const RehearsalStep& s : p.run.steps) {
    json["steps"].push_back({{"step", s.step},
                             {"epoch", s.epoch},
                             {"samples", s.samples},
                             {"full", s.full},
                             {"allocated", s.allocated},
                             {"reserved", s.reserved},
                             {"device_calls", s.device_calls}});
  }
  return json.dump();
}

std::string to_string(const Curve& curve) {
  std::string out = "Live bytes = fixed + B x a sample, exact for the batch sizes B named\n";
  std::vector<std::vector<std::string>> rows = {{"B", "fixed", "a sample", "at", "until"}};
  for (const CurvePiece& p : curve.pieces) {
    const bool one = p.first == p.last;
    rows.push_back({one ? concat(p.first) : concat(p.first, "..", p.last), format_count(p.fixed),
                    format_count(p.per_sample), place(p.scope),
                    p.end == CurvePiece::End::range      ? "end of the range"
                    : p.end == CurvePiece::End::crossing ? "the next line is higher"
                                                         : "a kernel plans otherwise"});
  }
  out += table(rows, 1);
  out += "By dry run\n";
  rows = {{"B", "live", "allocated", "reserved", "segments", "io", "peak at"}};
  // All of a short curve; else powers of two, the borders and the end.
  for (const CurvePoint& p : curve.points) {
    const bool border = std::any_of(curve.pieces.begin(), curve.pieces.end(), [&](const CurvePiece& piece) {
      return p.batch == piece.first || p.batch == piece.last;
    });
    if (curve.points.size() > 32 && !border && (p.batch & (p.batch - 1)) != 0) continue;
    rows.push_back({concat(p.batch), bytes(p.live), bytes(p.allocated), bytes(p.reserved), concat(p.segments),
                    bytes(p.io), place(p.scope)});
  }
  return out + table(rows, 0);
}

std::string to_json(const Curve& curve) {
  Json json;
  json["pieces"] = Json::array();
  for (const CurvePiece& p : curve.pieces) {
    json["pieces"].push_back({{"first", p.first},
                              {"last", p.last},
                              {"fixed", p.fixed},
                              {"per_sample", p.per_sample},
                              {"end", end_name(p.end)},
                              {"at", scope_json(p.scope)}});
  }
  json["points"] = Json::array();
  for (const CurvePoint& p : curve.points) {
    json["points"].push_back({{"batch", p.batch},
                              {"live", p.live},
                              {"allocated", p.allocated},
                              {"reserved", p.reserved},
                              {"segments", p.segments},
                              {"io_reserved", p.io},
                              {"at", scope_json(p.scope)}});
  }
  return json.dump();
}

}  // namespace limpid::train
