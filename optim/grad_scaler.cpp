#include <limpid/optim/grad_scaler.h>

#include <cmath>

#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/optim/gradients_private.h>
#include <limpid/tensor/raw.h>

namespace limpid::optim {
namespace {

void check_growth(double factor) {
  LIMPID_CHECK(factor > 1 && std::isfinite(factor), ArgumentError, "[grad_scaler] the growth factor must be > 1, got ",
               factor);
}
void check_backoff(double factor) {
  LIMPID_CHECK(factor < 1 && factor > 0, ArgumentError, "[grad_scaler] the backoff factor must be between 0 and 1, got ",
               factor);
}
void check_interval(std::int64_t interval) {
  LIMPID_CHECK(interval > 0, ArgumentError, "[grad_scaler] the growth interval must be positive, got ", interval);
}
void check_scale(double scale) {
  LIMPID_CHECK(scale > 0 && std::isfinite(static_cast<float>(scale)), ArgumentError,
               "[grad_scaler] the scale must be positive and finite in f32, got ", scale);
}

Tensor number(double value, DType dtype, Device device, memory::Role role, const char* name) {
  Tensor out = empty({}, {.dtype = dtype, .device = device, .role = role});
  raw::fill(out, Scalar(value));
  out.set_name(name);
  return out;
}

// The phase and the operation that a method counts as.
struct Inside {
  explicit Inside(const char* op) : scope(intern(op)) {}
  NoGradGuard no_grad;
  PhaseScope phase{Phase::optimizer};
  OpScope scope;
};

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  if (!options.enabled) return;
  check_scale(options.init_scale);
  check_growth(options.growth_factor);
  check_backoff(options.backoff_factor);
  check_interval(options.growth_interval);
}

void GradScaler::check_scaled(const char* op) const {
  LIMPID_CHECK(scale_.defined(), ArgumentError, "[grad_scaler] ", op,
               "() was called, but there is no scale yet: the loss must go through scale() before it");
}

void GradScaler::prepare(Device device) {
  if (!options_.enabled || scale_.defined()) return;
  growth_tracker_ = number(static_cast<double>(init_growth_tracker_), int32, device, memory::Role::optimizer,
                           "grad_scaler.growth_tracker");
  scale_ = number(options_.init_scale, float32, device, memory::Role::optimizer, "grad_scaler.scale");
}

Tensor GradScaler::scale(const Tensor& output) {
  if (!options_.enabled) return output;
  LIMPID_CHECK(output.defined() && is_floating(output.dtype()), ArgumentError,
               "[grad_scaler] scale() expects floating tensors, got ", output);
  prepare(output.device());
  return mul(output, output.device() == scale_.device() ? scale_ : raw::to_device(scale_, output.device()));
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> scaled;
  for (const Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::unscale(Optimizer& optimizer, PerOptimizer& state) {
  Inside inside("unscale_");
  const std::vector<std::vector<Tensor>> runs = gradients_of("unscale_", optimizer.parameters());
  for (const std::vector<Tensor>& run : runs) {
    LIMPID_CHECK(run[0].dtype() != float16, DTypeError,
                 "[grad_scaler] f16 gradients cannot be unscaled without losing what scaling saved: parameters must be f32 "
                 "(or bf16), got the gradient ", run[0]);
    LIMPID_CHECK(run[0].device() == scale_.device(), DeviceError, "[grad_scaler] the gradient ", run[0],
                 " is on another device than the scale, which is on ", scale_.device());
  }
  if (runs.empty()) return;  // step() says so
  // As PyTorch: one rounding, to f32.
  const Tensor inv_scale = raw::cast(raw::unary(UnaryOp::reciprocal, raw::cast(scale_, float64)), float32);
  Tensor found_inf = number(0, float32, scale_.device(), memory::Role::temp, "grad_scaler.found_inf");
  for (std::vector<Tensor> run : runs) kernels_for(scale_.device()).amp_unscale(run, found_inf, inv_scale);
  state.found_inf = found_inf;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  check_scaled("unscale_");
  PerOptimizer& state = states_[&optimizer];
  LIMPID_CHECK(state.stage != Stage::unscaled, ArgumentError, "[grad_scaler] unscale_() has already been called on this ",
               optimizer.name(), " since the last update()");
  LIMPID_CHECK(state.stage != Stage::stepped, ArgumentError, "[grad_scaler] unscale_() is being called after step() of this ",
               optimizer.name());
  unscale(optimizer, state);
  state.stage = Stage::unscaled;
}

StepTicket GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return StepTicket();
  }
  check_scaled("step");
  PerOptimizer& state = states_[&optimizer];
  LIMPID_CHECK(state.stage != Stage::stepped, ArgumentError, "[grad_scaler] step() has already been called on this ",
               optimizer.name(), " since the last update()");
  if (state.stage == Stage::ready) unscale(optimizer, state);
  LIMPID_CHECK(state.found_inf.defined(), ArgumentError, "[grad_scaler] no inf checks were recorded for this ",
               optimizer.name(), ": none of its ", optimizer.parameters().size(), " parameters has a gradient");
  optimizer.step(state.found_inf);
  state.stage = Stage::stepped;
  return StepTicket(state.found_inf);
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check_scaled("update");
  Inside inside("update_scale");
  Tensor found_inf;
  for (const auto& [optimizer, state] : states_) {
    if (!state.found_inf.defined()) continue;
    found_inf = found_inf.defined() ? raw::binary(BinaryOp::add, found_inf, state.found_inf) : state.found_inf;
  }
  LIMPID_CHECK(found_inf.defined(), ArgumentError,
               "[grad_scaler] no inf checks were recorded prior to update(): step() or unscale_() must come first");
  kernels_for(scale_.device())
      .amp_update(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                  options_.growth_interval);
  states_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_scaled("update");
  check_scale(new_scale);
  raw::fill(scale_, new_scale);
  states_.clear();
}

void GradScaler::update(const Tensor& new_scale) {
  if (!options_.enabled) return;
  check_scaled("update");
  LIMPID_CHECK(new_scale.defined() && new_scale.numel() == 1 && new_scale.dtype() == float32 && !new_scale.requires_grad(),
               ArgumentError, "[grad_scaler] the new scale must be one f32 without a gradient, got ", new_scale);
  raw::copy(scale_, raw::to_device(raw::reshape(new_scale, {}), scale_.device()));
  states_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item() : options_.init_scale;
}

std::int64_t GradScaler::get_growth_tracker() const {
  if (!options_.enabled) return 0;
  return growth_tracker_.defined() ? growth_tracker_.item_int() : init_growth_tracker_;
}

void GradScaler::set_growth_factor(double factor) {
  check_growth(factor);
  options_.growth_factor = factor;
}
void GradScaler::set_backoff_factor(double factor) {
  check_backoff(factor);
  options_.backoff_factor = factor;
}
void GradScaler::set_growth_interval(std::int64_t interval) {
  check_interval(interval);
  options_.growth_interval = interval;
}

std::map<std::string, double> GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  for (const auto& [optimizer, state] : states_) {
    LIMPID_CHECK(state.stage == Stage::ready, ArgumentError, "[grad_scaler] state_dict() belongs after update(), which has "
                 "not been called since ", state.stage == Stage::stepped ? "step()" : "unscale_()");
  }
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"_growth_tracker", static_cast<double>(get_growth_tracker())}};
}

void GradScaler::load_state_dict(const std::map<std::string, double>& state) {
  if (!options_.enabled) return;
  LIMPID_CHECK(!state.empty(), DataError,
               "[grad_scaler] the state is empty: it may come from a disabled scaler, and this one is enabled");
  auto value = [&](const char* name) {
    auto at = state.find(name);
    LIMPID_CHECK(at != state.end(), DataError, "[grad_scaler] the state has no '", name, "'");
    return at->second;
  };
  auto count = [&](const char* name) {
    const double v = value(name);
    LIMPID_CHECK(v >= 0 && v == std::floor(v) && v <= 2147483647.0, DataError, "[grad_scaler] '", name,
                 "' must be a count, got ", v);
    return static_cast<std::int64_t>(v);
  };
  GradScalerOptions read = options_;
  read.init_scale = value("scale");
  read.growth_factor = value("growth_factor");
  read.backoff_factor = value("backoff_factor");
  read.growth_interval = count("growth_interval");
  const std::int64_t tracker = count("_growth_tracker");
  try {
    GradScaler checked(read);
  } catch (const ArgumentError& e) {
    LIMPID_THROW(DataError, e.message());
  }
  options_ = read;
  init_growth_tracker_ = tracker;
  states_.clear();
  if (!scale_.defined()) return;
  raw::fill(scale_, read.init_scale);
  raw::fill(growth_tracker_, tracker);
}

}  // namespace limpid::optim
