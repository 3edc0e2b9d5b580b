// Activations, matrix products, convolutions, pools, norms, losses and update rules.
#include "onnx_ops.h"

#include <cmath>
#include <limits>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/sgd.h>

namespace onnx_test {

using namespace limpid;
using Ints = std::vector<std::int64_t>;

namespace {

// ---- windows: convolutions and pools over one or two spatial dims, one-dim images stood up as rows of height 1

struct Window {
  Ints kernel, stride, dilation, before, after;  // pads before and after each dim
  bool ceil_mode = false;
  bool symmetric() const { return before == after; }
  Pair pair(const Ints& values) const { return {values[0], values[1]}; }
  Ints explicit_pads() const { return {before[1], after[1], before[0], after[0]}; }
};

Tensor stand_up(const Tensor& x) {
  if (x.dim() == 3) return unsqueeze(x, 2);
  if (x.dim() != 4) throw Unsupported(concat(x.dim() - 2, " spatial dims"));
  return x;
}

Window window_of(const Call& c, const Ints& kernel) {
  std::size_t dims = kernel.size();
  Window w;
  w.kernel = kernel;
  w.stride = c.integers("strides", Ints(dims, 1));
  w.dilation = c.integers("dilations", Ints(dims, 1));
  Ints pads = c.integers("pads", Ints(2 * dims, 0));
  w.before.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(dims));
  w.after.assign(pads.begin() + static_cast<std::ptrdiff_t>(dims), pads.end());
  w.ceil_mode = c.integer("ceil_mode", 0) != 0;
  std::string mode = c.text("auto_pad", "NOTSET");
  if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
    for (std::size_t d = 0; d < dims; d++) {
      std::int64_t size = c[0].size(static_cast<std::int64_t>(d) + 2), out = (size + w.stride[d] - 1) / w.stride[d];
      std::int64_t total =
          std::max<std::int64_t>(0, (out - 1) * w.stride[d] + (kernel[d] - 1) * w.dilation[d] + 1 - size);
      w.before[d] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.after[d] = total - w.before[d];
    }
  }
  if (dims == 1) {
    for (Ints* list : {&w.kernel, &w.stride, &w.dilation}) list->insert(list->begin(), 1);
    for (Ints* list : {&w.before, &w.after}) list->insert(list->begin(), 0);
  }
  return w;
}

Result convolution(const Call& c) {
  Tensor x = stand_up(c[0]), weight = stand_up(c[1]);
  Window w = window_of(c, Ints(c[1].shape().begin() + 2, c[1].shape().end()));
  Conv2dOptions options{.stride = w.pair(w.stride), .dilation = w.pair(w.dilation), .groups = c.integer("group", 1)};
  if (w.symmetric()) {
    options.padding = w.pair(w.before);
  } else {
    x = pad(x, w.explicit_pads());
  }
  Tensor y = conv2d(x, weight, c.optional(2), options);
  return c[0].dim() == 3 ? squeeze(y, 2) : y;
}

// The transposed convolution of x is the gradient of conv2d with respect to its input when x is the output's gradient.
Result transposed_convolution(const Call& c) {
  Tensor x = stand_up(c[0]).detach(), weight = stand_up(c[1]).detach();
  std::size_t dims = static_cast<std::size_t>(c[0].dim()) - 2;
  Window w = window_of(c, Ints(c[1].shape().begin() + 2, c[1].shape().end()));
  Ints extra = c.integers("output_padding", Ints(dims, 0)), wanted = c.integers("output_shape");
  std::string mode = c.text("auto_pad", "NOTSET");
  if (dims == 1) extra.insert(extra.begin(), 0);
  if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
    for (std::size_t d = 0; d < dims; d++) wanted.push_back(c[0].size(static_cast<std::int64_t>(d) + 2) * w.stride[d]);
  }
  Shape image{x.size(0), weight.size(1) * c.integer("group", 1), 0, 0};
  for (std::size_t d = 0; d < 2; d++) {
    std::int64_t full =
        w.stride[d] * (x.size(static_cast<std::int64_t>(d) + 2) - 1) + extra[d] + (w.kernel[d] - 1) * w.dilation[d] + 1;
    if (!wanted.empty()) {
      full = std::max(full, wanted.at(d));  // what no window reaches stays 0
      std::int64_t total = full - wanted.at(d);
      w.before[d] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.after[d] = total - w.before[d];
    }
    image[static_cast<int>(d) + 2] = full - w.before[d] - w.after[d];
  }
  Tensor z = zeros(image, {.dtype = x.dtype(), .requires_grad = true});
  Tensor y = conv2d(pad(z, w.explicit_pads()), weight, Tensor(),
                    {.stride = w.pair(w.stride), .dilation = w.pair(w.dilation), .groups = c.integer("group", 1)});
  y.backward(x);
  Tensor out = z.grad();
  if (c.has(2)) out = add(out, reshape(c[2], {1, -1, 1, 1}));
  return c[0].dim() == 3 ? squeeze(out, 2) : out;
}

Pool2dOptions pool_options(const Window& w) {
  return {.kernel_size = w.pair(w.kernel),
          .stride = w.pair(w.stride),
          .dilation = w.pair(w.dilation),
          .ceil_mode = w.ceil_mode};
}

// limpid's pools pad both sides alike, by at most half the window.
bool pads_fit(const Window& w) {
  return w.symmetric() && 2 * w.before[0] <= w.kernel[0] && 2 * w.before[1] <= w.kernel[1];
}

Result max_pool(const Call& c) {
  if (c.node.outputs.size() > 1) throw Unsupported("MaxPool with indices");
  Tensor x = stand_up(c[0]);
  if (!is_floating(x.dtype())) throw Unsupported("MaxPool of integers");
  Window w = window_of(c, c.integers("kernel_shape"));
  Pool2dOptions options = pool_options(w);
  if (pads_fit(w)) {
    options.padding = w.pair(w.before);
  } else {
    x = pad(x, w.explicit_pads(), -std::numeric_limits<double>::infinity());
  }
  Tensor y = max_pool2d(x, options);
  return c[0].dim() == 3 ? squeeze(y, 2) : y;
}

Result average_pool(const Call& c) {
  Tensor x = stand_up(c[0]), y;
  Window w = window_of(c, c.integers("kernel_shape"));
  Pool2dOptions options = pool_options(w);
  options.count_include_pad = c.integer("count_include_pad", 0) != 0;
  if (pads_fit(w)) {
    options.padding = w.pair(w.before);
    y = avg_pool2d(x, options);
  } else {
    y = avg_pool2d(pad(x, w.explicit_pads()), options);
    if (!options.count_include_pad) {  // the share of the window that lies inside the image
      y = y / avg_pool2d(pad(ones(x.shape(), {.dtype = x.dtype()}), w.explicit_pads()), options);
    }
  }
  return c[0].dim() == 3 ? squeeze(y, 2) : y;
}

Ints spatial(const Tensor& x) {
  Ints dims;
  for (int d = 2; d < x.dim(); d++) dims.push_back(d);
  return dims;
}

// ---- norms

Result batch_normalization(const Call& c) {
  bool training = c.integer("training_mode", 0) != 0;
  double momentum = 1 - c.number("momentum", 0.9F), eps = c.number("epsilon", 1e-5F);
  Tensor running_mean = c[3].detach().clone(), running_var = c[4].detach().clone();
  Tensor y = batch_norm(c[0], c[1], c[2], running_mean, running_var, training, momentum, eps);
  if (!training) return y;
  // ONNX keeps the biased variance, limpid (as PyTorch) the unbiased one.
  NoGradGuard no_grad;
  double n = static_cast<double>(c[0].numel()) / static_cast<double>(c[0].size(1));
  Tensor kept = c[4].detach() * (1 - momentum);
  return std::vector<Tensor>{y, running_mean, (running_var - kept) * ((n - 1) / n) + kept};
}

Result layer_normalization(const Call& c) {
  const Tensor& x = c[0];
  int axis = normalize_dim("onnx", c.integer("axis", -1), x.dim());
  Shape trailing;
  Ints dims;
  for (int d = axis; d < x.dim(); d++) {
    trailing.push_back(x.size(d));
    dims.push_back(d);
  }
  double eps = c.number("epsilon", 1e-5F);
  return std::vector<Tensor>{layer_norm(x, trailing, c[1], c.optional(2), eps), mean(x, dims, true),
                             rsqrt(var(x, dims, 0, true) + eps)};
}

// Up to opset 12 softmax sees a matrix: the dims before `axis` by those from it on.
template <class F>
Operator softmax_of(F f) {
  return [f](const Call& c) -> Result {
    if (c.opset >= 13) return f(c[0], c.integer("axis", -1));
    int axis = normalize_dim("onnx", c.integer("axis", 1), c[0].dim());
    std::int64_t rows = 1;
    for (int d = 0; d < axis; d++) rows *= c[0].size(d);
    return reshape(f(reshape(c[0], {rows, -1}), 1), c[0].shape());
  };
}

// ---- losses

CrossEntropyOptions loss_options(const Call& c) {
  std::string reduction = c.text("reduction", "mean");
  CrossEntropyOptions options{.weight = c.has(2) ? c[2].detach() : Tensor(),
                              .ignore_index = c.integer("ignore_index", -100)};
  options.reduction = reduction == "none" ? Reduction::none : reduction == "sum" ? Reduction::sum : Reduction::mean;
  return options;
}

// ---- matrix products

Result gemm(const Call& c) {
  double alpha = c.number("alpha", 1), beta = c.number("beta", 1);
  bool transposed = c.integer("transB", 0) != 0;
  Tensor a = c.integer("transA", 0) != 0 ? transpose(c[0], 0, 1) : c[0];
  if (transposed && alpha == 1 && beta == 1 && c.has(2) && c[2].dim() == 1 && c[2].numel() == c[1].size(0)) {
    return linear(a, c[1], c[2]);
  }
  Tensor y = matmul(a, transposed ? transpose(c[1], 0, 1) : c[1]);
  if (alpha != 1) y = y * alpha;
  return c.has(2) ? y + (beta == 1 ? c[2] : c[2] * beta) : y;
}

// ---- update rules: inputs are R (learning rate), T (step) and then n each of X, G and of every state

Tensor parameter(const Tensor& x) { return x.detach().clone().requires_grad_(); }

// One step of `optimizer`, whose states start as given and whose step count starts at `steps`.
template <class O>
Result one_step(O& optimizer, const Call& c, std::vector<Tensor>& params, const std::vector<std::string>& states,
                std::int64_t steps) {
  std::size_t n = params.size();
  optim::OptimizerState state = optimizer.state_dict();
  for (std::size_t i = 0; i < n; i++) {
    std::string prefix = "state." + std::to_string(i) + ".";
    params[i].set_grad(c[2 + n + i].detach());
    for (std::size_t s = 0; s < states.size(); s++)
      state.tensors.at(prefix + states[s]) = c[2 + (2 + s) * n + i].detach();
    state.tensors.at(prefix + "step") = scalar_tensor(steps, {.dtype = int64});
  }
  optimizer.load_state_dict(state);
  optimizer.step();
  state = optimizer.state_dict();
  std::vector<Tensor> out = params;
  for (const std::string& name : states) {
    for (std::size_t i = 0; i < n; i++) out.push_back(state.tensors.at("state." + std::to_string(i) + "." + name));
  }
  return out;
}

Result adam(const Call& c) {
  if (c.number("norm_coefficient_post", 0) != 0) throw Unsupported("Adam that shrinks after the step");
  std::size_t n = (c.inputs.size() - 2) / 4;
  std::vector<Tensor> params;
  for (std::size_t i = 0; i < n; i++) params.push_back(parameter(c[2 + i]));
  // ONNX counts steps from 0 and corrects no bias at step 0. A huge count makes limpid's correction 1.
  std::int64_t t = c[1].item_int(), steps = t == 0 ? 1'000'000'000 : t - 1;
  // The schema's epsilon is 1e-6; the one case that leaves it out (adam_multiple) has outputs made with 1e-2.
  optim::AdamOptions options{.lr = c[0].item(),
                             .beta1 = c.number("alpha", 0.9F),
                             .beta2 = c.number("beta", 0.999F),
                             .eps = c.number("epsilon", 1e-2F),
                             .weight_decay = c.number("norm_coefficient", 0)};
  if (t > 0) options.eps /= std::sqrt(1 - std::pow(options.beta2, static_cast<double>(t)));  // ONNX adds it before
  optim::Adam optimizer(params, options);
  return one_step(optimizer, c, params, {"exp_avg", "exp_avg_sq"}, steps);
}

Result momentum(const Call& c) {
  std::size_t n = (c.inputs.size() - 2) / 3;
  std::vector<Tensor> params;
  for (std::size_t i = 0; i < n; i++) params.push_back(parameter(c[2 + i]));
  double beta = c[1].item_int() > 0 ? c.number("beta", 1) : 1;  // the first gradient enters whole
  bool nesterov = c.text("mode", "standard") == "nesterov";
  if (nesterov && beta != 1) throw Unsupported("Nesterov momentum with dampening");
  optim::SGD optimizer(params, {.lr = c[0].item(),
                                .momentum = c.number("alpha", 0),
                                .dampening = 1 - beta,
                                .weight_decay = c.number("norm_coefficient", 0),
                                .nesterov = nesterov});
  return one_step(optimizer, c, params, {"momentum_buffer"}, 1);
}

Result dropout_node(const Call& c) {
  bool training = c.has(2) && c[2].item() != 0;
  double ratio = c.has(1) ? c[1].item() : c.number("ratio", 0.5);
  if (training && ratio != 0) throw Unsupported("random numbers differ");
  return std::vector<Tensor>{dropout(c[0], 0, 0), ones(c[0].shape(), {.dtype = boolean})};
}

void add_activations(OperatorTable& t) {
  t["Relu"] = [](const Call& c) { return relu(c[0]); };
  t["LeakyRelu"] = [](const Call& c) { return leaky_relu(c[0], c.number("alpha", 0.01F)); };
  t["PRelu"] = [](const Call& c) {
    Tensor slope = c[1];
    if (c.opset < 7) {  // a slope a channel
      while (slope.dim() + 1 < c[0].dim()) slope = unsqueeze(slope, -1);
    }
    return where(gt(c[0], 0), c[0], c[0] * slope);
  };
  t["ThresholdedRelu"] = [](const Call& c) { return where(gt(c[0], c.number("alpha", 1)), c[0], c[0] * 0); };
  t["Elu"] = [](const Call& c) { return elu(c[0], c.number("alpha", 1)); };
  t["Selu"] = [](const Call& c) {
    return elu(c[0], c.number("alpha", 1.67326319217681884765625)) * c.number("gamma", 1.05070102214813232421875);
  };
  t["Celu"] = [](const Call& c) {
    double alpha = c.number("alpha", 1);
    return elu(c[0] / alpha) * alpha;
  };
  t["Sigmoid"] = [](const Call& c) { return sigmoid(c[0]); };
  t["HardSigmoid"] = [](const Call& c) { return clamp(c[0] * c.number("alpha", 0.2F) + c.number("beta", 0.5F), 0, 1); };
  t["HardSwish"] = [](const Call& c) { return c[0] * clamp(c[0] / 6.0 + 0.5, 0, 1); };
  t["Tanh"] = [](const Call& c) { return tanh(c[0]); };
  t["Softplus"] = [](const Call& c) { return softplus(c[0]); };
  t["Softsign"] = [](const Call& c) { return c[0] / (abs(c[0]) + 1.0); };
  t["Shrink"] = [](const Call& c) {
    double lambda = c.number("lambd", 0.5F), bias = c.number("bias", 0);
    return where(lt(c[0], -lambda), c[0] + bias, where(gt(c[0], lambda), c[0] - bias, c[0] * 0));
  };
  t["Softmax"] = softmax_of([](const Tensor& x, std::int64_t dim) { return softmax(x, dim); });
  t["LogSoftmax"] = softmax_of([](const Tensor& x, std::int64_t dim) { return log_softmax(x, dim); });
  t["Dropout"] = dropout_node;
}

}  // namespace

void add_nn_operators(OperatorTable& t) {
  add_activations(t);
  t["MatMul"] = [](const Call& c) { return matmul(c[0], c[1]); };
  t["Gemm"] = gemm;
  t["Conv"] = convolution;
  t["ConvTranspose"] = transposed_convolution;
  t["MaxPool"] = max_pool;
  t["AveragePool"] = average_pool;
  t["GlobalAveragePool"] = [](const Call& c) {
    return c[0].dim() == 4 ? adaptive_avg_pool2d(c[0], {1, 1}) : mean(c[0], spatial(c[0]), true);
  };
  t["GlobalMaxPool"] = [](const Call& c) { return max(c[0], spatial(c[0]), true); };
  t["BatchNormalization"] = batch_normalization;
  t["LayerNormalization"] = layer_normalization;
  t["InstanceNormalization"] = [](const Call& c) {  // a group a channel
    return group_norm(c[0], c[0].size(1), c[1], c[2], c.number("epsilon", 1e-5F));
  };
  t["MeanVarianceNormalization"] = [](const Call& c) {
    Ints axes = c.integers("axes", {0, 2, 3});
    return (c[0] - mean(c[0], axes, true)) / (sqrt(var(c[0], axes, 0, true)) + 1e-9);
  };
  t["NegativeLogLikelihoodLoss"] = [](const Call& c) { return nll_loss(c[0], cast(c[1], int64), loss_options(c)); };
  t["SoftmaxCrossEntropyLoss"] = [](const Call& c) {
    return std::vector<Tensor>{cross_entropy(c[0], cast(c[1], int64), loss_options(c)), log_softmax(c[0], 1)};
  };
  t["Adam"] = adam;
  t["Momentum"] = momentum;
}

}  // namespace onnx_test
