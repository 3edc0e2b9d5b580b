// Hot loops over contiguous memory on the CPU, float and double: elementwise maps, column sums, layout changes, softmax
// and cross-entropy rows. Operands may be the same array as the output but must not overlap otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limpid::cpu {

// y = max(x, 0); NaN stays NaN.
template <class T>
void relu(std::int64_t n, const T* x, T* y);
// dx = y > 0 ? dy : 0. The output y or the input x may be given: the sign is the same.
template <class T>
void relu_backward(std::int64_t n, const T* y, const T* dy, T* dx);
template <class T>
void add(std::int64_t n, const T* a, const T* b, T* y);
template <class T>
void mul(std::int64_t n, const T* a, const T* b, T* y);
template <class T>
void scale(std::int64_t n, const T* x, T factor, T* y);
// y += alpha * x.
template <class T>
void axpy(std::int64_t n, T alpha, const T* x, T* y);
// y[r][c] = x[r][c] + b[c].
template <class T>
void add_row(std::int64_t rows, std::int64_t cols, const T* x, const T* b, T* y);
template <class T>
double sum(std::int64_t n, const T* x);  // in double, fixed order

// y[c] = sum over rows of x[r][c]; fixed partition and order.
std::size_t column_sum_workspace(std::int64_t rows, std::int64_t cols, std::size_t element_size);
template <class T>
void column_sum(std::int64_t rows, std::int64_t cols, const T* x, T* y, void* workspace);

// [n][c][hw] <-> [n][hw][c].
template <class T>
void nchw_to_nhwc(std::int64_t n, std::int64_t c, std::int64_t hw, const T* x, T* y);
template <class T>
void nhwc_to_nchw(std::int64_t n, std::int64_t c, std::int64_t hw, const T* x, T* y);

// Rows of a dense [rows][n].
template <class T>
void softmax_rows(std::int64_t rows, std::int64_t n, const T* x, T* y, bool log);
template <class T>
void softmax_rows_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* y, T* dx, bool log);

// Fused log-softmax + negative log-likelihood of a dense [rows][classes].
//   loss[r] = (1-s) * row_weight[r] * nll(label) + s / classes * sum_j class_weight[j] * nll(j)
// with s the label smoothing. row_weight[r] is the weight of the row's class; a row with row_weight 0 and label < 0 is
// ignored: loss 0. class_weight: [classes] or null (all 1). log_sum_exp [rows] is kept for the backward pass.
template <class T>
void cross_entropy_rows(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                        const T* row_weight, const T* class_weight, double smoothing, T* losses, T* log_sum_exp);
// dx = row_scale[r] * d losses[r] / d logits.
template <class T>
void cross_entropy_rows_backward(std::int64_t rows, std::int64_t classes, const T* logits, const std::int64_t* labels,
                                 const T* row_weight, const T* class_weight, double smoothing, const T* row_scale,
                                 const T* log_sum_exp, T* dx);

}  // namespace limpid::cpu
