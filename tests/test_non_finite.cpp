// A value that is no finite number, in one layer and one micro-batch of a run in fp16: the step is skipped once, the
// ledger names both, and nothing else of the run moves: parameters, running statistics, schedule.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <optional>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/tensor/creation.h>
#include <limpid/train/ledger.h>
#include <limpid/train/trainer.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using limpid_test::TempFolder;

namespace {

constexpr std::uint32_t kBadStep = 1;
constexpr std::int64_t kSteps = 4, kMicros = 4;
const char* const kLayers[] = {"conv1", "bn1", "conv2", "bn2", "fc1", "fc2"};

TrainSettings small_run(const std::string& out, const std::string& bn_mode) {
  TrainSettings s;
  s.data = "synthetic";
  s.input = {1, 8, 8};
  s.classes = 4;
  s.limit = 32 * kSteps;
  s.val_fraction = 0;
  s.model = "lenet-bn";
  s.bn_mode = bn_mode;
  s.epochs = 1;
  s.batch = 32;
  s.micro_batch = 8;
  s.optimizer = "sgd";
  s.lr = 0.01;
  s.schedule = "cosine";
  s.amp = "fp16";
  s.seed = 5;
  s.threads = 1;
  s.workers = 0;
  s.trace = 0;
  s.monitor_every = 0;
  s.out = out;
  return s;
}

std::vector<std::vector<double>> values_of(const nn::Module& model) {
  std::vector<std::vector<double>> out;
  for (const auto& [name, tensor] : model.state_dict()) out.push_back(tensor.to_vector<double>());
  return out;
}

// What the model looks like after the step before, and whether a skipped step left it so.
class Watch : public TrainObserver {
 public:
  explicit Watch(const nn::Module& model) : model_(model) {}
  void on_step(const StepRecord&) override { before_ = values_of(model_); }
  void on_skip(const StepRecord& record, const std::string& what) override {
    skips++;
    step = record.step;
    text = what;
    unchanged = values_of(model_) == before_;
  }
  int skips = 0;
  std::int64_t step = -1;
  std::string text;
  bool unchanged = false;

 private:
  const nn::Module& model_;
  std::vector<std::vector<double>> before_;
};

bool is_bad(std::int64_t micro) {
  const Scope& now = current_scope();
  return now.step == kBadStep && now.micro_batch == micro && grad_enabled();
}

// A parameter is infinite while the layer computes that micro-batch: its bias, or the weight where it has none.
void break_forward(nn::Module& layer, std::int64_t micro) {
  const Tensor parameter = layer.parameters().back();
  // Put back at the layer's end, or before its next call: a sweep of exact batch norm ends inside a layer.
  const auto former = std::make_shared<std::optional<double>>();
  auto set_broken = [parameter, former](bool broken) {
    if (broken == former->has_value()) return;
    NoGradGuard guard;
    Tensor first = parameter.view({parameter.numel()}).select(0, 0);
    const double value = broken ? INFINITY : **former;
    *former = broken ? std::optional<double>(first.item()) : std::nullopt;
    first.fill_(value);
  };
  layer.register_forward_pre_hook([=](nn::Module&, const Tensor&) {
    set_broken(is_bad(micro));
    return Tensor();
  });
  layer.register_forward_hook([=](nn::Module&, const Tensor&, const Tensor&) {
    set_broken(false);
    return Tensor();
  });
}

// The gradient that reaches the layer's result is infinite.
void break_backward(nn::Module& layer, std::int64_t micro) {
  layer.register_forward_hook([=](nn::Module&, const Tensor&, const Tensor& y) {
    if (is_bad(micro)) {
      Tensor out = y;
      out.register_hook([](const Tensor& g) { return full(g.shape(), INFINITY, {.dtype = g.dtype()}); });
    }
    return Tensor();
  });
}

nn::Module& layer_named(nn::Module& model, const std::string& wanted) {
  for (const auto& [name, module] : model.named_modules())
    if (name == wanted) return *module;
  LIMPID_THROW(ArgumentError, "there is no layer ", wanted);
}

void run_and_check(const std::string& layer, std::int64_t micro, bool backward, const std::string& bn_mode) {
  CAPTURE(layer);
  CAPTURE(micro);
  CAPTURE(backward);
  CAPTURE(bn_mode);
  TempFolder folder;
  const TrainSettings s = small_run(folder / "run", bn_mode);
  TrainParts parts = make_parts(s, {});
  parts.test = nullptr;
  nn::Module& model = *parts.model;
  (backward ? break_backward : break_forward)(layer_named(model, layer), micro);
  Watch watch(model);
  Trainer(s, std::move(parts), Start::fresh, &watch).run();
  CHECK(watch.skips == 1);
  CHECK(watch.step == kBadStep);
  CHECK(watch.unchanged);
  const Ledger ledger = read_ledger(folder / "run/ledger.jsonl");
  REQUIRE(ledger.steps.size() == kSteps);
  for (const LedgerStep& step : ledger.steps) {
    const bool bad = step.step == kBadStep;
    CHECK(step.applied == !bad);
    CHECK(step.found_inf == (bad ? layer : ""));
    CHECK(step.found_inf_micro == (bad ? micro : -1));
    CHECK(step.skipped == (bad ? watch.text : ""));
    CHECK(step.bn_updates == (bad ? 0 : bn_mode == "exact" ? 1 : kMicros));
    CHECK(step.scale == (step.step <= kBadStep ? 65536 : 32768));
    // A skipped step does not move the schedule.
    CHECK(step.schedule_position == step.step - (step.step > kBadStep));
  }
  CHECK(ledger.steps[kBadStep].lr == ledger.steps[kBadStep + 1].lr);
  CHECK(check_ledger(ledger).violations.empty());
}

}  // namespace

TEST_CASE("without harm no step is skipped") {
  TempFolder folder;
  const TrainSettings s = small_run(folder / "run", "micro");
  TrainParts parts = make_parts(s, {});
  Watch watch(*parts.model);
  Trainer(s, std::move(parts), Start::fresh, &watch).run();
  CHECK(watch.skips == 0);
  for (const LedgerStep& step : read_ledger(folder / "run/ledger.jsonl").steps) CHECK(step.found_inf.empty());
}

TEST_CASE("an infinity in every layer and micro-batch is named in the run's ledger, forward and backward") {
  for (const char* layer : kLayers)
    for (std::int64_t micro = 0; micro < kMicros; micro++)
      for (bool backward : {false, true}) run_and_check(layer, micro, backward, "micro");
}

TEST_CASE("the same with exact batch norm") {
  for (const char* layer : {"conv1", "bn2", "fc2"})
    for (std::int64_t micro : {0, 3}) run_and_check(layer, micro, layer == std::string("fc2"), "exact");
}
