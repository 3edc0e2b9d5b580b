#include <limpid/nn/norm.h>

#include <algorithm>
#include <cmath>

#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/fused.h>
#include <limpid/nn/init.h>

namespace limpid::nn {
namespace {

// Born in its role: that decides its pool.
TensorOptions as_param() { return {.role = memory::Role::param}; }

const char* yes(bool value) { return value ? "True" : "False"; }

void check_eps(const char* layer, double eps) {
  LIMPID_CHECK(eps >= 0, ArgumentError, "[", layer, "] eps must not be negative, got ", eps);
}

}  // namespace

// ---- BatchNorm

BatchNorm::BatchNorm(const char* type, const BatchNormOptions& options) : options_(options) {
  LIMPID_CHECK(options.num_features >= 1, ArgumentError, "[", type, "] num_features must be at least 1, got ",
               options.num_features);
  LIMPID_CHECK(!options.momentum || (*options.momentum >= 0 && *options.momentum <= 1), ArgumentError, "[", type,
               "] momentum must be between 0 and 1, got ", *options.momentum);
  check_eps(type, options.eps);
  Shape shape{options.num_features};
  weight = register_parameter("weight", options.affine ? ones(shape, as_param()) : Tensor());
  bias = register_parameter("bias", options.affine ? zeros(shape, as_param()) : Tensor());
  running_mean = register_buffer("running_mean", options.track_running_stats ? zeros(shape, as_param()) : Tensor());
  running_var = register_buffer("running_var", options.track_running_stats ? ones(shape, as_param()) : Tensor());
  num_batches_tracked =
      register_buffer("num_batches_tracked", options.track_running_stats
                                                 ? zeros({}, {.dtype = int64, .role = memory::Role::param})
                                                 : Tensor());
}

void BatchNorm::reset_running_stats() {
  if (!options_.track_running_stats) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void BatchNorm::reset_parameters() {
  reset_running_stats();
  if (!options_.affine) return;
  init::constant(weight, 1);
  init::constant(bias, 0);
}

void BatchNorm::set_frozen(bool frozen) {
  LIMPID_CHECK(!frozen || options_.track_running_stats, ArgumentError, "[", type_name(),
               "] cannot be frozen: it keeps no running statistics (track_running_stats=False)");
  frozen_ = frozen;
}

void BatchNorm::set_micro_batches(std::int64_t count) {
  LIMPID_CHECK(count >= 1, ArgumentError, "[", type_name(), "] a step has at least 1 micro-batch, got ", count);
  micro_batches_ = count;
}

double micro_batch_momentum(double momentum, std::int64_t micro_batches) {
  if (micro_batches == 1) return momentum;
  return -std::expm1(std::log1p(-momentum) / static_cast<double>(micro_batches));
}

std::optional<double> BatchNorm::momentum() const {
  if (!options_.momentum) return std::nullopt;
  return micro_batch_momentum(*options_.momentum, micro_batches_);
}

double BatchNorm::count_batch() {
  const Device device = num_batches_tracked.device();
  std::int64_t seen = 1;  // a dry count stays at its first batch
  if (device == kCpu) {   // in place on the host
    seen = ++*num_batches_tracked.mutable_data<std::int64_t>();
  } else if (device != kDryCpu) {
    num_batches_tracked.add_(ones({}, {.dtype = int64, .device = device}));
    if (!options_.momentum) seen = std::max<std::int64_t>(num_batches_tracked.item_int(), 1);  // a dry count may be 0
  }
  return momentum().value_or(1.0 / static_cast<double>(seen));
}

void BatchNorm::update_running_stats() {
  LIMPID_CHECK(shared_ && shared_->has_statistics(), ArgumentError, "[", type_name(),
               "] has no statistics of a whole batch to update its running ones with");
  if (!training() || !options_.track_running_stats) return;
  const double average = count_batch();
  shared_->update(running_mean, running_var, options_.momentum.value_or(average));  // once, by the whole momentum
}

Tensor BatchNorm::run(const Tensor& x, bool relu, const Tensor& residual) {
  check_input(x);
  LIMPID_CHECK(x.size(1) == options_.num_features, ShapeError, "[", type_name(), "] expects ", options_.num_features,
               " channels, input is ", x);
  // A checkpoint that runs its forward again must not count the batch twice.
  bool use_batch = uses_batch();
  bool update = training() && use_batch && options_.track_running_stats && !is_recomputing();
  if (use_batch && shared_) {
    return relu ? batch_norm_relu(x, residual, weight, bias, shared_, options_.eps)
                : batch_norm(x, weight, bias, shared_, options_.eps);
  }
  if (use_batch) {
    std::int64_t count = x.numel() / options_.num_features;
    LIMPID_CHECK(count > 1, ShapeError, "[", type_name(),
                 "] expected more than 1 value per channel when the batch's statistics are used, got ", count,
                 " (input ", x, ")");
  }
  const double momentum = update ? count_batch() : 0;
  const Tensor none;
  const Tensor &mean = update || !use_batch ? running_mean : none, &var = update || !use_batch ? running_var : none;
  return relu ? batch_norm_relu(x, residual, weight, bias, mean, var, use_batch, momentum, options_.eps)
              : batch_norm(x, weight, bias, mean, var, use_batch, momentum, options_.eps);
}

std::string BatchNorm::describe() const {
  return concat(type_name(), "(", options_.num_features, ", eps=", options_.eps,
                ", momentum=", options_.momentum ? concat(*options_.momentum) : std::string("None"),
                ", affine=", yes(options_.affine), ", track_running_stats=", yes(options_.track_running_stats), ")");
}

void BatchNorm1d::check_input(const Tensor& x) const {
  LIMPID_CHECK(x.defined() && (x.dim() == 2 || x.dim() == 3), ShapeError,
               "[BatchNorm1d] expects an input [N,C] or [N,C,L], got ", x);
}

void BatchNorm2d::check_input(const Tensor& x) const {
  LIMPID_CHECK(x.defined() && x.dim() == 4, ShapeError, "[BatchNorm2d] expects an input [N,C,H,W], got ", x);
}

// ---- LayerNorm

LayerNorm::LayerNorm(const LayerNormOptions& options) : options_(options) {
  const Shape& shape = options.normalized_shape;
  LIMPID_CHECK(!shape.empty(), ArgumentError, "[LayerNorm] normalized_shape must have at least one dim");
  for (std::int64_t dim : shape)
    LIMPID_CHECK(dim >= 1, ArgumentError, "[LayerNorm] dims of normalized_shape must be at least 1, got ", shape);
  check_eps("LayerNorm", options.eps);
  weight = register_parameter("weight", options.elementwise_affine ? ones(shape, as_param()) : Tensor());
  bias = register_parameter("bias", options.elementwise_affine && options.bias ? zeros(shape, as_param()) : Tensor());
}

Tensor LayerNorm::forward(const Tensor& x) {
  const Shape& shape = options_.normalized_shape;
  bool fits = x.defined() && x.dim() >= shape.size();
  for (int i = 0; fits && i < shape.size(); i++) fits = x.size(x.dim() - shape.size() + i) == shape[i];
  LIMPID_CHECK(fits, ShapeError, "[LayerNorm] expects trailing dims ", shape, ", input is ", x);
  return layer_norm(x, shape, weight, bias, options_.eps);
}

std::string LayerNorm::describe() const {
  std::string shape = "(";
  for (int i = 0; i < options_.normalized_shape.size(); i++)
    shape += concat(i ? " " : "", options_.normalized_shape[i], ",");
  if (options_.normalized_shape.size() > 1) shape.pop_back();
  std::string text =
      concat("LayerNorm(", shape, "), eps=", options_.eps, ", elementwise_affine=", yes(options_.elementwise_affine));
  if (!options_.bias) text += ", bias=False";
  return text + ")";
}

// ---- GroupNorm

GroupNorm::GroupNorm(const GroupNormOptions& options) : options_(options) {
  LIMPID_CHECK(options.num_groups >= 1 && options.num_channels >= 1 && options.num_channels % options.num_groups == 0,
               ArgumentError, "[GroupNorm] num_channels must be a positive multiple of num_groups, got ",
               options.num_channels, " and ", options.num_groups);
  check_eps("GroupNorm", options.eps);
  Shape shape{options.num_channels};
  weight = register_parameter("weight", options.affine ? ones(shape, as_param()) : Tensor());
  bias = register_parameter("bias", options.affine ? zeros(shape, as_param()) : Tensor());
}

Tensor GroupNorm::forward(const Tensor& x) {
  LIMPID_CHECK(x.defined() && x.dim() >= 2 && x.size(1) == options_.num_channels, ShapeError, "[GroupNorm] expects [N,",
               options_.num_channels, ",...], input is ", x);
  return group_norm(x, options_.num_groups, weight, bias, options_.eps);
}

std::string GroupNorm::describe() const {
  return concat("GroupNorm(", options_.num_groups, ", ", options_.num_channels, ", eps=", options_.eps,
                ", affine=", yes(options_.affine), ")");
}

}  // namespace limpid::nn
