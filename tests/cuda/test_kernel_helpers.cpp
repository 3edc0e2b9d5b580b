// Index arithmetic and block reductions of cuda/kernels.
#include <algorithm>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/device_buffer.h>
#include <cudasim/orders.h>

#include "helper_probes.cuh"

using namespace limpid;
using namespace limpid::cudasim;

TEST_CASE("offsets of two strided operands: every element once, and both at the same place") {
  const Shape shape{3, 1, 5, 4};
  const Strides dense = strides_for(shape), last = strides_for(shape, MemoryFormat::channels_last);
  const Strides broadcast{0, 7, 1, 0};
  for_each_order([&] {
    for (const Strides* other : {&dense, &last, &broadcast}) {
      for (bool narrow : {true, false}) {
        DeviceBuffer<std::int64_t> out(2 * 60);
        CHECK(cu::probe_offsets(shape, last, *other, narrow, out.data(), nullptr) == cudaSuccess);
        std::vector<std::pair<std::int64_t, std::int64_t>> got, want;
        for (std::size_t i = 0; i < 60; i++) got.emplace_back(out[2 * i], out[2 * i + 1]);
        for (int n = 0; n < 3; n++) {
          for (int h = 0; h < 5; h++) {
            for (int w = 0; w < 4; w++) {
              want.emplace_back(n * last[0] + h * last[2] + w * last[3],
                                n * (*other)[0] + h * (*other)[2] + w * (*other)[3]);
            }
          }
        }
        std::sort(got.begin(), got.end());
        std::sort(want.begin(), want.end());
        CHECK(got == want);
        CHECK(out.intact());
      }
    }
  });
}

TEST_CASE("division by multiplication is exact below 2^31") {
  for (unsigned divisor : {1u, 2u, 3u, 7u, 10u, 32u, 641u, 65535u, 65536u, 1000003u, 0x40000001u, 0x7fffffffu}) {
    std::vector<unsigned> numerators{0, 1, 0x7ffffffe, 0x7fffffff, divisor - 1, divisor};
    for (unsigned i = 0; i < 60; i++) numerators.push_back((i * 2654435761u) >> 1);
    for (unsigned k = 1; k < 6 && std::uint64_t(divisor) * k < 0x80000000u; k++) {
      numerators.push_back(divisor * k);
      numerators.push_back(divisor * k - 1);
    }
    DeviceBuffer<unsigned> in(numerators), out(numerators.size());
    CHECK(cu::probe_divider(divisor, in.data(), out.data(), int(numerators.size()), nullptr) == cudaSuccess);
    for (std::size_t i = 0; i < numerators.size(); i++) CHECK(out[i] == numerators[i] / divisor);
  }
}

TEST_CASE("block reductions give every thread the same bits, in every order; a NaN is the maximum") {
  std::vector<float> values(128);
  for (std::size_t i = 0; i < 128; i++) values[i] = float(i * 37 % 101) * 0.1f - 5;
  double sum = 0;
  for (float v : values) sum += v;
  std::vector<float> sums;
  for_each_order([&] {
    DeviceBuffer<float> x(values), out(256);
    CHECK(cu::probe_block_reduce(x.data(), out.data(), nullptr) == cudaSuccess);
    for (std::size_t t = 0; t < 128; t++) {
      sums.push_back(out[2 * t]);
      CHECK(out[2 * t + 1] == *std::max_element(values.begin(), values.end()));
    }
  });
  CHECK(std::fabs(sums[0] - sum) < 1e-4);
  CHECK(std::all_of(sums.begin(), sums.end(), [&](float s) { return s == sums[0]; }));
  values[77] = std::numeric_limits<float>::quiet_NaN();
  DeviceBuffer<float> x(values), out(256);
  CHECK(cu::probe_block_reduce(x.data(), out.data(), nullptr) == cudaSuccess);
  CHECK(out[1] != out[1]);
}
