// The update rules: their options, states and kernel calls.
#include <cmath>

#include <limpid/optim/adam.h>
#include <limpid/optim/rmsprop.h>
#include <limpid/optim/rules_private.h>
#include <limpid/optim/sgd.h>

namespace limpid::optim {
// ---- SGD

SGD::SGD(const std::vector<Tensor>& params, const SGDOptions& options) { add(params, options); }

SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups) {
  LIMPID_CHECK(!groups.empty(), ArgumentError, "[SGD] there are no parameter groups");
  for (const auto& group : groups) add(group.params, group.options);
}

void SGD::add(const std::vector<Tensor>& params, const SGDOptions& options) {
  options_.push_back(options);
  add_group(params, {options.momentum != 0 ? "momentum_buffer" : nullptr, nullptr, nullptr});
  check_options(options_.size() - 1);
}

void SGD::check_options(std::size_t group) const {
  const SGDOptions& o = options_.at(group);
  check_not_negative("SGD", "lr", o.lr);
  check_not_negative("SGD", "momentum", o.momentum);
  check_not_negative("SGD", "weight_decay", o.weight_decay);
  LIMPID_CHECK(std::isfinite(o.dampening), ArgumentError, "[SGD] dampening must be finite, got ", o.dampening);
  LIMPID_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), ArgumentError,
               "[SGD] nesterov needs momentum > 0 and dampening 0, got momentum ", o.momentum, " and dampening ",
               o.dampening);
  LIMPID_CHECK(o.momentum == 0 || has_state(group, 0), ArgumentError,
               "[SGD] momentum was 0 at construction, so there is no "
               "momentum buffer, and it cannot become ",
               o.momentum);
}

void SGD::visit_options(std::size_t group, const OptionVisitor& visit) {
  SGDOptions& o = options_.at(group);
  visit("lr", o.lr);
  visit("momentum", o.momentum);
  visit("dampening", o.dampening);
  visit("weight_decay", o.weight_decay);
  visit_flag("nesterov", o.nesterov, visit);
}

void SGD::update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) {
  const SGDOptions& o = options_.at(group);
  kernels_for(device_of(chunks))
      .sgd(chunks, {.lr = o.lr,
                    .momentum = o.momentum,
                    .dampening = o.dampening,
                    .weight_decay = o.weight_decay,
                    .nesterov = o.nesterov,
                    .step = step,
                    .guard = guard()});
}

// ---- Adam, AdamW

namespace {

std::vector<ParamGroup<AdamOptions>> as_adam(const std::vector<ParamGroup<AdamWOptions>>& groups) {
  std::vector<ParamGroup<AdamOptions>> converted;
  for (const auto& [params, o] : groups)
    converted.push_back({.params = params,
                         .options = {.lr = o.lr,
                                     .beta1 = o.beta1,
                                     .beta2 = o.beta2,
                                     .eps = o.eps,
                                     .weight_decay = o.weight_decay,
                                     .amsgrad = o.amsgrad}});
  return converted;
}

}  // namespace

Adam::Adam(const std::vector<Tensor>& params, const AdamOptions& options) { add(params, options); }

Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups) : Adam(false, groups) {}

Adam::Adam(bool decoupled, const std::vector<ParamGroup<AdamOptions>>& groups) : decoupled_(decoupled) {
  LIMPID_CHECK(!groups.empty(), ArgumentError, "[", Adam::name(), "] there are no parameter groups");
  for (const auto& group : groups) add(group.params, group.options);
}

AdamW::AdamW(const std::vector<Tensor>& params, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{.params = params, .options = options}}) {}

AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups) : Adam(true, as_adam(groups)) {}

void Adam::add(const std::vector<Tensor>& params, const AdamOptions& options) {
  options_.push_back(options);
  add_group(params, {"exp_avg", "exp_avg_sq", options.amsgrad ? "max_exp_avg_sq" : nullptr});
  check_options(options_.size() - 1);
}

void Adam::check_options(std::size_t group) const {
  const AdamOptions& o = options_.at(group);
  check_not_negative(name(), "lr", o.lr);
  check_fraction(name(), "beta1", o.beta1);
  check_fraction(name(), "beta2", o.beta2);
  check_not_negative(name(), "eps", o.eps);
  check_not_negative(name(), "weight_decay", o.weight_decay);
  LIMPID_CHECK(o.amsgrad == has_state(group, 2), ArgumentError, "[", name(), "] amsgrad was ", has_state(group, 2),
               " at construction and cannot become ", o.amsgrad);
}

void Adam::visit_options(std::size_t group, const OptionVisitor& visit) {
  AdamOptions& o = options_.at(group);
  visit("lr", o.lr);
  visit("beta1", o.beta1);
  visit("beta2", o.beta2);
  visit("eps", o.eps);
  visit("weight_decay", o.weight_decay);
  visit_flag("amsgrad", o.amsgrad, visit);
}

void Adam::update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) {
  const AdamOptions& o = options_.at(group);
  kernels_for(device_of(chunks))
      .adam(chunks, {.lr = o.lr,
                     .beta1 = o.beta1,
                     .beta2 = o.beta2,
                     .eps = o.eps,
                     .weight_decay = o.weight_decay,
                     .decoupled = decoupled_,
                     .amsgrad = o.amsgrad,
                     .step = step,
                     .guard = guard()});
}

// ---- RMSprop

RMSprop::RMSprop(const std::vector<Tensor>& params, const RMSpropOptions& options) { add(params, options); }

RMSprop::RMSprop(const std::vector<ParamGroup<RMSpropOptions>>& groups) {
  LIMPID_CHECK(!groups.empty(), ArgumentError, "[RMSprop] there are no parameter groups");
  for (const auto& group : groups) add(group.params, group.options);
}

void RMSprop::add(const std::vector<Tensor>& params, const RMSpropOptions& options) {
  options_.push_back(options);
  add_group(params, {"square_avg", options.momentum != 0 ? "momentum_buffer" : nullptr,
                     options.centered ? "grad_avg" : nullptr});
  check_options(options_.size() - 1);
}

void RMSprop::check_options(std::size_t group) const {
  const RMSpropOptions& o = options_.at(group);
  check_not_negative("RMSprop", "lr", o.lr);
  check_fraction("RMSprop", "alpha", o.alpha);
  check_not_negative("RMSprop", "eps", o.eps);
  check_not_negative("RMSprop", "weight_decay", o.weight_decay);
  check_not_negative("RMSprop", "momentum", o.momentum);
  LIMPID_CHECK(o.momentum == 0 || has_state(group, 1), ArgumentError,
               "[RMSprop] momentum was 0 at construction, so there is "
               "no momentum buffer, and it cannot become ",
               o.momentum);
  LIMPID_CHECK(o.centered == has_state(group, 2), ArgumentError, "[RMSprop] centered was ", has_state(group, 2),
               " at construction and cannot become ", o.centered);
}

void RMSprop::visit_options(std::size_t group, const OptionVisitor& visit) {
  RMSpropOptions& o = options_.at(group);
  visit("lr", o.lr);
  visit("alpha", o.alpha);
  visit("eps", o.eps);
  visit("weight_decay", o.weight_decay);
  visit("momentum", o.momentum);
  visit_flag("centered", o.centered, visit);
}

void RMSprop::update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t) {
  const RMSpropOptions& o = options_.at(group);
  kernels_for(device_of(chunks))
      .rmsprop(chunks, {.lr = o.lr,
                        .alpha = o.alpha,
                        .eps = o.eps,
                        .weight_decay = o.weight_decay,
                        .momentum = o.momentum,
                        .centered = o.centered,
                        .guard = guard()});
}

}  // namespace limpid::optim
