#include <limpid/optim/lr_scheduler.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace limpid::optim {
namespace {

void check_factor(const char* schedule, const char* option, double value) {
  LIMPID_CHECK(value >= 0 && std::isfinite(value), ArgumentError, "[", schedule, "] ", option,
               " must be finite and not negative, got ", value);
}

void check_count(const char* schedule, const char* option, std::int64_t value) {
  LIMPID_CHECK(value >= 1, ArgumentError, "[", schedule, "] ", option, " must be at least 1, got ", value);
}

void check_time(const char* schedule, std::int64_t t) {
  LIMPID_CHECK(t >= 0, IndexError, "[", schedule, "] t must not be negative, got ", t);
}

}  // namespace

ConstantLR::ConstantLR(const ConstantOptions& options) : options_(options) {
  check_factor("ConstantLR", "factor", options.factor);
}
std::string ConstantLR::describe() const { return concat("ConstantLR(factor=", options_.factor, ")"); }

StepLR::StepLR(const StepLROptions& options) : options_(options) {
  check_count("StepLR", "step_size", options.step_size);
  check_factor("StepLR", "gamma", options.gamma);
}
double StepLR::lr(double base_lr, std::int64_t t) const {
  check_time("StepLR", t);
  return base_lr * std::pow(options_.gamma, static_cast<double>(t / options_.step_size));
}
std::string StepLR::describe() const {
  return concat("StepLR(step_size=", options_.step_size, ", gamma=", options_.gamma, ")");
}

MultiStepLR::MultiStepLR(const MultiStepLROptions& options) : options_(options) {
  check_factor("MultiStepLR", "gamma", options.gamma);
  LIMPID_CHECK(std::is_sorted(options.milestones.begin(), options.milestones.end()), ArgumentError,
               "[MultiStepLR] milestones must not decrease");
  LIMPID_CHECK(options.milestones.empty() || options.milestones[0] >= 0, ArgumentError,
               "[MultiStepLR] milestones must not be negative, got ", options.milestones[0]);
}
double MultiStepLR::lr(double base_lr, std::int64_t t) const {
  check_time("MultiStepLR", t);
  auto passed =
      std::upper_bound(options_.milestones.begin(), options_.milestones.end(), t) - options_.milestones.begin();
  return base_lr * std::pow(options_.gamma, static_cast<double>(passed));
}
std::string MultiStepLR::describe() const {
  std::string list;
  for (std::int64_t milestone : options_.milestones) list += (list.empty() ? "" : ", ") + std::to_string(milestone);
  return concat("MultiStepLR(milestones=[", list, "], gamma=", options_.gamma, ")");
}

ExponentialLR::ExponentialLR(const ExponentialLROptions& options) : options_(options) {
  check_factor("ExponentialLR", "gamma", options.gamma);
}
double ExponentialLR::lr(double base_lr, std::int64_t t) const {
  check_time("ExponentialLR", t);
  return base_lr * std::pow(options_.gamma, static_cast<double>(t));
}
std::string ExponentialLR::describe() const { return concat("ExponentialLR(gamma=", options_.gamma, ")"); }

CosineAnnealing::CosineAnnealing(const CosineAnnealingOptions& options) : options_(options) {
  check_count("CosineAnnealing", "t_max", options.t_max);
  check_factor("CosineAnnealing", "eta_min", options.eta_min);
}
double CosineAnnealing::lr(double base_lr, std::int64_t t) const {
  check_time("CosineAnnealing", t);
  // The period is cut off first, so that the angle stays exact however long the run is.
  double angle = std::numbers::pi * static_cast<double>(t % (2 * options_.t_max)) / static_cast<double>(options_.t_max);
  return options_.eta_min + (base_lr - options_.eta_min) * (1 + std::cos(angle)) / 2;
}
std::string CosineAnnealing::describe() const {
  return concat("CosineAnnealing(t_max=", options_.t_max, ", eta_min=", options_.eta_min, ")");
}

LinearWarmup::LinearWarmup(const LinearWarmupOptions& options) : options_(options) {
  check_count("LinearWarmup", "steps", options.steps);
  check_factor("LinearWarmup", "start_factor", options.start_factor);
  check_factor("LinearWarmup", "end_factor", options.end_factor);
}
double LinearWarmup::lr(double base_lr, std::int64_t t) const {
  check_time("LinearWarmup", t);
  double part = static_cast<double>(std::min(t, options_.steps)) / static_cast<double>(options_.steps);
  return base_lr * (options_.start_factor + (options_.end_factor - options_.start_factor) * part);
}
std::string LinearWarmup::describe() const {
  return concat("LinearWarmup(steps=", options_.steps, ", start_factor=", options_.start_factor,
                ", end_factor=", options_.end_factor, ")");
}

OneCycle::OneCycle(const OneCycleOptions& options) : options_(options) {
  check_factor("OneCycle", "max_lr", options.max_lr);
  check_count("OneCycle", "total_steps", options.total_steps);
  LIMPID_CHECK(options.pct_start >= 0 && options.pct_start <= 1, ArgumentError,
               "[OneCycle] pct_start must be between 0 and 1, got ", options.pct_start);
  LIMPID_CHECK(!options.three_phase || options.pct_start <= 0.5, ArgumentError,
               "[OneCycle] with three phases pct_start is at most 0.5, got ", options.pct_start);
  LIMPID_CHECK(options.div_factor > 0 && options.final_div_factor > 0, ArgumentError,
               "[OneCycle] div_factor and final_div_factor must be positive, got ", options.div_factor, " and ",
               options.final_div_factor);
  LIMPID_CHECK(options.base_momentum >= 0 && options.max_momentum < 1 && options.base_momentum <= options.max_momentum,
               ArgumentError, "[OneCycle] expects 0 <= base_momentum <= max_momentum < 1, got ", options.base_momentum,
               " and ", options.max_momentum);
}

// Phases end at the steps at which PyTorch ends them; they may lie between two steps.
double OneCycle::value(std::int64_t t, double start, double top, double end) const {
  check_time("OneCycle", t);
  LIMPID_CHECK(t <= options_.total_steps, IndexError, "[OneCycle] t = ", t,
               " lies past total_steps = ", options_.total_steps);
  double last = static_cast<double>(options_.total_steps - 1);
  double rise = options_.pct_start * static_cast<double>(options_.total_steps) - 1;
  struct Part {
    double until, from, to;
  };
  Part parts[3] = {{rise, start, top}, {last, top, end}, {last, top, end}};
  if (options_.three_phase) parts[1] = {2 * rise, top, start}, parts[2] = {last, start, end};
  double now = std::min(static_cast<double>(t), last), begin = 0;
  for (int i = 0; i < 3; i++) {
    const Part& part = parts[i];
    if (now > part.until && i < 2) {
      begin = part.until;
      continue;
    }
    double length = part.until - begin;
    double done = length > 0 ? (now - begin) / length : 1;
    if (options_.linear) return (part.to - part.from) * done + part.from;
    return part.to + (part.from - part.to) / 2 * (1 + std::cos(std::numbers::pi * done));
  }
  return end;
}
double OneCycle::lr(double, std::int64_t t) const {
  double start = options_.max_lr / options_.div_factor;
  return value(t, start, options_.max_lr, start / options_.final_div_factor);
}
std::optional<double> OneCycle::momentum(std::int64_t t) const {
  if (!options_.cycle_momentum) return {};
  return value(t, options_.max_momentum, options_.base_momentum, options_.max_momentum);
}
std::string OneCycle::describe() const {
  return concat("OneCycle(max_lr=", options_.max_lr, ", total_steps=", options_.total_steps,
                ", pct_start=", options_.pct_start, options_.linear ? ", linear" : "",
                options_.three_phase ? ", three_phase" : "", ")");
}

SequentialSchedule::SequentialSchedule(std::vector<std::shared_ptr<Schedule>> schedules,
                                       std::vector<std::int64_t> milestones)
    : schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
  LIMPID_CHECK(!schedules_.empty() && milestones_.size() + 1 == schedules_.size(), ArgumentError,
               "[SequentialSchedule] n schedules need n - 1 milestones, got ", schedules_.size(), " and ",
               milestones_.size());
  for (const auto& schedule : schedules_)
    LIMPID_CHECK(schedule != nullptr, ArgumentError, "[SequentialSchedule] a schedule is a null pointer");
  for (std::size_t i = 0; i < milestones_.size(); i++)
    LIMPID_CHECK(milestones_[i] > (i ? milestones_[i - 1] : 0), ArgumentError,
                 "[SequentialSchedule] milestones must be positive and increase, got ", milestones_[i], " after ",
                 i ? milestones_[i - 1] : 0);
}
std::size_t SequentialSchedule::part(std::int64_t t) const {
  check_time("SequentialSchedule", t);
  return static_cast<std::size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), t) - milestones_.begin());
}
double SequentialSchedule::lr(double base_lr, std::int64_t t) const {
  std::size_t i = part(t);
  return schedules_[i]->lr(base_lr, i ? t - milestones_[i - 1] : t);
}
std::optional<double> SequentialSchedule::momentum(std::int64_t t) const {
  std::size_t i = part(t);
  return schedules_[i]->momentum(i ? t - milestones_[i - 1] : t);
}
std::string SequentialSchedule::describe() const {
  std::string text = "SequentialSchedule(";
  for (std::size_t i = 0; i < schedules_.size(); i++)
    text += concat(i ? concat(", from ", milestones_[i - 1], " ") : std::string(), schedules_[i]->describe());
  return text + ")";
}

const char* to_string(Unit unit) { return unit == Unit::step ? "step" : "epoch"; }

Scheduler::Scheduler(Optimizer& optimizer, std::shared_ptr<Schedule> schedule, Unit unit)
    : optimizer_(&optimizer), schedule_(std::move(schedule)), unit_(unit) {
  LIMPID_CHECK(schedule_ != nullptr, ArgumentError, "[Scheduler] the schedule is a null pointer");
  for (std::size_t g = 0; g < optimizer.num_groups(); g++) base_lrs_.push_back(optimizer.lr(g));
  apply();
}

double Scheduler::lr_at(std::int64_t count, std::size_t group) const {
  LIMPID_CHECK(group < base_lrs_.size(), IndexError, "[Scheduler] group ", group, " does not exist, there are ",
               base_lrs_.size());
  return schedule_->lr(base_lrs_[group], count);
}
double Scheduler::lr(std::size_t group) const { return lr_at(count_, group); }

void Scheduler::apply() {
  for (std::size_t g = 0; g < base_lrs_.size(); g++) optimizer_->set_lr(g, lr_at(count_, g));
  if (std::optional<double> momentum = schedule_->momentum(count_)) optimizer_->set_momentum(*momentum);
}

void Scheduler::step() {
  count_++;
  try {
    apply();
  } catch (...) {
    count_--;
    throw;
  }
}

std::map<std::string, double> Scheduler::state_dict() const {
  std::map<std::string, double> state = {{"count", static_cast<double>(count_)}};
  for (std::size_t g = 0; g < base_lrs_.size(); g++) state[concat("base_lr.", g)] = base_lrs_[g];
  return state;
}

void Scheduler::load_state_dict(const std::map<std::string, double>& state) {
  auto read = [&](const std::string& name) {
    auto entry = state.find(name);
    LIMPID_CHECK(entry != state.end(), DataError, "[Scheduler] the state has no '", name, "'");
    LIMPID_CHECK(entry->second >= 0 && std::isfinite(entry->second), DataError, "[Scheduler] '", name,
                 "' must be finite and not negative, got ", entry->second);
    return entry->second;
  };
  double count = read("count");
  LIMPID_CHECK(count == std::floor(count), DataError, "[Scheduler] 'count' must be a whole number, got ", count);
  std::vector<double> base_lrs;
  for (std::size_t g = 0; g < base_lrs_.size(); g++) base_lrs.push_back(read(concat("base_lr.", g)));
  LIMPID_CHECK(state.size() == base_lrs_.size() + 1, DataError, "[Scheduler] the state is for ", state.size() - 1,
               " groups, the optimizer has ", base_lrs_.size());
  base_lrs_ = base_lrs;
  count_ = static_cast<std::int64_t>(count);
  apply();
}

}  // namespace limpid::optim
