#include <limpid/autograd/loss_weights.h>

namespace limpid {

void LossWeights::note(const Tensor& row_scale) {
  if (!current_ || row_scale.device().is_dry()) return;
  std::vector<double>& rows = current_->rows_;
  const std::int64_t count = row_scale.numel();
  rows.reserve(rows.size() + static_cast<std::size_t>(count));
  if (row_scale.dtype() == DType::float64) {
    const double* values = row_scale.data<double>();
    rows.insert(rows.end(), values, values + count);
  } else {
    const float* values = row_scale.data<float>();
    rows.insert(rows.end(), values, values + count);
  }
}

}  // namespace limpid
