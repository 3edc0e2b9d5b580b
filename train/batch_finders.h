// How people find the largest batch that fits, side by side: rules of thumb, fits through trial runs, trial and error,
// and the dry scan of plan.h. Trial runs are dry here; their figures are those of a live run to the byte.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <limpid/train/plan.h>

namespace limpid::train {

struct FinderRow {
  std::string name;
  std::string how;
  std::int64_t answer = 0;
  std::int64_t trials = 0;  // runs on the device that it needs
  std::int64_t ooms = 0;    // of them, out of memory
  bool fits = false;        // does its answer run?
};

struct FinderTable {
  std::uint64_t capacity = 0;
  std::int64_t truth = 0;  // the largest batch that runs, by exhaustive scan
  std::int64_t scan_bound = 0, scan_runs = 0;
  // Batches below the truth that do not run: fitting is not monotone. `safe`: every batch up to here runs. Looked for
  // up to kScannedBelow.
  static constexpr std::int64_t kScannedBelow = 8192;
  std::int64_t safe = 0, holes = 0;
  std::vector<FinderRow> rows;
};

// `start`: where halving begins.
FinderTable compare_finders(const PlanSettings& settings, std::uint64_t capacity, std::int64_t start = 1024,
                            const std::function<void(std::int64_t batch, std::int64_t bound)>& progress = {});

std::string to_string(const FinderTable& table);
std::string to_json(const FinderTable& table);

}  // namespace limpid::train
