// Losses. Cross-entropy is one fused kernel each way; the others are composed of differentiable functions.
#include <limpid/autograd/loss_weights.h>
#include <limpid/autograd/record.h>

namespace limpid {
namespace {

void check_reduction(const char* op, Reduction reduction) {
  LIMPID_CHECK(reduction <= Reduction::sum, ArgumentError, "[", op, "] reduction must be none, mean or sum, got value ",
               static_cast<int>(reduction));
}

Tensor reduced(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none: return losses;
    case Reduction::mean: return mean(losses);
    case Reduction::sum: return sum(losses);
  }
  check_reduction("loss", reduction);
  return losses;
}

void check_same_shape(const char* op, const Tensor& input, const Tensor& target) {
  LIMPID_CHECK(input.shape() == target.shape(), ShapeError, "[", op, "] input and target differ in shape: ", input, " and ", target);
  LIMPID_CHECK(is_floating(input.dtype()) && is_floating(target.dtype()), DTypeError, "[", op,
               "] expects floating dtypes, got ", input, " and ", target);
}

void check_labels(const char* op, const Tensor& scores, const Tensor& labels, const Tensor& weight) {
  LIMPID_CHECK(scores.dim() >= 2 && is_floating(scores.dtype()), ShapeError, "[", op, "] scores must be a floating [N,C,...], got ",
               scores);
  LIMPID_CHECK(labels.dtype() == DType::int64, DTypeError, "[", op, "] labels must be i64, got ", labels);
  Shape expected = scores.shape();
  expected.erase(1);
  LIMPID_CHECK(labels.shape() == expected, ShapeError, "[", op, "] labels must be ", expected, " for scores ", scores, ", got ", labels);
  LIMPID_CHECK(!weight.defined() || (weight.dim() == 1 && weight.size(0) == scores.size(1)), ShapeError, "[", op,
               "] class weights must be [", scores.size(1), "], got ", weight);
}

// [N,C,d...] as rows [N*d, C].
Tensor class_rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  std::vector<std::int64_t> order{0};
  for (int i = 2; i < x.dim(); i++) order.push_back(i);
  order.push_back(1);
  return reshape(permute(x, order), {-1, x.size(1)});
}

// loss_i = (1-e) w[y] nll_i + e/C sum_c w[c] (-log p_c); mean divides by the sum of w[y] over rows that count.
class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(const LossDesc& desc, Reduction reduction) : Node(LIMPID_OP("cross_entropy")), desc_(desc), reduction_(reduction) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    const Tensor& x = logits.unpack(*this);
    const Tensor& lse = log_sum_exp.unpack(*this);
    Tensor scale = raw::cast(grads[0], lse.dtype());
    if (reduction_ == Reduction::mean) scale = raw::binary(BinaryOp::div, scale, total_weight.unpack(*this));
    scale = raw::contiguous(raw::expand("cross_entropy", reduction_ == Reduction::none ? raw::reshape(scale, {desc_.rows}) : scale,
                                        {desc_.rows}));
    LossWeights::note(scale);
    Tensor dx = raw::empty(x.shape(), x.dtype(), x.device());
    kernels_for(x.device()).cross_entropy_backward(desc_, dx, scale, x, labels.unpack(*this), weight.unpack(*this), lse);
    input_grads[0] = std::move(dx);
  }
  void visit_saved(const SavedVisitor& visit) const override {
    visit("logits", logits), visit("labels", labels), visit("weight", weight), visit("log_sum_exp", log_sum_exp);
    visit("total_weight", total_weight);
  }
  void release_saved() override { logits.reset(), labels.reset(), weight.reset(), log_sum_exp.reset(), total_weight.reset(); }
  SavedTensor logits, labels, weight, log_sum_exp, total_weight;

 private:
  LossDesc desc_;
  Reduction reduction_;
};

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  LIMPID_AUTOCAST(cross_entropy, logits, labels, options);
  OpScope scope(LIMPID_OP("cross_entropy"));
  check_labels("cross_entropy", logits, labels, options.weight);
  check_reduction("cross_entropy", options.reduction);
  LIMPID_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, ArgumentError,
               "[cross_entropy] label_smoothing must be between 0 and 1, got ", options.label_smoothing);
  Tensor rows = class_rows(logits);
  Tensor x = raw::contiguous(rows);
  Tensor y = raw::reshape(raw::contiguous(labels), {x.size(0)});
  DType accumulate = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  Tensor weight = options.weight.defined() ? raw::contiguous(raw::cast(options.weight, x.dtype())) : Tensor();
  LossDesc desc{.rows = x.size(0), .classes = x.size(1), .ignore_index = options.ignore_index,
                .label_smoothing = options.label_smoothing};
  Tensor losses = raw::empty({desc.rows}, accumulate, x.device());
  Tensor row_weights = raw::empty({desc.rows}, accumulate, x.device());
  Tensor lse = raw::empty({desc.rows}, accumulate, x.device());
  kernels_for(x.device()).cross_entropy(desc, losses, row_weights, lse, x, y, weight);
  Tensor result, total;
  if (options.reduction == Reduction::none) {
    result = raw::reshape(losses, labels.shape());
  } else {
    result = raw::reduce(ReduceOp::sum, "cross_entropy", losses, {}, false);
    if (options.reduction == Reduction::mean) {
      total = raw::reduce(ReduceOp::sum, "cross_entropy", row_weights, {}, false);
      result = raw::binary(BinaryOp::div, result, total);
    }
  }
  result = raw::cast(result, logits.dtype());
  if (any_requires_grad({&rows})) {
    auto node = make_ref<CrossEntropyNode>(desc, options.reduction);
    node->add_input(rows);
    node->add_output(result);
    node->logits = SavedTensor(x);
    node->labels = SavedTensor(y);
    node->weight = SavedTensor(weight);
    node->log_sum_exp = SavedTensor(lse);
    node->total_weight = SavedTensor(total);
  }
  return checked(std::move(result), logits);
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& labels, const CrossEntropyOptions& options) {
  LIMPID_AUTOCAST(nll_loss, log_probabilities, labels, options);
  check_labels("nll_loss", log_probabilities, labels, options.weight);
  check_reduction("nll_loss", options.reduction);
  Tensor rows = class_rows(log_probabilities);
  Tensor y = raw::reshape(raw::contiguous(labels), {rows.size(0)});
  Tensor counted = ne(y, Scalar(options.ignore_index));
  Tensor safe = where(counted, y, full(Shape(), 0, {.dtype = DType::int64, .device = y.device()}));
  Tensor weight = options.weight.defined() ? raw::cast(options.weight, rows.dtype())
                                           : ones({rows.size(1)}, {.dtype = rows.dtype(), .device = rows.device()});
  Tensor row_weight = mul(index_select(weight, 0, safe), cast(counted, rows.dtype()));
  Tensor losses = neg(mul(squeeze(gather(rows, 1, unsqueeze(safe, 1)), 1), row_weight));
  if (options.reduction == Reduction::none) return reshape(losses, labels.shape());
  if (options.reduction == Reduction::sum) return sum(losses);
  return div(sum(losses), sum(row_weight));
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  LIMPID_AUTOCAST(mse_loss, input, target, reduction);
  check_same_shape("mse_loss", input, target);
  return reduced(square(sub(input, target)), reduction);
}

Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  LIMPID_AUTOCAST(l1_loss, input, target, reduction);
  check_same_shape("l1_loss", input, target);
  return reduced(abs(sub(input, target)), reduction);
}

// d = |input - target|:  d^2 / (2 beta) below beta, d - beta/2 from there.
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta, Reduction reduction) {
  LIMPID_AUTOCAST(smooth_l1_loss, input, target, beta, reduction);
  check_same_shape("smooth_l1_loss", input, target);
  LIMPID_CHECK(beta >= 0, ArgumentError, "[smooth_l1_loss] beta must not be negative, got ", beta);
  if (beta == 0) return l1_loss(input, target, reduction);
  Tensor distance = abs(sub(input, target));
  Tensor quadratic = mul(square(distance), 0.5 / beta);
  return reduced(where(lt(distance, beta), quadratic, sub(distance, 0.5 * beta)), reduction);
}

// -t log s(x) - (1-t) log(1 - s(x)) = softplus(x) - t x
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
  LIMPID_AUTOCAST(binary_cross_entropy_with_logits, logits, target, reduction);
  check_same_shape("binary_cross_entropy_with_logits", logits, target);
  return reduced(sub(softplus(logits), mul(logits, target)), reduction);
}

}  // namespace limpid
