// Equivalence: does a loop that cuts an effective batch into micro-batches compute that batch's gradient, and if not, why?
// The loop is run as it is, and looked at from outside: in float64, where the arithmetic is as good as exact, its gradient
// must equal that of the whole batch (a proof); in the training dtype the difference is measured. What differs is traced
// to its causes, each with a number: what every micro-batch really weighed (fitted to the gradient), batch norm, dropout
// masks, ReLU and max-pool decisions that flipped, precision.
// Classifiers with cross-entropy. Not a comparison of whole runs: run_diff.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <limpid/train/batch_norm_modes.h>
#include <limpid/train/layer_decisions.h>

namespace limpid::train {

// What a loop gets: it leaves the gradient of the mean loss over all samples in the model's parameters.
struct AccumulationWindow {
  nn::Module& model;
  const Tensor& x;
  const Tensor& y;
  const std::vector<std::int64_t>& micro_batches;  // their sizes, in order
  BatchNormMode batch_norm;
};
using GradientLoop = std::function<void(const AccumulationWindow&)>;

// The loop of this library: Accumulator, and exact batch norm where that is asked for.
void accumulation_loop(const AccumulationWindow& window);

// Loops with one mistake each, for lessons and for tests of the check itself.
enum class LoopBug : std::uint8_t {
  not_divided,    // the means are added, not divided by their number: every sample weighs k/N
  mean_of_means,  // the means of unequal micro-batches are averaged
  lost,           // the last micro-batch is missing
  no_offset,      // dropout starts anew with each micro-batch
  bf16_sums,      // gradients are added up in bfloat16
};
GradientLoop loop_with(LoopBug bug);
LoopBug loop_bug_named(const std::string& name);  // "not-divided", ...; ArgumentError lists the names

struct EquivalenceProblem {
  std::function<std::shared_ptr<nn::Module>()> model;  // in training mode; the same weights at every call
  Tensor x, y;                                         // the effective batch; float input, classes
  std::vector<std::int64_t> micro_batches;
  BatchNormMode batch_norm = BatchNormMode::micro;
  DType dtype = DType::float32;  // of the measurement; float64: the proof alone
  GradientLoop loop = accumulation_loop;
};

// || a - b || / || b || of the gradients as one vector, the largest difference of an element, and the parameter with the
// largest relative difference.
struct GradientDifference {
  double relative = 0, largest = 0;
  std::string worst;
  double worst_relative = 0;
};

enum class Cause : std::uint8_t { normaliser, batch_norm, rng, kinks, precision, unexplained };
const char* to_string(Cause cause);

struct Finding {
  Cause cause = Cause::unexplained;
  double effect = 0;  // of this cause alone: relative change of the gradient
  std::string text;
};

struct EquivalenceReport {
  std::int64_t samples = 0;
  std::vector<std::int64_t> micro_batches;
  BatchNormMode batch_norm = BatchNormMode::micro;
  std::int64_t batch_norm_layers = 0;

  GradientDifference proof;  // in float64
  double proof_bound = 0;
  // What a sample of each micro-batch weighed, times N: 1 is right. Least squares; empty when the gradients do not tell
  // (all zero, or more micro-batches than they can tell apart).
  std::vector<double> weights;
  double unexplained = 0;  // relative; what no weights explain
  std::optional<double> exact_batch_norm;  // the difference that is left under exact batch norm

  DType dtype = DType::float32;
  std::optional<GradientDifference> measured;         // in dtype
  std::optional<GradientDifference> without_kinks;    // the same, each ReLU and pooling choosing as in the whole batch
  double measured_bound = 0;
  std::vector<Flips> flips;  // in dtype (in float64 where that is all): ReLU and max pooling, all layers

  std::vector<Finding> findings;  // what differs by more than the bounds, the largest first
  bool equal = false;             // the proof holds, and what was measured is within its bound once kinks are taken out
};

EquivalenceReport check_accumulation(const EquivalenceProblem& problem);
std::string to_string(const EquivalenceReport& report);
std::string to_json(const EquivalenceReport& report);

}  // namespace limpid::train
