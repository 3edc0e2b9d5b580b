// Normalisation layers. Buffers and parameters carry PyTorch's names.
#pragma once

#include <optional>

#include <limpid/autograd/batch_norm_shared.h>
#include <limpid/nn/module.h>

namespace limpid::nn {

struct BatchNormOptions {
  std::int64_t num_features = 0;
  double eps = 1e-5;
  // running = (1 - momentum) running + momentum batch. Nothing: the average over all batches seen.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;  // false: the batch's statistics are used in eval mode as well
};

// What both share: weight, bias [C] (1 and 0), running_mean, running_var [C] (0 and 1), num_batches_tracked (i64, 0-d).
// In training, more than one value per channel is needed: ShapeError otherwise.
class BatchNorm : public Module {
 public:
  Tensor forward(const Tensor& x) override { return run(x, false, Tensor()); }
  // relu(forward(x) + residual) as one operation; the residual may be undefined (autograd/fused.h).
  Tensor forward_relu(const Tensor& x, const Tensor& residual) { return run(x, true, residual); }
  std::string describe() const override;
  const BatchNormOptions& options() const { return options_; }
  void reset_running_stats();
  void reset_parameters();

  // Frozen: in training too the running statistics are used, as constants, and stay as they are.
  void set_frozen(bool frozen);
  bool frozen() const { return frozen_; }
  // A step has this many micro-batches: each moves the running statistics by m' with 1 - (1-m')^k = m, so that together
  // they move them as one batch would. (Without a momentum, the average over all of them: nothing to adjust.)
  void set_micro_batches(std::int64_t count);
  // The momentum of one micro-batch; nothing: the average.
  std::optional<double> momentum() const;
  // Not null: this batch is a part of a larger one whose statistics are used (autograd/batch_norm_shared.h). The running
  // statistics then move in update_running_stats() only.
  void share(std::shared_ptr<BatchNormShared> shared) { shared_ = std::move(shared); }
  const std::shared_ptr<BatchNormShared>& shared() const { return shared_; }
  void update_running_stats();
  // Whether a forward pass now would take the statistics of the batch.
  bool uses_batch() const { return (training() && !frozen_) || !options_.track_running_stats; }

  Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 protected:
  BatchNorm(const char* type, const BatchNormOptions& options);
  virtual void check_input(const Tensor& x) const = 0;

 private:
  Tensor run(const Tensor& x, bool relu, const Tensor& residual);
  double count_batch();  // counts it, and gives the momentum for it
  BatchNormOptions options_;
  bool frozen_ = false;
  std::int64_t micro_batches_ = 1;
  std::shared_ptr<BatchNormShared> shared_;
};

// The momentum m' of one of `micro_batches`: 1 - (1-m')^micro_batches = momentum.
double micro_batch_momentum(double momentum, std::int64_t micro_batches);

// x [N,C] or [N,C,L].
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(const BatchNormOptions& options) : BatchNorm("BatchNorm1d", options) {}
  std::string type_name() const override { return "BatchNorm1d"; }

 protected:
  void check_input(const Tensor& x) const override;
};

// x [N,C,H,W].
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(const BatchNormOptions& options) : BatchNorm("BatchNorm2d", options) {}
  std::string type_name() const override { return "BatchNorm2d"; }

 protected:
  void check_input(const Tensor& x) const override;
};

struct LayerNormOptions {
  Shape normalized_shape = {};  // the trailing dims
  double eps = 1e-5;
  bool elementwise_affine = true;
  bool bias = true;
};
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const LayerNormOptions& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "LayerNorm"; }
  std::string describe() const override;

  Tensor weight, bias;

 private:
  LayerNormOptions options_;
};

struct GroupNormOptions {
  std::int64_t num_groups = 0;
  std::int64_t num_channels = 0;
  double eps = 1e-5;
  bool affine = true;
};
// x [N,C,...].
class GroupNorm : public Module {
 public:
  explicit GroupNorm(const GroupNormOptions& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "GroupNorm"; }
  std::string describe() const override;

  Tensor weight, bias;

 private:
  GroupNormOptions options_;
};

}  // namespace limpid::nn
