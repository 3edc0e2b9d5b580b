// One body of code on the CPU and on cuda:0 of the fake runtime, whose lazy streams run in several interleavings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/fake_launch.h>
#include <cudasim/orders.h>
#include <limpid/tensor/raw.h>
#include <tensor_test.h>

namespace fake = limpid::cudasim::fake;

namespace tensor_test {

inline constexpr limpid::Device kGpu{limpid::DeviceType::cuda, 0};

// The numbers of body(kCpu) and body(kGpu) agree, and the emulator has no finding.
inline void same_on_both(const std::string& what, double tolerance,
                         const std::function<std::vector<limpid::Tensor>(limpid::Device)>& body) {
  std::vector<std::vector<double>> want;
  for (const limpid::Tensor& t : body(limpid::kCpu)) want.push_back(values(t));
  for (std::uint64_t seed : {1, 2}) {
    fake::reset({.seed = seed});
    const fake::LaunchScope launches;
    const std::vector<limpid::Tensor> got = body(kGpu);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); i++) {
      check_close(values(limpid::raw::to_device(got[i], limpid::kCpu)), want[i], tolerance, tolerance,
                  what + " " + std::to_string(i));
    }
    CHECK(limpid::cudasim::finding() == std::string());
  }
}

}  // namespace tensor_test
