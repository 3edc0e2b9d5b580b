#include <limpid/train/activation_ledger.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/graph.h>
#include <limpid/base/format.h>
#include <limpid/tensor/dry.h>
#include <limpid/train/parts.h>

namespace limpid::train {
namespace {

// One forward and backward pass of `batch` samples.
ActivationLedger one_pass(const RehearsalSettings& s, std::int64_t batch) {
  ActivationLedger ledger;
  ledger.batch = batch;
  dry::Run run;
  const Shape input(s.train.input);
  const std::shared_ptr<nn::Module> model = s.model ? s.model() : make_model(s.train);
  model->train();
  Shape x_shape = input;
  x_shape.insert(0, batch);
  const Tensor x = zeros(x_shape, {.role = memory::Role::io});
  const Tensor y = zeros({batch}, {.dtype = int64, .role = memory::Role::io});

  memory::Trace& trace = run.pool().trace();
  const std::uint64_t first = trace.total();
  trace.set_sink([&](const memory::TraceRecord* records, std::size_t count) {
    ledger.trace.insert(ledger.trace.end(), records, records + count);
  });
  std::unordered_map<std::uint64_t, std::size_t> row_of_block;  // rows that count
  {
    Tensor loss;
    {
      PhaseScope phase(Phase::forward);
      loss = cross_entropy((*model)(x), y, {.label_smoothing = s.train.label_smoothing});
    }
    std::unordered_map<const Storage*, std::size_t> first_row;
    const std::vector<NodeInfo> nodes = list_graph(loss);
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      for (const SavedInfo& saved : node->saved) {
        ActivationRow row;
        row.layer = node->module;
        row.op = node->name;
        row.slot = saved.what;
        row.tensor = saved.label;
        row.shape = saved.shape;
        row.dtype = saved.dtype;
        row.bytes = static_cast<std::int64_t>(saved.bytes);
        row.role = saved.storage->role();
        const auto [found, is_new] = first_row.emplace(saved.storage, ledger.rows.size());
        if (!is_new) row.alias = found->second;
        if (row.counts() && saved.storage->block()) row_of_block[saved.storage->block()->id] = ledger.rows.size();
        ledger.rows.push_back(std::move(row));
      }
    }
    ledger.backward_begins = trace.total() - first;
    loss.backward();
  }
  trace.flush();
  trace.set_sink({});

  for (std::uint64_t at = 0; at < ledger.trace.size(); at++) {
    const memory::TraceRecord& record = ledger.trace[at];
    const auto found = row_of_block.find(record.id);
    if (found == row_of_block.end()) continue;
    ActivationRow& row = ledger.rows[found->second];
    switch (record.kind) {
      case memory::TraceKind::alloc:
        row.allocated_at = at;
        break;
      case memory::TraceKind::role:
        (record.role == memory::Role::saved ? row.saved_at : row.released_at) = at;
        break;
      case memory::TraceKind::free:
        row.freed_at = at;
        if (row.released_at == 0) row.released_at = at;
        break;
      default:
        break;
    }
  }
  return ledger;
}

const char* role_note(memory::Role role) {
  return role == memory::Role::param ? "parameter" : role == memory::Role::io ? "batch" : memory::to_string(role);
}

}  // namespace

std::int64_t ActivationLedger::per_sample() const {
  std::int64_t sum = 0;
  for (const ActivationRow& row : rows) sum += row.counts() ? row.per_sample : 0;
  return sum;
}
std::int64_t ActivationLedger::fixed() const {
  std::int64_t sum = 0;
  for (const ActivationRow& row : rows) sum += row.counts() ? row.fixed : 0;
  return sum;
}
std::int64_t ActivationLedger::bytes() const { return fixed() + batch * per_sample(); }

ActivationLedger activation_ledger(const RehearsalSettings& settings) {
  check(settings);
  const std::int64_t batch = settings.train.batch;
  ActivationLedger ledger = one_pass(settings, batch);
  // What grows with one more sample is per sample, the rest is fixed.
  const ActivationLedger more = one_pass(settings, batch + 1);
  LIMPID_CHECK(more.rows.size() == ledger.rows.size(), ArgumentError,
               "[ledger] the graph depends on the batch: it keeps ", ledger.rows.size(), " tensors for ", batch,
               " samples and ", more.rows.size(), " for ", batch + 1);
  for (std::size_t i = 0; i < ledger.rows.size(); i++) {
    ActivationRow& row = ledger.rows[i];
    row.per_sample = more.rows[i].bytes - row.bytes;
    row.fixed = row.bytes - batch * row.per_sample;
  }
  return ledger;
}

std::string to_string(const ActivationLedger& ledger) {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "kept by", "as", "tensor", "B/sample", "B fixed", "saved at", "until", "note"}};
  for (const ActivationRow& row : ledger.rows) {
    std::string note;
    if (row.alias) {
      const ActivationRow& owner = ledger.rows[*row.alias];
      note = concat("same bytes as ", owner.layer.empty() ? "" : owner.layer + " ", owner.op, ".", owner.slot);
    } else if (row.role != memory::Role::saved) {
      note = concat("counted as ", role_note(row.role), row.tensor.empty() ? "" : " " + row.tensor);
    }
    const bool counts = row.counts();
    rows.push_back({row.layer.empty() ? "-" : row.layer, row.op, row.slot, to_string(row.dtype) + to_string(row.shape),
                    counts ? format_count(row.per_sample) : "-", counts && row.fixed ? format_count(row.fixed) : "-",
                    counts ? concat(row.saved_at) : "-", counts ? concat(row.released_at) : "-", note});
  }
  rows.push_back({"total", "", "", "", format_count(ledger.per_sample()), format_count(ledger.fixed()), "", "", ""});
  std::vector<std::size_t> width(rows[0].size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); i++) width[i] = std::max(width[i], row[i].size());
  std::string out =
      concat("Kept for the backward pass, batch ", ledger.batch, ": ",
             format_bytes(static_cast<std::uint64_t>(ledger.bytes())), "; events of the trace: ", ledger.trace.size(),
             ", backward from ", ledger.backward_begins, "\n");
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); i++) {
      const std::string space(width[i] - row[i].size(), ' ');
      line += (i ? "  " : "") + (i >= 4 && i <= 7 ? space + row[i] : row[i] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string to_json(const ActivationLedger& ledger) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ActivationRow& row : ledger.rows) {
    nlohmann::ordered_json entry = {{"layer", row.layer},
                                    {"op", row.op},
                                    {"slot", row.slot},
                                    {"tensor", row.tensor},
                                    {"shape", row.shape.vec()},
                                    {"dtype", to_string(row.dtype)},
                                    {"bytes", row.bytes},
                                    {"bytes_per_sample", row.per_sample},
                                    {"bytes_fixed", row.fixed},
                                    {"role", memory::to_string(row.role)},
                                    {"alias_of", row.alias ? nlohmann::ordered_json(*row.alias) : nullptr}};
    if (row.counts()) {
      entry["allocated_at"] = row.allocated_at;
      entry["saved_at"] = row.saved_at;
      entry["released_at"] = row.released_at;
      entry["freed_at"] = row.freed_at;
    }
    json.push_back(std::move(entry));
  }
  return json.dump();
}

}  // namespace limpid::train
