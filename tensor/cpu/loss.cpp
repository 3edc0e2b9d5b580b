// Fused log-softmax and negative log-likelihood. Row results (losses, weights, log-sum-exp) have the logits' dtype or the
// accumulate type of 16-bit logits. PyTorch's definition, with smoothing e, class weights w, C classes:
//   loss = (1-e) w[y] nll(y) + e/C sum_c w[c] nll(c),   nll(c) = log sum exp(x) - x_c;   ignored rows give 0.
#include <algorithm>
#include <cmath>

#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>

namespace limpid::cpu {
namespace {

constexpr std::int64_t kRowGrain = 2048;  // elements a task

void check_labels(const LossDesc& desc, const std::int64_t* labels) {
  for (std::int64_t r = 0; r < desc.rows; r++) {
    bool fine = labels[r] == desc.ignore_index || (labels[r] >= 0 && labels[r] < desc.classes);
    LIMPID_CHECK(fine, IndexError, "[cross_entropy] label ", labels[r], " at row ", r, " is outside [0, ", desc.classes,
                 ")");
  }
}

template <class T>
double number(T value) {
  return static_cast<double>(static_cast<compute_t<T>>(value));
}

template <class T, class S>
void forward(const LossDesc& desc, S* losses, S* row_weights, S* log_sum_exp, const T* logits,
             const std::int64_t* labels, const T* weight) {
  using C = compute_t<T>;
  const std::int64_t classes = desc.classes;
  parallel_chunks(desc.rows, std::max<std::int64_t>(1, kRowGrain / std::max<std::int64_t>(classes, 1)),
                  [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r++) {
      const T* x = logits + r * classes;
      C top = classes > 0 ? static_cast<C>(x[0]) : C(0);
      for (std::int64_t c = 1; c < classes; c++) top = std::max(top, static_cast<C>(x[c]));
      double total = 0;
      for (std::int64_t c = 0; c < classes; c++) total += static_cast<double>(std::exp(static_cast<C>(x[c]) - top));
      double log_total = std::log(total);
      log_sum_exp[r] = static_cast<S>(static_cast<compute_t<S>>(static_cast<double>(top) + log_total));
      if (labels[r] == desc.ignore_index) {
        losses[r] = row_weights[r] = static_cast<S>(compute_t<S>(0));
        continue;
      }
      // The difference to the largest logit first, so that large logits lose nothing.
      auto nll = [&](std::int64_t c) { return log_total - static_cast<double>(static_cast<C>(x[c]) - top); };
      double own = weight ? number(weight[labels[r]]) : 1.0;
      double loss = (1.0 - desc.label_smoothing) * own * nll(labels[r]);
      if (desc.label_smoothing != 0) {
        double spread = 0;
        for (std::int64_t c = 0; c < classes; c++) spread += (weight ? number(weight[c]) : 1.0) * nll(c);
        loss += desc.label_smoothing / static_cast<double>(classes) * spread;
      }
      losses[r] = static_cast<S>(static_cast<compute_t<S>>(loss));
      row_weights[r] = static_cast<S>(static_cast<compute_t<S>>(own));
    }
  });
}

// d loss / d x_c = p_c ((1-e) w[y] + e/C sum w) - (1-e) w[y] [c = y] - e/C w[c]
template <class T, class S>
void backward(const LossDesc& desc, T* dx, const S* row_scale, const T* logits, const std::int64_t* labels,
              const T* weight, const S* log_sum_exp) {
  using C = compute_t<T>;
  const std::int64_t classes = desc.classes;
  double weight_sum = static_cast<double>(classes);
  if (weight) {
    weight_sum = 0;
    for (std::int64_t c = 0; c < classes; c++) weight_sum += number(weight[c]);
  }
  const double spread = classes > 0 ? desc.label_smoothing / static_cast<double>(classes) : 0.0;
  parallel_chunks(desc.rows, std::max<std::int64_t>(1, kRowGrain / std::max<std::int64_t>(classes, 1)),
                  [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r++) {
      const T* x = logits + r * classes;
      T* out = dx + r * classes;
      std::int64_t label = labels[r];
      if (label == desc.ignore_index) {
        for (std::int64_t c = 0; c < classes; c++) out[c] = static_cast<T>(C(0));
        continue;
      }
      double own = (1.0 - desc.label_smoothing) * (weight ? number(weight[label]) : 1.0);
      double factor = number(row_scale[r]);
      C share = static_cast<C>(factor * (own + spread * weight_sum));
      C lse = static_cast<C>(static_cast<compute_t<S>>(log_sum_exp[r]));
      C label_part = static_cast<C>(factor * own);
      for (std::int64_t c = 0; c < classes; c++) {
        C g = share * std::exp(static_cast<C>(x[c]) - lse);
        if (spread != 0) g -= static_cast<C>(factor * spread * (weight ? number(weight[c]) : 1.0));
        if (c == label) g -= label_part;
        out[c] = static_cast<T>(g);
      }
    }
  });
}

// Calls f<T, S>() for the logits' dtype and the dtype of the row results.
template <class F>
void visit_pair(const Tensor& logits, const Tensor& rows, F&& f) {
  visit_floating(logits.dtype(), "cross_entropy", [&]<class T>() {
    if (rows.dtype() == logits.dtype()) return f.template operator()<T, T>();
    if constexpr (!std::is_floating_point_v<T>) {
      if (rows.dtype() == DType::float32) return f.template operator()<T, float>();
    }
    LIMPID_THROW(DTypeError, "[cross_entropy] row results of ", rows, " do not fit logits ", logits);
  });
}

}  // namespace

void cross_entropy(const LossDesc& desc, Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp, const Tensor& logits,
                   const Tensor& labels, const Tensor& class_weight) {
  const std::int64_t* label = labels.data<std::int64_t>();
  check_labels(desc, label);
  visit_pair(logits, losses, [&]<class T, class S>() {
    forward<T, S>(desc, losses.mutable_data<S>(), row_weights.mutable_data<S>(), log_sum_exp.mutable_data<S>(),
                  logits.data<T>(), label, class_weight.defined() ? class_weight.data<T>() : nullptr);
  });
}

void cross_entropy_backward(const LossDesc& desc, Tensor& dx, const Tensor& row_scale, const Tensor& logits,
                            const Tensor& labels, const Tensor& class_weight, const Tensor& log_sum_exp) {
  visit_pair(logits, log_sum_exp, [&]<class T, class S>() {
    backward<T, S>(desc, dx.mutable_data<T>(), row_scale.data<S>(), logits.data<T>(), labels.data<std::int64_t>(),
                   class_weight.defined() ? class_weight.data<T>() : nullptr, log_sum_exp.data<S>());
  });
}

}  // namespace limpid::cpu
