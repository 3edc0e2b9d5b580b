// Sweep: one model at many batch sizes. What a step costs (time, memory) is measured here, on samples that lie in memory
// already, so the loader has no part in it; what a batch size does to learning is in sweep_learning.h, single operations
// are in size_lab.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <limpid/train/settings.h>
#include <limpid/train/spread.h>

namespace limpid::train {

// "16:256:x2,31,33" -> 16 31 32 33 64 128 256: single sizes, FIRST:LAST:xFACTOR and FIRST:LAST:STEP; sorted, each once.
std::vector<std::int64_t> parse_batches(const std::string& text);

struct SweepSettings {
  TrainSettings train;  // model, input and classes (all required), optimizer, micro_batch, memory_cap, threads; batch is replaced
  std::vector<std::int64_t> batches;
  std::int64_t warmup = 3;  // steps that are not timed
  std::int64_t steps = 20;  // timed ones
};

struct SweepRow {
  std::int64_t batch = 0;
  bool fits = true;          // false: nothing was run; predicted peaks (where known) and `why` are all there is
  std::string why;           // a sentence
  Spread step = {};          // seconds
  double busy = 0;           // CPU time of the compute threads / (threads x time) of the timed steps (tensor/cpu/cpu_time.h)
  std::uint64_t allocated = 0, reserved = 0;                      // peaks of the compute pool, measured
  std::uint64_t predicted_allocated = 0, predicted_reserved = 0;  // by a dry run of the same steps
  double samples_per_second() const { return step.median > 0 ? static_cast<double>(batch) / step.median : 0; }
  double seconds_per_sample() const { return step.median / static_cast<double>(batch); }
};

struct Sweep {
  std::string model;
  std::int64_t threads = 0;
  std::vector<SweepRow> rows;
  std::optional<std::int64_t> knee;
};

// The smallest batch that reaches this share of the best samples/s.
inline constexpr double kKneeShare = 0.95;
std::optional<std::int64_t> find_knee(const std::vector<SweepRow>& rows);

// ArgumentError for settings out of range. `progress` is called before each batch size.
Sweep sweep(const SweepSettings& settings, const std::function<void(std::int64_t batch)>& progress = {});

std::string to_string(const Sweep& sweep);
std::string to_json(const Sweep& sweep);
std::string to_csv(const Sweep& sweep);

}  // namespace limpid::train
