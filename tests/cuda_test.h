// Shared by the tests on the fake CUDA runtime: its settings for a scope, and small kernels on its streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/fake_cuda.h>
#include <limpid/cuda/api.h>
#include <limpid/cuda/copies.h>
#include <limpid/cuda/runtime.h>
#include <limpid/base/error.h>
#include <limpid/memory/oom.h>
#include <limpid/tensor/device.h>

namespace cuda_test {

namespace fake = limpid::cudasim::fake;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr limpid::Device kGpu{limpid::DeviceType::cuda, 0};

// "kernels": host code that runs when the stream gets there. target[i] = f(source[i]).
template <class F>
void launch_map(const char* name, limpid::cu::Stream stream, float* target, const float* source, std::int64_t n, F f) {
  REQUIRE(fake::enqueue({.kernel = name, .stream = stream.handle, .run = [=] {
                           for (std::int64_t i = 0; i < n; i++) target[i] = f(source[i]);
                           return 0;
                         }}) == 0);
}
// *target += sum of source
inline void launch_sum(limpid::cu::Stream stream, float* target, const float* source, std::int64_t n) {
  REQUIRE(fake::enqueue({.kernel = "sum", .stream = stream.handle, .run = [=] {
                           for (std::int64_t i = 0; i < n; i++) *target += source[i];
                           return 0;
                         }}) == 0);
}

// Runs run() with its n-th call of CUDA failing, for n = first, first + step, ... until there is no n-th call. After each:
// no error but these two kinds, and GPUs 0..gpus-1 usable with balanced books; then after(). Returns how many runs threw.
template <class Run, class After>
int fail_each_call(int status, std::uint64_t first, std::uint64_t step, int gpus, const Run& run, const After& after) {
  namespace cu = limpid::cu;
  int failed = 0;
  for (std::uint64_t n = first;; n += step) {
    INFO("status " << status << ", call " << n);
    for (int gpu = 0; gpu < gpus; gpu++) cu::allocator(gpu).empty_cache();  // so that segments are asked for again
    cu::pinned_allocator().empty_cache();
    fake::fail_call(n, status);
    try {
      run();
    } catch (const limpid::DeviceError&) {
      failed++;
    } catch (const limpid::memory::OutOfMemoryError&) {
      failed++;
    }
    const bool happened = fake::fault_happened();
    fake::fail_call(0, 0);
    for (int gpu = 0; gpu < gpus; gpu++) {
      cu::synchronize(gpu);
      cu::allocator(gpu).check();
      CHECK(cu::allocator(gpu).ledger().live_total == 0);
      CHECK(cu::allocator(gpu).ledger().reserved == fake::used_bytes(gpu));
    }
    cu::pinned_allocator().check();
    CHECK(cu::pinned_allocator().ledger().live_total == 0);
    after();
    if (!happened) return failed;
  }
}

}  // namespace cuda_test
