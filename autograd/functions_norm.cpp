// Batch, layer and group normalisation. Batch norm is built of five kernels (statistics, combine, apply, backward reduce,
// backward apply), so that it can be merged across micro-batches and ranks.
#include <limpid/autograd/batch_norm_shared.h>
#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/fused.h>
#include <limpid/autograd/fused_shared.h>
#include <limpid/autograd/record.h>
#include <limpid/tensor/raw_fused.h>
#include <limpid/tensor/raw_nn.h>

namespace limpid {
namespace {

// Training: with xhat = (x - mean) invstd and n values a channel,
//   dx = weight invstd (dy - mean(dy) - xhat mean(dy xhat)),  dweight = sum(dy xhat),  dbias = sum(dy).
// Evaluation: mean and invstd are constants, dx = weight invstd dy.
// With ReLU behind it, dy is first cut to where the bits say; with a residual before the ReLU, that is also its gradient.
class BatchNormNode final : public Node {
 public:
  BatchNormNode(NameId name, const Shape& shape, bool training) : Node(name), shape_(shape), training_(training) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& x = rows.unpack(*this);
    const Tensor& m = mean.unpack(*this);
    const Tensor& s = invstd.unpack(*this);
    const Tensor& w = weight.unpack(*this);
    Tensor dy = raw::channel_rows(grads[0]);
    if (bits.defined()) {
      dy = raw::relu_rows_backward(dy, bits.unpack(*this), may_overwrite(grads[0], dy));
      if (residual_at && needs_input_grad(*residual_at)) {
        input_grads[static_cast<std::size_t>(*residual_at)] = raw::from_channel_rows(dy, shape_);
      }
    }
    Tensor sums = raw::batch_norm_backward_reduce(x, dy, m, s);
    const Tensor& whole = shared ? shared->whole_sums(sums) : sums;
    if (needs_input_grad(0)) {
      double count = shared ? shared->count() : training_ ? static_cast<double>(x.shape()[0]) : 0;
      input_grads[0] = raw::from_channel_rows(raw::batch_norm_backward_apply(x, dy, m, s, w, whole, count), shape_);
    }
    if (weight_at && needs_input_grad(*weight_at)) input_grads[1] = raw::cast(raw::select(sums, 0, 1), weight_dtype);
    if (bias_at && needs_input_grad(*bias_at))
      input_grads[static_cast<std::size_t>(*bias_at)] = raw::cast(raw::select(sums, 0, 0), weight_dtype);
  }
  void visit_saved(const SavedVisitor& visit) const override {
    visit("x", rows), visit("mean", mean), visit("invstd", invstd), visit("weight", weight);
    if (bits.defined()) visit("bits", bits);
  }
  void release_saved() override { rows.reset(), mean.reset(), invstd.reset(), weight.reset(), bits.reset(); }
  SavedTensor rows, mean, invstd, weight;
  SavedTensor bits;                                  // of a ReLU behind it
  std::optional<int> weight_at, bias_at, residual_at;  // positions among the inputs
  std::shared_ptr<BatchNormShared> shared;  // null: the batch stands alone
  DType weight_dtype = DType::float32;

 private:
  Shape shape_;
  bool training_;
};

void check_channel_vector(const char* op, const char* what, const Tensor& t, std::int64_t channels) {
  LIMPID_CHECK(!t.defined() || (t.dim() == 1 && t.size(0) == channels), ShapeError, "[", op, "] ", what, " must be [", channels,
               "], got ", t);
}

// running = (1 - momentum) * running + momentum * batch
void update_running(Tensor& running, const Tensor& batch, double momentum) {
  Tensor kept = raw::unary(UnaryOp::mul_scalar, running, {1 - momentum, 0});
  Tensor fresh = raw::cast(raw::unary(UnaryOp::mul_scalar, batch, {momentum, 0}), running.dtype());
  raw::copy(running, raw::binary(BinaryOp::add, kept, fresh));
}

void check_eps(const char* op, double eps) {
  LIMPID_CHECK(eps >= 0 && std::isfinite(eps), ArgumentError, "[", op, "] eps must be a number >= 0, got ", eps);
}

void update_running(Tensor& running_mean, Tensor& running_var, const raw::BatchStatistics& stats, double momentum) {
  if (running_mean.defined()) update_running(running_mean, stats.mean, momentum);
  if (running_var.defined()) {  // stored unbiased
    const double n = stats.count;
    update_running(running_var, raw::unary(UnaryOp::mul_scalar, stats.var, {n / (n - 1), 0}), momentum);
  }
}

void check_input(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  LIMPID_CHECK(x.dim() >= 2 && is_floating(x.dtype()), ShapeError, "[batch_norm] input must be a floating [N,C,...], got ", x);
  check_eps("batch_norm", eps);
  check_channel_vector("batch_norm", "weight", weight, x.size(1));
  check_channel_vector("batch_norm", "bias", bias, x.size(1));
}

// What follows the normalisation in the same operation.
struct Behind {
  bool relu = false;
  Tensor residual = {};  // added before the ReLU; undefined: nothing
  NameId name() const { return relu ? LIMPID_OP("batch_norm_relu") : LIMPID_OP("batch_norm"); }
};

Tensor normalise(const Tensor& x, const Tensor& rows, const Tensor& mean, const Tensor& invstd, const Tensor& weight,
                 const Tensor& bias, bool training, const std::shared_ptr<BatchNormShared>& shared, const Behind& behind) {
  const bool record = any_requires_grad({&x, &weight, &bias, &behind.residual});
  Tensor y, bits;
  if (behind.relu) {
    const Tensor added = behind.residual.defined() ? raw::channel_rows(behind.residual) : Tensor();
    auto result = raw::batch_norm_relu_apply(rows, added, mean, invstd, weight, bias, record);
    y = raw::from_channel_rows(result.y, x.shape());
    bits = std::move(result.bits);
  } else {
    y = raw::from_channel_rows(raw::batch_norm_apply(rows, mean, invstd, weight, bias), x.shape());
  }
  if (record) {
    auto node = make_ref<BatchNormNode>(behind.name(), x.shape(), training);
    const auto add = [&](const Tensor& input, std::optional<int>& at) {
      if (!input.defined()) return;
      at = static_cast<int>(node->edges().size());
      node->add_input(input);
    };
    node->add_input(x);
    add(weight, node->weight_at);
    add(bias, node->bias_at);
    add(behind.residual, node->residual_at);
    node->add_output(y);
    node->bits = SavedTensor(bits);
    node->rows = SavedTensor(rows);
    node->mean = SavedTensor(mean);
    node->invstd = SavedTensor(invstd);
    node->weight = SavedTensor(weight);
    node->shared = shared;
    if (weight.defined()) node->weight_dtype = weight.dtype();
  }
  return checked(std::move(y), x, weight, bias);
}

}  // namespace

// ---- one batch in parts

const Tensor& BatchNormShared::whole_sums(const Tensor& part) {
  if (!sums_.defined()) {
    parts_.push_back(part);
    throw Stop{this};
  }
  return sums_;
}

const raw::BatchStatistics& BatchNormShared::whole_statistics(const Tensor& rows) {
  LIMPID_CHECK(uses_++ == 0 || !collecting_ || is_recomputing(), ArgumentError,
               "[batch_norm] one layer normalises twice in one forward pass: its statistics cannot be shared");
  if (!has_statistics()) {
    parts_.push_back(raw::batch_norm_part(rows));
    count_ += static_cast<double>(rows.size(0));
    throw Stop{this};
  }
  return statistics_;
}

void BatchNormShared::merge(double eps) {
  LIMPID_CHECK(!parts_.empty(), ArgumentError, "[batch_norm] there is nothing to merge");
  if (!has_statistics()) {
    LIMPID_CHECK(count_ > 1, ShapeError, "[batch_norm] expects more than 1 value per channel when training, got ", count_);
    statistics_ = raw::batch_norm_statistics_of(raw::batch_norm_combine(parts_), count_, eps);
  } else {
    Tensor sums = raw::clone(parts_[0]);
    for (std::size_t i = 1; i < parts_.size(); i++) raw::add_scaled(sums, parts_[i], 1.0);
    sums_ = std::move(sums);
  }
  parts_.clear();
}

void BatchNormShared::update(Tensor running_mean, Tensor running_var, double momentum) const {
  LIMPID_CHECK(has_statistics(), ArgumentError, "[batch_norm] there are no statistics of the whole batch yet");
  update_running(running_mean, running_var, statistics_, momentum);
}

namespace {

Tensor shared_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const std::shared_ptr<BatchNormShared>& shared, double eps, const Behind& behind) {
  OpScope scope(behind.name());
  check_input(x, weight, bias, eps);
  Tensor rows = raw::channel_rows(x);
  const raw::BatchStatistics& whole = shared->whole_statistics(rows);
  return normalise(x, rows, whole.mean, whole.invstd, weight, bias, true, shared, behind);
}

Tensor own_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                      bool training, double momentum, double eps, const Behind& behind) {
  OpScope scope(behind.name());
  check_input(x, weight, bias, eps);
  LIMPID_CHECK(momentum >= 0 && momentum <= 1, ArgumentError, "[batch_norm] momentum must be between 0 and 1, got ", momentum);
  LIMPID_CHECK(!running_mean.defined() || !running_var.defined() || !raw::shares_memory(running_mean, running_var), ArgumentError,
               "[batch_norm] running_mean and running_var share memory: ", running_mean, " and ", running_var);
  std::int64_t channels = x.size(1);
  check_channel_vector("batch_norm", "running_mean", running_mean, channels);
  check_channel_vector("batch_norm", "running_var", running_var, channels);
  LIMPID_CHECK(training || (running_mean.defined() && running_var.defined()), ArgumentError,
               "[batch_norm] evaluation needs running_mean and running_var");
  Tensor rows = raw::channel_rows(x);
  Tensor mean, invstd;
  if (training) {
    std::int64_t count = rows.size(0);
    LIMPID_CHECK(count > 1, ShapeError, "[batch_norm] expects more than 1 value per channel when training, got ", count,
                 " (input ", x, ")");
    raw::BatchStatistics stats = raw::batch_norm_statistics(rows, eps);
    mean = stats.mean;
    invstd = stats.invstd;
    update_running(running_mean, running_var, stats, momentum);
  } else {
    // Copies: training later must not change what a saved evaluation graph refers to.
    mean = running_mean.dtype() == DType::float64 ? raw::clone(running_mean) : raw::cast(running_mean, DType::float64);
    invstd = raw::batch_norm_invstd(running_var, eps);
  }
  return normalise(x, rows, mean, invstd, weight, bias, training, nullptr, behind);
}

void check_residual(const Tensor& x, const Tensor& residual) {
  LIMPID_CHECK(!residual.defined() || (residual.shape() == x.shape() && residual.dtype() == x.dtype()), ShapeError,
               "[batch_norm_relu] the residual must be like the input ", x, ", got ", residual);
}

Tensor relu_of_sum(const Tensor& y, const Tensor& residual) { return relu(residual.defined() ? add(y, residual) : y); }

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const std::shared_ptr<BatchNormShared>& shared,
                  double eps) {
  return shared_batch_norm(x, weight, bias, shared, eps, {});
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                  bool training, double momentum, double eps) {
  return own_batch_norm(x, weight, bias, std::move(running_mean), std::move(running_var), training, momentum, eps, {});
}

Tensor batch_norm_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                       const std::shared_ptr<BatchNormShared>& shared, double eps) {
  if (is_composed(x)) return relu_of_sum(batch_norm(x, weight, bias, shared, eps), residual);
  check_residual(x, residual);
  return shared_batch_norm(x, weight, bias, shared, eps, {.relu = true, .residual = residual});
}

Tensor batch_norm_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                       Tensor running_var, bool training, double momentum, double eps) {
  if (is_composed(x) || (weight.defined() && weight.dtype() != x.dtype()))
    return relu_of_sum(batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps), residual);
  check_residual(x, residual);
  return own_batch_norm(x, weight, bias, std::move(running_mean), std::move(running_var), training, momentum, eps,
                        {.relu = true, .residual = residual});
}

// ---- layer and group norm: rows of a contiguous tensor, each with its own mean and variance

namespace {

struct RowNormShape {
  std::int64_t rows, len, inner, affine_rows;
};

class RowNormNode final : public Node {
 public:
  RowNormNode(NameId name, const RowNormShape& geometry, const Shape& affine_shape)
      : Node(name), geometry_(geometry), affine_shape_(affine_shape) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& xv = x.unpack(*this);
    const Tensor& w = weight.unpack(*this);
    Tensor dy = raw::contiguous(grads[0]);
    Tensor dx = raw::empty(xv.shape(), xv.dtype(), xv.device());
    Tensor dweight, dbias;
    if (edges().size() > 1 && needs_input_grad(1)) dweight = raw::empty(affine_shape_, xv.dtype(), xv.device());
    if (edges().size() > 2 && needs_input_grad(2)) dbias = raw::empty(affine_shape_, xv.dtype(), xv.device());
    kernels_for(xv.device()).row_norm_backward(dx, dweight, dbias, dy, xv, mean.unpack(*this), invstd.unpack(*this), w,
                                               geometry_.inner, geometry_.affine_rows);
    if (needs_input_grad(0)) input_grads[0] = std::move(dx);
    if (dweight.defined()) input_grads[1] = std::move(dweight);
    if (dbias.defined()) input_grads[2] = std::move(dbias);
  }
  void visit_saved(const SavedVisitor& visit) const override {
    visit("x", x), visit("mean", mean), visit("invstd", invstd), visit("weight", weight);
  }
  void release_saved() override { x.reset(), mean.reset(), invstd.reset(), weight.reset(); }
  SavedTensor x, mean, invstd, weight;

 private:
  RowNormShape geometry_;
  Shape affine_shape_;
};

Tensor row_norm(NameId name, const Tensor& x, const RowNormShape& g, const Tensor& weight, const Tensor& bias, double eps) {
  OpScope scope(name);
  Tensor plain = raw::contiguous(x);
  Tensor y = raw::empty(x.shape(), x.dtype(), x.device());
  Tensor mean = raw::empty({g.rows}, DType::float64, x.device());
  Tensor invstd = raw::empty({g.rows}, DType::float64, x.device());
  Tensor w = weight.defined() ? raw::contiguous(weight) : weight;
  kernels_for(x.device()).row_norm(y, mean, invstd, plain, w, bias.defined() ? raw::contiguous(bias) : bias, g.inner,
                                   g.affine_rows, eps);
  if (x.dim() == 4) y = raw::packed(y);
  if (any_requires_grad({&x, &weight, &bias})) {
    auto node = make_ref<RowNormNode>(name, g, weight.defined() ? weight.shape() : Shape());
    node->add_input(x);
    if (weight.defined()) node->add_input(weight);
    if (bias.defined()) node->add_input(bias);
    node->add_output(y);
    node->x = SavedTensor(plain);
    node->mean = SavedTensor(mean);
    node->invstd = SavedTensor(invstd);
    node->weight = SavedTensor(w);
  }
  return checked(std::move(y), x, weight, bias);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias, double eps) {
  LIMPID_AUTOCAST(layer_norm, x, normalized_shape, weight, bias, eps);
  check_eps("layer_norm", eps);
  int lead = x.dim() - normalized_shape.size();
  bool fits = normalized_shape.size() > 0 && lead >= 0;
  for (int i = 0; fits && i < normalized_shape.size(); i++) fits = x.shape()[lead + i] == normalized_shape[i];
  LIMPID_CHECK(fits && is_floating(x.dtype()), ShapeError, "[layer_norm] the last dims must be ", normalized_shape,
               " and floating, got ", x);
  bool affine_fits = (!weight.defined() || weight.shape() == normalized_shape) && (!bias.defined() || bias.shape() == normalized_shape);
  LIMPID_CHECK(affine_fits, ShapeError, "[layer_norm] weight and bias must be ", normalized_shape, ", got ", weight, " and ", bias);
  LIMPID_CHECK(weight.defined() || !bias.defined(), ArgumentError, "[layer_norm] a bias needs a weight");
  std::int64_t len = normalized_shape.numel();
  return row_norm(LIMPID_OP("layer_norm"), x, {len ? x.numel() / len : 0, len, 1, 1}, weight, bias, eps);
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
  LIMPID_AUTOCAST(group_norm, x, groups, weight, bias, eps);
  check_eps("group_norm", eps);
  LIMPID_CHECK(x.dim() >= 2 && is_floating(x.dtype()), ShapeError, "[group_norm] input must be a floating [N,C,...], got ", x);
  std::int64_t channels = x.size(1);
  LIMPID_CHECK(groups > 0 && channels % groups == 0, ArgumentError, "[group_norm] ", channels, " channels do not divide into ",
               groups, " groups");
  check_channel_vector("group_norm", "weight", weight, channels);
  check_channel_vector("group_norm", "bias", bias, channels);
  LIMPID_CHECK(weight.defined() || !bias.defined(), ArgumentError, "[group_norm] a bias needs a weight");
  std::int64_t inner = 1;
  for (int i = 2; i < x.dim(); i++) inner *= x.shape()[i];
  return row_norm(LIMPID_OP("group_norm"), x, {x.size(0) * groups, channels / groups * inner, inner, groups}, weight, bias, eps);
}

}  // namespace limpid
