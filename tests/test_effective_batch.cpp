// Effective batches: how they are cut, what every sample weighs, and a step as a transaction.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/loss_weights.h>
#include <limpid/data/synthetic.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/host_memory.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/grad_scaler.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/raw.h>
#include <limpid/train/batch_plan.h>
#include <limpid/train/plan.h>
#include <limpid/train/step.h>

#include "failing_policy.h"

using namespace limpid;
using namespace limpid::train;
using Ids = std::vector<std::int64_t>;

TEST_CASE("samples are cut into as few equal micro-batches as possible") {
  CHECK(data::micro_batch_sizes(100, 32) == Ids{25, 25, 25, 25});
  CHECK(data::micro_batch_sizes(256, 64) == Ids{64, 64, 64, 64});
  CHECK(data::micro_batch_sizes(7, 3) == Ids{3, 2, 2});
  CHECK(data::micro_batch_sizes(5, 8) == Ids{5});
  for (std::int64_t samples = 1; samples <= 70; samples++) {
    for (std::int64_t micro = 1; micro <= 70; micro++) {
      const Ids sizes = data::micro_batch_sizes(samples, micro);
      CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == samples);
      CHECK(sizes.front() <= micro);
      CHECK(sizes.front() - sizes.back() <= 1);
      CHECK(static_cast<std::int64_t>(sizes.size()) == (samples + micro - 1) / micro);
    }
  }
  CHECK_THROWS_WITH_AS(data::micro_batch_sizes(0, 4), doctest::Contains("0 samples in micro-batches of 4"), ArgumentError);
  CHECK_THROWS_AS(data::micro_batch_sizes(4, 0), ArgumentError);
}

TEST_CASE("a plan knows the place of each micro-batch in its step") {
  Ids order(23);
  std::iota(order.begin(), order.end(), 100);
  const data::BatchPlan plan(order, 10, false, 4);
  CHECK(plan.sizes() == Ids{4, 3, 3, 4, 3, 3, 3});
  CHECK(plan.step_sizes() == Ids{10, 10, 3});
  CHECK(plan.steps() == 3);
  CHECK(plan.place(4).effective == 1);
  CHECK(plan.place(4).micro == 1);
  CHECK(plan.place(4).micros == 3);
  CHECK(plan.place(4).offset == 4);
  CHECK(plan.place(6).effective_size == 3);
  CHECK(plan.indices(4)[0] == 114);
  CHECK(plan.step_at(6) == 2);
  CHECK(plan.step_at(7) == 3);
  CHECK(data::BatchPlan(order, 10, true, 4).dropped() == Ids{120, 121, 122});
  CHECK(data::BatchPlan(order, 10, true, 4).size() == 6);
  CHECK_THROWS_WITH_AS(data::BatchPlan(order, 10, false, 11), doctest::Contains("micro_batch is 11"), ArgumentError);
  CHECK(data::BatchPlan({}, 10, false, 4).size() == 0);
}

namespace {

struct Problem {
  Tensor x, y;
  std::shared_ptr<nn::Module> model;
};

Problem problem(std::int64_t samples, DType dtype, const char* model = "mlp", Shape input = {1, 4, 4}) {
  manual_seed(7);
  Problem p;
  Shape shape = input;
  shape.insert(0, samples);
  p.x = randn(shape, {.dtype = dtype});
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < samples; i++) labels.push_back((i * 7 + i / 3) % 4);
  p.y = from_vector(labels, {samples});
  p.model = nn::make_model(model, {.input = input, .classes = 4, .seed = 3});
  p.model->to(dtype);
  p.model->name_tree();
  return p;
}

std::vector<Tensor> gradients(const nn::Module& model) {
  std::vector<Tensor> out;
  for (const Tensor& p : model.parameters()) out.push_back(p.grad().clone());
  return out;
}

double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); i++) {
    const auto x = a[i].to_vector<double>(), y = b[i].to_vector<double>();
    REQUIRE(x.size() == y.size());
    for (std::size_t j = 0; j < x.size(); j++) worst = std::max(worst, std::abs(x[j] - y[j]));
  }
  return worst;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() && std::memcmp(x.raw_data(), y.raw_data(), x.nbytes()) == 0;
}

}  // namespace

TEST_CASE("the accumulator's gradient is that of the big batch, however the batch is cut") {
  const std::int64_t n = 23;
  Problem p = problem(n, float64);
  optim::SGD optimizer(p.model->parameters(), {.lr = 0});
  cross_entropy((*p.model)(p.x), p.y).backward();
  const std::vector<Tensor> whole = gradients(*p.model);
  const std::vector<Ids> cuts = {{23}, {12, 11}, {8, 8, 7}, {20, 1, 2}, {1, 22}, Ids(23, 1)};
  for (const Ids& cut : cuts) {
    for (const bool known : {false, true}) {
      for (const bool mean : {false, true}) {
        CAPTURE(cut.size());
        CAPTURE(known);
        CAPTURE(mean);
        Accumulator accumulator(optimizer);
        accumulator.begin(known ? static_cast<double>(n) : 0);
        std::int64_t at = 0;
        for (std::int64_t size : cut) {
          const Tensor logits = (*p.model)(narrow(p.x, 0, at, size));
          const Tensor labels = narrow(p.y, 0, at, size);
          const auto count = static_cast<double>(size);
          if (mean) {
            accumulator.add_mean(cross_entropy(logits, labels), count);
          } else {
            accumulator.add(cross_entropy(logits, labels, {.reduction = Reduction::sum}), count);
          }
          at += size;
        }
        const AccumulatedStep step = accumulator.step();
        CHECK(step.count == n);
        CHECK(step.micro_batches == static_cast<std::int64_t>(cut.size()));
        CHECK(largest_difference(whole, gradients(*p.model)) <= 1e-12);
      }
    }
  }
}

TEST_CASE("a window that ends early, or counts more than expected, still divides by its true count") {
  Problem p = problem(12, float64);
  optim::SGD optimizer(p.model->parameters(), {.lr = 0});
  cross_entropy((*p.model)(narrow(p.x, 0, 0, 5)), narrow(p.y, 0, 0, 5)).backward();
  const std::vector<Tensor> five = gradients(*p.model);
  for (const double expected : {12.0, 3.0}) {
    Accumulator accumulator(optimizer);
    accumulator.begin(expected);
    accumulator.add(cross_entropy((*p.model)(narrow(p.x, 0, 0, 3)), narrow(p.y, 0, 0, 3), {.reduction = Reduction::sum}), 3);
    accumulator.add_mean(cross_entropy((*p.model)(narrow(p.x, 0, 3, 2)), narrow(p.y, 0, 3, 2)), 2);
    CHECK(accumulator.step().count == 5);
    CHECK(largest_difference(five, gradients(*p.model)) <= 1e-12);
  }
  // The next window starts from nothing by itself.
  Accumulator accumulator(optimizer);
  for (int window = 0; window < 2; window++) {
    accumulator.add(cross_entropy((*p.model)(narrow(p.x, 0, 0, 5)), narrow(p.y, 0, 0, 5), {.reduction = Reduction::sum}), 5);
    accumulator.step();
    CHECK(largest_difference(five, gradients(*p.model)) <= 1e-12);
  }
}

TEST_CASE("tokens that are ignored and class weights keep their denominators") {
  // Logits [N, C, d]: d tokens a sample, a third of them ignored, classes weighted.
  manual_seed(2);
  Tensor scores = randn({6, 4, 5}, {.dtype = float64}).requires_grad_();
  std::vector<std::int64_t> labels;
  for (int i = 0; i < 30; i++) labels.push_back(i % 3 == 0 ? -100 : (i * i) % 4);
  const Tensor y = from_vector(labels, {6, 5});
  const Tensor weight = from_vector(std::vector<double>{1, 2, 0.5, 3}, {4});
  cross_entropy(scores, y, {.weight = weight}).backward();
  const Tensor whole = scores.grad().clone();
  optim::SGD optimizer({scores}, {.lr = 0});
  Accumulator accumulator(optimizer);
  for (const auto& [first, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 3}, {4, 2}}) {
    const Tensor part = narrow(y, 0, first, size);
    double count = 0;
    for (std::int64_t label : part.contiguous().to_vector<std::int64_t>())
      if (label >= 0) count += weight.to_vector<double>()[static_cast<std::size_t>(label)];
    accumulator.add(cross_entropy(narrow(scores, 0, first, size), part, {.weight = weight, .reduction = Reduction::sum}), count);
  }
  accumulator.step();
  CHECK(largest_difference({whole}, {scores.grad()}) <= 1e-12);
}

TEST_CASE("the accumulator clips what was divided, and refuses nonsense") {
  Problem p = problem(8, float64);
  optim::SGD optimizer(p.model->parameters(), {.lr = 0});
  Accumulator accumulator(optimizer);
  for (int i = 0; i < 2; i++)
    accumulator.add(cross_entropy((*p.model)(narrow(p.x, 0, i * 4, 4)), narrow(p.y, 0, i * 4, 4), {.reduction = Reduction::sum}), 4);
  const AccumulatedStep step = accumulator.step(0.01);
  REQUIRE(step.grad_norm);
  CHECK(step.clip_coefficient == doctest::Approx(0.01 / (*step.grad_norm + 1e-6)));
  double squares = 0;
  for (const Tensor& g : gradients(*p.model))
    for (double v : g.to_vector<double>()) squares += v * v;
  CHECK(std::sqrt(squares) == doctest::Approx(0.01).epsilon(1e-3));
  accumulator.begin();
  CHECK_THROWS_WITH_AS(accumulator.step(), doctest::Contains("count of 0 after 0 micro-batches"), ArgumentError);
  CHECK_THROWS_AS(accumulator.begin(-1), ArgumentError);
  CHECK_THROWS_AS(accumulator.begin(NAN), ArgumentError);
  const Tensor loss = cross_entropy((*p.model)(p.x), p.y);
  CHECK_THROWS_AS(accumulator.add(loss, -1), ArgumentError);
  CHECK_THROWS_AS(accumulator.add((*p.model)(p.x), 8), ShapeError);
}

TEST_CASE("weights are measured where they act") {
  Problem p = problem(6, float32);
  const LossWeights weights;
  mul(cross_entropy((*p.model)(p.x), p.y), 0.5).backward();
  REQUIRE(weights.rows().size() == 6);
  for (double w : weights.rows()) CHECK(w == doctest::Approx(0.5 / 6));
  {
    const LossWeights inner;
    cross_entropy((*p.model)(p.x), p.y, {.reduction = Reduction::sum}).backward();
    CHECK(inner.rows() == std::vector<double>(6, 1.0));
  }
  CHECK(weights.rows().size() == 6);  // the inner one took them
}

namespace {

data::Batch batch_of(const Problem& p, std::int64_t first, std::int64_t size) {
  data::Batch b;
  b.x = narrow(p.x, 0, first, size);
  b.y = narrow(p.y, 0, first, size);
  for (std::int64_t i = 0; i < size; i++) b.indices.push_back(first + i);
  return b;
}

data::Batch batch_of(const Problem& p, const Ids& ids) { return batch_of(p, ids.front(), static_cast<std::int64_t>(ids.size())); }

struct StateCopy {
  std::vector<Tensor> tensors;
  std::uint64_t generator;
  bool operator==(const StateCopy& o) const {
    if (tensors.size() != o.tensors.size() || generator != o.generator) return false;
    for (std::size_t i = 0; i < tensors.size(); i++)
      if (!same_bits(tensors[i], o.tensors[i])) return false;
    return true;
  }
};

// Every number that the next step depends on; copies live in a pool of their own.
StateCopy state_of(const nn::Module& model, const optim::Optimizer& optimizer, memory::Allocator& copies) {
  PoolScope scope(copies);
  StateCopy out;
  for (const auto& [name, tensor] : model.state_dict()) out.tensors.push_back(tensor.clone());
  for (const auto& [name, tensor] : optimizer.state_dict().tensors) out.tensors.push_back(tensor.clone());
  out.generator = default_generator().position();
  return out;
}

// Address and size of every live block.
std::vector<std::pair<const void*, std::uint64_t>> live_set(const memory::Allocator& pool) {
  std::vector<std::pair<const void*, std::uint64_t>> out;
  for (const memory::SegmentInfo& segment : pool.snapshot()) {
    std::uint64_t at = segment.address;
    for (const memory::BlockInfo& block : segment.blocks) {
      if (block.state == memory::BlockState::allocated) out.emplace_back(reinterpret_cast<const void*>(at), block.size);
      at += block.size;
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("a step that fails at any allocation leaves everything as it was, and a retry has the bits of a smaller micro-batch") {
  struct Case {
    const char *name, *precision;
    BatchNormMode mode = BatchNormMode::micro;
  };
  for (const auto& [name, precision, mode] : {Case{"mlp", "fp32"}, Case{"lenet-bn", "fp32"}, Case{"lenet-bn", "fp16"},
                                              Case{"lenet-bn", "fp32", BatchNormMode::exact}, Case{"lenet-bn", "fp16", BatchNormMode::exact}}) {
    const bool exact = mode == BatchNormMode::exact;
    CAPTURE(exact);
    CAPTURE(std::string(name));
    CAPTURE(std::string(precision));
    auto plan = std::make_shared<limpid_test::FailurePlan>();
    memory::Allocator pool(std::make_shared<memory::HostMemory>("cpu"), {}, limpid_test::failing(plan));
    memory::Allocator copies(std::make_shared<memory::HostMemory>("copies"));
    PoolScope scope(pool);
    Problem p = problem(8, float32, name, {1, 8, 8});
    p.model->train();
    optim::Adam optimizer(p.model->parameters(), {.lr = 0.01});
    auto load = [&](const Ids& ids, std::int64_t) { return batch_of(p, ids); };
    auto whole_step = [&](Step& step, std::int64_t number, std::int64_t micro) {
      step.begin(number, 8, data::micro_batch_sizes(8, micro));
      for (std::int64_t at = 0; at < 8; at += micro) step.add(batch_of(p, at, micro));
      return step.finish();
    };
    optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
    optim::GradScaler* scaled = std::string(precision) == "fp16" ? &scaler : nullptr;
    const auto scaler_start = [&] { return scaled ? scaler.state_dict() : std::map<std::string, double>(); };
    Step stopping(*p.model, optimizer, {.precision = precision, .clip = 1, .batch_norm = mode}, scaled);
    whole_step(stopping, 0, 4);
    optimizer.zero_grad();
    const StateCopy before = state_of(*p.model, optimizer, copies);
    const std::map<std::string, double> scaler_before = scaler_start();
    const auto live = live_set(pool);
    // What the step would give, with micro-batches of 4 and of 2.
    auto restore = [&] {
      std::size_t i = 0;
      for (auto& [key, tensor] : p.model->state_dict()) {
        Tensor t = tensor;
        NoGradGuard guard;
        raw::copy(t, before.tensors[i++]);
      }
      optim::OptimizerState state = optimizer.state_dict();
      for (auto& [key, tensor] : state.tensors) tensor = before.tensors[i++];
      optimizer.load_state_dict(state);
      optimizer.zero_grad();
      if (scaled) scaler.load_state_dict(scaler_before);
    };
    const std::int64_t begin = plan->requests;
    whole_step(stopping, 1, 4);
    const std::int64_t requests = plan->requests - begin;
    REQUIRE(requests > 20);
    const StateCopy by_four = state_of(*p.model, optimizer, copies);
    restore();
    whole_step(stopping, 1, 2);
    const StateCopy by_two = state_of(*p.model, optimizer, copies);
    restore();
    REQUIRE(state_of(*p.model, optimizer, copies) == before);
    std::int64_t undone = 0, retried = 0, unkept = 0;
    for (std::int64_t n = 0; n < requests; n++) {
      plan->fail_at = plan->requests + n;
      bool failed = false;
      try {
        whole_step(stopping, 1, 4);
      } catch (const memory::OutOfMemoryError&) {
        failed = true;
      }
      plan->fail_at = -1;
      REQUIRE(failed);
      CHECK(state_of(*p.model, optimizer, copies) == before);
      CHECK(live_set(pool) == live);
      CHECK(scaler_start() == scaler_before);
      undone++;
      // The same failure, with a retry.
      Step retrying(*p.model, optimizer, {.precision = precision, .clip = 1, .batch_norm = mode, .retry = true, .load = load}, scaled);
      plan->fail_at = plan->requests + n;
      StepOutcome outcome;
      try {
        outcome = whole_step(retrying, 1, 4);
      } catch (const memory::OutOfMemoryError&) {  // an input that exact batch norm had to keep: smaller pieces do not help
        REQUIRE(exact);
        CHECK(state_of(*p.model, optimizer, copies) == before);
        unkept++;
      }
      plan->fail_at = -1;
      if (outcome.samples == 0) continue;
      if (outcome.retries.empty()) {  // the constructor's own requests moved the count past the step's end
        CHECK(state_of(*p.model, optimizer, copies) == by_four);
      } else {
        retried++;
        CHECK(outcome.retries.size() == 1);
        CHECK(outcome.retries[0].micro_batch == 4);
        CHECK(outcome.retries[0].next_micro_batch == 2);
        CHECK(outcome.micro_batches.size() == 4);
        CHECK(outcome.samples == 8);
        CHECK(state_of(*p.model, optimizer, copies) == by_two);
      }
      restore();
    }
    CHECK(undone == requests);
    CHECK(unkept <= (exact ? 4 : 0));
    CHECK(retried + unkept >= requests - 4);
    MESSAGE(std::string(name) << " " << std::string(precision) << ": " << requests << " allocations a step, each failed once");
  }
}

TEST_CASE("a retry ends when one sample does not fit, and needs a way to load") {
  auto plan = std::make_shared<limpid_test::FailurePlan>();
  memory::Allocator pool(std::make_shared<memory::HostMemory>("cpu"), {}, limpid_test::failing(plan));
  PoolScope scope(pool);
  Problem p = problem(2, float32);
  optim::Adam optimizer(p.model->parameters(), {});
  CHECK_THROWS_WITH_AS(Step(*p.model, optimizer, {.retry = true}), doctest::Contains("options.load is empty"), ArgumentError);
  Step step(*p.model, optimizer, {.retry = true, .load = [&](const Ids& ids, std::int64_t) { return batch_of(p, ids); }});
  step.begin(0, 1);
  plan->fail_at = plan->requests;
  CHECK_THROWS_AS(step.add(batch_of(p, 0, 1)), memory::OutOfMemoryError);
  CHECK_THROWS_WITH_AS(step.finish(), doctest::Contains("the step has 1 samples, got 0"), ArgumentError);
  CHECK_THROWS_WITH_AS(step.add(batch_of(p, 0, 2)), doctest::Contains("2 samples after 0: the step has 1"), ArgumentError);
}

TEST_CASE("the planner's micro-batches fit, and one piece fewer does not") {
  // A small network under ten caps; every effective batch up to 256.
  PlanSettings plan;
  plan.run.train.model = "lenet";
  plan.run.train.input = {1, 16, 16};
  plan.run.train.classes = 10;
  plan.run.train.epochs = 1;
  plan.run.full_steps = 1;
  plan.run.train.workers = 0;
  plan.run.train.batch = 256;
  const Prediction largest = predict(plan);
  plan.run.train.batch = 1;
  const Prediction least = predict(plan);
  const std::uint64_t high = largest.run.memory.reserved;
  const std::uint64_t low = least.run.memory.reserved;
  REQUIRE(high > low);
  int nothing = 0, cut = 0;
  for (int c = 0; c < 10; c++) {
    plan.run.train.memory_cap = low + (high - low) * static_cast<std::uint64_t>(c) / 9;
    for (std::int64_t n = 1; n <= 256; n += c == 0 || c == 4 ? 1 : 7) {
      plan.run.train.batch = n;
      auto fits = [&](std::int64_t micro) {
        plan.run.train.micro_batch = micro;
        return predict(plan).fits;
      };
      const MicroBatchChoice choice = choose_micro_batch(n, fits);
      if (choice.micro_batch == 0) {
        nothing++;
        continue;
      }
      CHECK(std::accumulate(choice.sizes.begin(), choice.sizes.end(), std::int64_t{0}) == n);
      CHECK(fits(choice.micro_batch));
      const auto pieces = static_cast<std::int64_t>(choice.sizes.size());
      cut += pieces > 1;
      if (pieces > 1) CHECK_FALSE(fits((n + pieces - 2) / (pieces - 1)));
    }
  }
  CHECK(cut > 20);
  MESSAGE(cut << " effective batches were cut, " << nothing << " fit in no way");
  CHECK_THROWS_AS(choose_micro_batch(0, [](std::int64_t) { return true; }), ArgumentError);
  CHECK(choose_micro_batch(64, [](std::int64_t m) { return m <= 16; }, 32).micro_batch == 0);
  CHECK(choose_micro_batch(100, [](std::int64_t m) { return m <= 30; }).sizes == Ids{25, 25, 25, 25});
}
