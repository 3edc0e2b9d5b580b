// Plan: what a training run will take, known before it runs. Each figure comes from a dry run (tensor/dry.h) of the
// training loop (rehearsal.h): same model code, same operations, same allocator, no arithmetic, nothing touched.
// On the CPU the prediction is exact to the byte.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <limpid/tensor/dry.h>
#include <limpid/train/batch_plan.h>
#include <limpid/train/rehearsal.h>

namespace limpid::train {

struct PlanSettings {
  RehearsalSettings run;
  memory::AllocatorSettings allocator;  // of the compute pool
  memory::PolicyFactory policy = memory::make_native_policy;
  Device device = kDryCpu;  // or kDryCuda: whose kernels and memory are planned
};

struct Prediction {
  std::int64_t batch = 0;
  bool fits = false;
  RehearsalResult run;                         // valid when it fits
  std::optional<memory::OutOfMemoryInfo> oom;  // what failed first when it does not
};

// A run with these settings; `run.train.memory_cap` is the capacity (0 = none), and not fitting is an answer.
Prediction predict(const PlanSettings& settings);
Prediction predict(PlanSettings settings, std::int64_t batch);  // with another batch size

// The largest batch that fits into `capacity` bytes. Whether a batch fits need not be monotone in its size (the
// allocator's rounding, and changes of algorithm), so this is a scan: `bound` is the largest batch whose unavoidable
// live bytes fit, and every batch from there down to the answer was run dry and failed.
//
// Unavoidable at the end of a forward pass: parameters, optimizer state, what the graph keeps (exactly linear in the
// batch) and what the data pool holds.
struct MaxBatch {
  std::int64_t batch = 0;  // 0: not even one sample fits
  std::int64_t bound = 0;
  std::int64_t runs = 0;             // dry ones
  std::optional<Prediction> at;      // of `batch`
  std::optional<Prediction> beyond;  // of batch + 1
};
inline constexpr std::int64_t kLargestBatch = 65536;  // an answer of this size means: at least
// `limit`: no larger batch is asked for. `progress` is called before each run.
MaxBatch max_batch(PlanSettings settings, std::uint64_t capacity, std::int64_t limit = kLargestBatch,
                   const std::function<void(std::int64_t batch, std::int64_t bound)>& progress = {});

// The fewest micro-batches of the effective batch `run.train.batch` that fit `run.train.memory_cap`, by dry runs
// (batch_plan.h), and sets run.train.micro_batch. With batch norm, micro-batches below kSmallBatchNorm only when no larger
// one fits. `micro_batch` is 0 when nothing fits, and `why` then says what failed last.
struct FittingMicroBatch : MicroBatchChoice {
  bool below_batch_norm = false;  // smaller than batch norm likes
  std::optional<Prediction> at;   // of the choice
  std::optional<memory::OutOfMemoryInfo> why;
};
FittingMicroBatch choose_micro_batch(PlanSettings& settings);

// The same run for real on the CPU, or for dry:cuda on cuda:0, in a pool of its own under the settings' policy: what the
// prediction is compared with. Takes the memory and the time that it takes. DeviceError where there is no such GPU.
Prediction measure(const PlanSettings& settings);

// Peaks over a range of batch sizes, each by a dry run.
struct CurvePoint {
  std::int64_t batch = 0;
  std::uint64_t live = 0;       // highest requested bytes of the compute pool
  std::uint64_t allocated = 0;  // highest block bytes
  std::uint64_t reserved = 0;   // highest segment bytes
  std::int64_t segments = 0;
  std::uint64_t io = 0;  // reserved by the data pool
  Scope scope = {};      // what was running at the peak of live bytes
};
// live = fixed + per_sample * batch, exactly, for first <= batch <= last.
struct CurvePiece {
  std::int64_t first = 0, last = 0;
  std::int64_t fixed = 0, per_sample = 0;
  Scope scope;
  // How the line gives way to the next one: it is crossed (of two instants of the step the higher one rules, and
  // another one is higher from here on), or an operation plans its kernel otherwise and so needs another workspace. The
  // last piece ends with the range.
  enum class End { range, crossing, plan } end = End::range;
};
struct Curve {
  std::vector<CurvePoint> points;
  std::vector<CurvePiece> pieces;  // of the live bytes
};
// ArgumentError when a batch does not fit the settings' capacity.
Curve plan_curve(const PlanSettings& settings, std::int64_t first, std::int64_t last,
                 const std::function<void(std::int64_t batch)>& progress = {});
// The pieces of given points; consecutive batch sizes.
std::vector<CurvePiece> envelope(const std::vector<CurvePoint>& points);

// For people and machines.
std::string to_string(const Prediction& prediction);
std::string to_json(const Prediction& prediction);
std::string to_string(const Curve& curve);
std::string to_json(const Curve& curve);

}  // namespace limpid::train
