#include <limpid/tensor/raw_nn.h>

namespace limpid::raw {
namespace {

Tensor empty_image(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, const Tensor& like) {
  return empty({n, c, h, w}, like.dtype(), like.device(), MemoryFormat::channels_last);
}

}  // namespace

Tensor packed(const Tensor& x) { return contiguous(x, MemoryFormat::channels_last); }

Tensor conv2d(const Conv2dDesc& desc, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Kernels& kernels = kernels_for(x.device());
  Tensor y = empty_image(desc.n, desc.k, desc.oh(), desc.ow(), x);
  OpPlan plan = kernels.plan_conv2d(Conv2dPass::forward, desc);
  Tensor work = workspace(plan.workspace_bytes, x.device());
  kernels.conv2d(desc, plan, y, x, contiguous(weight), bias.defined() ? contiguous(bias) : bias, work);
  return y;
}

Tensor conv2d_backward_input(const Conv2dDesc& desc, const Tensor& dy, const Tensor& weight) {
  const Kernels& kernels = kernels_for(dy.device());
  Tensor dx = empty_image(desc.n, desc.c, desc.h, desc.w, dy);
  OpPlan plan = kernels.plan_conv2d(Conv2dPass::backward_input, desc);
  Tensor work = workspace(plan.workspace_bytes, dy.device());
  kernels.conv2d_backward_input(desc, plan, dx, packed(dy), contiguous(weight), work);
  return dx;
}

Tensor conv2d_backward_weight(const Conv2dDesc& desc, const Tensor& x, const Tensor& dy) {
  const Kernels& kernels = kernels_for(dy.device());
  Tensor dw = empty({desc.k, desc.c / desc.groups, desc.r, desc.s}, dy.dtype(), dy.device());
  OpPlan plan = kernels.plan_conv2d(Conv2dPass::backward_weight, desc);
  Tensor work = workspace(plan.workspace_bytes, dy.device());
  kernels.conv2d_backward_weight(desc, plan, dw, packed(x), packed(dy), work);
  return dw;
}

Tensor conv2d_backward_bias(const Conv2dDesc& desc, const Tensor& dy) {
  Tensor db = empty({desc.k}, dy.dtype(), dy.device());
  kernels_for(dy.device()).conv2d_backward_bias(desc, db, packed(dy));
  return db;
}

Tensor channel_rows(const Tensor& x) {
  std::int64_t c = x.shape()[1];
  std::int64_t pixels = c == 0 ? 0 : x.numel() / c;
  if (x.dim() == 2) return contiguous(x);
  if (x.dim() == 4) {
    Tensor p = packed(x);
    return as_strided(p, {pixels, c}, {c, 1}, p.impl()->offset);
  }
  std::vector<std::int64_t> order{0};
  for (int i = 2; i < x.dim(); i++) order.push_back(i);
  order.push_back(1);
  Tensor moved = contiguous(permute(x, order));
  return as_strided(moved, {pixels, c}, {c, 1}, moved.impl()->offset);
}

Tensor from_channel_rows(const Tensor& rows, const Shape& shape) {
  if (shape.size() == 2) return as_strided(rows, shape, strides_for(shape), rows.impl()->offset);
  if (shape.size() == 4) {
    return as_strided(rows, shape, strides_for(shape, MemoryFormat::channels_last), rows.impl()->offset);
  }
  Shape moved{shape[0]};
  std::vector<std::int64_t> order{0, shape.size() - 1};
  for (int i = 2; i < shape.size(); i++) {
    moved.push_back(shape[i]);
    order.push_back(i - 1);
  }
  moved.push_back(shape[1]);
  return contiguous(permute(as_strided(rows, moved, strides_for(moved), rows.impl()->offset), order));
}

Tensor batch_norm_invstd(const Tensor& var, double eps) {
  return unary(UnaryOp::rsqrt, unary(UnaryOp::add_scalar, cast(var, DType::float64), {eps, 0}));
}

Tensor batch_norm_part(const Tensor& rows) {
  const Kernels& kernels = kernels_for(rows.device());
  std::int64_t pixels = rows.shape()[0], channels = rows.shape()[1];
  Tensor stats = empty({3, channels}, DType::float64, rows.device());
  Tensor work = workspace(kernels.plan_batch_norm(pixels, channels, rows.dtype()), rows.device());
  kernels.batch_norm_statistics(stats, rows, work);
  return stats;
}

Tensor batch_norm_combine(const std::vector<Tensor>& parts) {
  if (parts.size() == 1) return parts[0];
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) rows.push_back(unsqueeze(part, 0));
  Tensor stats = empty(parts[0].shape(), DType::float64, parts[0].device());
  kernels_for(stats.device()).batch_norm_combine(stats, cat(rows, 0));
  return stats;
}

BatchStatistics batch_norm_statistics_of(const Tensor& part, double count, double eps) {
  BatchStatistics out;
  out.count = count;
  out.mean = select(part, 0, 1);
  out.var = unary(UnaryOp::mul_scalar, select(part, 0, 2), {1.0 / count, 0});
  out.invstd = batch_norm_invstd(out.var, eps);
  return out;
}

BatchStatistics batch_norm_statistics(const Tensor& rows, double eps) {
  return batch_norm_statistics_of(batch_norm_part(rows), static_cast<double>(rows.shape()[0]), eps);
}

Tensor batch_norm_apply(const Tensor& rows, const Tensor& mean, const Tensor& invstd, const Tensor& weight, const Tensor& bias) {
  Tensor y = empty(rows.shape(), rows.dtype(), rows.device());
  kernels_for(rows.device()).batch_norm_apply(y, rows, mean, invstd, weight, bias);
  return y;
}

Tensor batch_norm_backward_reduce(const Tensor& rows, const Tensor& dy, const Tensor& mean, const Tensor& invstd) {
  const Kernels& kernels = kernels_for(rows.device());
  Tensor sums = empty({2, rows.shape()[1]}, DType::float64, rows.device());
  Tensor work = workspace(kernels.plan_batch_norm(rows.shape()[0], rows.shape()[1], rows.dtype()), rows.device());
  kernels.batch_norm_backward_reduce(sums, rows, dy, mean, invstd, work);
  return sums;
}

Tensor batch_norm_backward_apply(const Tensor& rows, const Tensor& dy, const Tensor& mean, const Tensor& invstd,
                                 const Tensor& weight, const Tensor& sums, double count) {
  Tensor dx = empty(rows.shape(), rows.dtype(), rows.device());
  kernels_for(rows.device()).batch_norm_backward_apply(dx, rows, dy, mean, invstd, weight, sums, count);
  return dx;
}

namespace {
// Softmax kernels work on the last dim of a contiguous tensor; other dims are moved there and back.
template <class Kernel>
Tensor on_last_dim(const Tensor& x, std::int64_t dim, Kernel kernel) {
  int d = normalize_dim("softmax", dim, x.dim());
  if (x.dim() == 0) return reshape(kernel(reshape(x, {1})), Shape());
  if (d == x.dim() - 1) return kernel(x);
  return transpose(kernel(transpose(x, d, -1)), d, -1);
}
}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim, bool log) {
  return on_last_dim(x, dim, [&](const Tensor& t) {
    Tensor plain = contiguous(t);
    Tensor y = empty(t.shape(), t.dtype(), t.device());
    kernels_for(x.device()).softmax(y, plain, log);
    return y;
  });
}

Tensor softmax_backward(const Tensor& dy, const Tensor& y, std::int64_t dim, bool log) {
  int d = normalize_dim("softmax", dim, y.dim());
  return on_last_dim(dy, dim, [&](const Tensor& t) {
    Tensor y_moved = y.dim() == 0 ? reshape(y, {1}) : contiguous(transpose(y, d, -1));
    Tensor dx = empty(t.shape(), t.dtype(), t.device());
    kernels_for(dy.device()).softmax_backward(dx, contiguous(t), y_moved, log);
    return dx;
  });
}

}  // namespace limpid::raw
