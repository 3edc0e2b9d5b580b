// The planner: under a cap, which micro-batches? The fewest pieces that fit, found dry or by trial, batch norm's
// minimum respected, and the gradient that of the big batch. That every size up to 256 fits under ten caps:
// test_effective_batch.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include <limpid/memory/host_memory.h>
#include <limpid/memory/oom.h>
#include <limpid/nn/models/models.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/random.h>
#include <limpid/train/batch_norm_advice.h>
#include <limpid/train/equivalence.h>
#include <limpid/train/plan.h>
#include <limpid/train/rehearsal.h>

using namespace limpid;
using namespace limpid::train;

namespace {

PlanSettings plan_of(const char* model, std::int64_t batch) {
  PlanSettings plan;
  plan.run.train.model = model;
  plan.run.train.input = {1, 16, 16};
  plan.run.train.classes = 10;
  plan.run.train.epochs = 1;
  plan.run.train.workers = 0;
  plan.run.train.batch = batch;
  plan.run.full_steps = 1;
  return plan;
}

bool fits_dry(PlanSettings plan, std::int64_t micro) {
  plan.run.train.micro_batch = micro < plan.run.train.batch ? micro : 0;
  return predict(plan).fits;
}

// Caps from what one sample takes to what the whole batch takes.
std::vector<std::uint64_t> caps_of(const PlanSettings& plan, int count) {
  const std::uint64_t low = predict(plan, 1).run.memory.reserved, high = predict(plan).run.memory.reserved;
  std::vector<std::uint64_t> caps;
  for (int i = 0; i < count; i++)
    caps.push_back(low + (high - low) * static_cast<std::uint64_t>(i) / static_cast<std::uint64_t>(count - 1));
  return caps;
}

std::int64_t pieces_of(std::int64_t batch, std::int64_t micro) { return (batch + micro - 1) / micro; }

double proof(std::int64_t batch, const std::vector<std::int64_t>& sizes) {
  manual_seed(static_cast<std::uint64_t>(batch));
  EquivalenceProblem problem;
  problem.model = [] { return nn::make_model("lenet", {.input = {1, 8, 8}, .classes = 10, .seed = 3}); };
  problem.x = randn({batch, 1, 8, 8});
  problem.y = randint(0, 10, {batch});
  problem.micro_batches = sizes;
  problem.dtype = float64;
  return check_accumulation(problem).proof.relative;
}

}  // namespace

TEST_CASE("what model and loaders take together is told as a sum, not as an allocation") {
  memory::Allocator pool(std::make_shared<memory::HostMemory>("cpu")), io(std::make_shared<memory::HostMemory>("io"));
  memory::Block* const model = pool.allocate(64 << 20, memory::Role::param);
  try {
    apply_cap(16 << 20, pool, io.ledger());
    FAIL("it did not fit");
  } catch (const memory::OutOfMemoryError& error) {
    const std::string text = error.what(), report = memory::report(error.info());
    CAPTURE(text);
    CHECK(text.starts_with(
        "out of memory: the model and the loaders need 64.00 MiB together on cpu. Of 16.00 MiB capacity"));
    CHECK(report.find("bytes (64.00 MiB), all that the model and the loaders need; no single allocation\n") !=
          std::string::npos);
    CHECK(memory::to_json(error.info()).find("\"sum_of\":\"the model and the loaders\"") != std::string::npos);
  }
  pool.free(model);
}

TEST_CASE("no size that fits needs fewer pieces than the planner's") {
  for (std::int64_t batch : {61, 96}) {
    PlanSettings plan = plan_of("lenet", batch);
    std::int64_t cut = 0;
    for (std::uint64_t cap : caps_of(plan, 5)) {
      plan.run.train.memory_cap = cap;
      PlanSettings asked = plan;
      const FittingMicroBatch choice = choose_micro_batch(asked);
      std::int64_t fewest = 0;
      for (std::int64_t micro = 1; micro <= batch; micro++) {
        if (fits_dry(plan, micro) && (fewest == 0 || pieces_of(batch, micro) < fewest))
          fewest = pieces_of(batch, micro);
      }
      CAPTURE(cap);
      CHECK(static_cast<std::int64_t>(choice.sizes.size()) == fewest);
      if (fewest == 0) {
        CHECK(choice.micro_batch == 0);
        CHECK(choice.why);
        continue;
      }
      cut += fewest > 1;
      CHECK(std::accumulate(choice.sizes.begin(), choice.sizes.end(), std::int64_t{0}) == batch);
      CHECK(*std::max_element(choice.sizes.begin(), choice.sizes.end()) == choice.micro_batch);
      CHECK(asked.run.train.micro_batch == (fewest > 1 ? choice.micro_batch : 0));
      REQUIRE(choice.at);
      CHECK(choice.at->run.memory.reserved <= cap);
    }
    CHECK(cut >= 2);
  }
}

TEST_CASE("with batch norm no micro-batch is below its minimum as long as a larger one fits") {
  PlanSettings plan = plan_of("lenet-bn", 64);
  plan.run.train.fuse = false;  // more bytes a sample: a few samples differ by more than a segment
  std::int64_t below = 0, above = 0;
  std::vector<std::uint64_t> caps;  // what each of these takes, and so at least it fits
  for (std::int64_t micro : {2, 4, 8, 12, 16, 32}) {
    plan.run.train.micro_batch = micro;
    caps.push_back(predict(plan).run.memory.reserved);
  }
  for (std::uint64_t cap : caps) {
    plan.run.train.memory_cap = cap;
    bool larger = false;
    for (std::int64_t micro = kSmallBatchNorm; micro <= 64 && !larger; micro++) larger = fits_dry(plan, micro);
    PlanSettings asked = plan;
    const FittingMicroBatch choice = choose_micro_batch(asked);
    CAPTURE(cap);
    CHECK(choice.below_batch_norm == !larger);
    if (larger) {
      CHECK(choice.micro_batch >= kSmallBatchNorm);
      above++;
    } else if (choice.micro_batch > 0) {
      // Then 2 at least: a single sample has no variance.
      CHECK(choice.micro_batch >= 2);
      CHECK(choice.micro_batch < kSmallBatchNorm);
      below++;
    }
  }
  CHECK(above >= 1);
  CHECK(below >= 1);
}

TEST_CASE("by trial, without a dry run, the choice is the same") {
  PlanSettings plan = plan_of("lenet", 48);
  for (std::uint64_t cap : caps_of(plan, 4)) {
    plan.run.train.memory_cap = cap;
    PlanSettings asked = plan;
    const FittingMicroBatch dry = choose_micro_batch(asked);
    // Each candidate is trained for real; those that do not fit run out of memory.
    std::int64_t failed = 0;
    const MicroBatchChoice tried = choose_micro_batch(48, [&](std::int64_t micro) {
      PlanSettings live = plan;
      live.run.train.micro_batch = micro < 48 ? micro : 0;
      memory::io_allocator().empty_cache();
      const bool fits = measure(live).fits;
      failed += !fits;
      return fits;
    });
    CAPTURE(cap);
    CHECK(tried.sizes == dry.sizes);
    CHECK(tried.tried == dry.tried);
    CHECK(failed == tried.tried - (tried.micro_batch > 0));
  }
}

TEST_CASE("the planner's cuts compute the gradient of the big batch") {
  PlanSettings plan = plan_of("lenet", 50);
  for (std::uint64_t cap : caps_of(plan, 4)) {
    plan.run.train.memory_cap = cap;
    PlanSettings asked = plan;
    const FittingMicroBatch choice = choose_micro_batch(asked);
    if (choice.sizes.empty()) continue;
    CHECK(proof(50, choice.sizes) <= 1e-12);
  }
}

TEST_CASE(
    "long: every effective batch up to 256 under ten caps: the cut adds up, fits, and has the big batch's gradient") {
  const std::vector<std::uint64_t> caps = caps_of(plan_of("lenet", 256), 10);
  std::int64_t cut = 0, nothing = 0;
  double worst = 0;
  for (std::int64_t batch = 1; batch <= 256; batch++) {
    std::vector<std::vector<std::int64_t>> proven;  // the same cut is proven once
    for (std::uint64_t cap : caps) {
      PlanSettings plan = plan_of("lenet", batch);
      plan.run.train.memory_cap = cap;
      const FittingMicroBatch choice = choose_micro_batch(plan);
      if (choice.sizes.empty()) {
        nothing++;
        continue;
      }
      REQUIRE(std::accumulate(choice.sizes.begin(), choice.sizes.end(), std::int64_t{0}) == batch);
      REQUIRE(choice.at->run.memory.reserved <= cap);
      if (choice.sizes.size() == 1 || std::find(proven.begin(), proven.end(), choice.sizes) != proven.end()) continue;
      cut++;
      worst = std::max(worst, proof(batch, choice.sizes));
      proven.push_back(choice.sizes);
    }
  }
  CHECK(worst <= 1e-12);
  CHECK(cut > 256);
  MESSAGE(cut << " different cuts, largest relative difference " << worst << "; " << nothing << " fit in no way");
}
