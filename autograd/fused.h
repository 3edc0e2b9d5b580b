// Operations that are computed, recorded and kept for the gradient as one. Results and gradients are those of the separate
// functions; kept are the input, the weight and one bit an element instead of the results in between (tensor/conv_tail.h).
// Where that is not possible the separate functions run: see composed_because().
#pragma once

#include <limpid/autograd/functions.h>
#include <limpid/tensor/conv_tail.h>

namespace limpid {

// relu(conv2d(x, weight, bias)), and then max_pool2d of 2x2 (ConvTail::relu_max_pool) or adaptive_avg_pool2d to 1x1
// (ConvTail::relu_mean). Shapes and errors as there.
Tensor conv2d_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options,
                   ConvTail tail = ConvTail::relu);
// relu(batch_norm(x, ...) + residual); residual has the shape of x, or is undefined: relu(batch_norm(x, ...)).
Tensor batch_norm_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                       Tensor running_var, bool training, double momentum = 0.1, double eps = 1e-5);
// relu(linear(x, weight, bias)).
Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor());

// Whether they do, for x.
bool is_composed(const Tensor& x);
// Why the functions above would run as separate ones now, for tensors of this device and dtype; empty: they do not. (A
// convolution also does when its fused form does not fit a workspace cap: see the operations that the trace names.)
std::string composed_because(Device device, DType dtype);

}  // namespace limpid
