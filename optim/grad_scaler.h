// GradScaler: loss scaling for float16, whose smallest numbers are too large for many gradients. The loss is multiplied by a
// scale, the gradients are divided by it before the step; a step whose gradients are not finite does not happen, and the
// scale goes down. Bit for bit PyTorch's. With bfloat16 it is not needed.
//
//   optim::GradScaler scaler;
//   scaler.scale(loss).backward();          // once a micro-batch; the scale is one for the whole effective batch
//   scaler.unscale_(optimizer);             // only where gradients are looked at before the step, e.g. to clip them
//   optim::clip_grad_norm_(parameters, 1.0);
//   optim::StepTicket ticket = scaler.step(optimizer);
//   scaler.update();                        // once an effective batch, after all optimizers
//   if (ticket.stepped()) scheduler.step(); // a skipped step does not advance the schedule
//
// Scale, growth tracker and found_inf are tensors on the device of the loss; nothing here waits for it, except the ticket,
// get_scale(), get_growth_tracker() and state_dict(). Not here: casting (autograd/autocast.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <limpid/optim/optimizer.h>

namespace limpid::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;              // > 1
  double backoff_factor = 0.5;           // < 1
  std::int64_t growth_interval = 2000;   // steps in a row without infinities before the scale grows
  bool enabled = true;                   // false: step() is optimizer.step(), everything else does nothing
};

// Whether a step happened. The device knows; asking waits for it.
class StepTicket {
 public:
  StepTicket() = default;  // of a step that nothing could call off
  explicit StepTicket(Tensor found_inf) : found_inf_(std::move(found_inf)) {}
  bool stepped() const { return !found_inf_.defined() || found_inf_.item() == 0; }
  bool skipped() const { return !stepped(); }
  const Tensor& found_inf() const { return found_inf_; }  // f32, one element; undefined when the scaler is disabled

 private:
  Tensor found_inf_;
};

class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // output * scale, differentiable. The first call makes the scale on the output's device, unless prepare() did.
  Tensor scale(const Tensor& output);
  std::vector<Tensor> scale(const std::vector<Tensor>& outputs);
  // Divides the optimizer's gradients by the scale and notes whether all were finite. Once between two updates.
  // DTypeError for f16 gradients, DeviceError for gradients that are not where the scale is.
  void unscale_(Optimizer& optimizer);
  // unscale_() where it was not called, then optimizer.step(found_inf). Once an optimizer between two updates.
  StepTicket step(Optimizer& optimizer);
  // The new scale, from what all optimizers found since the last update.
  void update();
  // The given scale; the growth tracker stays.
  void update(double new_scale);
  void update(const Tensor& new_scale);  // f32, one element, without a gradient, on any device

  // Makes the scale and the growth tracker now: for a step that may be given up and must then leave no memory behind.
  void prepare(Device device);
  // Forgets what the optimizers found since the last update: for an effective batch that is given up and made again.
  void abandon() { states_.clear(); }

  double get_scale() const;  // 1 when disabled
  std::int64_t get_growth_tracker() const;
  const GradScalerOptions& options() const { return options_; }
  bool enabled() const { return options_.enabled; }
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(std::int64_t interval);

  // "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"; empty when disabled. Between
  // unscale_() or step() and update() it is an ArgumentError: what was found would be lost.
  std::map<std::string, double> state_dict() const;
  // DataError for an empty state, a missing name or an impossible value. A disabled scaler takes no notice.
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    Tensor found_inf;  // undefined until unscaled
  };
  void check_scaled(const char* op) const;
  void unscale(Optimizer& optimizer, PerOptimizer& state);

  GradScalerOptions options_;
  std::int64_t init_growth_tracker_ = 0;
  Tensor scale_, growth_tracker_;  // made by the first scale()
  std::map<const Optimizer*, PerOptimizer> states_;  // of the steps since the last update
};

}  // namespace limpid::optim
