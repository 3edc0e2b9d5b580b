// The activation ledger: every tensor that the graph keeps for the backward pass of one training step, with its layer,
// the operation and the slot that keep it, its bytes, its aliases and its life span in the allocator's trace.
// Made by a dry run. At every event of the step the rows that are alive then sum to the ledger's role `saved`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <limpid/memory/trace.h>
#include <limpid/train/rehearsal.h>

namespace limpid::train {

struct ActivationRow {
  std::string layer;   // path of the module; empty outside of modules (the loss)
  std::string op;      // "conv2d": the node that keeps it
  std::string slot;    // "x": what the node calls it
  std::string tensor;  // name of the tensor where it has one (a parameter)
  Shape shape;         // with the batch
  DType dtype = DType::float32;
  std::int64_t bytes = 0;       // of the storage, for this batch
  std::int64_t per_sample = 0;  // bytes = fixed + batch * per_sample
  std::int64_t fixed = 0;
  memory::Role role = memory::Role::saved;  // param, io: kept too, but counted in a row of their own
  std::optional<std::size_t> alias;         // the earlier row with the same storage: the bytes are counted there
  // Positions in the trace: allocated, counted as saved, no longer saved (freed or another role), freed. Only those of
  // rows that count.
  std::uint64_t allocated_at = 0, saved_at = 0, released_at = 0, freed_at = 0;

  bool counts() const { return role == memory::Role::saved && !alias; }
  bool alive_at(std::uint64_t event) const { return counts() && event >= saved_at && event < released_at; }
};

struct ActivationLedger {
  std::int64_t batch = 0;
  std::vector<ActivationRow> rows;         // in order of the forward pass
  std::vector<memory::TraceRecord> trace;  // of the forward and backward pass, one micro-batch
  std::uint64_t backward_begins = 0;       // position in the trace

  std::int64_t per_sample() const;  // sums of the rows that count
  std::int64_t fixed() const;
  std::int64_t bytes() const;
};

// Uses the settings' model, input, classes, batch and label_smoothing.
ActivationLedger activation_ledger(const RehearsalSettings& settings);

std::string to_string(const ActivationLedger& ledger);
std::string to_json(const ActivationLedger& ledger);  // an array of rows

}  // namespace limpid::train
