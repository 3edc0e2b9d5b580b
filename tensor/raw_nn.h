// Raw operations of neural networks: arguments checked, plans made, outputs and workspaces allocated, kernels called.
// 4-D results are channels_last; 4-D inputs in another layout are packed first (the copy is a tensor of its own, seen in
// the ledger).
#pragma once

#include <limpid/tensor/raw.h>

namespace limpid::raw {

// The input as conv, pool and norm kernels want it: channels_last, itself when it already is.
Tensor packed(const Tensor& x);

Tensor conv2d(const Conv2dDesc& desc, const Tensor& x, const Tensor& weight, const Tensor& bias);
Tensor conv2d_backward_input(const Conv2dDesc& desc, const Tensor& dy, const Tensor& weight);
Tensor conv2d_backward_weight(const Conv2dDesc& desc, const Tensor& x, const Tensor& dy);
Tensor conv2d_backward_bias(const Conv2dDesc& desc, const Tensor& dy);

// The rows [P, C] that batch norm works on, C fastest. A view for [N,C] and channels_last images.
Tensor channel_rows(const Tensor& x);
// The inverse: rows [P, C] as a tensor of `shape` (channels_last when rank 4).
Tensor from_channel_rows(const Tensor& rows, const Shape& shape);

struct BatchStatistics {
  Tensor mean;     // [C] f64
  Tensor var;      // [C] f64, biased (divided by count)
  Tensor invstd;   // [C] f64, 1 / sqrt(var + eps)
  double count = 0;
};
BatchStatistics batch_norm_statistics(const Tensor& rows, double eps);
// The same in two steps, with parts of a batch in between: [3,C] f64 (count, mean, M2) of each part, merged into one.
Tensor batch_norm_part(const Tensor& rows);
Tensor batch_norm_combine(const std::vector<Tensor>& parts);
BatchStatistics batch_norm_statistics_of(const Tensor& part, double count, double eps);
Tensor batch_norm_invstd(const Tensor& var, double eps);
Tensor batch_norm_apply(const Tensor& rows, const Tensor& mean, const Tensor& invstd, const Tensor& weight, const Tensor& bias);
// [2,C] f64: sum dy, sum dy*xhat. These are also the gradients of bias and weight.
Tensor batch_norm_backward_reduce(const Tensor& rows, const Tensor& dy, const Tensor& mean, const Tensor& invstd);
Tensor batch_norm_backward_apply(const Tensor& rows, const Tensor& dy, const Tensor& mean, const Tensor& invstd,
                                 const Tensor& weight, const Tensor& sums, double count);

// Softmax over `dim`.
Tensor softmax(const Tensor& x, std::int64_t dim, bool log);
Tensor softmax_backward(const Tensor& dy, const Tensor& y, std::int64_t dim, bool log);

}  // namespace limpid::raw
