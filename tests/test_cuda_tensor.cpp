// Tensors between the host and (fake) GPUs: values, layouts, what waits and what does not, pinned memory and its reuse.
#include <cstring>

#include <limpid/autograd/functions.h>
#include <limpid/cuda/copies.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/data/loader.h>
#include <limpid/data/synthetic.h>
#include <limpid/nn/linear.h>
#include <limpid/tensor/backend.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

#include "cuda_test.h"

using namespace limpid;
using namespace cuda_test;

namespace {

const bool kTwoDevices = (fake::reset({.devices = 2}), true);
constexpr Device kSecond{DeviceType::cuda, 1};

std::vector<float> numbers(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); i++) v[i] = static_cast<float>(i) + 0.5f;
  return v;
}
Tensor host_tensor(std::int64_t n) { return from_vector<float>(numbers(n), {n}); }

// y = 2 x on the current stream of x's device.
void launch_double(Tensor& y, const Tensor& x) {
  launch_map("double", cu::current_stream(x.device().index), y.mutable_data<float>(), x.data<float>(), x.numel(),
             [](float v) { return 2 * v; });
}

}  // namespace

TEST_CASE("values and layout survive the way to a GPU and back") {
  REQUIRE(kTwoDevices);
  for (fake::Exec exec : {fake::Exec::eager, fake::Exec::lazy}) {
    fake::reset({.devices = 2, .exec = exec});
    const Tensor x = host_tensor(24).reshape({2, 3, 2, 2});
    const Tensor images = raw::contiguous(x, MemoryFormat::channels_last);
    for (const Tensor& t : {x, images, x.permute({1, 0, 3, 2}), x.narrow(1, 1, 2), x.select(3, 1)}) {
      const Tensor on_gpu = t.to(kGpu);
      CHECK(on_gpu.device() == kGpu);
      CHECK(on_gpu.shape() == t.shape());
      CHECK(on_gpu.to_vector<float>() == t.to_vector<float>());
      CHECK(on_gpu.to(kSecond).to(kCpu).to_vector<float>() == t.to_vector<float>());
    }
    CHECK(images.to(kGpu).strides() == images.strides());
    CHECK(x.to(kGpu).to(kGpu).is_same(x.to(kGpu)) == false);
    for (DType dtype : {DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32, DType::uint8})
      CHECK(x.to(dtype).to(kGpu).to_vector<double>() == x.to(dtype).to_vector<double>());
    CHECK(scalar_tensor(3.5).to(kGpu).item() == 3.5);
    CHECK(scalar_tensor(7, {.dtype = DType::int64}).to(kGpu).item_int() == 7);
    const Tensor none = zeros({0, 4}).to(kGpu);
    CHECK(none.shape() == Shape{0, 4});
    CHECK(none.to(kCpu).numel() == 0);
  }
}

TEST_CASE("a GPU's tensors lie in its pool, in order with the current stream") {
  fake::reset({.devices = 2});
  const cu::Stream side = cu::pool_stream(1);
  cu::StreamScope scope(side);
  const Tensor x = host_tensor(1000).to(kSecond);
  CHECK(x.storage()->block()->stream == side.id());
  CHECK(cu::allocator(1).ledger().live_total == 4000);
  CHECK(&allocator_for(kSecond) == &cu::allocator(1));
  CHECK(cu::allocator(1).device_name() == "cuda:1");
}

TEST_CASE("a copy without pinned memory waits; one with it does not, unless asked") {
  fake::reset({.devices = 2});
  const Tensor pageable = host_tensor(1000), pinned = pageable.pin_memory();
  CHECK_FALSE(pageable.is_pinned());
  CHECK(pinned.is_pinned());
  CHECK(pinned.pin_memory().storage() == pinned.storage());
  CHECK(pinned.to_vector<float>() == pageable.to_vector<float>());
  CHECK(host_tensor(5).narrow(0, 1, 3).pin_memory().to_vector<float>() == std::vector<float>{1.5f, 2.5f, 3.5f});
  const auto waits = [](auto&& action) {
    cu::synchronize(0);
    const std::size_t before = fake::count("cudaStreamSynchronize");
    action();
    return fake::count("cudaStreamSynchronize") > before;
  };
  CHECK(waits([&] { pageable.to(kGpu, true); }));
  CHECK(waits([&] { pinned.to(kGpu); }));
  CHECK_FALSE(waits([&] { pinned.to(kGpu, true); }));
  const Tensor on_gpu = pageable.to(kGpu);
  CHECK(waits([&] { on_gpu.to(kCpu); }));
  Tensor back;
  CHECK_FALSE(waits([&] { back = on_gpu.to(kCpu, true); }));
  CHECK(back.is_pinned());
  CHECK(back.data<float>()[3] != 3.5f);  // not there yet
  cu::current_stream(0).synchronize();
  CHECK(back.to_vector<float>() == pageable.to_vector<float>());
  CHECK_THROWS_AS(on_gpu.pin_memory(), DeviceError);
}

TEST_CASE("pinned memory is not written again before the copy has read it") {
  for (std::uint64_t seed = 1; seed <= 10; seed++) {
    fake::reset({.devices = 2, .seed = seed});
    Tensor pinned = host_tensor(1000).pin_memory();
    const Tensor first = pinned.to(kGpu, true);
    cuda_backend().wait_for_copies(*pinned.storage());
    std::memset(pinned.mutable_data<float>(), 0, 4000);
    const Tensor second = pinned.to(kGpu, true);
    CHECK(first.to_vector<float>() == numbers(1000));
    CHECK(second.to_vector<float>() == std::vector<float>(1000));
    // Let go while the copy is under way: the next owner gets other memory.
    Tensor source = host_tensor(1000).pin_memory();
    const Tensor third = source.to(kGpu, true);
    source = Tensor();
    Tensor next = zeros({1000}).pin_memory();
    CHECK(third.to_vector<float>() == numbers(1000));
  }
}

TEST_CASE("upload: beside the computing, and later work waits for it") {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    fake::reset({.devices = 2, .seed = seed});
    const Tensor pinned = host_tensor(1000).pin_memory();
    Tensor y = host_tensor(1000).to(kGpu);
    fake::enqueue({.kernel = "long", .stream = cu::current_stream(0).handle, .us = 1000, .run = [] { return 0; }});
    for (int i = 0; i < 3; i++) {
      const std::size_t from = fake::trace().size();
      Tensor x = cu::upload(pinned, 0);
      CHECK(fake::count("cudaStreamSynchronize") == 1);  // that of y's copy
      CHECK((i == 0 || fake::step_offences(from).empty()));
      launch_double(y, x);
    }  // x is let go while its reader is still to run
    std::vector<float> twice = numbers(1000);
    for (float& v : twice) v *= 2;
    CHECK(y.to_vector<float>() == twice);
    CHECK(fake::now_us() < 1100);  // the copies did not come behind the long kernel
  }
  CHECK(cu::upload(host_tensor(3), 0).to_vector<float>() == numbers(3));
  CHECK_THROWS_AS(cu::upload(host_tensor(3).to(kGpu), 0), DeviceError);
}

TEST_CASE("copies between GPUs come behind the source and before the target's later work") {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    fake::reset({.devices = 2, .seed = seed});
    const cu::Stream a = cu::pool_stream(0), b = cu::pool_stream(1);
    cu::StreamScope on_a(a);
    cu::StreamScope on_b(b);
    Tensor x = host_tensor(500).pin_memory().to(kGpu, true);
    Tensor y = host_tensor(500).to(kGpu);
    launch_double(y, x);
    Tensor z = y.to(kSecond);
    Tensor w = z.to(kSecond);
    Tensor twice = host_tensor(500).to(kSecond);
    launch_double(twice, z);
    const auto values = twice.to_vector<float>();
    CHECK(values[10] == 4 * 10.5f);
    CHECK(values[499] == 4 * 499.5f);
  }
}

TEST_CASE("gradients come back over devices") {
  fake::reset({.devices = 2});
  Tensor x = host_tensor(4).requires_grad_();
  Tensor y = x.to(kGpu);
  CHECK(y.requires_grad());
  CHECK(y.grad_fn_name() == "to");
  const Tensor z = y.to(kSecond).to(kCpu);
  (z * 3).sum().backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>(4, 3.0f));
}

TEST_CASE("a module moves with its parameters' names and roles") {
  fake::reset({.devices = 2});
  nn::Linear layer({.in_features = 3, .out_features = 2});
  const auto before = layer.parameters()[0].to_vector<float>();
  layer.to(kGpu);
  for (const Tensor& p : layer.parameters()) {
    CHECK(p.device() == kGpu);
    CHECK(p.storage()->role() == memory::Role::param);
    CHECK(p.requires_grad());
  }
  CHECK(layer.parameters()[0].to_vector<float>() == before);
  layer.to(kCpu);
  CHECK(layer.parameters()[0].to_vector<float>() == before);
}

TEST_CASE("the n-th call fails, for every n of a round trip: an error, usable devices, balanced books") {
  const auto round_trip = [] {
    const Tensor pinned = host_tensor(300'000).pin_memory();
    const Tensor x = pinned.to(kGpu, true), up = cu::upload(pinned, 0);
    const Tensor second = x.to(kSecond);
    const Tensor back = second.to(kCpu, true);
    cu::current_stream(1).synchronize();
    return back.data<float>()[299'999] == 299'999.5f && up.to_vector<float>()[1] == 1.5f;
  };
  fake::reset({.devices = 2, .protect = false, .fill = false});
  REQUIRE(round_trip());
  for (int status : {2, 999}) {
    const int failed = fail_each_call(
        status, 1, 1, 2,
        [&] {
          const bool right = round_trip();  // not within CHECK, which would catch what is thrown
          CHECK(right);
        },
        [&] {
          CHECK(cu::current_device() == 0);
          REQUIRE(round_trip());
        });
    CHECK(failed > 20);
  }
}

TEST_CASE("the loader's pinned ring: batches are copied beside the computing and never overwritten too early") {
  const auto dataset =
      std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{.size = 64, .height = 8, .width = 8});
  std::vector<std::vector<float>> expected;
  data::DataLoader plain(dataset, {.batch_size = 8});
  for (const data::Batch& batch : plain) expected.push_back(batch.x.to_vector<float>());
  for (int workers : {0, 2}) {
    for (std::uint64_t seed = 1; seed <= 5; seed++) {
      fake::reset({.devices = 2, .seed = seed});
      data::DataLoader loader(dataset, {.batch_size = 8, .num_workers = workers, .pin_memory = true});
      std::vector<Tensor> on_gpu;
      for (data::Batch& batch : loader) {
        CHECK(batch.x.is_pinned());
        CHECK(batch.y.is_pinned());
        on_gpu.push_back(cu::upload(batch.x, 0));
        batch.x = Tensor();  // let go while the copy is under way
      }
      CHECK(loader.replaced_buffers() == 0);
      REQUIRE(on_gpu.size() == expected.size());
      for (std::size_t i = 0; i < on_gpu.size(); i++) CHECK(on_gpu[i].to_vector<float>() == expected[i]);
    }
  }
  data::DataLoader collating(
      dataset, {.batch_size = 8, .pin_memory = true, .collate = [](const std::vector<data::Example>& examples) {
                  return std::make_pair(examples[0].input, examples[0].target);
                }});
  for (const data::Batch& batch : collating) CHECK(batch.x.is_pinned());
}
