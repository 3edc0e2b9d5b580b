// The CPU kernels that kernels_cpu.cpp puts into the table; signatures are those of struct Kernels (tensor/kernels.h).
// Internal to tensor/cpu.
#pragma once

#include <limpid/tensor/kernels.h>

namespace limpid::cpu {

void fill(Tensor& out, const Scalar& value);
void copy(Tensor& out, const Tensor& x);
void flip(Tensor& out, const Tensor& x, std::uint32_t dims_mask);

void unary(UnaryOp op, Tensor& out, const Tensor& x, UnaryParams params);
void unary_grad(UnaryOp op, Tensor& out, const Tensor& x, const Tensor& y, const Tensor& grad, UnaryParams params);
void binary(BinaryOp op, Tensor& out, const Tensor& a, const Tensor& b);
void binary_grad(BinaryOp op, bool of_b, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& y,
                 const Tensor& grad);
void compare(CompareOp op, Tensor& out, const Tensor& a, const Tensor& b);
void where(Tensor& out, const Tensor& condition, const Tensor& a, const Tensor& b);
void add_scaled(Tensor& out, const Tensor& x, double alpha);
void is_finite(Tensor& out, const Tensor& x);
bool all_finite(const Tensor& x);

void reduce(ReduceOp op, Tensor& out, const Tensor& x, std::uint32_t dims_mask);
void arg_reduce(bool maximum, Tensor& out, const Tensor& x, int dim);

void gather(Tensor& out, const Tensor& x, int dim, const Tensor& index);
void scatter_add(Tensor& out, int dim, const Tensor& index, const Tensor& source);
void index_select(Tensor& out, const Tensor& x, int dim, const Tensor& index);
void index_add(Tensor& out, int dim, const Tensor& index, const Tensor& source);
void one_hot(Tensor& out, const Tensor& index);

OpPlan plan_matmul(const MatmulDesc& desc);
void matmul(const MatmulDesc& desc, const OpPlan& plan, Tensor& out, const Tensor& a, const Tensor& b,
            const Tensor& bias, Tensor& workspace, bool accumulate);

OpPlan plan_conv2d(Conv2dPass pass, const Conv2dDesc& desc);
void conv2d(const Conv2dDesc& desc, const OpPlan& plan, Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias,
            Tensor& workspace);
void conv2d_backward_input(const Conv2dDesc& desc, const OpPlan& plan, Tensor& dx, const Tensor& dy, const Tensor& w,
                           Tensor& workspace);
void conv2d_backward_weight(const Conv2dDesc& desc, const OpPlan& plan, Tensor& dw, const Tensor& x, const Tensor& dy,
                            Tensor& workspace);
void conv2d_backward_bias(const Conv2dDesc& desc, Tensor& db, const Tensor& dy);

void max_pool2d(const Pool2dDesc& desc, Tensor& y, Tensor& indices, const Tensor& x);
void max_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy, const Tensor& indices);
void avg_pool2d(const Pool2dDesc& desc, Tensor& y, const Tensor& x);
void avg_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy);
void adaptive_avg_pool2d(const Pool2dDesc& desc, Tensor& y, const Tensor& x);
void adaptive_avg_pool2d_backward(const Pool2dDesc& desc, Tensor& dx, const Tensor& dy);

std::size_t plan_batch_norm(std::int64_t pixels, std::int64_t channels, DType dtype);
void batch_norm_statistics(Tensor& stats, const Tensor& x, Tensor& workspace);
void batch_norm_combine(Tensor& stats, const Tensor& parts);
void batch_norm_apply(Tensor& y, const Tensor& x, const Tensor& mean, const Tensor& invstd, const Tensor& weight,
                      const Tensor& bias);
void batch_norm_backward_reduce(Tensor& sums, const Tensor& x, const Tensor& dy, const Tensor& mean,
                                const Tensor& invstd, Tensor& workspace);
void batch_norm_backward_apply(Tensor& dx, const Tensor& x, const Tensor& dy, const Tensor& mean, const Tensor& invstd,
                               const Tensor& weight, const Tensor& sums, double count);

void row_norm(Tensor& y, Tensor& mean, Tensor& invstd, const Tensor& x, const Tensor& weight, const Tensor& bias,
              std::int64_t inner, std::int64_t affine_rows, double eps);
void row_norm_backward(Tensor& dx, Tensor& dweight, Tensor& dbias, const Tensor& dy, const Tensor& x,
                       const Tensor& mean, const Tensor& invstd, const Tensor& weight, std::int64_t inner,
                       std::int64_t affine_rows);

void softmax(Tensor& y, const Tensor& x, bool log);
void softmax_backward(Tensor& dx, const Tensor& dy, const Tensor& y, bool log);
void cross_entropy(const LossDesc& desc, Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp, const Tensor& logits,
                   const Tensor& labels, const Tensor& class_weight);
void cross_entropy_backward(const LossDesc& desc, Tensor& dx, const Tensor& row_scale, const Tensor& logits,
                            const Tensor& labels, const Tensor& class_weight, const Tensor& log_sum_exp);

void uniform(Tensor& out, std::uint64_t key, std::uint64_t first);
void normal(Tensor& out, std::uint64_t key, std::uint64_t first);
void dropout(Tensor& out, const Tensor& x, double p, std::uint64_t key, std::int64_t sample_offset);

void sgd(std::span<OptimChunk> chunks, const SgdArgs& args);
void adam(std::span<OptimChunk> chunks, const AdamArgs& args);
void rmsprop(std::span<OptimChunk> chunks, const RmspropArgs& args);
void lamb(std::span<OptimChunk> chunks, const LambArgs& args);
void lars(std::span<OptimChunk> chunks, const LarsArgs& args);
double sum_of_squares(std::span<const Tensor> tensors);
void scale(std::span<Tensor> tensors, double factor);

void amp_unscale(std::span<Tensor> grads, Tensor& found_inf, const Tensor& inv_scale);
void amp_update(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth, double backoff,
                std::int64_t interval);

}  // namespace limpid::cpu
