// The kernel emulator: runs a grid of CUDA threads on one CPU thread, in an order that the test chooses.
//
// Kernels see it through device_lang.h (which cuda/cuda_lang.cuh includes), tests and runtimes through this header.
// Threads of a block are run one after the other; one that waits at a barrier or in a warp operation stays on a fiber of
// its own. Blocks run one after the other, so a kernel may not wait for another block.
// What the emulator cannot accept (a divergent barrier, a shuffle from a lane that has gone, a deadlock, and with the
// access checker every bad access) ends the grid and is kept as the finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cudasim/launch_hook.h>

namespace limpid::cudasim {

// Order of the threads in a block, of the blocks in the grid, and of the threads that a barrier lets go.
enum class Order : std::uint8_t { forward, reverse, warp_reverse, random };
const char* name_of(Order order);

struct Config {
  Order order = Order::forward;
  std::uint64_t seed = 1;                      // of Order::random
  std::size_t max_static_shared = 48 << 10;    // bytes a block; the least of the devices that we compile for
  std::size_t max_shared = 64 << 10;           // static + dynamic, sm_75 with the opt-in that launch() makes
  unsigned char shared_fill = 0xFF;            // fresh shared memory: NaN as float, -1 as integer
  std::size_t stack_bytes = 256 << 10;         // of a thread; touched pages only count
};
Config& config();

// What ran so far.
struct Counters {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0, barriers = 0, warp_operations = 0;
};
Counters& counters();

// The first finding since the last clear_finding(): thread, what, (file:line). Empty: none.
const std::string& finding();
void clear_finding();

// One argument of a kernel, where the launch keeps it.
struct Argument {
  const void* data;
  std::size_t bytes;
};

// A kernel with its arguments.
struct Kernel {
  const void* function;             // the host address that names it
  std::function<void()> body;       // one thread's run
  std::vector<Argument> arguments;  // inside storage
  std::shared_ptr<void> storage;
  std::size_t storage_bytes;
};

// Refuses what no device accepts: cudaErrorInvalidConfiguration for an empty grid, too large a grid or block,
// cudaErrorInvalidValue for too much shared memory. Everything else goes to launch_hook().
cudaError_t launch_kernel(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, Kernel kernel);

}  // namespace limpid::cudasim
