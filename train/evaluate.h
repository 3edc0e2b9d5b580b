// A model on a data set: loss, accuracy, each class's accuracy and the confusion matrix. Nothing is recorded or
// changed; the model's mode is put back.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <limpid/data/loader.h>
#include <limpid/nn/module.h>

namespace limpid::train {

struct Evaluation {
  double loss = 0;      // mean cross-entropy a sample, without label smoothing
  double accuracy = 0;  // in [0, 1]
  std::int64_t samples = 0;
  std::int64_t correct = 0;
  std::int64_t classes = 0;
  std::vector<std::int64_t> confusion;  // [classes * classes], row = true class, column = predicted one
  double seconds = 0;
  bool stopped = false;  // by the flag, before the last sample: the figures are of those before

  std::int64_t count(std::int64_t truth, std::int64_t predicted) const {
    return confusion[static_cast<std::size_t>(truth * classes + predicted)];
  }
  // Correct of a class's samples, in [0, 1]; NaN for a class without samples.
  std::vector<double> class_accuracy() const;
};

// Called after each batch with samples done and all samples.
using EvaluationProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// One epoch of `loader`. Logits are [N, classes]; ShapeError when the model gives anything else.
// A batch is computed in parts of at most `most` samples (0: whole). A set `stop` ends it after a batch.
Evaluation evaluate(nn::Module& model, data::DataLoader& loader, std::int64_t classes,
                    const EvaluationProgress& progress = {}, std::int64_t most = 0,
                    const std::atomic<bool>* stop = nullptr);

// NaN has a sign, which says nothing and would be printed: -nan becomes nan.
inline double unsigned_nan(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

// Where a model's parameters are; without any, this thread's default device.
Device device_of(const nn::Module& model);
// A tensor of a batch on the model's device: itself, or a copy, which from pinned memory goes on beside the computing.
Tensor where_computed(const Tensor& t, const nn::Module& model);
// The class with the highest logit, row by row (the first of equals).
std::vector<std::int64_t> predicted_classes(const Tensor& logits);

// Per-class table and, up to 20 classes, the confusion matrix. Class names may be empty.
std::string to_string(const Evaluation& evaluation, const std::vector<std::string>& class_names);

}  // namespace limpid::train
