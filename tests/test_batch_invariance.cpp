// The batch-invariant mode: with a quantum, neither the cut of a batch nor the number of threads changes a bit.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <limpid/data/sampler.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/oom.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/raw.h>
#include <limpid/train/batch_invariance.h>
#include <limpid/train/settings.h>

#include "failing_policy.h"

using namespace limpid;
using namespace limpid::train;
using Ids = std::vector<std::int64_t>;

namespace {

InvarianceProblem problem(const char* model, std::int64_t quantum, Shape input = {3, 12, 12}) {
  Generator g(9);
  InvarianceProblem p;
  p.model = [model, input] { return nn::make_model(model, {.input = input, .classes = 7, .seed = 3}); };
  Shape shape = input;
  shape.insert(0, 64);
  p.x = randn(shape, {}, g);
  p.y = randint(0, 7, {64}, {.dtype = int64}, g);
  p.micro_batches = {64, 32, 16, 8};
  p.step.quantum = quantum;
  return p;
}

data::Batch batch_of(const InvarianceProblem& p, std::int64_t first, std::int64_t size) {
  data::Batch b;
  b.x = raw::narrow(p.x, 0, first, size);
  b.y = raw::narrow(p.y, 0, first, size);
  b.indices.resize(static_cast<std::size_t>(size));
  return b;
}

}  // namespace

TEST_CASE("gradients and weights after 10 Adam steps have the same bytes for 1x64, 2x32, 4x16, 8x8 and 1 or 2 threads") {
  for (const char* model : {"lenet", "lenet-bn"}) {
    const InvarianceReport r = check_batch_invariance(problem(model, 8));
    INFO(to_string(r));
    REQUIRE(r.rows.size() == 8);
    CHECK(r.equal);
    for (const InvarianceRow& row : r.rows) CHECK(row.weights == r.rows[0].weights);
  }
  // What it is good for: without the quantum the cuts differ. (The number of threads still does not matter.)
  InvarianceProblem plain = problem("lenet", 0);
  const InvarianceReport r = check_batch_invariance(plain);
  INFO(to_string(r));
  CHECK_FALSE(r.equal);
  for (std::size_t i = 0; i < 4; i++) {
    CHECK(r.rows[i].weights == r.rows[i + 4].weights);
    CHECK(r.rows[i].equal == (i == 0));
  }
}

TEST_CASE("batch-invariant under exact and frozen batch norm, clipping and bf16") {
  for (BatchNormMode mode : {BatchNormMode::exact, BatchNormMode::frozen}) {
    InvarianceProblem p = problem("lenet-bn", 8, {1, 8, 8});
    p.step.batch_norm = mode;
    p.step.clip = 0.1;
    p.step.precision = mode == BatchNormMode::frozen ? "bf16" : "fp32";
    p.steps = 3;
    const InvarianceReport r = check_batch_invariance(p);
    INFO(to_string(r));
    CHECK(r.equal);
  }
}

TEST_CASE("batches are cut at multiples of the quantum, the short end last") {
  CHECK(data::micro_batch_sizes(100, 32, 8) == Ids{32, 24, 24, 20});
  CHECK(data::micro_batch_sizes(29, 16, 8) == Ids{16, 13});
  CHECK(data::micro_batch_sizes(5, 8, 8) == Ids{5});
  CHECK(data::micro_batch_sizes(64, 16, 8) == Ids{16, 16, 16, 16});
  for (std::int64_t samples = 1; samples <= 70; samples++) {
    for (std::int64_t micro : {4, 8, 12, 20}) {
      const Ids sizes = data::micro_batch_sizes(samples, micro, 4);
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < sizes.size(); i++) {
        CHECK(sizes[i] >= 1);
        CHECK(sizes[i] <= micro);
        if (i + 1 < sizes.size()) CHECK(sizes[i] % 4 == 0);
        sum += sizes[i];
      }
      CHECK(sum == samples);
      CHECK(static_cast<std::int64_t>(sizes.size()) == (samples + micro - 1) / micro);
    }
  }
  CHECK_THROWS_WITH_AS(data::micro_batch_sizes(64, 12, 8),
                       "[micro_batch_sizes] micro-batches of 12 are no multiple of the quantum 8", ArgumentError);
  CHECK_THROWS_AS(data::micro_batch_sizes(64, 16, 0), ArgumentError);
}

TEST_CASE("the step refuses what is off the quantum, and no retry goes below it") {
  auto plan = std::make_shared<limpid_test::FailurePlan>();
  memory::Allocator pool(std::make_shared<memory::HostMemory>("cpu"), {}, limpid_test::failing(plan));
  PoolScope scope(pool);
  const InvarianceProblem p = problem("mlp", 8);
  const auto model = p.model();
  optim::SGD optimizer(model->parameters(), {.lr = 0.1});
  Step step(*model, optimizer, {.quantum = 8, .retry = true, .load = [&](const Ids&, std::int64_t) { return batch_of(p, 0, 1); }});
  step.begin(0, 64);
  step.add(batch_of(p, 0, 16));
  step.add(batch_of(p, 16, 12));
  CHECK_THROWS_WITH_AS(step.add(batch_of(p, 28, 8)), "[step] a batch after 28 samples, which are no multiple of the quantum 8",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(step.set_micro_batch_limit(4), "[step] pieces have the quantum 8 and cannot be limited to 4", ArgumentError);
  CHECK_THROWS_AS(Step(*model, optimizer, {.quantum = -1}), ArgumentError);
  // A short end is fine: its piece is short in every cut.
  step.begin(1, 20);
  step.add(batch_of(p, 0, 20));
  const StepOutcome outcome = step.finish();
  REQUIRE(outcome.micro_batches.size() == 3);
  CHECK(outcome.micro_batches[2].samples == 4);
  // Out of memory: the step is taken back and stops; pieces of 4 would give other bits.
  step.begin(2, 64);
  plan->fail_at = plan->requests + 5;
  CHECK_THROWS_AS(step.add(batch_of(p, 0, 64)), memory::OutOfMemoryError);
  CHECK(step.micro_batch_limit() == 0);
}

TEST_CASE("settings: the quantum divides the micro-batch, and excludes retries") {
  TrainSettings s;
  s.batch = 64;
  s.micro_batch = 16;
  s.quantum = 8;
  check(s);
  CHECK(micro_batches_of(s, 64) == Ids{16, 16, 16, 16});
  CHECK(evaluation_batch(s) == 8);
  s.quantum = 12;
  CHECK_THROWS_WITH_AS(check(s), "[train] the quantum 12 does not divide the micro-batch, 16", ArgumentError);
  s.micro_batch = 0;
  check(s);
  CHECK(micro_batches_of(s, 64) == Ids{64});
  s.quantum = 65;
  CHECK_THROWS_AS(check(s), ArgumentError);
  s.quantum = -1;
  CHECK_THROWS_AS(check(s), ArgumentError);
  s.quantum = 8;
  s.on_oom = "retry";
  CHECK_THROWS_WITH_AS(check(s), doctest::Contains("the quantum 8 fixes their size"), ArgumentError);
}

TEST_CASE("invariance: what cannot be compared is an error") {
  const InvarianceProblem good = problem("mlp", 8);
  auto with = [&](auto change) {
    InvarianceProblem p = good;
    change(p);
    return p;
  };
  CHECK_THROWS_WITH_AS(check_batch_invariance(with([](auto& p) { p.micro_batches = {64, 12}; })),
                       "[invariance] a micro-batch of 12 is no multiple of the quantum 8", ArgumentError);
  CHECK_THROWS_AS(check_batch_invariance(with([](auto& p) { p.micro_batches = {65}; })), ArgumentError);
  CHECK_THROWS_AS(check_batch_invariance(with([](auto& p) { p.threads = {0}; })), ArgumentError);
  CHECK_THROWS_AS(check_batch_invariance(with([](auto& p) { p.steps = 0; })), ArgumentError);
  CHECK_THROWS_AS(check_batch_invariance(with([](auto& p) { p.y = Tensor(); })), ShapeError);
  const auto json = nlohmann::json::parse(to_json(check_batch_invariance(with([](auto& p) { p.steps = 1, p.threads = {1}; }))));
  CHECK(json["equal"] == true);
  CHECK(json["rows"].size() == 4);
  CHECK(json["rows"][1]["micro_batch"] == 32);
}
