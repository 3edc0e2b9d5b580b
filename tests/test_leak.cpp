// The live set at step boundaries: a loop that keeps graphs is caught after step 3, sound loops never.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/node.h>
#include <limpid/memory/leak.h>
#include <limpid/memory/simulated_memory.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/random.h>

#include "trace_test.h"

using namespace limpid_test;

namespace {

// One optimizer step on random data of `batch` samples; the loss, with its graph.
Tensor step(nn::Module& model, optim::Optimizer& optimizer, std::int64_t batch) {
  optimizer.zero_grad();
  PhaseScope phase(Phase::forward);
  const Tensor loss = cross_entropy(model(randn({batch, 1, 28, 28})), zeros({batch}, {.dtype = int64}));
  loss.backward();
  optimizer.step();
  return loss;
}

}  // namespace

TEST_CASE("total_loss += loss is caught after step 3, with tensor, site and bytes a step") {
  auto model = nn::make_model("mlp", {.input = {1, 28, 28}, .classes = 10});
  optim::Adam optimizer(model->parameters(), {});
  LeakCheck leaks(host_allocator(), live_graph());
  Tensor total = zeros({});
  std::optional<LeakReport> report;
  for (int i = 0; i < 3; i++) {
    CHECK_FALSE(report);  // not after steps 1 and 2
    total = total + step(*model, optimizer, 8);
    report = leaks.step_done();
  }
  REQUIRE(report);
  CHECK(report->step == 3);
  // After backward() a loss keeps no tensors, but its whole graph: one node an operation.
  CHECK(report->graph_bytes_per_step > 0);
  std::uint64_t loss = 0, linear = 0, add = 0;
  for (const LeakSite& s : report->sites) {
    CHECK(s.graph);
    if (s.op == "cross_entropy") loss = s.blocks;
    if (s.op == "linear") linear = s.blocks;
    if (s.op == "add") add = s.blocks;
  }
  CHECK(loss == 1);
  CHECK(linear == 2);
  CHECK(add == 1);
  const std::string text = to_string(*report);
  CHECK(text.find("after step 3") != std::string::npos);
  CHECK(nlohmann::json::parse(to_json(*report))["sites"].size() == report->sites.size());
  // Each site is reported once, although it goes on growing.
  total = total + step(*model, optimizer, 8);
  CHECK_FALSE(leaks.step_done());
}

TEST_CASE("total_loss += loss without a backward keeps every activation too") {
  auto model = nn::make_model("mlp", {.input = {1, 28, 28}, .classes = 10});
  model->name_tree();
  LeakCheck leaks(host_allocator(), live_graph());
  Tensor total = zeros({});
  std::optional<LeakReport> report;
  for (int i = 0; i < 3; i++) {
    total = total + cross_entropy((*model)(randn({8, 1, 28, 28})), zeros({8}, {.dtype = int64}));
    report = leaks.step_done();
  }
  REQUIRE(report);
  CHECK(report->bytes_per_step >= 8 * 28 * 28 * 4);  // the input is among what is kept
  bool layer = false;
  for (const LeakSite& s : report->sites) layer |= !s.graph && !s.layer.empty();
  CHECK_MESSAGE(layer, to_string(*report));
}

TEST_CASE("activations that are kept are caught with their layer and their true bytes") {
  auto model = nn::make_model("lenet", {.input = {1, 28, 28}, .classes = 10});
  model->name_tree();
  optim::SGD optimizer(model->parameters(), {.lr = 0.01});
  LeakCheck leaks(host_allocator(), live_graph());
  std::vector<Tensor> kept;
  std::optional<LeakReport> report;
  for (int i = 0; i < 3; i++) {
    kept.push_back((*model)(randn({4, 1, 28, 28})));  // a forward pass whose graph is never used
    step(*model, optimizer, 4);
    report = leaks.step_done();
  }
  REQUIRE(report);
  // What three forward passes keep, measured on the allocator itself.
  const std::uint64_t with = host_allocator().ledger().live_total;
  kept.pop_back();
  CHECK(report->bytes_per_step == with - host_allocator().ledger().live_total);
  bool layer = false;
  for (const LeakSite& s : report->sites) layer |= !s.layer.empty();
  CHECK(layer);
}

TEST_CASE("1,000 clean steps give no alarm: short batches, evaluation, things made once") {
  auto model = nn::make_model("mlp", {.input = {1, 28, 28}, .classes = 10});
  optim::Adam optimizer(model->parameters(), {});
  LeakCheck leaks(host_allocator(), live_graph());
  std::vector<Tensor> made_once;
  Tensor last;
  for (int i = 0; i < 1000; i++) {
    last = step(*model, optimizer, i % 10 == 9 ? 3 : 8);
    if (i % 50 == 0) {
      NoGradGuard no_grad;
      (*model)(randn({16, 1, 28, 28}));
    }
    if (i == 100 || i == 300) made_once.push_back(randn({1000}));
    CHECK_FALSE(leaks.step_done());
  }
  CHECK(leaks.steps() == 1000);
}

TEST_CASE("only live memory counts: the io pool's blocks and freed blocks do not") {
  Allocator pool(std::make_shared<SimulatedMemory>(1000 * kMiB));
  LeakCheck leaks(pool);
  std::vector<Block*> io;
  for (int i = 0; i < 10; i++) {
    io.push_back(pool.allocate(1000, Role::io));
    pool.free(pool.allocate(5000, Role::activation));
    CHECK_FALSE(leaks.step_done());
  }
  // A leak that begins later is seen after two steps.
  pool.allocate(700, Role::saved, intern("late"));
  CHECK_FALSE(leaks.step_done());
  pool.allocate(700, Role::saved, intern("late"));
  const auto report = leaks.step_done();
  REQUIRE(report);
  REQUIRE(report->sites.size() == 1);
  CHECK(report->sites[0].name == "late");
  CHECK(report->sites[0].bytes_per_step == 700);
}
