// Dry runs: the same model code, the same operations and the same allocator over addresses only. Nothing is computed
// and no byte is touched; what remains is every allocation, in size and order, as the device would make it.
//
//   dry::Run run({.capacity = 8ull << 30});   // tensors of this thread now live on dry:cpu
//   ... build a model, train a step ...
//   run.pool().ledger_at_peak();              // what the step would have taken
//
// A GPU works behind the host, so when a block that two streams used is free again depends on the moment. dry:cuda
// takes the latest one: all work is pending until the host waits for it (it reads a value). A GPU that is quicker
// reserves the same or less.
//
// Not here: what a training run allocates (train/plan.h).
#pragma once

#include <cstdint>
#include <memory>

#include <limpid/memory/allocator.h>
#include <limpid/tensor/tensor.h>

namespace limpid::memory {
class SimulatedMemory;
}

namespace limpid::dry {

inline constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 43;  // 8 TiB of addresses: more than any device has

struct Options {
  std::uint64_t capacity = kUnlimited;  // of the pool of tensors and workspaces
  memory::AllocatorSettings settings = {};
  memory::PolicyFactory policy = memory::make_native_policy;
  Device device = kDryCpu;  // whose pool that is; with dry:cuda, dry:cpu has one of its own, native and unlimited
};

// While it lives, this thread makes its tensors on dry:cpu (the host of dry:cuda), in pools that belong to the run. Runs
// nest. A tensor that outlives the run keeps its pool, which is then never freed.
class Run {
 public:
  explicit Run(const Options& options = {});
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  memory::Allocator& pool() { return *pool_; }  // of the device that the options name
  memory::Allocator& pool(Device device) { return host_pool_ && device == kDryCpu ? *host_pool_ : *pool_; }
  memory::Allocator& io_pool() { return *io_pool_; }  // data set and loader; always native and unlimited, as the CPU's
  void synchronize();                                 // dry:cuda: its work is done

 private:
  std::shared_ptr<memory::SimulatedMemory> memory_;
  std::unique_ptr<memory::Allocator> pool_, host_pool_, io_pool_;
  DeviceScope default_device_;
  Run* former_;
};

// The pools of this thread's innermost run; without a run, pools of the process without a limit.
memory::Allocator& pool(Device device = kDryCpu);
memory::Allocator& io_pool();

// The host waits for dry:cuda, as it does for every value that it reads.
void synchronize(Device device);
// As cu::upload() of a pinned batch: to dry:cuda, in a block of the copy stream that the compute stream then uses.
Tensor upload(const Tensor& host);
// The stream that orders this thread's allocations on dry:cuda.
memory::StreamId current_stream();

// Reading a dry tensor (item(), to_vector(), to(cpu)) is a DeviceError, unless the thread declared what it is to see.
class Placeholder {
 public:
  explicit Placeholder(double value);
  ~Placeholder();
  Placeholder(const Placeholder&) = delete;
  Placeholder& operator=(const Placeholder&) = delete;

 private:
  const double* former_;
  double value_;
};
// The declared value; DeviceError that names the operation and the tensor when there is none.
double placeholder_for(const char* op, const Tensor& tensor);

}  // namespace limpid::dry
