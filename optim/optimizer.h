// Optimizer: the base of all update rules. It owns the state (made at construction, role `optimizer`), the step counts
// and the groups; a rule says which states it needs and runs one fused kernel a group. Not a training loop: it never
// calls backward and knows no schedule.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <limpid/autograd/functions.h>
#include <limpid/tensor/kernels.h>

namespace limpid::optim {

// Parameters that share their options: Adam({{.params = a, .options = {.lr = 1e-3}}, {.params = b, .options = {...}}}).
template <class Options>
struct ParamGroup {
  std::vector<Tensor> params;
  Options options = {};
};

// What a checkpoint keeps. Names count the parameters over all groups, as PyTorch: "state.0.exp_avg", "state.0.step"
// (i64, 0-d), and "group.0.lr" among the scalars. The tensors are shared, not copied.
struct OptimizerState {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, double> scalars;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;

  // One update of every parameter that has a gradient; the others and their state stay as they are, as in PyTorch.
  void step();
  // The same, unless found_inf (f32, one element, on the parameters' device) is not 0: then nothing changes, step counts
  // included. The device decides; the host learns of it in steps() and state_dict(), which wait for it.
  void step(const Tensor& found_inf);
  // Drops the gradients (their memory goes back), or fills them with zeros and keeps the memory.
  void zero_grad(bool set_to_none = true);

  virtual const char* name() const = 0;  // "Adam"
  std::size_t num_groups() const { return groups_.size(); }
  std::vector<Tensor> parameters() const;  // of all groups
  double lr(std::size_t group = 0) const;
  void set_lr(double lr);  // of all groups
  void set_lr(std::size_t group, double lr);
  // What one-cycle schedules turn: momentum, or beta1 for the Adam family. False when the rule has neither.
  bool set_momentum(double momentum);
  // Steps that happened. A parameter's own count ("state.N.step") is lower when it had no gradient at times.
  std::int64_t steps() const;

  // Whether the rule has trust ratios: LAMB and LARS do.
  virtual bool has_trust_ratios() const { return false; }
  // What the last step() multiplied the update of each parameter by, in the order of parameters(): the trust ratios of
  // LAMB and LARS; 1 for the other rules, before the first step, and for a parameter without a gradient.
  std::vector<double> trust_ratios() const;

  OptimizerState state_dict() const;
  // Everything is checked before anything changes. DataError lists missing and unexpected names; ShapeError names both
  // shapes. Values are copied and cast to this optimizer's dtype.
  void load_state_dict(const OptimizerState& state);
  std::size_t state_bytes() const;  // of the state tensors, without the step counts

 protected:
  static constexpr std::size_t kMaxStates = 3;
  struct Slot {
    Tensor param;
    Tensor state[kMaxStates];  // undefined where the rule needs none
    std::int64_t steps = 0;    // those since the last settle() are counted as if all had happened
    std::int64_t guarded = 0;  // steps with found_inf since the last settle()
    double trust = 1;          // of the last step()
    bool takes_part() const { return param.grad().defined() && param.numel() > 0; }
  };
  struct Group {
    std::vector<Slot> slots;
  };
  // (name, value) of an option; written values are read back by load_state_dict.
  using OptionVisitor = std::function<void(const char* name, double& value)>;

  Optimizer() = default;
  // ArgumentError for an empty list, an undefined or repeated parameter, and for one that is no leaf or not floating.
  // `states`: names of the states, null = not needed.
  void add_group(const std::vector<Tensor>& params, const char* const (&states)[kMaxStates]);
  // Before the first update() of a step: what a rule needs of all gradients together.
  virtual void prepare() {}
  // Updates the given chunks of `group`; all have the same dtype, device and step count (`step` counts from 1).
  virtual void update(std::size_t group, std::span<OptimChunk> chunks, std::int64_t step) = 0;
  // Whether update() hands guard() to its kernels, so that they skip on the device. If not, step(found_inf) reads it.
  virtual bool skips_on_device() const { return false; }
  const StepGuard& guard() const { return guard_; }
  virtual void visit_options(std::size_t group, const OptionVisitor& visit) = 0;
  // Whether the group keeps this state.
  bool has_state(std::size_t group, std::size_t state) const;
  // Checks the group's options as they are now.
  virtual void check_options(std::size_t group) const = 0;

 private:
  void run_groups();
  // Takes the skipped steps, which the device counts, out of the step counts. Reads back.
  void settle();
  std::int64_t skipped() const;  // since the last settle()
  double* find_option(std::size_t group, std::string_view name) const;  // null when the rule has no such option
  struct StateNames {
    const char* names[kMaxStates] = {};
  };
  std::vector<Group> groups_;
  std::vector<StateNames> names_;
  std::int64_t steps_ = 0;    // as Slot::steps
  std::int64_t guarded_ = 0;  // as Slot::guarded
  StepGuard guard_;           // `skipped` stays; `found_inf` is there during a step
};

}  // namespace limpid::optim
