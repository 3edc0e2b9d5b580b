// The CPU's kernel table.
#include <limpid/tensor/cpu/kernels_cpu.h>

namespace limpid {

namespace {

constexpr Kernels kTable{
    .device = "cpu",
    .fill = cpu::fill,
    .copy = cpu::copy,
    .flip = cpu::flip,
    .unary = cpu::unary,
    .unary_grad = cpu::unary_grad,
    .binary = cpu::binary,
    .binary_grad = cpu::binary_grad,
    .compare = cpu::compare,
    .where = cpu::where,
    .add_scaled = cpu::add_scaled,
    .is_finite = cpu::is_finite,
    .all_finite = cpu::all_finite,
    .reduce = cpu::reduce,
    .arg_reduce = cpu::arg_reduce,
    .gather = cpu::gather,
    .scatter_add = cpu::scatter_add,
    .index_select = cpu::index_select,
    .index_add = cpu::index_add,
    .one_hot = cpu::one_hot,
    .plan_matmul = cpu::plan_matmul,
    .matmul = cpu::matmul,
    .plan_conv2d = cpu::plan_conv2d,
    .conv2d = cpu::conv2d,
    .conv2d_backward_input = cpu::conv2d_backward_input,
    .conv2d_backward_weight = cpu::conv2d_backward_weight,
    .conv2d_backward_bias = cpu::conv2d_backward_bias,
    .max_pool2d = cpu::max_pool2d,
    .max_pool2d_backward = cpu::max_pool2d_backward,
    .avg_pool2d = cpu::avg_pool2d,
    .avg_pool2d_backward = cpu::avg_pool2d_backward,
    .adaptive_avg_pool2d = cpu::adaptive_avg_pool2d,
    .adaptive_avg_pool2d_backward = cpu::adaptive_avg_pool2d_backward,
    .plan_batch_norm = cpu::plan_batch_norm,
    .batch_norm_statistics = cpu::batch_norm_statistics,
    .batch_norm_combine = cpu::batch_norm_combine,
    .batch_norm_apply = cpu::batch_norm_apply,
    .batch_norm_backward_reduce = cpu::batch_norm_backward_reduce,
    .batch_norm_backward_apply = cpu::batch_norm_backward_apply,
    .row_norm = cpu::row_norm,
    .row_norm_backward = cpu::row_norm_backward,
    .softmax = cpu::softmax,
    .softmax_backward = cpu::softmax_backward,
    .cross_entropy = cpu::cross_entropy,
    .cross_entropy_backward = cpu::cross_entropy_backward,
    .uniform = cpu::uniform,
    .normal = cpu::normal,
    .dropout = cpu::dropout,
    .sgd = cpu::sgd,
    .adam = cpu::adam,
    .rmsprop = cpu::rmsprop,
    .lamb = cpu::lamb,
    .lars = cpu::lars,
    .sum_of_squares = cpu::sum_of_squares,
    .scale = cpu::scale,
    .amp_unscale = cpu::amp_unscale,
    .amp_update = cpu::amp_update,
};

}  // namespace

const Kernels& cpu_kernels() { return kTable; }

}  // namespace limpid
