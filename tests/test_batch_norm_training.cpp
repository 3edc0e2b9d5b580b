// Batch norm's modes in training steps: exact = the big batch over many steps, momentum, frozen, what is told before the
// training, and the memory that a dry run predicts for them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include <limpid/data/synthetic.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/raw.h>
#include <limpid/train/batch_norm_advice.h>
#include <limpid/train/equivalence.h>
#include <limpid/train/plan.h>
#include <limpid/train/step.h>
#include <limpid/train/trainer.h>

using namespace limpid;
using namespace limpid::train;

namespace {

struct Data {
  Tensor x, y;
  Data(std::int64_t n, Shape sample, DType dtype) {
    Generator g(21);
    sample.insert(0, n);
    x = cast(randn(sample, {}, g), dtype);  // the same numbers in f64 as in f32
    y = randint(0, 10, {n}, {.dtype = int64}, g);
  }
};

struct Run {
  std::vector<double> losses, buffers;
};

// `steps` of SGD over one effective batch after the other, each cut into micro-batches of `micro`.
Run train_steps(const char* name, const Data& d, std::int64_t batch, std::int64_t micro, std::int64_t steps,
                BatchNormMode mode = BatchNormMode::exact, bool adjust = true) {
  Shape sample = d.x.shape();
  sample.erase(0);
  const auto model = nn::make_model(name, {.input = sample, .classes = 10, .seed = 4});
  model->to(d.x.dtype());
  model->train();
  optim::SGD optimizer(model->parameters(), {.lr = 0.05, .momentum = 0.9});
  Step step(*model, optimizer, {.batch_norm = mode, .adjust_momentum = adjust});
  const std::vector<std::int64_t> sizes = data::micro_batch_sizes(batch, micro);
  Run run;
  for (std::int64_t i = 0; i < steps; i++) {
    step.begin(i, batch, sizes);
    std::int64_t at = i * batch % d.x.size(0);
    for (std::int64_t size : sizes) {
      data::Batch b;
      b.x = raw::narrow(d.x, 0, at, size);
      b.y = raw::narrow(d.y, 0, at, size);
      b.indices.resize(static_cast<std::size_t>(size));
      step.add(b);
      at += size;
    }
    const StepOutcome outcome = step.finish();
    CHECK(outcome.samples == batch);
    CHECK(outcome.batch_norm_updates ==
          (mode == BatchNormMode::exact ? 1 : mode == BatchNormMode::frozen ? 0 : static_cast<std::int64_t>(sizes.size())));
    run.losses.push_back(outcome.loss_sum / static_cast<double>(batch));
  }
  for (const auto& [key, buffer] : model->named_buffers())
    for (double v : buffer.to_vector<double>()) run.buffers.push_back(v);
  return run;
}

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

// 1 x batch against two cuts over 20 steps. In f64 the losses agree to 1e-9; in f32 the first difference is rounding, and
// what becomes of it is reported with its cause.
void big_batch_in_pieces(const char* name, Shape sample, std::int64_t batch, std::vector<std::int64_t> micros, std::int64_t steps) {
  const Data exact(2 * batch, sample, float64), rounded(2 * batch, sample, float32);
  const Run big = train_steps(name, exact, batch, batch, steps), big32 = train_steps(name, rounded, batch, batch, steps);
  for (std::int64_t micro : micros) {
    CAPTURE(micro);
    const Run cut = train_steps(name, exact, batch, micro, steps);
    const double f64 = largest_relative(cut.losses, big.losses);
    CHECK(f64 <= 1e-9);
    CHECK(largest_relative(train_steps(name, exact, batch, micro, 2).buffers, train_steps(name, exact, batch, batch, 2).buffers) <= 1e-9);
    const double f32 = largest_relative(train_steps(name, rounded, batch, micro, steps).losses, big32.losses);
    CHECK(f32 > f64);
    CHECK(f32 < 0.5);
    EquivalenceProblem p;
    p.model = [&] { return nn::make_model(name, {.input = sample, .classes = 10, .seed = 4}); };
    p.x = raw::narrow(rounded.x, 0, 0, batch);
    p.y = raw::narrow(rounded.y, 0, 0, batch);
    p.micro_batches = data::micro_batch_sizes(batch, micro);
    p.batch_norm = BatchNormMode::exact;
    const EquivalenceReport r = check_accumulation(p);
    INFO(to_string(r));
    CHECK(r.equal);
    for (const Finding& f : r.findings) CHECK((f.cause == Cause::kinks || f.cause == Cause::precision));
    MESSAGE(std::string(name) << ", 1 x " << batch << " against " << batch / micro << " x " << micro << ", " << steps
                 << " steps with exact batch norm: losses differ by " << f64 << " in f64, " << f32 << " in f32\n" << to_string(r));
  }
}

TrainSettings settings(std::int64_t batch, std::int64_t micro, const char* mode) {
  TrainSettings s;
  s.model = "lenet-bn";
  s.batch = batch;
  s.micro_batch = micro;
  s.bn_mode = mode;
  return s;
}

}  // namespace

TEST_CASE("20 steps with exact batch norm: 1x32, 2x16 and 4x8 have the same losses in f64") {
  big_batch_in_pieces("lenet-bn", {1, 8, 8}, 32, {16, 8}, 20);
}

TEST_CASE("long: 20 steps of resnet20, 1x256, 4x64 and 8x32 with exact batch norm") {
  big_batch_in_pieces("resnet20", {3, 8, 8}, 256, {64, 32}, 20);
}

TEST_CASE("micro-batches move running statistics as one batch would, or each one does") {
  const Data d(64, {1, 8, 8}, float64);
  const Run one = train_steps("lenet-bn", d, 32, 32, 1, BatchNormMode::micro);
  const Run step = train_steps("lenet-bn", d, 32, 8, 1, BatchNormMode::micro);
  const Run each = train_steps("lenet-bn", d, 32, 8, 1, BatchNormMode::micro, false);
  // The running means start at 0: behind one step they are m times a mean. The first layer's inputs are the same.
  CHECK(one.buffers.size() == each.buffers.size());
  double adjusted = 0, plain = 0, whole = 0;
  for (std::size_t i = 0; i < 32; i++) whole += std::abs(one.buffers[i]), adjusted += std::abs(step.buffers[i]), plain += std::abs(each.buffers[i]);
  CHECK(adjusted / whole == doctest::Approx(1).epsilon(0.05));
  CHECK(plain / whole == doctest::Approx((1 - std::pow(0.9, 4)) / 0.1).epsilon(0.05));
  const Run frozen = train_steps("lenet-bn", d, 32, 8, 2, BatchNormMode::frozen);
  CHECK(frozen.buffers == train_steps("lenet-bn", d, 32, 32, 1, BatchNormMode::frozen).buffers);
}

TEST_CASE("what a run is told about its batch norm") {
  const auto model = nn::make_model("lenet-bn", {.input = {1, 8, 8}});
  const Shape input{1, 8, 8};
  CHECK(batch_norm_advice(settings(64, 16, "micro"), *model, input, 640).warning.empty());
  const BatchNormAdvice noisy = batch_norm_advice(settings(64, 4, "micro"), *model, input, 640);
  CHECK(noisy.warning.find("of 4 samples, fewer than 8: the statistics are noisy (and 1 other layer") != std::string::npos);
  CHECK(noisy.error.empty());
  CHECK(noisy.cost.empty());
  // The tail counts; it can be left out.
  TrainSettings tail = settings(64, 0, "micro");
  CHECK(batch_norm_advice(tail, *model, input, 65).warning.find("of a single sample") != std::string::npos);
  tail.drop_last = true;
  CHECK(batch_norm_advice(tail, *model, input, 65).warning.empty());
  // Exact: the whole batch's statistics, and their price.
  const BatchNormAdvice exact = batch_norm_advice(settings(64, 4, "exact"), *model, input, 640);
  CHECK(exact.warning.empty());
  CHECK(exact.cost ==
        "exact batch norm over 2 layers and 16 micro-batches: 5 forward and 3 backward sweeps over 64 samples a step instead of 1 "
        "and 1 (320 samples forward, 192 backward; all sweeps but the last end at a layer, so this is the most); the inputs of a "
        "step are kept, 16.50 KiB");
  TrainSettings quantum = settings(64, 16, "micro");
  quantum.quantum = 4;
  CHECK(batch_norm_advice(quantum, *model, input, 640).warning.find("of 4 samples") != std::string::npos);
  CHECK(batch_norm_advice(settings(64, 4, "frozen"), *model, input, 640).warning.empty());
  CHECK_THROWS_AS(batch_norm_advice(settings(64, 4, "ghost"), *model, input, 640), ArgumentError);
}

TEST_CASE("a dry run predicts the memory of every mode to the byte") {
  for (const char* mode : {"micro", "frozen", "exact"}) {
    for (const char* amp : {"fp32", "fp16"}) {
      CAPTURE(std::string(mode));
      CAPTURE(std::string(amp));
      PlanSettings plan;
      plan.run.train = settings(32, 8, mode);
      plan.run.train.amp = amp;
      plan.run.train.input = {1, 12, 12};
      plan.run.train.classes = 10;
      plan.run.samples = 70;  // a short last step
      const Prediction predicted = predict(plan), measured = measure(plan);
      CHECK(predicted.run.memory.allocated == measured.run.memory.allocated);
      CHECK(predicted.run.memory.reserved == measured.run.memory.reserved);
      plan.run.train.quantum = 4;
      CHECK(predict(plan).run.memory.reserved == measure(plan).run.memory.reserved);
    }
  }
}

TEST_CASE("the planner under a quantum takes it as the micro-batch") {
  PlanSettings plan;
  plan.run.train = settings(32, 0, "micro");
  plan.run.train.quantum = 8;
  plan.run.train.input = {1, 12, 12};
  plan.run.train.classes = 10;
  const FittingMicroBatch choice = choose_micro_batch(plan);
  CHECK(choice.micro_batch == 8);
  CHECK(choice.sizes == std::vector<std::int64_t>{8, 8, 8, 8});
  CHECK(plan.run.train.micro_batch == 8);
}
