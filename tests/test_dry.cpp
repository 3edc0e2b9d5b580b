// The dry device: no bytes, no numbers, the CPU's allocations event for event.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <vector>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/scope.h>
#include <limpid/data/loader.h>
#include <limpid/memory/host_memory.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/clip_grad.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/fused_kernels.h>
#include <limpid/tensor/kernels.h>
#include <limpid/tensor/raw.h>

#include "live_and_dry.h"

using namespace limpid;
using limpid_test::same_on_both;

TEST_CASE("devices are spelled dry:cpu and dry:cuda") {
  for (Device device : {kDryCpu, kDryCuda}) CHECK(parse_device(to_string(device)) == device);
  CHECK(to_string(kDryCpu) == "dry:cpu");
  CHECK(to_string(kDryCuda) == "dry:cuda");
  CHECK_THROWS_AS(parse_device("dry"), ArgumentError);
}

TEST_CASE("a device scope decides where unnamed tensors live, and ends") {
  CHECK(zeros({2}).device() == kCpu);
  {
    DeviceScope scope(kDryCpu);
    CHECK(zeros({2}).device() == kDryCpu);
    CHECK(from_vector<float>({1, 2}, {2}).device() == kDryCpu);
    CHECK(zeros({2}, {.device = kCpu}).device() == kCpu);
    DeviceScope inner(kCpu);
    CHECK(randn({2}).device() == kCpu);
  }
  CHECK(zeros({2}).device() == kCpu);
}

TEST_CASE("the dry table keeps the plan functions and replaces every other entry") {
  constexpr std::size_t kEntries = sizeof(Kernels) / sizeof(void*);
  const void *dry[kEntries], *cpu[kEntries];
  std::memcpy(dry, &dry_kernels(), sizeof dry);
  std::memcpy(cpu, &cpu_kernels(), sizeof cpu);
  std::size_t same = 0;
  for (std::size_t i = 0; i < kEntries; i++) {
    CHECK(dry[i] != nullptr);
    same += dry[i] == cpu[i];
  }
  CHECK(same == 3);
  CHECK((dry_kernels().plan_matmul == cpu_kernels().plan_matmul));
  CHECK((dry_kernels().plan_conv2d == cpu_kernels().plan_conv2d));
  CHECK((dry_kernels().plan_batch_norm == cpu_kernels().plan_batch_norm));
  CHECK(std::string(dry_kernels().device) == "dry:cpu");
}

TEST_CASE("so does the dry table of fused kernels") {
  constexpr std::size_t kEntries = sizeof(FusedKernels) / sizeof(void*);
  const void *dry[kEntries], *cpu[kEntries];
  std::memcpy(dry, &dry_fused_kernels(), sizeof dry);
  std::memcpy(cpu, &cpu_fused_kernels(), sizeof cpu);
  std::size_t same = 0;
  for (std::size_t i = 0; i < kEntries; i++) {
    CHECK(dry[i] != nullptr);
    same += dry[i] == cpu[i];
  }
  CHECK(same == 2);
  CHECK((dry_fused_kernels().plan_conv2d_tail_weight == cpu_fused_kernels().plan_conv2d_tail_weight));
  CHECK((dry_fused_kernels().plan_conv2d_tail == cpu_fused_kernels().plan_conv2d_tail));
  CHECK((fused_kernels_for(kDryCpu) == &dry_fused_kernels()));
}

TEST_CASE("reading a dry tensor throws, unless a placeholder was declared") {
  dry::Run run;
  Tensor x = ones({}), y = ones({2, 3});
  CHECK_THROWS_WITH_AS(x.item(),
                       "[item] f32[] dry:cpu has no value: nothing was computed; declare a dry::Placeholder for what "
                       "the code is to read",
                       DeviceError);
  CHECK_THROWS_AS(y.to_vector<float>(), DeviceError);
  CHECK_THROWS_AS(y.to(kCpu), DeviceError);
  CHECK_THROWS_AS(y.data<float>(), DeviceError);
  CHECK_THROWS_AS(y.mutable_data<float>(), DeviceError);
  CHECK_THROWS_AS(y.storage()->data(), DeviceError);
  CHECK_THROWS_AS(x.to_vector<double>(), DeviceError);
  {
    dry::Placeholder loss(2.5);
    CHECK(x.item() == 2.5);
    CHECK(x.item_int() == 2);
    CHECK(y.to_vector<float>() == std::vector<float>(6, 2.5f));
    CHECK(y.to(kCpu).data<float>()[5] == 2.5f);
    dry::Placeholder inner(1);
    CHECK(x.item() == 1);
  }
  CHECK_THROWS_AS(x.item(), DeviceError);
  // Shape errors come first, as on a real device.
  dry::Placeholder any(0);
  CHECK_THROWS_AS(y.item(), ShapeError);
}

TEST_CASE("real tensors move to a dry device and devices do not mix") {
  Tensor x = ones({2, 3});
  dry::Run run;
  Tensor moved = x.to(kDryCpu);
  CHECK(moved.device() == kDryCpu);
  CHECK(moved.shape() == x.shape());
  CHECK(run.pool().ledger().live_total == 24);
  CHECK_THROWS_AS(add(x, moved), DeviceError);
  CHECK_THROWS_AS(x.to(Device{DeviceType::cuda, 0}), DeviceError);
}

TEST_CASE("a run has its own pool, capacity and policy; runs nest; tensors may outlive their run") {
  Tensor survivor;
  {
    dry::Run run({.capacity = std::uint64_t{64} << 20});
    survivor = zeros({1000});
    CHECK(run.pool().ledger().live_total == 4000);
    CHECK(run.pool().ledger().capacity == std::uint64_t{64} << 20);
    {
      dry::Run inner;
      Tensor y = zeros({10});
      CHECK(inner.pool().ledger().live_total == 40);
      CHECK(run.pool().ledger().live_total == 4000);
    }
    CHECK_THROWS_AS(zeros({32 << 20}), memory::OutOfMemoryError);
    CHECK(zeros({1 << 20}).numel() == 1 << 20);
  }
  CHECK(default_device() == kCpu);
  CHECK(survivor.numel() == 1000);
  survivor = Tensor();                             // frees into the pool that was kept for it
  Tensor loose = zeros({8}, {.device = kDryCpu});  // without a run: the process's own dry pool
  CHECK(dry::pool().ledger().live_total >= 32);
}

TEST_CASE("an enclosing pool scope does not catch the tensors of a dry run") {
  memory::Allocator live(std::make_shared<memory::HostMemory>("cpu"));
  PoolScope scope(live);
  dry::Run run;
  Tensor x = zeros({100});
  CHECK(live.ledger().live_total == 0);
  CHECK(run.pool().ledger().live_total == 400);
  Tensor real = zeros({100}, {.device = kCpu});
  CHECK(live.ledger().live_total == 400);
}

TEST_CASE("an overwritten saved tensor is noticed dry as it is live") {
  dry::Run run;
  Tensor x = ones({3});
  x.requires_grad_();
  Tensor a = mul(x, 2.0), b = square(a);
  {
    NoGradGuard guard;
    a.detach().fill_(1);
  }
  CHECK_THROWS_AS(b.backward(ones({3})), AutogradError);
}

TEST_CASE("loaders hand out dry batches and make no example") {
  struct Untouchable final : data::Dataset {
    std::int64_t size() const override { return 10; }
    data::Example get(std::int64_t) const override { throw std::runtime_error("read"); }
    data::ExampleSpec spec() const override { return {{1, 4, 4}, float32, {}, int64}; }
  };
  dry::Run run;
  data::DataLoader loader(std::make_shared<Untouchable>(), {.batch_size = 4, .shuffle = true, .num_workers = 2});
  std::vector<std::int64_t> sizes;
  for (const data::Batch& batch : loader) {
    CHECK(batch.x.device() == kDryCpu);
    sizes.push_back(batch.size());
  }
  CHECK(sizes == std::vector<std::int64_t>{4, 4, 2});
  CHECK(run.io_pool().ledger().role(memory::Role::io) == loader.ring_bytes());
  CHECK(run.pool().ledger().live_total == 0);
  data::LoaderOptions collating{.batch_size = 4, .collate = data::stack_examples};
  CHECK_THROWS_AS(data::DataLoader(std::make_shared<Untouchable>(), collating), DeviceError);
}

TEST_CASE("every model's construction and steps leave the CPU's trace, record for record") {
  struct Case {
    const char* model;
    Shape input;
  };
  for (const Case& c : {Case{"mlp", {1, 28, 28}},
                        {"seed", {3, 20, 20}},
                        {"lenet", {1, 12, 12}},
                        {"lenet-bn", {1, 12, 12}},
                        {"resnet9", {3, 16, 16}},
                        {"resnet20", {3, 8, 8}},
                        {"resnet18", {3, 8, 8}},
                        {"resnet50", {3, 32, 32}}}) {
    CAPTURE(c.model);
    same_on_both([&](auto&, auto&) {
      auto model = nn::make_model(c.model, {.input = c.input, .classes = 10});
      optim::AdamW optimizer(model->parameters());
      Shape shape = c.input;
      shape.insert(0, 3);
      for (std::uint32_t step = 0; step < 2; step++) {
        set_step(step);
        optimizer.zero_grad();
        Tensor x = rand(shape, {.role = memory::Role::io});
        Tensor y = randint(0, 10, {3});
        Tensor loss;
        {
          PhaseScope phase(Phase::forward);
          loss = cross_entropy((*model)(x), y, {.label_smoothing = 0.1});
        }
        loss.backward();
        optim::clip_grad_norm_(model->parameters(), 1.0);
        optimizer.step();
      }
      model->eval();
      NoGradGuard guard;
      PhaseScope phase(Phase::eval);
      argmax((*model)(rand(shape)), 1);
    });
  }
}

TEST_CASE("a step that runs out of memory and is repeated in halves leaves the CPU's trace") {
  const std::uint64_t capacity = std::uint64_t{72} << 20;
  std::vector<std::string> messages;
  same_on_both(
      [&](auto&, auto&) {
        auto model = nn::make_model("seed", {.input = {3, 64, 64}, .classes = 10});
        optim::Adam optimizer(model->parameters());
        auto step = [&](std::int64_t batch) {
          optimizer.zero_grad();
          Tensor x = zeros({batch, 3, 64, 64}, {.role = memory::Role::io});
          Tensor y = zeros({batch}, {.dtype = int64, .role = memory::Role::io});
          cross_entropy((*model)(x), y).backward();
          optimizer.step();
        };
        step(8);
        try {
          step(32);
          FAIL("32 samples fit");
        } catch (const memory::OutOfMemoryError& error) {
          messages.push_back(
              concat(error.info().requested, " ", error.info().reserved, " ", error.info().largest_free));
        }
        for (int i = 0; i < 2; i++) step(16);
      },
      {.capacity = capacity});
  REQUIRE(messages.size() == 2);
  CHECK(messages[0] == messages[1]);
}
