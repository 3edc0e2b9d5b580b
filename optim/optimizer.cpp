#include <limpid/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

namespace limpid::optim {
namespace {

// A tensor of `param`'s shape and strides for the optimizer's row of the ledger.
Tensor zeros_like_param(const Tensor& param, const char* state) {
  // Born in its role: that decides its pool.
  const Tensor flat =
      empty({param.numel()}, {.dtype = param.dtype(), .device = param.device(), .role = memory::Role::optimizer});
  Tensor out = raw::as_strided(flat, param.shape(), param.is_dense() ? param.strides() : strides_for(param.shape()), 0);
  raw::fill(out, 0);
  if (!param.name().empty()) out.set_name(param.name() + "." + state);
  return out;
}

// The kernels walk memory, so a gradient must lie in it as its parameter does.
Tensor fit_gradient(const Tensor& grad, const Tensor& param) {
  LIMPID_CHECK(grad.shape() == param.shape(), ShapeError, "[step] gradient ", grad, " does not fit ", param);
  if (grad.dtype() == param.dtype() && grad.strides() == param.strides()) return grad;
  Tensor fitted = raw::empty_like(param);
  raw::copy(fitted, grad);
  return fitted;
}

std::string join(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); i++) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
  return text;
}

template <class A, class B>
void compare_names(const char* optimizer, const char* what, const std::map<std::string, A>& own,
                   const std::map<std::string, B>& given) {
  std::vector<std::string> missing, unexpected;
  for (const auto& entry : own)
    if (!given.count(entry.first)) missing.push_back(entry.first);
  for (const auto& entry : given)
    if (!own.count(entry.first)) unexpected.push_back(entry.first);
  if (missing.empty() && unexpected.empty()) return;
  std::string text = concat("[", optimizer, "] the state's ", what, " do not fit this optimizer:");
  if (!missing.empty()) text += " missing " + join(missing);
  if (!unexpected.empty()) text += (missing.empty() ? " unexpected " : "; unexpected ") + join(unexpected);
  LIMPID_THROW(DataError, text);
}

}  // namespace

void Optimizer::add_group(const std::vector<Tensor>& params, const char* const (&states)[kMaxStates]) {
  LIMPID_CHECK(!params.empty(), ArgumentError, "[", name(), "] group ", groups_.size(), " has no parameters (a module's own layers count once it calls register_module)");
  std::unordered_set<const TensorImpl*> known;
  for (const Group& group : groups_)
    for (const Slot& slot : group.slots) known.insert(slot.param.impl().get());
  Group group;
  StateNames names;
  std::copy(std::begin(states), std::end(states), std::begin(names.names));
  for (std::size_t i = 0; i < params.size(); i++) {
    const Tensor& param = params[i];
    LIMPID_CHECK(param.defined(), ArgumentError, "[", name(), "] parameter ", i, " of group ", groups_.size(),
                 " is undefined");
    LIMPID_CHECK(param.is_leaf(), ArgumentError, "[", name(), "] parameter ", i, " of group ", groups_.size(),
                 " is the result of ", param.grad_fn_name(), ", only leaves can be optimized (", param, ")");
    LIMPID_CHECK(is_floating(param.dtype()), DTypeError, "[", name(), "] parameter ", i, " of group ", groups_.size(),
                 " must have a floating dtype, got ", param);
    LIMPID_CHECK(param.is_dense(), ArgumentError, "[", name(), "] parameter ", i, " of group ", groups_.size(),
                 " must be dense in memory, got ", param, " with strides ", param.strides());
    LIMPID_CHECK(known.insert(param.impl().get()).second, ArgumentError, "[", name(), "] parameter ", i, " of group ",
                 groups_.size(), " appears twice (", param, ")");
    Slot slot;
    slot.param = param;
    for (std::size_t s = 0; s < kMaxStates; s++)
      if (states[s]) slot.state[s] = zeros_like_param(param, states[s]);
    group.slots.push_back(std::move(slot));
  }
  groups_.push_back(std::move(group));
  names_.push_back(names);
}

bool Optimizer::has_state(std::size_t group, std::size_t state) const {
  return names_.at(group).names[state] != nullptr;
}

std::int64_t Optimizer::skipped() const { return guarded_ > 0 ? guard_.skipped.item_int() : 0; }

std::int64_t Optimizer::steps() const { return steps_ - skipped(); }

void Optimizer::settle() {
  if (guarded_ == 0) return;
  const std::int64_t skips = skipped();
  for (Group& group : groups_) {
    for (Slot& slot : group.slots) {
      if (slot.guarded > 0) slot.steps -= skips;
      slot.guarded = 0;
    }
  }
  steps_ -= skips;
  guarded_ = 0;
  raw::fill(guard_.skipped, 0);
}

void Optimizer::step(const Tensor& found_inf) {
  LIMPID_CHECK(found_inf.defined() && found_inf.numel() == 1 && found_inf.dtype() == float32, ArgumentError, "[", name(),
               "] found_inf must be one f32, got ", found_inf);
  if (!skips_on_device()) {
    if (found_inf.item() == 0) step();
    return;
  }
  // One counter serves all parameters as long as the same ones take part in every step.
  auto takes_part_as_before = [&](const Slot& slot) { return (slot.guarded == guarded_) == slot.takes_part(); };
  for (const Group& group : groups_) {
    if (!std::all_of(group.slots.begin(), group.slots.end(), takes_part_as_before)) settle();
  }
  NoGradGuard no_grad;
  PhaseScope phase(Phase::optimizer);
  OpScope op(intern(name()));
  const bool fresh = !guard_.skipped.defined();
  const TensorOptions counter{.dtype = int64, .device = found_inf.device(), .role = memory::Role::optimizer};
  if (fresh) guard_.skipped = zeros({}, counter);
  struct Clear {  // a step that fails leaves nothing behind
    StepGuard& guard;
    bool drop_counter;
    ~Clear() {
      guard.found_inf = Tensor();
      if (drop_counter) guard.skipped = Tensor();
    }
  } clear{guard_, fresh};
  const Tensor skip = raw::cast(raw::cast(found_inf, boolean), int64);
  guard_.found_inf = found_inf;
  run_groups();
  for (Group& group : groups_)
    for (Slot& slot : group.slots) slot.guarded += slot.takes_part();
  guarded_++;
  raw::add_scaled(guard_.skipped, skip, 1);
  clear.drop_counter = false;
}

void Optimizer::step() {
  settle();
  run_groups();
}

void Optimizer::run_groups() {
  NoGradGuard guard;
  PhaseScope phase(Phase::optimizer);
  OpScope op(intern(name()));
  struct Bucket {
    std::int64_t step;
    DType dtype;
    Device device;
    std::vector<OptimChunk> chunks;
    std::vector<Slot*> slots;
  };
  prepare();
  for (std::size_t g = 0; g < groups_.size(); g++) {
    check_options(g);
    std::vector<Bucket> buckets;  // nearly always one
    for (Slot& slot : groups_[g].slots) {
      slot.trust = 1;
      if (!slot.takes_part()) continue;
      const Tensor& grad = slot.param.grad();
      for (std::size_t s = 0; s < kMaxStates; s++) {
        Tensor& state = slot.state[s];
        if (!state.defined() || (state.dtype() == slot.param.dtype() && state.device() == slot.param.device()))
          continue;
        // The module was converted since: the state follows its parameter.
        Tensor moved = zeros_like_param(slot.param, names_[g].names[s]);
        raw::copy(moved, raw::to_device(state, slot.param.device()));
        state = moved;
      }
      std::int64_t step = slot.steps + 1;
      auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& b) {
        return b.step == step && b.dtype == slot.param.dtype() && b.device == slot.param.device();
      });
      if (bucket == buckets.end())
        bucket = buckets.insert(bucket, {step, slot.param.dtype(), slot.param.device(), {}, {}});
      bucket->chunks.push_back(
          {slot.param, fit_gradient(grad, slot.param), slot.state[0], slot.state[1], slot.state[2], 1});
      bucket->slots.push_back(&slot);
    }
    for (Bucket& bucket : buckets) {
      update(g, bucket.chunks, bucket.step);
      for (std::size_t i = 0; i < bucket.slots.size(); i++) {
        bucket.slots[i]->steps++;
        bucket.slots[i]->trust = bucket.chunks[i].trust;
      }
    }
  }
  steps_++;
}

void Optimizer::zero_grad(bool set_to_none) {
  NoGradGuard guard;
  for (Group& group : groups_) {
    for (Slot& slot : group.slots) {
      if (!slot.param.grad().defined()) continue;
      if (set_to_none) {
        slot.param.set_grad(Tensor());
      } else {
        slot.param.mutable_grad().zero_();
      }
    }
  }
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> all;
  for (const Group& group : groups_)
    for (const Slot& slot : group.slots) all.push_back(slot.param);
  return all;
}

std::vector<double> Optimizer::trust_ratios() const {
  std::vector<double> all;
  for (const Group& group : groups_)
    for (const Slot& slot : group.slots) all.push_back(slot.trust);
  return all;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const Group& group : groups_)
    for (const Slot& slot : group.slots)
      for (const Tensor& state : slot.state)
        if (state.defined()) bytes += state.nbytes();
  return bytes;
}

// ---- options

double* Optimizer::find_option(std::size_t group, std::string_view wanted) const {
  LIMPID_CHECK(group < groups_.size(), IndexError, "[", name(), "] group ", group, " does not exist, there are ",
               groups_.size());
  double* found = nullptr;
  const_cast<Optimizer*>(this)->visit_options(group, [&](const char* option, double& value) {
    if (option == wanted) found = &value;
  });
  return found;
}

double Optimizer::lr(std::size_t group) const { return *find_option(group, "lr"); }

void Optimizer::set_lr(std::size_t group, double lr) {
  LIMPID_CHECK(lr >= 0 && std::isfinite(lr), ArgumentError, "[", name(), "] lr must be finite and not negative, got ",
               lr);
  *find_option(group, "lr") = lr;
}

void Optimizer::set_lr(double lr) {
  for (std::size_t g = 0; g < groups_.size(); g++) set_lr(g, lr);
}

bool Optimizer::set_momentum(double momentum) {
  LIMPID_CHECK(momentum >= 0 && momentum < 1, ArgumentError, "[", name(), "] momentum must be in [0, 1), got ",
               momentum);
  bool any = false;
  for (std::size_t g = 0; g < groups_.size(); g++) {
    double* option = find_option(g, "beta1");
    if (!option) option = find_option(g, "momentum");
    if (!option) continue;
    double former = std::exchange(*option, momentum);
    try {
      check_options(g);
    } catch (...) {
      *option = former;
      throw;
    }
    any = true;
  }
  return any;
}

// ---- state

OptimizerState Optimizer::state_dict() const {
  OptimizerState state;
  const std::int64_t skips = skipped();
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups_.size(); g++) {
    for (const Slot& slot : groups_[g].slots) {
      std::string prefix = concat("state.", index++, ".");
      const std::int64_t steps = slot.guarded > 0 ? slot.steps - skips : slot.steps;
      state.tensors.emplace(prefix + "step", scalar_tensor(steps, {.dtype = int64, .role = memory::Role::optimizer}));
      for (std::size_t s = 0; s < kMaxStates; s++)
        if (slot.state[s].defined()) state.tensors.emplace(prefix + names_[g].names[s], slot.state[s]);
    }
    const_cast<Optimizer*>(this)->visit_options(
        g, [&](const char* option, double& value) { state.scalars.emplace(concat("group.", g, ".", option), value); });
  }
  state.scalars.emplace("steps", static_cast<double>(steps_ - skips));
  return state;
}

void Optimizer::load_state_dict(const OptimizerState& state) {
  OptimizerState own = state_dict();
  compare_names(name(), "tensors", own.tensors, state.tensors);
  compare_names(name(), "options", own.scalars, state.scalars);
  for (const auto& [key, source] : state.tensors) {
    const Tensor& target = own.tensors.at(key);
    LIMPID_CHECK(source.defined() && source.shape() == target.shape(), ShapeError, "[", name(), "] '", key, "' is ",
                 target.shape(), " in this optimizer, ", source, " in the state");
    LIMPID_CHECK(is_floating(source.dtype()) == is_floating(target.dtype()), DTypeError, "[", name(), "] '", key,
                 "' is ", target.dtype(), " in this optimizer, ", source.dtype(), " in the state");
    bool counts = !is_floating(target.dtype());
    LIMPID_CHECK(!counts || source.item_int() >= 0, DataError, "[", name(), "] '", key, "' is a step count, got ",
                 counts ? source.item_int() : 0);
  }
  double steps = state.scalars.at("steps");
  LIMPID_CHECK(steps >= 0 && steps == std::floor(steps), DataError, "[", name(), "] 'steps' must be a count, got ",
               steps);
  auto write_options = [&](const std::map<std::string, double>& scalars) {
    for (std::size_t g = 0; g < groups_.size(); g++)
      visit_options(g,
                    [&](const char* option, double& value) { value = scalars.at(concat("group.", g, ".", option)); });
  };
  write_options(state.scalars);
  try {
    for (std::size_t g = 0; g < groups_.size(); g++) check_options(g);
  } catch (...) {
    write_options(own.scalars);
    throw;
  }
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups_.size(); g++) {
    for (Slot& slot : groups_[g].slots) {
      std::string prefix = concat("state.", index++, ".");
      slot.steps = state.tensors.at(prefix + "step").item_int();
      slot.guarded = 0;
      for (std::size_t s = 0; s < kMaxStates; s++)
        if (slot.state[s].defined()) raw::copy(slot.state[s], state.tensors.at(prefix + names_[g].names[s]));
    }
  }
  steps_ = static_cast<std::int64_t>(steps);
  guarded_ = 0;
  if (guard_.skipped.defined()) raw::fill(guard_.skipped, 0);
}

}  // namespace limpid::optim
