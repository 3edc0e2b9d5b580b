// Linear, Conv2d, Dropout, pooling and the checks of the losses' options.
#include <cmath>

#include <limpid/nn/conv.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/init.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/loss.h>
#include <limpid/nn/pool.h>

namespace limpid::nn {
namespace {

// Born in its role: that decides its pool.
TensorOptions as_param() { return {.role = memory::Role::param}; }

void check_at_least(const char* layer, const char* what, std::int64_t value, std::int64_t least) {
  LIMPID_CHECK(value >= least, ArgumentError, "[", layer, "] ", what, " must be at least ", least, ", got ", value);
}

void check_at_least(const char* layer, const char* what, Pair value, std::int64_t least) {
  LIMPID_CHECK(value.h >= least && value.w >= least, ArgumentError, "[", layer, "] ", what, " must be at least ", least,
               ", got ", value);
}

// A square pair as one number, as PyTorch prints it.
std::string brief(Pair pair) { return pair.h == pair.w ? std::to_string(pair.h) : to_string(pair); }
const char* yes(bool value) { return value ? "True" : "False"; }

// PyTorch asks for padding <= kernel / 2, so that no window lies in the padding alone.
void check_pool(const char* layer, Pair kernel, Pair stride, Pair padding) {
  check_at_least(layer, "kernel_size", kernel, 1);
  check_at_least(layer, "stride", stride, 0);
  check_at_least(layer, "padding", padding, 0);
  LIMPID_CHECK(2 * padding.h <= kernel.h && 2 * padding.w <= kernel.w, ArgumentError, "[", layer,
               "] padding must be at most half the kernel size, got padding ", padding, " and kernel_size ", kernel);
}

Pair or_kernel(Pair stride, Pair kernel) {
  return {stride.h == 0 ? kernel.h : stride.h, stride.w == 0 ? kernel.w : stride.w};
}

void check_cross_entropy(const char* loss, const CrossEntropyOptions& options) {
  LIMPID_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, ArgumentError, "[", loss,
               "] label_smoothing must be between 0 and 1, got ", options.label_smoothing);
  LIMPID_CHECK(!options.weight.defined() || (options.weight.dim() == 1 && is_floating(options.weight.dtype())),
               ShapeError, "[", loss, "] weight must be a floating [classes], got ", options.weight);
}

}  // namespace

// ---- Linear

Linear::Linear(const LinearOptions& options) : options_(options) {
  check_at_least("Linear", "in_features", options.in_features, 1);
  check_at_least("Linear", "out_features", options.out_features, 1);
  weight = register_parameter("weight", empty({options.out_features, options.in_features}, as_param()));
  bias = register_parameter("bias", options.bias ? empty({options.out_features}, as_param()) : Tensor());
  reset_parameters();
}

void Linear::reset_parameters(Generator& generator) {
  double bound = 1 / std::sqrt(static_cast<double>(options_.in_features));
  init::uniform(weight, -bound, bound, generator);
  if (bias.defined()) init::uniform(bias, -bound, bound, generator);
}

void Linear::check_input(const Tensor& x) const {
  LIMPID_CHECK(x.defined() && x.dim() >= 1 && x.size(-1) == options_.in_features, ShapeError,
               "[Linear] expects a last dim of ", options_.in_features, ", input is ", x);
}

Tensor Linear::forward(const Tensor& x) {
  check_input(x);
  return linear(x, weight, bias);
}

std::string Linear::describe() const {
  return concat("Linear(in_features=", options_.in_features, ", out_features=", options_.out_features,
                ", bias=", yes(options_.bias), ")");
}

// ---- Conv2d

Conv2d::Conv2d(const Conv2dOptions& options) : options_(options) {
  check_at_least("Conv2d", "in_channels", options.in_channels, 1);
  check_at_least("Conv2d", "out_channels", options.out_channels, 1);
  check_at_least("Conv2d", "kernel_size", options.kernel_size, 1);
  check_at_least("Conv2d", "stride", options.stride, 1);
  check_at_least("Conv2d", "padding", options.padding, 0);
  check_at_least("Conv2d", "dilation", options.dilation, 1);
  check_at_least("Conv2d", "groups", options.groups, 1);
  LIMPID_CHECK(options.in_channels % options.groups == 0 && options.out_channels % options.groups == 0, ArgumentError,
               "[Conv2d] in_channels and out_channels must be multiples of groups, got ", options.in_channels, ", ",
               options.out_channels, " and groups ", options.groups);
  weight = register_parameter("weight", empty({options.out_channels, options.in_channels / options.groups,
                                               options.kernel_size.h, options.kernel_size.w},
                                              as_param()));
  bias = register_parameter("bias", options.bias ? empty({options.out_channels}, as_param()) : Tensor());
  reset_parameters();
}

void Conv2d::reset_parameters(Generator& generator) {
  double bound = 1 / std::sqrt(static_cast<double>(init::fans(weight).in));
  init::uniform(weight, -bound, bound, generator);
  if (bias.defined()) init::uniform(bias, -bound, bound, generator);
}

void Conv2d::check_input(const Tensor& x) const {
  LIMPID_CHECK(x.defined() && x.dim() == 4 && x.size(1) == options_.in_channels, ShapeError, "[Conv2d] expects [N,",
               options_.in_channels, ",H,W], input is ", x);
}

limpid::Conv2dOptions Conv2d::call_options() const {
  return {.stride = options_.stride,
          .padding = options_.padding,
          .dilation = options_.dilation,
          .groups = options_.groups};
}

Tensor Conv2d::forward(const Tensor& x) {
  check_input(x);
  return conv2d(x, weight, bias, call_options());
}

std::string Conv2d::describe() const {
  std::string text = concat("Conv2d(", options_.in_channels, ", ", options_.out_channels,
                            ", kernel_size=", options_.kernel_size, ", stride=", options_.stride);
  if (options_.padding != Pair(0)) text += concat(", padding=", options_.padding);
  if (options_.dilation != Pair(1)) text += concat(", dilation=", options_.dilation);
  if (options_.groups != 1) text += concat(", groups=", options_.groups);
  if (!options_.bias) text += ", bias=False";
  return text + ")";
}

// ---- Dropout

Dropout::Dropout(const DropoutOptions& options) : options_(options) {
  LIMPID_CHECK(options.p >= 0 && options.p <= 1, ArgumentError, "[Dropout] p must be between 0 and 1, got ", options.p);
}

Tensor Dropout::forward(const Tensor& x) {
  if (!training() || options_.p == 0) return x;
  return dropout(x, options_.p, next_layer_key(path_id()), random_context().sample_offset);
}

// ---- pooling

MaxPool2d::MaxPool2d(const MaxPool2dOptions& options) : options_(options) {
  check_pool("MaxPool2d", options.kernel_size, options.stride, options.padding);
  check_at_least("MaxPool2d", "dilation", options.dilation, 1);
  options_.stride = or_kernel(options.stride, options.kernel_size);
}

Tensor MaxPool2d::forward(const Tensor& x) {
  return max_pool2d(x, {.kernel_size = options_.kernel_size,
                        .stride = options_.stride,
                        .padding = options_.padding,
                        .dilation = options_.dilation,
                        .ceil_mode = options_.ceil_mode});
}

std::string MaxPool2d::describe() const {
  return concat("MaxPool2d(kernel_size=", brief(options_.kernel_size), ", stride=", brief(options_.stride),
                ", padding=", brief(options_.padding), ", dilation=", brief(options_.dilation),
                ", ceil_mode=", yes(options_.ceil_mode), ")");
}

AvgPool2d::AvgPool2d(const AvgPool2dOptions& options) : options_(options) {
  check_pool("AvgPool2d", options.kernel_size, options.stride, options.padding);
  options_.stride = or_kernel(options.stride, options.kernel_size);
}

Tensor AvgPool2d::forward(const Tensor& x) {
  return avg_pool2d(x, {.kernel_size = options_.kernel_size,
                        .stride = options_.stride,
                        .padding = options_.padding,
                        .ceil_mode = options_.ceil_mode,
                        .count_include_pad = options_.count_include_pad});
}

std::string AvgPool2d::describe() const {
  return concat("AvgPool2d(kernel_size=", brief(options_.kernel_size), ", stride=", brief(options_.stride),
                ", padding=", brief(options_.padding), ")");
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(Pair output_size) : output_size_(output_size) {
  check_at_least("AdaptiveAvgPool2d", "output_size", output_size, 1);
}

std::string AdaptiveAvgPool2d::describe() const {
  return concat("AdaptiveAvgPool2d(output_size=", brief(output_size_), ")");
}

// ---- losses

CrossEntropyLoss::CrossEntropyLoss(CrossEntropyOptions options) : options_(std::move(options)) {
  check_cross_entropy("CrossEntropyLoss", options_);
}

NLLLoss::NLLLoss(NLLLossOptions options)
    : options_{
          .weight = std::move(options.weight), .ignore_index = options.ignore_index, .reduction = options.reduction} {
  check_cross_entropy("NLLLoss", options_);
}

SmoothL1Loss::SmoothL1Loss(SmoothL1LossOptions options) : options_(options) {
  LIMPID_CHECK(options.beta >= 0, ArgumentError, "[SmoothL1Loss] beta must not be negative, got ", options.beta);
}

}  // namespace limpid::nn
