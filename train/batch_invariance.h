// Batch invariance: does a training step give the same bits however its samples arrive? Steps of Adam from the same start,
// with one cut of the effective batch after the other and one number of threads after the other; gradients and weights are
// compared byte by byte. With a quantum (StepOptions) they must be equal; without one, rounding tells the cuts apart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <limpid/train/step.h>

namespace limpid::train {

struct InvarianceProblem {
  std::function<std::shared_ptr<nn::Module>()> model;  // in training mode; the same weights at every call
  Tensor x, y;                                         // the effective batch of every step; float input, classes
  std::vector<std::int64_t> micro_batches;             // the cuts: samples that arrive at once
  std::vector<int> threads = {1, 2};
  std::int64_t steps = 10;
  double lr = 1e-3;
  StepOptions step;  // the quantum among it
};

struct InvarianceRow {
  std::int64_t micro_batch = 0;
  int threads = 0;
  std::uint64_t gradients = 0, weights = 0;  // hashes of the bytes: of the last step's gradient, of weights and buffers
  bool equal = false;                        // every byte of both is that of the first row
  double seconds = 0;                        // a step
};

struct InvarianceReport {
  std::int64_t samples = 0, quantum = 0, steps = 0;
  std::vector<InvarianceRow> rows;
  bool equal = false;
};

InvarianceReport check_batch_invariance(const InvarianceProblem& problem);
std::string to_string(const InvarianceReport& report);
std::string to_json(const InvarianceReport& report);

}  // namespace limpid::train
