// Batch norm, row norms, softmax and cross-entropy of the CUDA kernel table.
#include <limpid/cuda/adapter_private.h>
#include <limpid/cuda/entries.h>
#include <limpid/cuda/index_errors.h>
#include <limpid/cuda/kernels/batch_norm.cuh>
#include <limpid/cuda/kernels/index_error.cuh>
#include <limpid/cuda/kernels/row_norm.cuh>
#include <limpid/cuda/kernels/softmax.cuh>
#include <limpid/cuda/plans.h>

namespace limpid::cu::entries {
namespace {

const double* doubles(const Tensor& t) { return t.defined() ? t.data<double>() : nullptr; }

AffineParams affine_of(const Tensor& weight, const Tensor& bias) {
  return {data_or_null(weight), data_or_null(bias),
          weight.defined() ? weight.dtype()
          : bias.defined() ? bias.dtype()
                           : float32};
}

// The plan that the workspace was allocated for.
BatchNormPlan plan_of(const Tensor& x, const Tensor& workspace) {
  const std::size_t bytes = workspace.defined() ? static_cast<std::size_t>(workspace.numel()) : 0;
  return plan_batch_norm_parts(x.shape()[0], x.shape()[1], x.dtype(), bytes);
}

RowNormShape row_shape(const Tensor& x, const Tensor& mean, std::int64_t inner, std::int64_t affine_rows) {
  const std::int64_t rows = mean.numel();
  return {rows, rows > 0 ? x.numel() / rows : 0, std::max<std::int64_t>(inner, 1), affine_rows};
}

std::int64_t last_dim(const Tensor& x) { return x.numel() > 0 ? x.shape().back() : 0; }
std::int64_t rows_of(const Tensor& x) { return x.numel() > 0 ? x.numel() / x.shape().back() : 0; }

}  // namespace

std::size_t plan_batch_norm(std::int64_t pixels, std::int64_t channels, DType dtype) {
  return cu::plan_batch_norm(pixels, channels, dtype);
}
void batch_norm_statistics(Tensor& stats, const Tensor& x, Tensor& workspace) {
  const Queue queue(stats);
  LIMPID_LAUNCH("batch_norm_statistics", queue,
                cu::batch_norm_statistics(x.dtype(), plan_of(x, workspace), stats.mutable_data<double>(), x.raw_data(),
                                          x.shape()[0], x.shape()[1], data_or_null(workspace), queue));
}
void batch_norm_combine(Tensor& stats, const Tensor& parts) {
  const Queue queue(stats);
  LIMPID_LAUNCH("batch_norm_combine", queue,
                cu::batch_norm_combine(stats.mutable_data<double>(), parts.data<double>(), parts.shape()[0],
                                       parts.shape()[2], queue));
}
void batch_norm_apply(Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& invstd, const Tensor& weight,
                      const Tensor& bias) {
  const Queue queue(y);
  LIMPID_LAUNCH("batch_norm_apply", queue,
                cu::batch_norm_apply(x.dtype(), y.raw_mutable_data(), x.raw_data(), nullptr, false, doubles(mean),
                                     doubles(invstd), affine_of(weight, bias), x.shape()[0], x.shape()[1], queue));
}
void batch_norm_backward_reduce(Tensor& sums, const Tensor& x, const Tensor& dy, const Tensor& mean,
                                const Tensor& invstd, Tensor& workspace) {
  const Queue queue(sums);
  LIMPID_LAUNCH("batch_norm_backward_reduce", queue,
                cu::batch_norm_backward_reduce(x.dtype(), plan_of(x, workspace), sums.mutable_data<double>(),
                                               x.raw_data(), dy.raw_data(), nullptr, doubles(mean), doubles(invstd),
                                               x.shape()[0], x.shape()[1], data_or_null(workspace), queue));
}
void batch_norm_backward_apply(Tensor& dx, const Tensor& x, const Tensor& dy, const Tensor& mean, const Tensor& invstd,
                               const Tensor& weight, const Tensor& sums, double count) {
  const Queue queue(dx);
  LIMPID_LAUNCH("batch_norm_backward_apply", queue,
                cu::batch_norm_backward_apply(x.dtype(), dx.raw_mutable_data(), nullptr, x.raw_data(), dy.raw_data(),
                                              nullptr, doubles(mean), doubles(invstd), affine_of(weight, Tensor()),
                                              doubles(sums), count, x.shape()[0], x.shape()[1], queue));
}

void row_norm(Tensor& y, Tensor& mean, Tensor& invstd, const Tensor& x, const Tensor& weight, const Tensor& bias,
              std::int64_t inner, std::int64_t affine_rows, double eps) {
  const Queue queue(y);
  LIMPID_LAUNCH(
      "row_norm", queue,
      cu::row_norm(x.dtype(), row_shape(x, mean, inner, affine_rows), y.raw_mutable_data(), mean.mutable_data<double>(),
                   invstd.mutable_data<double>(), x.raw_data(), data_or_null(weight), data_or_null(bias), eps, queue));
}
void row_norm_backward(Tensor& dx, Tensor& dweight, Tensor& dbias, const Tensor& dy, const Tensor& x,
                       const Tensor& mean, const Tensor& invstd, const Tensor& weight, std::int64_t inner,
                       std::int64_t affine_rows) {
  const Queue queue(x);
  RowNormShape shape = row_shape(x, mean, inner, affine_rows);
  // Without rows the length is that of the affine pairs, whose gradients are sums over nothing.
  const Tensor& pairs = dweight.defined() ? dweight : dbias;
  if (shape.rows == 0 && pairs.defined()) shape.len = pairs.numel() / affine_rows * shape.inner;
  LIMPID_LAUNCH(
      "row_norm_backward", queue,
      cu::row_norm_backward(x.dtype(), shape, data_or_null(dx), data_or_null(dweight), data_or_null(dbias),
                            dy.raw_data(), x.raw_data(), doubles(mean), doubles(invstd), data_or_null(weight), queue));
}

void softmax(Tensor& y, const Tensor& x, bool log) {
  const Queue queue(y);
  LIMPID_LAUNCH(log ? "log_softmax" : "softmax", queue,
                cu::softmax(x.dtype(), log, y.raw_mutable_data(), x.raw_data(), rows_of(x), last_dim(x), queue));
}
void softmax_backward(Tensor& dx, const Tensor& dy, const Tensor& y, bool log) {
  const Queue queue(dx);
  LIMPID_LAUNCH(log ? "log_softmax_backward" : "softmax_backward", queue,
                cu::softmax_backward(y.dtype(), log, dx.raw_mutable_data(), dy.raw_data(), y.raw_data(), rows_of(y),
                                     last_dim(y), queue));
}

void cross_entropy(const LossDesc& desc, Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp, const Tensor& logits,
                   const Tensor& labels, const Tensor& class_weight) {
  const Queue queue(losses);
  if (desc.rows > 0) {
    LIMPID_LAUNCH("check_indices", queue,
                  check_indices(index_error_record(queue.handle()), IndexOp::labels, labels.shape(), input(labels),
                                desc.classes, desc.ignore_index, queue));
  }
  LIMPID_LAUNCH("cross_entropy", queue,
                cu::cross_entropy(logits.dtype(), desc, losses.raw_mutable_data(), row_weights.raw_mutable_data(),
                                  log_sum_exp.raw_mutable_data(), logits.raw_data(), labels.data<std::int64_t>(),
                                  data_or_null(class_weight), queue));
}
void cross_entropy_backward(const LossDesc& desc, Tensor& dx, const Tensor& row_scale, const Tensor& logits,
                            const Tensor& labels, const Tensor& class_weight, const Tensor& log_sum_exp) {
  const Queue queue(dx);
  LIMPID_LAUNCH("cross_entropy_backward", queue,
                cu::cross_entropy_backward(logits.dtype(), desc, dx.raw_mutable_data(), row_scale.raw_data(),
                                           logits.raw_data(), labels.data<std::int64_t>(), data_or_null(class_weight),
                                           log_sum_exp.raw_data(), queue));
}

}  // namespace limpid::cu::entries
