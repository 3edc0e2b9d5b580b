#include <limpid/optim/lars.h>

#include <limpid/optim/rules_private.h>

namespace limpid::optim {

Lars::Lars(const std::vector<Tensor>& params, const LarsOptions& options) { add(params, options); }

Lars::Lars(const std::vector<ParamGroup<LarsOptions>>& groups) {
  LIMPID_CHECK(!groups.empty(), ArgumentError, "[LARS] there are no parameter groups");
  for (const auto& group : groups) add(group.params, group.options);
}

void Lars::add(const std::vector<Tensor>& params, const LarsOptions& options) {
  options_.push_back(options);
  add_group(params, {options.momentum != 0 ? "momentum_buffer" : nullptr, nullptr, nullptr});
  check_options(options_.size() - 1);
}

void Lars::check_options(std::size_t group) const {
  const LarsOptions& o = options_.at(group);
  check_not_negative("LARS", "lr", o.lr);
  check_fraction("LARS", "momentum", o.momentum);
  check_fraction("LARS", "dampening", o.dampening);
  check_not_negative("LARS", "weight_decay", o.weight_decay);
  check_not_negative("LARS", "trust_coefficient", o.trust_coefficient);
  check_not_negative("LARS", "eps", o.eps);
  LIMPID_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), ArgumentError,
               "[LARS] nesterov needs momentum > 0 and dampening 0, got momentum ", o.momentum, " and dampening ",
               o.dampening);
  LIMPID_CHECK(o.momentum == 0 || has_state(group, 0), ArgumentError,
               "[LARS] momentum was 0 at construction, so there is no momentum buffer, and it cannot become ", o.momentum);
}

void Lars::visit_options(std::size_t group, const OptionVisitor& visit) {
  LarsOptions& o = options_.at(group);
  visit("lr", o.lr);
  visit("momentum", o.momentum);
  visit("dampening", o.dampening);
  visit("weight_decay", o.weight_decay);
  visit("trust_coefficient", o.trust_coefficient);
  visit("eps", o.eps);
  visit_flag("nesterov", o.nesterov, visit);
  visit_flag("always_adapt", o.always_adapt, visit);
  visit_flag("trust_clip", o.trust_clip, visit);
}

void Lars::update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) {
  const LarsOptions& o = options_.at(group);
  kernels_for(device_of(chunks))
      .lars(chunks, {.lr = o.lr,
                     .momentum = o.momentum,
                     .dampening = o.dampening,
                     .weight_decay = o.weight_decay,
                     .trust_coefficient = o.trust_coefficient,
                     .eps = o.eps,
                     .nesterov = o.nesterov,
                     .first_step = step == 1,
                     .adapt = o.weight_decay != 0 || o.always_adapt,
                     .trust_clip = o.trust_clip});
}

}  // namespace limpid::optim
