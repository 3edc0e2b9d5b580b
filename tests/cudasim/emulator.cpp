#include <cudasim/emulator.h>

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <utility>

#include <cudasim/block.h>
#include <cudasim/checker.h>
#include <cudasim/device_calls.h>
#include <cudasim/memory_map.h>
#include <cudasim/ptx.h>
#include <cudasim/symbols.h>

namespace limpid::cudasim {

ThreadRegisters registers;

namespace {
std::string& kept_finding() {
  static std::string text;
  return text;
}

// Position i of the grid's blocks in the chosen order. Random: steps of an odd size that has no divisor in common with
// the number of blocks visit each once.
std::uint64_t block_at(std::uint64_t i, std::uint64_t count) {
  switch (config().order) {
    case Order::forward: return i;
    case Order::reverse:
    case Order::warp_reverse: return count - 1 - i;
    case Order::random: break;
  }
  std::uint64_t step = config().seed % count | 1;
  while (std::gcd(step, count) != 1) step += 2;
  const auto position = static_cast<unsigned __int128>(i) * step + config().seed / 7;
  return static_cast<std::uint64_t>(position % count);
}

cudaError_t run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const Kernel& kernel) {
  static std::mutex one_grid_at_a_time;  // threads, blocks and memory of a grid are global
  std::lock_guard lock(one_grid_at_a_time);
  counters().launches++;
  check_begin_grid();
  add_memory(kernel.storage.get(), kernel.storage_bytes, Space::parameter, true, "kernel arguments");
  the_block().start_grid(config().seed);
  const std::uint64_t count = std::uint64_t(grid.x) * grid.y * grid.z;
  cudaError_t error = cudaSuccess;
  for (std::uint64_t i = 0; i < count && error == cudaSuccess; i++) {
    const std::uint64_t b = block_at(i, count);
    const uint3 index{static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                      static_cast<unsigned>(b / grid.x / grid.y)};
    if (!the_block().run(kernel, index, grid, block, shared_bytes)) error = the_block().error();
  }
  remove_memory(kernel.storage.get());
  return error;
}
}  // namespace

const char* name_of(Order order) {
  switch (order) {
    case Order::forward: return "forward";
    case Order::reverse: return "reverse";
    case Order::warp_reverse: return "warp_reverse";
    case Order::random: return "random";
  }
  return "?";
}

Config& config() {
  static Config config;
  return config;
}
Counters& counters() {
  static Counters counters;
  return counters;
}
const std::string& finding() { return kept_finding(); }
void clear_finding() { kept_finding().clear(); }
void set_finding(const std::string& text) {
  if (kept_finding().empty()) kept_finding() = text;
}
cudaError_t launch_kernel(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, Kernel kernel) {
  const std::uint64_t threads = std::uint64_t(block.x) * block.y * block.z;
  const bool grid_fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535;
  const bool block_fits = threads > 0 && block.x <= 1024 && block.y <= 1024 && block.z <= 64 && threads <= 1024;
  if (!grid_fits || !block_fits) return cudaErrorInvalidConfiguration;
  if (shared_bytes > config().max_shared) return cudaErrorInvalidValue;
  if (auto body = ptx_body(kernel)) kernel.body = std::move(body);
  Launch launch{demangled(symbol_at(kernel.function)), grid, block, shared_bytes, stream, {}};
  launch.run = [grid, block, shared_bytes, kernel = std::move(kernel)] { return run_grid(grid, block, shared_bytes, kernel); };
  return launch_hook()(std::move(launch));
}

// ---------------------------------------------------------------- what device code calls

int sync_threads(Site site, BarrierOp op, bool predicate) { return the_block().sync_threads(site, op, predicate); }
void warp_exchange(unsigned mask, WarpOp op, const void* value, std::size_t bytes, WarpValues& out, Site site) {
  the_block().warp_exchange(mask, op, value, bytes, out, site);
}
void* static_shared(const void* key, std::size_t bytes, Site site) { return the_block().static_shared(key, bytes, site); }
void* dynamic_shared() { return the_block().dynamic_shared(); }
void thread_fence() { check_fence(); }

void fail(Site site, cudaError_t code, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  the_block().note_failure(site, code, text);
  the_block().leave_failed();
}

}  // namespace limpid::cudasim
