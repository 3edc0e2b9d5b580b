#include <limpid/cuda/copies.h>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <limpid/cuda/cuda_memory.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/pinned_memory.h>
#include <limpid/tensor/raw.h>

namespace limpid::cu {
namespace {

constexpr std::size_t kMostDevices = 64;

struct Pools {
  std::mutex mutex;
  std::array<memory::PolicyFactory, kMostDevices> policy;  // empty: native
  std::array<memory::AllocatorSettings, kMostDevices> settings;
  std::array<std::atomic<memory::Allocator*>, kMostDevices> of{};
};
Pools& pools() {
  static auto* const all = new Pools;
  return *all;
}

// The copies that use pinned blocks: for each block the last one on each stream. A block that was given back and handed
// out again may find the events of its former life, which only makes it wait for what is done.
struct RunningCopies {
  std::mutex mutex;
  std::unordered_map<const memory::Block*, std::vector<std::pair<Stream, Event>>> of;
};
RunningCopies& running_copies() {
  static auto* const all = new RunningCopies;
  return *all;
}

void note_copy(const Storage& host, Stream stream) {
  RunningCopies& copies = running_copies();
  std::lock_guard lock(copies.mutex);
  auto& events = copies.of[host.block()];
  std::size_t i = 0;
  while (i < events.size() && events[i].first != stream) i++;
  if (i == events.size()) events.emplace_back(stream, Event(stream.device));
  events[i].second.record(stream);
  pinned_allocator().record_stream(const_cast<memory::Block*>(host.block()), PinnedMemory::stream_id(stream));
}

// Runs `action` behind a copy that was just queued on `stream`. When it fails, nobody will know of the copy, so it is
// waited for: the memory that it uses may be given back then.
template <class Action>
void or_wait(Stream stream, Action&& action) {
  try {
    action();
  } catch (...) {
    DeviceGuard guard(stream.device);
    runtime().cudaStreamSynchronize(stream.handle);
    throw;
  }
}

// Later work of `later` comes behind what is in `stream` now.
void chain(Stream stream, Stream later) {
  if (stream == later) return;
  Event event(stream.device);
  event.record(stream);
  event.hold_up(later);
}

void copy_with_host(void* to, const void* from, std::size_t bytes, CopyKind kind, const Storage& host, Stream stream,
                    bool non_blocking) {
  DeviceGuard guard(stream.device);
  LIMPID_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream.handle));
  if (non_blocking && host.is_pinned()) {
    or_wait(stream, [&] { note_copy(host, stream); });
  } else {
    stream.synchronize();
  }
}

void copy_between(Tensor& out, const Tensor& x) {
  const Stream from = current_stream(x.device().index), to = current_stream(out.device().index);
  chain(to, from);  // out's memory may still be in use by earlier work there
  {
    DeviceGuard guard(from.device);
    LIMPID_CUDA(
        cudaMemcpyPeerAsync(out.raw_mutable_data(), to.device, x.raw_data(), from.device, x.nbytes(), from.handle));
  }
  or_wait(from, [&] { chain(from, to); });
}

}  // namespace

memory::Allocator& allocator(int device) {
  check_device(device);
  Pools& p = pools();
  std::atomic<memory::Allocator*>& pool = p.of.at(static_cast<std::size_t>(device));
  if (memory::Allocator* known = pool.load(std::memory_order_acquire)) return *known;
  std::lock_guard lock(p.mutex);
  if (!pool.load(std::memory_order_relaxed)) {
    const auto i = static_cast<std::size_t>(device);
    const memory::PolicyFactory policy = p.policy[i] ? p.policy[i] : memory::make_native_policy;
    pool.store(new memory::Allocator(std::make_shared<CudaMemory>(device), p.settings[i], policy),
               std::memory_order_release);
  }
  return *pool.load(std::memory_order_relaxed);
}

memory::Allocator& pinned_allocator() {
  check_device(0);
  static auto* const pool = new memory::Allocator(std::make_shared<PinnedMemory>());
  return *pool;
}

void set_memory_policy(int device, memory::PolicyFactory policy, const memory::AllocatorSettings& settings) {
  check_device(device);
  settings.validate();
  Pools& p = pools();
  std::lock_guard lock(p.mutex);
  const auto i = static_cast<std::size_t>(device);
  LIMPID_CHECK(!p.of[i].load(), ArgumentError, "[allocator] the pool of cuda:", device,
               " exists: choose its policy before the first tensor is made");
  p.policy[i] = std::move(policy);
  p.settings[i] = settings;
}

bool pool_exists(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < kMostDevices &&
         pools().of[static_cast<std::size_t>(device)].load();
}

void copy(Tensor& out, const Tensor& x, bool non_blocking) {
  const bool to_host = out.device() == kCpu, from_host = x.device() == kCpu;
  if (!to_host && !from_host) return copy_between(out, x);
  const Storage& host = *(to_host ? out : x).storage();
  const Stream stream = current_stream((to_host ? x : out).device().index);
  copy_with_host(out.raw_mutable_data(), x.raw_data(), x.nbytes(), to_host ? kDeviceToHost : kHostToDevice, host,
                 stream, non_blocking);
}

void wait_for_copies(const Storage& host) {
  if (!host.is_pinned()) return;
  RunningCopies& copies = running_copies();
  std::lock_guard lock(copies.mutex);
  auto found = copies.of.find(host.block());
  if (found == copies.of.end()) return;
  for (auto& [stream, event] : found->second) event.synchronize();
}

Tensor upload(const Tensor& host, int device) {
  const Device gpu{DeviceType::cuda, static_cast<std::int8_t>(device)};
  LIMPID_CHECK(host.device() == kCpu, DeviceError, "[upload] expects a tensor on the CPU, got ", host);
  if (!host.is_pinned() || host.numel() == 0) return raw::to_device(host, gpu);
  const Stream computing = current_stream(device), copies = copy_stream(device);
  // From the copy stream's blocks: one that it hands out again was given back behind all work that used it.
  Tensor out = [&] {
    StreamScope scope(copies);
    return raw::to_device(host, gpu, true);
  }();
  chain(copies, computing);
  record_stream(out, computing);
  return out;
}

}  // namespace limpid::cu
