// What the plain and the fused convolution and linear function share. Private to autograd/.
#pragma once

#include <span>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/node.h>
#include <limpid/tensor/kernels.h>

namespace limpid {

// ShapeError, DTypeError or ArgumentError for what does not fit together.
Conv2dDesc check_conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options);
void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

// Records x, weight and (if defined) bias as inputs of a node and keeps what their gradients need.
template <class N>
void add_weighted_inputs(N& node, const Tensor& x, const Tensor& kept_x, const Tensor& weight, const Tensor& bias) {
  node.add_input(x);
  node.add_input(weight);
  if (bias.defined()) node.add_input(bias);
  if (node.needs_input_grad(1)) node.x = SavedTensor(kept_x);
  if (node.needs_input_grad(0)) node.weight = SavedTensor(weight);
}

// Gradients of those inputs from that of the convolution's output, dz channels_last.
void conv2d_gradients(const Node& node, const Conv2dDesc& desc, const Tensor& dz, const SavedTensor& x,
                      const SavedTensor& weight, std::span<Tensor> input_grads);
// y [rows, out] = x w^T + bias: grad_x = g w, grad_w = g^T x, grad_bias = column sums of g, for g [rows, out].
void linear_gradients(const Node& node, const Shape& x_shape, const Tensor& g, const SavedTensor& x,
                      const SavedTensor& weight, std::span<Tensor> input_grads);
// Whether the bytes of `view`, made from a gradient that a node was given, are dead behind that node: they may be used for
// what becomes of it.
inline bool may_overwrite(const Tensor& grad, const Tensor& view) {
  if (view.storage() != grad.storage()) return view.storage()->use_count() == 1;
  return grad.impl()->use_count() == 1 && view.impl()->use_count() == 1 && grad.storage()->use_count() == 2;
}
// x as [rows, in].
Tensor linear_rows(const Tensor& x, const Tensor& weight);

}  // namespace limpid
