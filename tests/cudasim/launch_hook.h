// Where an emulated kernel launch goes: the seam between the kernel emulator and whoever decides when a launch runs.
//
// `limpid::cu::launch` (cuda/cuda_lang.cuh), compiled for the emulator, packs kernel and arguments into a Launch and gives
// it to the hook. Without a runtime the hook runs it at once. A simulated runtime sets a hook that queues it on the stream
// and calls `run` when the stream gets there.
// This is not the emulator itself (emulator.h), and it needs no library: everything is inline.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

namespace limpid::cudasim {

// One launch, complete in itself: it owns copies of the kernel's arguments (pointers to device memory stay pointers), so
// it may run long after the launching call has returned. It may be copied and dropped without being run.
struct Launch {
  std::string kernel;            // for traces and messages
  dim3 grid;                     // blocks
  dim3 block;                    // threads of a block
  std::size_t shared_bytes = 0;  // dynamic shared memory of a block
  cudaStream_t stream = nullptr;
  // Runs the whole grid, on the calling OS thread; grids of several threads run one after the other. Returns cudaSuccess,
  // or the error that a device reports when it gets there (cudaErrorIllegalAddress, cudaErrorMisalignedAddress,
  // cudaErrorLaunchFailure); `finding()` of emulator.h then holds the sentence with file and line.
  std::function<cudaError_t()> run;
};

// Takes a launch and returns what the launching call returns. It sees only launches that a device would accept: an empty
// grid, a block of more than 1024 threads or too much shared memory are refused before, with the error of the real call.
using LaunchHook = std::function<cudaError_t(Launch)>;

inline LaunchHook& launch_hook() {
  static LaunchHook hook = [](Launch launch) { return launch.run(); };
  return hook;
}

// Sets a hook for a scope, and the former one again at its end.
class LaunchHookScope {
 public:
  explicit LaunchHookScope(LaunchHook hook) : former_(std::exchange(launch_hook(), std::move(hook))) {}
  ~LaunchHookScope() { launch_hook() = std::move(former_); }
  LaunchHookScope(const LaunchHookScope&) = delete;
  LaunchHookScope& operator=(const LaunchHookScope&) = delete;

 private:
  LaunchHook former_;
};

}  // namespace limpid::cudasim
