#include <limpid/autograd/loss_weights.h>

namespace limpid {

void LossWeights::note(const Tensor& row_scale) {
  if (!current_ || row_scale.device().is_dry()) return;
  const std::vector<double> values = row_scale.to_vector<double>();  // waits, on a GPU
  current_->rows_.insert(current_->rows_.end(), values.begin(), values.end());
}

}  // namespace limpid
