#include <limpid/train/evaluate.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/cuda/copies.h>
#include <limpid/tensor/dry.h>

namespace limpid::train {
namespace {

// Evaluation mode for its lifetime.
class EvalMode {
 public:
  explicit EvalMode(nn::Module& model) : model_(model), training_(model.training()) { model_.eval(); }
  ~EvalMode() { model_.train(training_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  nn::Module& model_;
  bool training_;
};

}  // namespace

Device device_of(const nn::Module& model) {
  const std::vector<Tensor> parameters = model.parameters();
  return parameters.empty() ? default_device() : parameters[0].device();
}

Tensor where_computed(const Tensor& t, const nn::Module& model) {
  const Device device = device_of(model);
  if (t.device() == device) return t;
  if (device == kDryCuda && t.device() == kDryCpu) return dry::upload(t);
  return device.type == DeviceType::cuda && t.device() == kCpu ? cu::upload(t, device.index) : t.to(device);
}

std::vector<double> Evaluation::class_accuracy() const {
  std::vector<double> out;
  for (std::int64_t truth = 0; truth < classes; truth++) {
    std::int64_t all = 0;
    for (std::int64_t predicted = 0; predicted < classes; predicted++) all += count(truth, predicted);
    out.push_back(all ? static_cast<double>(count(truth, truth)) / static_cast<double>(all)
                      : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

std::vector<std::int64_t> predicted_classes(const Tensor& logits) {
  NoGradGuard no_grad;
  return argmax(logits, 1).to_vector<std::int64_t>();
}

Evaluation evaluate(nn::Module& model, data::DataLoader& loader, std::int64_t classes,
                    const EvaluationProgress& progress, std::int64_t most, const std::atomic<bool>* stop) {
  LIMPID_CHECK(classes > 0, ArgumentError, "[evaluate] the number of classes must be positive, got ", classes);
  NoGradGuard no_grad;
  EvalMode mode(model);
  PhaseScope phase(Phase::eval);
  const auto start = std::chrono::steady_clock::now();
  Evaluation out;
  out.classes = classes;
  out.confusion.assign(static_cast<std::size_t>(classes * classes), 0);
  double loss_sum = 0;
  loader.set_epoch(0);
  auto add = [&](const Tensor& images, const Tensor& y) {
    const Tensor x = where_computed(images, model);
    const Tensor logits = model(x);
    LIMPID_CHECK(logits.dim() == 2 && logits.size(1) == classes, ShapeError, "[evaluate] expected logits [N,", classes,
                 "], the model gave ", logits);
    loss_sum += cross_entropy(logits, where_computed(y, model)).item() * static_cast<double>(x.size(0));
    const std::vector<std::int64_t> predicted = predicted_classes(logits);
    const std::vector<std::int64_t> truth = y.to_vector<std::int64_t>();
    for (std::size_t i = 0; i < truth.size(); i++) {
      out.confusion[static_cast<std::size_t>(truth[i] * classes + predicted[i])]++;
      out.correct += truth[i] == predicted[i];
    }
    out.samples += x.size(0);
  };
  for (const data::Batch& batch : loader) {
    if (most == 0 || batch.size() <= most) {
      add(batch.x, batch.y);
    } else {
      std::int64_t at = 0;
      for (std::int64_t size : data::micro_batch_sizes(batch.size(), most)) {
        add(narrow(batch.x, 0, at, size), narrow(batch.y, 0, at, size));
        at += size;
      }
    }
    if (progress) progress(out.samples, loader.dataset().size());
    out.stopped = stop && stop->load(std::memory_order_relaxed) && out.samples < loader.dataset().size();
    if (out.stopped) break;
  }
  const double samples = static_cast<double>(std::max<std::int64_t>(out.samples, 1));
  out.loss = unsigned_nan(loss_sum / samples);
  out.accuracy = static_cast<double>(out.correct) / samples;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

std::string to_string(const Evaluation& evaluation, const std::vector<std::string>& class_names) {
  auto name = [&](std::int64_t c) {
    const auto i = static_cast<std::size_t>(c);
    return i < class_names.size() ? class_names[i] : std::to_string(c);
  };
  char text[128];
  std::string out;
  std::snprintf(text, sizeof text, "accuracy %.2f %%  loss %.4f  samples %lld\n", 100 * evaluation.accuracy,
                evaluation.loss, static_cast<long long>(evaluation.samples));
  out += text;
  const std::vector<double> accuracy = evaluation.class_accuracy();
  for (std::int64_t c = 0; c < evaluation.classes; c++) {
    const double a = accuracy[static_cast<std::size_t>(c)];
    std::snprintf(text, sizeof text, "  %3lld %-20.20s %6.2f %%\n", static_cast<long long>(c), name(c).c_str(),
                  100 * a);
    out += text;
  }
  if (evaluation.classes > 20) return out;
  out += "confusion (row = true class, column = predicted)\n     ";
  for (std::int64_t c = 0; c < evaluation.classes; c++) {
    std::snprintf(text, sizeof text, "%6lld", static_cast<long long>(c));
    out += text;
  }
  out += '\n';
  for (std::int64_t truth = 0; truth < evaluation.classes; truth++) {
    std::snprintf(text, sizeof text, "%5lld", static_cast<long long>(truth));
    out += text;
    for (std::int64_t c = 0; c < evaluation.classes; c++) {
      std::snprintf(text, sizeof text, "%6lld", static_cast<long long>(evaluation.count(truth, c)));
      out += text;
    }
    out += '\n';
  }
  return out;
}

}  // namespace limpid::train
