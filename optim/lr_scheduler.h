// Learning-rate schedules in closed form: lr(base, t) depends on nothing but its arguments, so a resumed run, or one
// whose lr was edited, cannot drift. A Scheduler binds one to an optimizer and counts.
//
//   optim::Scheduler scheduler(optimizer, optim::CosineAnnealing({.t_max = 100}), optim::Unit::step);
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

// t counts optimizer steps or epochs, from 0; which of them is the Scheduler's Unit.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual double lr(double base_lr, std::int64_t t) const = 0;
  // The momentum (beta1 for Adam) at t, for schedules that turn it too.
  virtual std::optional<double> momentum(std::int64_t) const { return {}; }
  virtual std::string describe() const = 0;
};

struct ConstantOptions {
  double factor = 1.0;
};
class ConstantLR : public Schedule {
 public:
  explicit ConstantLR(const ConstantOptions& options = {});
  double lr(double base_lr, std::int64_t) const override { return base_lr * options_.factor; }
  std::string describe() const override;

 private:
  ConstantOptions options_;
};

struct StepLROptions {
  std::int64_t step_size = 0;
  double gamma = 0.1;
};
// base gamma^floor(t / step_size)
class StepLR : public Schedule {
 public:
  explicit StepLR(const StepLROptions& options);
  double lr(double base_lr, std::int64_t t) const override;
  std::string describe() const override;

 private:
  StepLROptions options_;
};

struct MultiStepLROptions {
  std::vector<std::int64_t> milestones = {};  // not decreasing; a repeated one counts twice
  double gamma = 0.1;
};
// base gamma^(number of milestones <= t)
class MultiStepLR : public Schedule {
 public:
  explicit MultiStepLR(const MultiStepLROptions& options);
  double lr(double base_lr, std::int64_t t) const override;
  std::string describe() const override;

 private:
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0.9;
};
// base gamma^t
class ExponentialLR : public Schedule {
 public:
  explicit ExponentialLR(const ExponentialLROptions& options);
  double lr(double base_lr, std::int64_t t) const override;
  std::string describe() const override;

 private:
  ExponentialLROptions options_;
};

struct CosineAnnealingOptions {
  std::int64_t t_max = 0;
  double eta_min = 0;
};
// eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2. Rises again after t_max, as PyTorch's.
class CosineAnnealing : public Schedule {
 public:
  explicit CosineAnnealing(const CosineAnnealingOptions& options);
  double lr(double base_lr, std::int64_t t) const override;
  std::string describe() const override;

 private:
  CosineAnnealingOptions options_;
};

struct LinearWarmupOptions {
  std::int64_t steps = 0;
  double start_factor = 0;
  double end_factor = 1;
};
// base (start + (end - start) min(t, steps) / steps). With start 0 the very first lr is 0.
class LinearWarmup : public Schedule {
 public:
  explicit LinearWarmup(const LinearWarmupOptions& options);
  double lr(double base_lr, std::int64_t t) const override;
  std::string describe() const override;

 private:
  LinearWarmupOptions options_;
};

struct OneCycleOptions {
  double max_lr = 0;
  std::int64_t total_steps = 0;
  double pct_start = 0.3;
  bool linear = false;  // anneal by lines instead of cosines
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         // starts at max_lr / div_factor
  double final_div_factor = 1e4;  // ends at max_lr / (div_factor final_div_factor)
  bool three_phase = false;
};
// Smith and Topin 2018 in PyTorch's form. The base lr is ignored. t = total_steps (the step() after the last update)
// keeps the last value; later ones are an IndexError.
class OneCycle : public Schedule {
 public:
  explicit OneCycle(const OneCycleOptions& options);
  double lr(double base_lr, std::int64_t t) const override;
  std::optional<double> momentum(std::int64_t t) const override;
  std::string describe() const override;

 private:
  double value(std::int64_t t, double start, double top, double end) const;
  OneCycleOptions options_;
};

// Runs one schedule after the other: schedule i takes over at milestones[i-1] and counts from 0 there.
class SequentialSchedule : public Schedule {
 public:
  SequentialSchedule(std::vector<std::shared_ptr<Schedule>> schedules, std::vector<std::int64_t> milestones);
  double lr(double base_lr, std::int64_t t) const override;
  std::optional<double> momentum(std::int64_t t) const override;
  std::string describe() const override;

 private:
  std::size_t part(std::int64_t t) const;
  std::vector<std::shared_ptr<Schedule>> schedules_;
  std::vector<std::int64_t> milestones_;
};

template <class S>
requires std::derived_from<std::decay_t<S>, Schedule> std::shared_ptr<Schedule> share(S&& schedule) {
  return std::make_shared<std::decay_t<S>>(std::forward<S>(schedule));
}

enum class Unit : std::uint8_t { step, epoch };
const char* to_string(Unit unit);

// Sets the optimizer's learning rates to schedule.lr(base, count). The base rates are the optimizer's at construction;
// count 0 is set at once. step() is called after each applied optimizer step (Unit::step) or epoch (Unit::epoch).
// The optimizer must outlive it.
class Scheduler {
 public:
  Scheduler(Optimizer& optimizer, std::shared_ptr<Schedule> schedule, Unit unit);
  template <class S>
  requires std::derived_from<std::decay_t<S>, Schedule> Scheduler(Optimizer& optimizer, S&& schedule, Unit unit)
      : Scheduler(optimizer, share(std::forward<S>(schedule)), unit) {}

  void step();
  std::int64_t count() const { return count_; }
  Unit unit() const { return unit_; }
  double lr(std::size_t group = 0) const;  // at the current count
  double lr_at(std::int64_t count, std::size_t group = 0) const;
  const Schedule& schedule() const { return *schedule_; }

  // "count" and "base_lr.N"; loading sets the learning rates. DataError when a name is missing or a value is
  // impossible.
  std::map<std::string, double> state_dict() const;
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  void apply();
  Optimizer* optimizer_;
  std::shared_ptr<Schedule> schedule_;
  Unit unit_;
  std::vector<double> base_lrs_;
  std::int64_t count_ = 0;
};

}  // namespace limpid::optim
