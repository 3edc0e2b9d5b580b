#include <limpid/train/amp_ledger.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/node.h>
#include <limpid/base/format.h>
#include <limpid/tensor/raw.h>

namespace limpid::train {
namespace {

// Two tensors of one shape in the same order: of memory where they lie alike, which copies nothing; else of logic.
std::vector<float> in_memory_order(const Tensor& x) {
  return raw::as_strided(x, {x.numel()}, {1}, x.impl()->offset).to_vector<float>();
}
std::pair<std::vector<float>, std::vector<float>> values(const Tensor& a, const Tensor& b) {
  if (a.is_dense() && b.is_dense() && a.strides() == b.strides()) return {in_memory_order(a), in_memory_order(b)};
  return {a.to_vector<float>(), b.to_vector<float>()};
}

bool is_low(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }
float smallest_normal(DType dtype) { return dtype == DType::float16 ? 0x1p-14f : 0x1p-126f; }

std::string join(const std::vector<DType>& dtypes) {
  std::string out;
  for (DType dtype : dtypes) out += (out.empty() ? "" : ", ") + to_string(dtype);
  return out.empty() ? "-" : out;
}

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

// Columns of text; those from `first_number` on are right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows, std::size_t first_number) {
  std::vector<std::size_t> width(rows[0].size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); i++) width[i] = std::max(width[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); i++) {
      const std::string space(width[i] - row[i].size(), ' ');
      line += (i ? "  " : "") + (i >= first_number ? space + row[i] : row[i] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string name_or_dash(const std::string& name) { return name.empty() ? "-" : name; }

}  // namespace

// ---- noting

void AmpLedger::on_cast(const Tensor&, const Tensor& to, bool reused) {
  if (reused) {
    casts_.reused++;
  } else {
    casts_.casts++;
    casts_.cast_bytes += to.nbytes();
  }
  peak_cache_bytes_ = std::max(peak_cache_bytes_, autocast_cache_bytes());
}

void AmpLedger::on_result(const Tensor& result, std::span<const Tensor* const> inputs, DType compute) {
  const AmpOpRow casts = std::exchange(casts_, {});
  unsigned dtypes = 0;
  bool is_view = false;
  for (const Tensor* x : inputs) {
    if (!x || !x->defined()) continue;
    if (is_floating(x->dtype())) dtypes |= 1u << static_cast<int>(x->dtype());
    is_view |= x->storage() == result.storage();
  }
  if (is_view || !is_floating(result.dtype())) return;  // nothing was computed
  const Scope& scope = current_scope();
  auto [at, fresh] = op_rows_.try_emplace({scope.module, scope.op, dtypes, compute, result.dtype()}, ops_.size());
  if (fresh) {
    AmpOpRow& row = ops_.emplace_back();
    row.layer = name_of(scope.module);
    row.op = name_of(scope.op);
    for (int d = 0; d < 4; d++)
      if (dtypes >> d & 1u) row.inputs.push_back(static_cast<DType>(d));
    row.compute = compute;
    row.output = result.dtype();
  }
  AmpOpRow& row = ops_[at->second];
  row.calls++;
  row.output_bytes += result.nbytes();
  row.casts += casts.casts;
  row.reused += casts.reused;
  row.cast_bytes += casts.cast_bytes;
  look(result, {});
}

void AmpLedger::look(const Tensor& x, std::optional<int> gradient_of) {
  if (!options_.find_non_finite || !is_floating(x.dtype())) return;
  const Scope& scope = current_scope();
  auto same = [&](const NonFinite& n) { return n.step == scope.step && n.micro_batch == scope.micro_batch; };
  if (!non_finite_.empty() && same(non_finite_.back())) return;
  if (raw::all_finite(x)) return;
  if (std::any_of(non_finite_.begin(), non_finite_.end(), same)) return;
  non_finite_.push_back({scope.step, scope.micro_batch, scope.phase, name_of(scope.module), name_of(scope.op), gradient_of,
                         x.dtype()});
}

UnderflowRow& AmpLedger::underflow_row(DType dtype) {
  const NameId layer = current_scope().module;
  auto [at, fresh] = underflow_rows_.try_emplace({layer, dtype}, underflow_.size());
  if (fresh) {
    underflow_.emplace_back();
    underflow_.back().layer = name_of(layer);
    underflow_.back().dtype = dtype;
  }
  return underflow_[at->second];
}

void AmpLedger::on_backward(const Node& node, std::span<const Tensor> grads, std::span<const Tensor> input_grads) {
  static const NameId cast = intern("cast");
  for (std::size_t i = 0; i < input_grads.size(); i++) {
    const Tensor& grad = input_grads[i];
    if (!grad.defined() || grad.device().is_dry()) continue;
    look(grad, static_cast<int>(i));
    if (!options_.count_underflow || !is_low(grad.dtype())) continue;
    UnderflowRow& row = underflow_row(grad.dtype());
    const bool is_cast = node.name_id() == cast && grads[0].dtype() == DType::float32;
    const auto [after, before] = values(grad, is_cast ? grads[0] : grad);
    const float least = smallest_normal(grad.dtype());
    for (std::size_t e = 0; e < after.size(); e++) {
      const float magnitude = std::fabs(after[e]);
      row.elements++;
      row.zeros += magnitude == 0;
      row.subnormal += magnitude > 0 && magnitude < least;
      row.cast_nonzero += is_cast && before[e] != 0;
      row.cast_lost += is_cast && before[e] != 0 && magnitude == 0;
    }
  }
}

void AmpLedger::step_done(const optim::GradScaler& scaler, const optim::StepTicket& ticket) {
  const bool skipped = ticket.skipped();
  const double scale = scaler.get_scale();
  if (skipped || scale != last_scale_) scale_trace_.push_back({current_scope().step, scale, skipped});
  last_scale_ = scale;
  steps_++;
  skipped_ += skipped;
}

std::uint64_t AmpLedger::cast_bytes() const {
  std::uint64_t bytes = 0;
  for (const AmpOpRow& row : ops_) bytes += row.cast_bytes;
  return bytes;
}

// ---- telling

std::string to_string(const NonFinite& n) {
  return concat("step ", n.step, ", micro-batch ", n.micro_batch, ": ", n.op, n.layer.empty() ? "" : " in " + n.layer, ", ",
                to_string(n.phase), ": ", n.gradient_of ? concat("gradient of input ", *n.gradient_of) : "result", " (",
                n.dtype, ")");
}

std::string to_string(const AmpLedger& ledger) {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "op", "given", "computes in", "gives", "calls", "result bytes", "casts", "reused", "cast bytes"}};
  for (const AmpOpRow& row : ledger.ops()) {
    rows.push_back({name_or_dash(row.layer), row.op, join(row.inputs), to_string(row.compute), to_string(row.output),
                    format_count(row.calls), format_count(static_cast<std::int64_t>(row.output_bytes)),
                    format_count(row.casts), format_count(row.reused),
                    format_count(static_cast<std::int64_t>(row.cast_bytes))});
  }
  std::string out = table(rows, 5);
  out += concat("cast: ", format_bytes(ledger.cast_bytes()), " in all; copies of parameters kept at once: at most ",
                format_bytes(ledger.peak_cache_bytes()), "\n");
  if (!ledger.underflow().empty()) {
    rows = {{"16-bit gradients of", "dtype", "elements", "zero", "subnormal of the rest", "made 0 by a cast"}};
    for (const UnderflowRow& row : ledger.underflow()) {
      rows.push_back({row.layer.empty() ? "(no layer)" : row.layer, to_string(row.dtype), format_count(row.elements),
                      format_count(row.zeros), percent(row.subnormal_share()),
                      row.cast_nonzero > 0 ? percent(row.lost_share()) : "-"});
    }
    out += "\n" + table(rows, 2);
  }
  if (!ledger.non_finite().empty()) out += "\nfirst values that are not finite\n";
  for (const NonFinite& found : ledger.non_finite()) out += concat("  ", to_string(found), "\n");
  if (ledger.steps() > 0) {
    out += concat("\nloss scale over ", format_count(ledger.steps()), " steps, ", format_count(ledger.skipped()),
                  " skipped\n");
    for (const ScaleChange& change : ledger.scale_trace())
      out += concat("  step ", change.step, ": ", change.scale, change.skipped ? ", skipped" : "", "\n");
  }
  return out;
}

std::string to_json(const AmpLedger& ledger) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["ops"] = Json::array();
  for (const AmpOpRow& row : ledger.ops()) {
    Json inputs = Json::array();
    for (DType dtype : row.inputs) inputs.push_back(to_string(dtype));
    json["ops"].push_back({{"layer", row.layer},
                           {"op", row.op},
                           {"inputs", inputs},
                           {"compute", to_string(row.compute)},
                           {"output", to_string(row.output)},
                           {"calls", row.calls},
                           {"output_bytes", row.output_bytes},
                           {"casts", row.casts},
                           {"reused", row.reused},
                           {"cast_bytes", row.cast_bytes}});
  }
  json["cast_bytes"] = ledger.cast_bytes();
  json["peak_cache_bytes"] = ledger.peak_cache_bytes();
  json["underflow"] = Json::array();
  for (const UnderflowRow& row : ledger.underflow()) {
    json["underflow"].push_back({{"layer", row.layer},
                                 {"dtype", to_string(row.dtype)},
                                 {"elements", row.elements},
                                 {"zeros", row.zeros},
                                 {"subnormal", row.subnormal},
                                 {"subnormal_share", row.subnormal_share()},
                                 {"cast_nonzero", row.cast_nonzero},
                                 {"cast_lost", row.cast_lost},
                                 {"lost_share", row.lost_share()}});
  }
  json["non_finite"] = Json::array();
  for (const NonFinite& n : ledger.non_finite()) {
    json["non_finite"].push_back({{"step", n.step},
                                  {"micro_batch", n.micro_batch},
                                  {"phase", to_string(n.phase)},
                                  {"layer", n.layer},
                                  {"op", n.op},
                                  {"gradient_of_input", n.gradient_of ? Json(*n.gradient_of) : Json(nullptr)},
                                  {"dtype", to_string(n.dtype)}});
  }
  json["steps"] = ledger.steps();
  json["skipped"] = ledger.skipped();
  json["scale_trace"] = Json::array();
  for (const ScaleChange& change : ledger.scale_trace())
    json["scale_trace"].push_back({{"step", change.step}, {"scale", change.scale}, {"skipped", change.skipped}});
  return json.dump();
}

}  // namespace limpid::train
