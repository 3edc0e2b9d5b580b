// A CUDA runtime without a GPU: what a test sets and asks. The libraries fake_cudart, fake_driver and fake_nvml carry
// the names and the functions of CUDA's own (libcudart.so.13, libcuda.so.1, libnvidia-ml.so.1), so limpid loads and
// calls them as it does the real ones, error paths included.
//
// Device memory is host memory that is unreadable while host code runs. Streams are queues: eagerly each operation runs
// when it is queued; lazily none runs until the host waits for something, then the streams' operations run interleaved
// at random (by seed) as far as events allow. Pinned memory is read when a copy runs, pageable memory when it is
// queued; a pinned target holds rubbish until then. So code that forgets an event or reuses a buffer too early computes
// nonsense, as it may on a GPU. Not simulated: managed memory, graphs, peer restrictions, time (the clock is an
// estimate).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <limpid/cuda/api.h>

namespace limpid::cudasim::fake {

enum class Exec { eager, lazy };

struct Config {
  int devices = 1;
  std::uint64_t capacity = std::uint64_t{256} << 20;  // bytes of memory a device, at most 64 GiB
  Exec exec = Exec::lazy;
  std::uint64_t seed = 1;
  bool protect = true;         // device memory is unreadable for host code; without, all is faster
  bool fill = true;            // fresh memory is filled with 0xFF: NaN, and -1
  bool virtual_memory = true;  // the driver's virtual memory calls
  int driver_version = 13000;  // below runtime_version, the driver is too old
  int runtime_version = 13000;
  double host_gb_per_s = 25, device_gb_per_s = 2000, kernel_us = 5;  // of the clock
};

// Waits for all work and begins anew: clock, trace, faults and settings. Streams and events stay valid. Memory that is
// still allocated stays too; the capacity counts it.
void reset(const Config& config);
const Config& config();

// ---- what was called
struct Call {
  std::string api;  // "cudaMemcpyAsync"; "cudaLaunchKernel"
  std::size_t bytes = 0;
  cu::StreamHandle stream = nullptr;
  int kind = -1;  // of a copy: CopyKind
  std::string kernel = {};
};
const std::vector<Call>& trace();
std::size_t count(const std::string& api);
// Calls since trace()[from] that have no place in a training step between two drains of its records: they allocate,
// wait or read the device ("cudaStreamSynchronize"). Empty: a clean step.
std::vector<std::string> step_offences(std::size_t from);

// ---- faults
// The n-th call that can fail, from now on, returns `status` and does nothing. 0 = none.
void fail_call(std::uint64_t n, int status);
// The same for one function.
void fail_call_of(const std::string& api, std::uint64_t n, int status);
std::uint64_t calls();  // that can fail, since reset()
bool fault_happened();  // since the last fail_call()
// As after a fault of a kernel: every further call fails with it, until reset().
void break_device(int status);

// ---- what there is
std::uint64_t used_bytes(int device = 0);  // cudaMalloc and cuMemCreate
std::size_t allocations();                 // of cudaMalloc
std::size_t ranges();                      // of cuMemAddressReserve
std::size_t mapped_pages();
std::size_t memory_handles();  // of cuMemCreate, not yet released
std::size_t live_events();
std::size_t live_streams();
std::uint64_t pinned_bytes();
double now_us();       // the host's clock
bool host_may_read();  // device memory, just now: only while the device runs

// Reads and writes device memory out of order, for checks.
void peek(void* to, const void* device_memory, std::size_t bytes);

// ---- programs that hold memory of a device, for NVML; this program is always among them
void set_processes(int device, std::vector<std::pair<unsigned, std::uint64_t>> pids_and_bytes);

// ---- work that is no copy: kernels, matrix products
struct KernelLaunch {
  std::string kernel = {};
  cu::StreamHandle stream = nullptr;
  double us = 0;                  // 0: Config::kernel_us
  std::function<int()> run = {};  // returns 0, or the fault that the kernel makes
};
int enqueue(KernelLaunch launch);  // what cudaLaunchKernel returns

// Told of every allocation, so that an access checker knows memory and what of it was written.
struct MemoryObserver {
  std::function<void(const void*, std::size_t, const char* what)> added;
  std::function<void(const void*)> removed;
  std::function<void(const void*, std::size_t)> written;
  std::function<void(const void* target, const void* source, std::size_t)> copied;
};
void set_memory_observer(MemoryObserver observer);

}  // namespace limpid::cudasim::fake
