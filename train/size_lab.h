// SizeLab: is 32 better than 31 or 33? Single operations (matmul, linear, conv2d, relu, dropout) at odd sizes and powers of
// two, each measured per unit of work beside a prediction, and whether the two agree. Forward passes in float32.
//
// The prediction knows two effects, and nothing else: kernels compute whole panels of 16 output columns (64 bytes of float32;
// the channels of a convolution, the features of a linear layer), and T threads take tasks from a list, so that the last
// ones may leave threads idle. The tasks are those of the kernels (tensor/cpu/task_list.h). "Power of two" is no effect.
// The same rule for a GPU is waves(): tiles over processors.
//
// Not a benchmark of speed: bench/. Whole models: sweep.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <limpid/tensor/cpu/task_list.h>
#include <limpid/train/spread.h>

namespace limpid::train {

// Time per useful unit of work against perfectly full threads: 1 = no padding, nobody idle. Threads take tasks in order,
// each when it is free.
double task_cost(const cpu::TaskList& list, std::int64_t threads);

// The same for `tiles` equal tiles on `processors` that work in waves: 1984 tiles on 132 take 16 waves: 1.065.
double waves(std::int64_t tiles, std::int64_t processors);

// Batched products [batch,1024,1024] x [batch,1024,1024] in tiles of 128 x 128 on a GPU with this many processors.
double card_cost(std::int64_t batch, std::int64_t processors);

enum class Verdict : std::uint8_t {
  reference,  // the row that the others are compared with
  agree,      // measured within kAgree of the prediction
  disagree,   // further away than kAgree and than the noise
  noisy,      // the noise is larger than kAgree: not decided
};
const char* to_string(Verdict verdict);
inline constexpr double kAgree = 0.03;

struct SizeRow {
  std::int64_t size = 0;
  Spread seconds;           // of one call
  double per_unit = 0;      // seconds: a sample (sizes that are batches), or a multiply-add (sizes that are channels)
  double predicted = 0;     // task_cost()
  std::int64_t reference = 0;  // size that it is compared with: the nearest multiple of 16 in the list
  double predicted_ratio = 1;  // cost per unit against the reference's
  Spread ratio;                // the same, measured in pairs, round by round
  Verdict verdict = Verdict::reference;
  // Half the width of the interval that holds the median in about 95 of 100 cases (McGill, Tukey and Larsen 1978).
  double noise() const;
};
Verdict judge(const SizeRow& row);

struct SizeExperiment {
  std::string op;        // "matmul", ...
  std::string shape;     // "[n,96,96] x [n,96,96]"
  std::string unit;      // "sample" or "multiply-add"
  std::vector<SizeRow> rows = {};
  std::vector<std::int64_t> added = {};  // sizes among them that nobody asked for
};

struct SizeLab {
  std::int64_t threads = 1;
  std::string isa;
  std::int64_t panel = 16;
  std::vector<SizeExperiment> experiments;
  std::int64_t count(Verdict verdict) const;
};

struct SizeLabSettings {
  std::vector<std::int64_t> batches;   // of matmul; linear, conv2d, relu and dropout have 60 and 62 besides
  std::vector<std::int64_t> channels;  // of conv2d and linear, in = out; empty: left out
  std::int64_t rounds = 25;            // each round times every size once, so that slow drifts meet all of them; >= 1
  std::int64_t warmup = 3;             // rounds that are not counted
  std::int64_t threads = 0;            // 0: as many as the machine has
  double least_seconds = 2e-4;         // a timing repeats the call for about this long: short, so that few are interrupted
};

// ArgumentError for settings out of range. `progress` is called before each experiment.
SizeLab size_lab(const SizeLabSettings& settings, const std::function<void(const std::string& op)>& progress = {});

std::string to_string(const SizeLab& lab);
std::string to_json(const SizeLab& lab);

}  // namespace limpid::train
