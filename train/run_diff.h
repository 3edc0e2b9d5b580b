// Run diff: the first step and the first field in which the ledgers of two runs part, and where every other field parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace limpid::train {

struct Difference {
  std::string record;       // "plan", "step" or "epoch"
  std::int64_t number = 0;  // of the step or epoch; 0 for the plan
  std::string field;        // "lr", "micro_batches[1].weight[0]"
  std::string a, b;         // values as they stand in the files; empty: absent
  std::int64_t times = 1;   // records of the kind in which this field differs
};

struct RunDiff {
  // The first record that differs in any field gives the first entry; then every other field at its first difference, in
  // the order of the file.
  std::vector<Difference> differences;
  std::vector<std::string> settings;  // of run.json that change the numbers: "batch: 64, now 128"
  std::vector<std::string> notes;     // what is to be known besides: a run that is going on
  std::int64_t steps_a = 0, steps_b = 0;
  std::int64_t epochs = 0;  // of a
  bool equal() const { return differences.empty(); }
};

// Two texts of ledger.jsonl. DataError as read_ledger().
RunDiff diff_ledgers(const std::string& a, const std::string& b);
// Two run folders, or two ledger files.
RunDiff diff_runs(const std::string& a, const std::string& b);
std::string to_string(const RunDiff& diff);
std::string to_json(const RunDiff& diff);

}  // namespace limpid::train
