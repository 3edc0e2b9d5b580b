#include <limpid/train/micro_batch.h>

#include <limpid/autograd/functions.h>
#include <limpid/base/scope.h>
#include <limpid/train/evaluate.h>

namespace limpid::train {

MicroBatchResult run_micro_batch(nn::Module& model, const data::Batch& batch, double label_smoothing, double weight) {
  MicroBatchResult result;
  Tensor logits, loss;
  {
    PhaseScope phase(Phase::forward);
    logits = model(batch.x);
    loss = cross_entropy(logits, batch.y, {.label_smoothing = label_smoothing});
    if (weight != 1) loss = mul(loss, weight);
  }
  {
    PhaseScope phase(Phase::backward);
    loss.backward();
  }
  result.loss = loss.item();
  const std::vector<std::int64_t> predicted = predicted_classes(logits);
  const std::vector<std::int64_t> truth = batch.y.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < truth.size(); i++) result.correct += truth[i] == predicted[i];
  return result;
}

}  // namespace limpid::train
