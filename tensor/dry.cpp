#include <limpid/tensor/dry.h>

#include <mutex>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/simulated_memory.h>
#include <limpid/tensor/fused_kernels.h>
#include <limpid/tensor/kernels.h>
#include <limpid/tensor/raw.h>
#include <limpid/tensor/storage.h>

namespace limpid {
namespace dry {
namespace {

thread_local Run* current_run = nullptr;
thread_local const double* current_placeholder = nullptr;

std::unique_ptr<memory::Allocator> make_pool(std::shared_ptr<memory::SimulatedMemory> memory, const Options& options) {
  return std::make_unique<memory::Allocator>(std::move(memory), options.settings, options.policy);
}
std::unique_ptr<memory::Allocator> make_pool(const char* name, const Options& options) {
  return make_pool(std::make_shared<memory::SimulatedMemory>(options.capacity, name), options);
}
memory::Allocator& unlimited_pool(const char* name) { return *make_pool(name, {}).release(); }

constexpr memory::StreamId kComputeStream{0}, kCopyStream{1};
thread_local memory::StreamId stream = kComputeStream;
struct CopyStreamScope {
  CopyStreamScope() { stream = kCopyStream; }
  ~CopyStreamScope() { stream = kComputeStream; }
  CopyStreamScope(const CopyStreamScope&) = delete;
  CopyStreamScope& operator=(const CopyStreamScope&) = delete;
};

// Blocks of living tensors point into their pool: it stays for good then.
void let_go(std::unique_ptr<memory::Allocator>& pool) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::unique_ptr<memory::Allocator>>;
  if (pool->ledger().live_total == 0) return;
  std::lock_guard guard(mutex);
  kept->push_back(std::move(pool));
}

}  // namespace

Run::Run(const Options& options)
    : memory_(std::make_shared<memory::SimulatedMemory>(options.capacity, to_string(options.device))),
      pool_(make_pool(memory_, options)),
      host_pool_(options.device == kDryCuda ? make_pool("dry:cpu", {}) : nullptr),
      io_pool_(make_pool("dry:cpu (io)", {})),
      default_device_(kDryCpu),
      former_(current_run) {
  LIMPID_CHECK(options.device.is_dry(), DeviceError, "[dry] a dry run is of dry:cpu or dry:cuda, got ", options.device);
  memory_->set_events_pending(options.device == kDryCuda);
  current_run = this;
}

Run::~Run() {
  current_run = former_;
  for (auto* pool : {&pool_, &host_pool_, &io_pool_}) {
    if (*pool) let_go(*pool);
  }
}

void Run::synchronize() { memory_->complete_events(); }

memory::Allocator& pool(Device device) {
  if (current_run) return current_run->pool(device);
  static memory::Allocator& host = unlimited_pool("dry:cpu");
  static memory::Allocator& gpu = unlimited_pool("dry:cuda");
  return device == kDryCuda ? gpu : host;
}

memory::Allocator& io_pool() {
  if (current_run) return current_run->io_pool();
  static memory::Allocator& unlimited = unlimited_pool("dry:cpu (io)");
  return unlimited;
}

void synchronize(Device device) {
  if (current_run && device == kDryCuda) current_run->synchronize();
}

memory::StreamId current_stream() { return stream; }

Tensor upload(const Tensor& host) {
  if (host.numel() == 0) return raw::to_device(host, kDryCuda);
  Tensor out = [&] {
    const CopyStreamScope scope;
    return raw::to_device(host, kDryCuda, true);
  }();
  out.storage()->record_stream(kComputeStream);
  return out;
}

Placeholder::Placeholder(double value) : former_(current_placeholder), value_(value) { current_placeholder = &value_; }
Placeholder::~Placeholder() { current_placeholder = former_; }

double placeholder_for(const char* op, const Tensor& tensor) {
  LIMPID_CHECK(current_placeholder, DeviceError, "[", op, "] ", tensor,
               " has no value: nothing was computed; declare a dry::Placeholder for what the code is to read");
  synchronize(tensor.device());
  return *current_placeholder;
}

}  // namespace dry

// ---- kernels

namespace {

// What a run entry writes gets a new version, so that an overwritten saved tensor is noticed in a dry run too.
void written(Tensor& out) {
  if (out.defined()) out.storage()->bump_version();
}
void written(std::span<Tensor> outs) {
  for (Tensor& out : outs) written(out);
}
void written(std::span<OptimChunk> chunks) {
  for (OptimChunk& chunk : chunks) {
    written(chunk.param);
    for (Tensor* state : {&chunk.state0, &chunk.state1, &chunk.state2}) written(*state);
  }
}
template <class Input>
void written(const Input&) {}

// Replaces a run entry; an optional one that the device lacks stays absent. What reads back says "all finite" and 0.
template <class Result, class... Args>
void silence(Result (*&entry)(Args...)) {
  if (!entry) return;
  entry = [](Args... args) -> Result {
    (written(args), ...);
    if constexpr (std::is_same_v<Result, bool>) {
      return true;
    } else if constexpr (!std::is_void_v<Result>) {
      return Result();
    }
  };
}

FusedKernels silenced(FusedKernels k, const char* device) {
  k.device = device;
  auto all = [](auto&... entries) { (silence(entries), ...); };
  all(k.conv2d_tail, k.conv2d_tail_backward, k.conv2d_tail_weight, k.batch_norm_relu_apply,
      k.relu_rows, k.relu_rows_backward);
  return k;
}

}  // namespace

Kernels silenced(Kernels k, const char* device) {
  k.device = device;
#define LIMPID_KEEP(name)
#define LIMPID_SILENCE(name) silence(k.name);
  LIMPID_KERNEL_ENTRIES(LIMPID_KEEP, LIMPID_SILENCE)
#undef LIMPID_KEEP
#undef LIMPID_SILENCE
  return k;
}

const FusedKernels& dry_fused_kernels() {
  static const FusedKernels table = silenced(cpu_fused_kernels(), "dry:cpu");
  return table;
}

const Kernels& dry_kernels() {
  static const Kernels table = silenced(cpu_kernels(), "dry:cpu");
  return table;
}

}  // namespace limpid
