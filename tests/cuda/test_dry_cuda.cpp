// dry:cuda against cuda:0: a rehearsal with the real kernel table on the fake runtime's lazy streams, and the same
// rehearsal dry record the same allocations, field by field. What a block that two streams used waits for may be done
// earlier there, so the fake GPU reserves what was predicted, or less.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <live_and_dry.h>
#include <limpid/cuda/cuda_memory.h>
#include <limpid/memory/policies.h>
#include <limpid/train/plan.h>

#include "both_devices.h"

using namespace limpid;
using namespace limpid::train;
using limpid_test::Recorded;
using limpid_test::text_of;
using tensor_test::kGpu;

namespace {

PlanSettings plan_of(const std::string& model, std::vector<std::int64_t> input, std::int64_t batch) {
  PlanSettings s;
  s.run.train.model = model;
  s.run.train.input = std::move(input);
  s.run.train.classes = 4;
  s.run.train.batch = batch;
  s.run.train.workers = 0;
  s.run.full_steps = 2;
  s.run.train.epochs = 1;
  s.device = kDryCuda;
  return s;
}

// What was asked for: segments depend on when a block is free again. Streams have numbers of their own on each device:
// the order in which they appear counts.
void keep_requests(std::vector<memory::TraceRecord>& trace) {
  std::erase_if(trace, [](const memory::TraceRecord& r) {
    return r.kind != memory::TraceKind::alloc && r.kind != memory::TraceKind::free;
  });
  std::map<decltype(trace[0].stream), decltype(trace[0].stream)> seen;
  for (memory::TraceRecord& r : trace) {
    r.stream = seen.try_emplace(r.stream, static_cast<decltype(r.stream)>(seen.size())).first->second;
  }
}

Recorded on_gpu(const PlanSettings& s, fake::Exec exec, RehearsalResult& result) {
  fake::reset({.exec = exec, .seed = 1, .protect = false, .fill = false});
  const fake::LaunchScope launches;
  memory::Allocator pool(std::make_shared<cu::CudaMemory>(0), s.allocator, s.policy);
  const PoolScope scope(pool, kGpu);
  return limpid_test::record(pool, memory::io_allocator(), [&](memory::Allocator& p, memory::Allocator& io) {
    result = rehearse(s.run, p, io, kGpu);
  });
}

Recorded dry_run(const PlanSettings& s, RehearsalResult& result) {
  dry::Run run({.settings = s.allocator, .policy = s.policy, .device = kDryCuda});
  const dry::Placeholder anything(0);
  return limpid_test::record(run.pool(), run.io_pool(), [&](memory::Allocator& p, memory::Allocator& io) {
    result = rehearse(s.run, p, io, kDryCuda);
  });
}

void check_predicted(const PlanSettings& s) {
  CAPTURE(s.run.train.model);
  CAPTURE(s.run.train.optimizer);
  CAPTURE(s.run.accumulate);
  CAPTURE(s.run.train.amp);
  RehearsalResult live, dry;
  Recorded gpu = on_gpu(s, fake::Exec::lazy, live), dried = dry_run(s, dry);
  keep_requests(gpu.trace);
  keep_requests(dried.trace);
  for (std::size_t i = 0; i < std::min(gpu.trace.size(), dried.trace.size()); i++) {
    const std::string on_gpu = text_of(gpu.trace[i]), dry_text = text_of(dried.trace[i]);
    if (on_gpu == dry_text) continue;
    FAIL_CHECK("request ", i, ": on the GPU ", on_gpu, ", dry ", dry_text);
    break;
  }
  CHECK(gpu.trace.size() == dried.trace.size());
  CHECK(!gpu.trace.empty());
  CHECK(live.memory.allocated == dry.memory.allocated);
  CHECK(live.memory.roles == dry.memory.roles);
  CHECK(live.live_peak == dry.live_peak);
  CHECK(live.memory.reserved <= dry.memory.reserved);
  CHECK(live.memory.io_pool == 0);  // the data set is in the host's memory
  REQUIRE(live.steps.size() == dry.steps.size());
  for (std::size_t i = 0; i < live.steps.size(); i++) CHECK(live.steps[i].allocated == dry.steps[i].allocated);
}

}  // namespace

TEST_CASE("predicted = live on a GPU: models, optimizers, accumulation, a short last batch and validation") {
  struct Case {
    const char *model, *optimizer;
    std::vector<std::int64_t> input;
    std::int64_t accumulate;
  };
  for (const Case& c : std::vector<Case>{{"mlp", "adam", {1, 6, 6}, 1},
                                         {"mlp", "lamb", {1, 6, 6}, 2},
                                         {"lenet-bn", "sgd", {1, 8, 8}, 2},
                                         {"lenet-bn", "adam", {1, 8, 8}, 1},
                                         {"seed", "lars", {3, 8, 8}, 1}}) {
    PlanSettings s = plan_of(c.model, c.input, 3);
    s.run.train.optimizer = c.optimizer;
    s.run.train.momentum = c.optimizer == std::string("sgd") ? 0.9 : 0;
    s.run.accumulate = c.accumulate;
    s.run.train.clip = 1;  // reads a norm
    s.run.samples = 2 * 3 * c.accumulate + 2;
    s.run.validation = 4;
    check_predicted(s);
  }
}

TEST_CASE("predicted = live on a GPU: mixed precision, and other policies") {
  PlanSettings s = plan_of("lenet-bn", {1, 8, 8}, 3);
  s.run.train.amp = "fp16";
  check_predicted(s);
  s.run.train.amp = "fp32";
  for (const char* policy : {"nosplit", "expandable", "bfc"}) {
    s.policy = memory::policy_named(policy);
    check_predicted(s);
  }
}

TEST_CASE("a GPU that is quicker than its host reserves no more than predicted") {
  const PlanSettings s = plan_of("lenet-bn", {1, 8, 8}, 4);
  RehearsalResult quick, dry;
  on_gpu(s, fake::Exec::eager, quick);
  dry_run(s, dry);
  CHECK(quick.memory.allocated <= dry.memory.allocated);
  CHECK(quick.memory.reserved <= dry.memory.reserved);
  CHECK(quick.memory.reserved > 0);
}

TEST_CASE("limpid plan's measurement runs on the GPU, under a capacity too") {
  PlanSettings s = plan_of("lenet-bn", {1, 8, 8}, 4);
  fake::reset({.seed = 2, .protect = false, .fill = false});
  const fake::LaunchScope launches;
  const Prediction p = predict(s), m = measure(s);
  REQUIRE(p.fits);
  REQUIRE(m.fits);
  CHECK(m.run.memory.allocated == p.run.memory.allocated);
  CHECK(m.run.memory.reserved <= p.run.memory.reserved);
  const MaxBatch best = max_batch(s, std::uint64_t{8} << 20);
  REQUIRE(best.batch > 0);
  s.run.train.batch = best.batch;
  s.run.train.memory_cap = std::uint64_t{8} << 20;
  CHECK(predict(s).fits);
  s.run.train.batch = best.batch + 1;
  CHECK(!predict(s).fits);
}
