#include <limpid/optim/lamb.h>

#include <limpid/optim/clip_grad.h>
#include <limpid/optim/rules_private.h>

namespace limpid::optim {

Lamb::Lamb(const std::vector<Tensor>& params, const LambOptions& options) { add(params, options); }

Lamb::Lamb(const std::vector<ParamGroup<LambOptions>>& groups) {
  LIMPID_CHECK(!groups.empty(), ArgumentError, "[LAMB] there are no parameter groups");
  for (const auto& group : groups) add(group.params, group.options);
}

void Lamb::add(const std::vector<Tensor>& params, const LambOptions& options) {
  options_.push_back(options);
  add_group(params, {"exp_avg", "exp_avg_sq", nullptr});
  check_options(options_.size() - 1);
}

void Lamb::check_options(std::size_t group) const {
  const LambOptions& o = options_.at(group);
  check_not_negative("LAMB", "lr", o.lr);
  check_fraction("LAMB", "beta1", o.beta1);
  check_fraction("LAMB", "beta2", o.beta2);
  check_not_negative("LAMB", "eps", o.eps);
  check_not_negative("LAMB", "weight_decay", o.weight_decay);
  check_not_negative("LAMB", "max_grad_norm", o.max_grad_norm);
}

void Lamb::visit_options(std::size_t group, const OptionVisitor& visit) {
  LambOptions& o = options_.at(group);
  visit("lr", o.lr);
  visit("beta1", o.beta1);
  visit("beta2", o.beta2);
  visit("eps", o.eps);
  visit("weight_decay", o.weight_decay);
  visit("max_grad_norm", o.max_grad_norm);
  visit_flag("always_adapt", o.always_adapt, visit);
  visit_flag("trust_clip", o.trust_clip, visit);
}

void Lamb::prepare() {
  grad_scale_ = 1;
  const double limit = options_.at(0).max_grad_norm;
  if (limit == 0) return;
  const double norm = grad_norm(parameters());
  if (!(norm <= limit)) grad_scale_ = limit / norm;  // NaN included
}

void Lamb::update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) {
  const LambOptions& o = options_.at(group);
  kernels_for(device_of(chunks))
      .lamb(chunks, {.lr = o.lr,
                     .beta1 = o.beta1,
                     .beta2 = o.beta2,
                     .eps = o.eps,
                     .weight_decay = o.weight_decay,
                     .grad_scale = grad_scale_,
                     .adapt = o.weight_decay != 0 || o.always_adapt,
                     .trust_clip = o.trust_clip,
                     .step = step});
}

}  // namespace limpid::optim
