// Dry runs: the same model code, the same operations and the same allocator over addresses only. Nothing is computed
// and no byte is touched; what remains is every allocation, in size and order, as the CPU would make it.
//
//   dry::Run run({.capacity = 8ull << 30});   // tensors of this thread now live on dry:cpu
//   ... build a model, train a step ...
//   run.pool().ledger_at_peak();              // what the step would have taken
//
// Not here: what a training run allocates (train/plan.h).
#pragma once

#include <cstdint>
#include <memory>

#include <limpid/memory/allocator.h>
#include <limpid/tensor/tensor.h>

namespace limpid::dry {

inline constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 43;  // 8 TiB of addresses: more than any device has

struct Options {
  std::uint64_t capacity = kUnlimited;  // of the pool of tensors and workspaces
  memory::AllocatorSettings settings = {};
  memory::PolicyFactory policy = memory::make_native_policy;
};

// While it lives, this thread makes its tensors on dry:cpu, in pools that belong to the run. Runs nest. A tensor that
// outlives the run keeps its pool, which is then never freed.
class Run {
 public:
  explicit Run(const Options& options = {});
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  memory::Allocator& pool() { return *pool_; }
  memory::Allocator& io_pool() { return *io_pool_; }  // data set and loader; always native and unlimited, as the CPU's

 private:
  std::unique_ptr<memory::Allocator> pool_, io_pool_;
  DeviceScope device_;
  Run* former_;
};

// The pools of this thread's innermost run; without a run, pools of the process without a limit.
memory::Allocator& pool();
memory::Allocator& io_pool();

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
