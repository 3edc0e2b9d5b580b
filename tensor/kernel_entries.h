// The one list of the kernel table's entries, in the order of `struct Kernels` (tensor/kernels.h, which documents and
// types them). PLAN(name): a pure function that says algorithm and workspace. RUN(name): a kernel. Whoever fills, copies
// or wraps a whole table goes through this list:
//
//   constexpr Kernels kTable{.device = "cpu", LIMPID_KERNEL_ENTRIES(PLAN, RUN)};   // with  #define RUN(name) .name = cpu::name,
//
// An entry that is in the table and not in the list does not compile (the assertion at the end of kernels.h).
#pragma once

// clang-format off
#define LIMPID_KERNEL_ENTRIES(PLAN, RUN)                                                                           \
  RUN(fill) RUN(copy) RUN(flip)                                                                                    \
  RUN(unary) RUN(unary_grad) RUN(binary) RUN(binary_grad) RUN(compare) RUN(where) RUN(add_scaled)                  \
  RUN(is_finite) RUN(all_finite)                                                                                   \
  RUN(reduce) RUN(arg_reduce)                                                                                      \
  RUN(gather) RUN(scatter_add) RUN(index_select) RUN(index_add) RUN(one_hot)                                       \
  PLAN(plan_matmul) RUN(matmul)                                                                                    \
  PLAN(plan_conv2d) RUN(conv2d) RUN(conv2d_backward_input) RUN(conv2d_backward_weight) RUN(conv2d_backward_bias)   \
  RUN(max_pool2d) RUN(max_pool2d_backward) RUN(avg_pool2d) RUN(avg_pool2d_backward)                                \
  RUN(adaptive_avg_pool2d) RUN(adaptive_avg_pool2d_backward)                                                       \
  PLAN(plan_batch_norm) RUN(batch_norm_statistics) RUN(batch_norm_combine) RUN(batch_norm_apply)                   \
  RUN(batch_norm_backward_reduce) RUN(batch_norm_backward_apply)                                                   \
  RUN(row_norm) RUN(row_norm_backward)                                                                             \
  RUN(softmax) RUN(softmax_backward) RUN(cross_entropy) RUN(cross_entropy_backward)                                \
  RUN(uniform) RUN(normal) RUN(dropout)                                                                            \
  RUN(sgd) RUN(adam) RUN(rmsprop) RUN(lamb) RUN(lars) RUN(sum_of_squares) RUN(scale)                               \
  RUN(amp_unscale) RUN(amp_update)
// clang-format on
