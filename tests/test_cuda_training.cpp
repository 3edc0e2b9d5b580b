// Training on the fake GPU with the CPU's kernels on its streams (cudasim/fake_kernels.h): the host's part of training
// on a GPU. The numbers are those of the CPU, bit for bit, in every order that streams allow.
#include <cstdlib>
#include <functional>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/cuda/copies.h>
#include <limpid/cuda/error.h>
#include <limpid/data/loader.h>
#include <limpid/data/synthetic.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/lamb.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/raw.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/parts.h>
#include <limpid/train/trainer.h>

#include "cuda_test.h"
#include "cudasim/fake_kernels.h"
#include "temp_folder.h"

using namespace limpid;
using namespace cuda_test;

namespace {

std::shared_ptr<data::SyntheticDataset> small_images() {
  return std::make_shared<data::SyntheticDataset>(
      data::SyntheticOptions{.size = 32, .channels = 1, .height = 12, .width = 12, .classes = 4});
}

using Numbers = std::vector<std::vector<double>>;
template <class Optimizer>
Numbers trained(Device device, bool pinned, int steps, const std::function<void(int)>& before_step = {}) {
  manual_seed(3);
  const auto dataset = small_images();
  auto model = nn::make_model("lenet-bn", {.input = {1, 12, 12}, .classes = 4});
  model->to(device);
  Optimizer optimizer(model->parameters(), {.lr = 1e-3});
  data::DataLoader loader(dataset,
                          {.batch_size = 8, .shuffle = true, .num_workers = 2, .pin_memory = pinned, .seed = 5});
  std::vector<Tensor> losses;
  int step = 0;
  while (step < steps) {
    for (data::Batch& batch : loader) {
      if (step == steps) break;
      if (before_step) before_step(step);
      begin_micro_batch(static_cast<std::uint64_t>(step), 0);
      Tensor x = batch.x, y = batch.y;
      if (device != kCpu) x = cu::upload(x, device.index), y = cu::upload(y, device.index);
      batch.x = batch.y = Tensor();
      Tensor loss = cross_entropy((*model)(x), y);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.detach());
      step++;
    }
  }
  Numbers out;
  for (const Tensor& loss : losses) out.push_back(loss.to_vector<double>());
  const nn::StateDict state = model->state_dict();
  for (const std::pair<const std::string, Tensor>& entry : state) out.push_back(entry.second.to_vector<double>());
  return out;
}

}  // namespace

TEST_CASE("a GPU with kernels is where the commands compute") {
  fake::reset({});
  CHECK(computes(kGpu));
  CHECK(best_device() == kGpu);
  CHECK(&kernels_for(kGpu) == cuda_backend().kernels());
}

TEST_CASE("operations on a GPU: the CPU's values, faults of a kernel, operands on two devices") {
  fake::reset({});
  const Tensor a = from_vector<float>({1, 2, 3, 4, 5, 6}, {2, 3}).to(kGpu), b = ones({3, 2}, {.device = kGpu});
  CHECK(matmul(a, b).to_vector<float>() == std::vector<float>{6, 6, 15, 15});
  CHECK((a + 1).sum().item() == 27);
  CHECK(a.t().to(kCpu).to_vector<float>() == std::vector<float>{1, 4, 2, 5, 3, 6});  // packed on the GPU first
  CHECK(randn({50}, {.device = kGpu}).to_vector<float>().size() == 50);
  CHECK_THROWS_AS(a + ones({2, 3}), DeviceError);
  Tensor target = zeros({2, 3});
  raw::copy(target, a);  // copy_() goes over devices
  CHECK(target.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  {
    NoGradGuard guard;
    Tensor out = index_select(a, 0, from_vector<std::int64_t>({7}, {1}).to(kGpu));
    CHECK_THROWS_AS(out.to(kCpu), cu::CudaError);
  }
  fake::reset({});
  CHECK(ones({2}, {.device = kGpu}).sum().item() == 2);
}

TEST_CASE("training: the bits of the CPU in every order of the streams, with the loader's batches uploaded beside it") {
  const Numbers on_cpu = trained<optim::Adam>(kCpu, false, 6);
  for (fake::Exec exec : {fake::Exec::eager, fake::Exec::lazy}) {
    for (std::uint64_t seed = 1; seed <= 3; seed++) {
      INFO("seed " << seed);
      fake::reset({.exec = exec, .seed = seed, .protect = seed == 1});
      CHECK(trained<optim::Adam>(kGpu, true, 6) == on_cpu);
    }
  }
  CHECK(trained<optim::Lamb>(kGpu, true, 2) == trained<optim::Lamb>(kCpu, false, 2));
  CHECK(fake::kernels_queued() > 500);
}

TEST_CASE("the trainer on a GPU: the CPU's losses and checkpoints, a resumed run, an evaluation") {
  const limpid_test::TempFolder folder;
  const auto run = [&](const std::string& device, const std::string& out, std::int64_t epochs, train::Start start) {
    train::TrainSettings s;
    s.data = "synthetic";
    s.input = {1, 12, 12};
    s.classes = 4;
    s.limit = 96;
    s.val_fraction = 0.25;
    s.model = "lenet-bn";
    s.batch = 16;
    s.micro_batch = 8;
    s.epochs = epochs;
    s.seed = 4;
    s.device = device;
    s.out = folder / out;
    train::TrainParts parts = train::make_parts(s, {});
    train::Trainer trainer(s, std::move(parts), start);
    return trainer.run();
  };
  fake::reset({.seed = 2, .protect = false});
  const train::TrainResult cpu = run("cpu", "cpu", 2, train::Start::fresh);
  run("cuda:0", "gpu", 1, train::Start::fresh);
  const train::TrainResult gpu = run("cuda:0", "gpu", 2, train::Start::resume);
  CHECK(gpu.train_loss == cpu.train_loss);
  CHECK(gpu.validation->loss == cpu.validation->loss);
  CHECK(gpu.memory.role(memory::Role::param) == cpu.memory.role(memory::Role::param));
  const train::Checkpoint a = train::open_checkpoint(folder / "cpu", false),
                          b = train::open_checkpoint(folder / "gpu", false);
  for (const auto& [name, tensor] : a.model) CHECK(b.model.at(name).to_vector<double>() == tensor.to_vector<double>());
}

TEST_CASE("a steady step allocates nothing from the driver, does not wait and does not read the GPU") {
  fake::reset({});
  std::size_t from = 0;
  std::vector<std::string> offences{"never asked"};
  trained<optim::Adam>(kGpu, true, 8, [&](int step) {
    if (step == 3) from = fake::trace().size();
    if (step == 7) offences = fake::step_offences(from);
  });
  // The loader waits for the copies out of its ring before it fills a buffer again: an event of the past, on the host.
  std::erase(offences, "cudaEventSynchronize");
  CHECK(offences == std::vector<std::string>{});
}

TEST_CASE(
    "the n-th call of a training step fails, for one n of 37: an error, then the same training works, balanced books") {
  fake::reset({.protect = false, .fill = false});
  const Numbers right = trained<optim::Adam>(kCpu, false, 2);
  for (int status : {2, 999}) {
    const int failed =
        fail_each_call(status, 5, 37, 1, [] { trained<optim::Adam>(kGpu, true, 2); }, [] {});
    CHECK(failed > 5);
    CHECK(trained<optim::Adam>(kGpu, true, 2) == right);
  }
}
