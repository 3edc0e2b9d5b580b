// Shared by the tests on the fake CUDA runtime: its settings for a scope, and small kernels on its streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/fake_cuda.h>
#include <limpid/cuda/api.h>
#include <limpid/cuda/runtime.h>
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

}  // namespace cuda_test
