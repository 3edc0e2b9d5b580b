// The differentiable functions: out of place, each records a node when grad mode is on and an input requires a gradient.
// Shapes are logical (images NCHW). Dims count from the end when negative. Errors start with the function's name.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <limpid/autograd/pair.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/tensor.h>

namespace limpid {

// ---- elementwise, two operands: dtypes promote, shapes broadcast
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);  // integers give float32
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // ties share the gradient in halves, as PyTorch
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, const Scalar& b);
Tensor sub(const Tensor& a, const Scalar& b);
Tensor rsub(const Scalar& a, const Tensor& b);  // a - b
Tensor mul(const Tensor& a, const Scalar& b);
Tensor div(const Tensor& a, const Scalar& b);
Tensor rdiv(const Scalar& a, const Tensor& b);  // a / b
Tensor pow(const Tensor& a, const Scalar& exponent);
// Comparisons give bool tensors and have no gradient.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, const Scalar& b);
Tensor ne(const Tensor& a, const Scalar& b);
Tensor lt(const Tensor& a, const Scalar& b);
Tensor le(const Tensor& a, const Scalar& b);
Tensor gt(const Tensor& a, const Scalar& b);
Tensor ge(const Tensor& a, const Scalar& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& a);
// condition ? a : b, all broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// ---- elementwise, one operand
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor floor(const Tensor& x);  // zero gradient, as in PyTorch; the same for ceil and round
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);  // half to even
Tensor clamp(const Tensor& x, double low, double high);  // gradient 1 inside [low, high]
Tensor relu(const Tensor& x);                             // gradient 0 at 0
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1.0);
Tensor gelu(const Tensor& x);       // x * Phi(x), erf form
Tensor gelu_tanh(const Tensor& x);  // tanh approximation
Tensor silu(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor softplus(const Tensor& x);
Tensor isfinite(const Tensor& x);
Tensor isnan(const Tensor& x);
// The value cast to another dtype; the gradient is cast back.
Tensor cast(const Tensor& x, DType dtype);

// ---- reductions. Empty dims = all dims.
Tensor sum(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const std::vector<std::int64_t>& dims = {}, std::int64_t correction = 1, bool keepdim = false);
Tensor prod(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);
Tensor max(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);  // ties share evenly (amax)
Tensor min(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);
Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);  // first of equals; i64
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim = {}, bool keepdim = false);
Tensor any(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const std::vector<std::int64_t>& dims = {}, bool keepdim = false);

// ---- shape
Tensor reshape(const Tensor& x, Shape shape);
Tensor permute(const Tensor& x, const std::vector<std::int64_t>& dims);
Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b);
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
Tensor expand(const Tensor& x, const Shape& shape);
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, std::int64_t dim);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
Tensor flatten(const Tensor& x, std::int64_t first = 0, std::int64_t last = -1);
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);
Tensor flip(const Tensor& x, const std::vector<std::int64_t>& dims);  // a copy
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
// pads = {before_last_dim, after_last_dim, before_second_last, ...}, as PyTorch's F.pad with a constant.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value = 0);

// ---- indexing. Index tensors are int64; a value out of range is an IndexError with position and value.
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
Tensor one_hot(const Tensor& index, std::int64_t classes);  // i64, no gradient

// ---- linear algebra
// [m,k]x[k,n]; batched with broadcast leading dims; vectors as in NumPy.
Tensor matmul(const Tensor& a, const Tensor& b);
Tensor bmm(const Tensor& a, const Tensor& b);
// x [..., in] times weight [out, in] transposed, plus bias [out] (may be undefined).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor());

// ---- neural networks
struct Conv2dOptions {
  Pair stride = 1;
  Pair padding = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
};
// x [N,C,H,W], weight [K,C/groups,R,S], bias [K] or undefined -> [N,K,OH,OW], channels_last.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(), const Conv2dOptions& options = {});
struct Pool2dOptions {
  Pair kernel_size = 2;
  Pair stride = 0;  // 0 = kernel_size
  Pair padding = 0;
  Pair dilation = 1;  // max pooling only
  bool ceil_mode = false;
  bool count_include_pad = true;  // average pooling only
};
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);
Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);
// x [N,C] or [N,C,...]; weight, bias, running_* are [C] or undefined. In training the batch's statistics are used and the
// running ones updated in place: running = (1-momentum)*running + momentum*batch (variance unbiased).
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                  bool training, double momentum = 0.1, double eps = 1e-5);
// Normalises the trailing dims `normalized_shape`; weight and bias have that shape or are undefined.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = Tensor(),
                  const Tensor& bias = Tensor(), double eps = 1e-5);
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = Tensor(), const Tensor& bias = Tensor(),
                  double eps = 1e-5);
// Zeroes with probability p and scales the rest by 1/(1-p); `key` from next_layer_key(). Identity when p = 0.
Tensor dropout(const Tensor& x, double p, std::uint64_t key, std::int64_t sample_offset = 0);

// ---- losses
enum class Reduction : std::uint8_t { none, mean, sum };
struct CrossEntropyOptions {
  Tensor weight = {};  // per class, or undefined
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};
// logits [N,C] or [N,C,...], labels int64 [N] or [N,...]. Fused log-softmax. A label outside [0,C) is an IndexError that
// names its position and value. `mean` divides by the sum of the targets' class weights, as PyTorch.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options = {});
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, const CrossEntropyOptions& options = {});
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta = 1.0, Reduction reduction = Reduction::mean);
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        Reduction reduction = Reduction::mean);

// ---- operators. `a += b` rebinds a = a + b: nothing is overwritten.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, const Scalar& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Scalar& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Scalar& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Scalar& b) { return div(a, b); }
inline Tensor operator+(const Scalar& a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Scalar& a, const Tensor& b) { return rsub(a, b); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Scalar& a, const Tensor& b) { return rdiv(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }
template <class B>
Tensor& operator+=(Tensor& a, const B& b) { return a = a + b; }
template <class B>
Tensor& operator-=(Tensor& a, const B& b) { return a = a - b; }
template <class B>
Tensor& operator*=(Tensor& a, const B& b) { return a = a * b; }
template <class B>
Tensor& operator/=(Tensor& a, const B& b) { return a = a / b; }

}  // namespace limpid
