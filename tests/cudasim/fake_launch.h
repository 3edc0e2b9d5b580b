// Kernels of the emulator on the streams of the fake runtime: a scope in which launches are queued, and the emulator
// knows the fake's memory.
#pragma once

#include <utility>

#include <cudasim/launch_hook.h>
#include <cudasim/memory_map.h>

#include "fake_cuda.h"

namespace limpid::cudasim::fake {

class LaunchScope {
 public:
  LaunchScope()
      : hook_([](cudasim::Launch launch) {
          return static_cast<cudaError_t>(enqueue({.kernel = launch.kernel,
                                                   .stream = launch.stream,
                                                   .run = [run = launch.run] { return static_cast<int>(run()); }}));
        }) {
    set_memory_observer({
        .added = [](const void* at, std::size_t bytes,
                    const char* what) { add_memory(at, bytes, Space::device, false, what); },
        .removed = remove_memory,
        .written = mark_initialised,
        .copied = copy_initialised,
    });
  }
  ~LaunchScope() { set_memory_observer({}); }
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;

 private:
  LaunchHookScope hook_;
};

}  // namespace limpid::cudasim::fake
