// The emulator itself: what it accepts, what it refuses, and that every mistake it can see without the access checker is
// reported with its line.
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/device_buffer.h>
#include <cudasim/emulator.h>
#include <cudasim/example_kernels.h>
#include <cudasim/find_bugs.h>
#include <cudasim/orders.h>
#include <cudasim/probe_kernels.h>

using namespace limpid;
using namespace limpid::cudasim;

TEST_CASE("every thread of every block runs once, with its own indices") {
  for (auto [grid, block] : {std::pair<dim3, dim3>{{1, 1, 1}, {1, 1, 1}}, {{3, 2, 2}, {5, 3, 2}}, {{7, 1, 1}, {1024, 1, 1}}}) {
    const std::size_t n = std::size_t(grid.x) * grid.y * grid.z * block.x * block.y * block.z;
    for_each_order([&] {
      DeviceBuffer<int> visits(std::vector<int>(n, 0));
      CHECK(count_visits(visits.data(), grid, block, nullptr) == cudaSuccess);
      CHECK(visits.values() == std::vector<int>(n, 1));
      CHECK(visits.intact());
    }, 3);
  }
}

TEST_CASE("launches that a device refuses are refused, with its error, and run nothing") {
  DeviceBuffer<int> visits(std::vector<int>(8, 0));
  auto launch = [&](dim3 grid, dim3 block, std::size_t shared = 0) { return probe_launch(visits.data(), grid, block, shared, nullptr); };
  CHECK(launch({0, 1, 1}, {1, 1, 1}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 65536, 1}, {1, 1, 1}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 1, 1}, {1025, 1, 1}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 1, 1}, {0, 1, 1}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 1, 1}, {1, 1, 65}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 1, 1}, {32, 64, 1}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 1, 1}, {1, 1, 1}, (64 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(visits.values() == std::vector<int>(8, 0));
  CHECK(launch({1, 1, 1}, {8, 1, 1}, 64 << 10) == cudaSuccess);
  CHECK(visits.values() == std::vector<int>(8, 1));
}

TEST_CASE("the hook gets a launch that runs later, with the arguments of the call") {
  DeviceBuffer<int> visits(std::vector<int>(8, 0));
  std::vector<Launch> queue;
  {
    LaunchHookScope scope([&](Launch launch) {
      queue.push_back(std::move(launch));
      return cudaSuccess;
    });
    int* pointer = visits.data();
    CHECK(probe_launch(pointer, 1, 8, 16, reinterpret_cast<cudaStream_t>(0x40)) == cudaSuccess);
    pointer = nullptr;
    LaunchHookScope refusing([](Launch) { return cudaErrorLaunchOutOfResources; });
    CHECK(probe_launch(pointer, 1, 8, 0, nullptr) == cudaErrorLaunchOutOfResources);
  }
  CHECK(visits[0] == 0);
  REQUIRE(queue.size() == 1);
  CHECK(queue[0].kernel.find("probe_kernel") != std::string::npos);
  CHECK(queue[0].stream == reinterpret_cast<cudaStream_t>(0x40));
  CHECK(queue[0].block.x == 8);
  CHECK(queue[0].shared_bytes == 16);
  CHECK(queue[0].run() == cudaSuccess);
  CHECK(queue[0].run() == cudaSuccess);
  CHECK(visits.values() == std::vector<int>(8, 2));
}

TEST_CASE("threads that never wait need one fiber and two switches; those that wait, one a wait") {
  DeviceBuffer<int> visits(std::vector<int>(256, 0));
  const Counters before = counters();
  CHECK(probe_launch(visits.data(), 1, 256, 0, nullptr) == cudaSuccess);
  CHECK(counters().threads - before.threads == 256);
  CHECK(counters().switches - before.switches == 2);
  CHECK(counters().barriers == before.barriers);
}

TEST_CASE("barriers that vote") {
  for_each_order([] {
    DeviceBuffer<int> out(3 * 96);
    CHECK(barrier_votes(out.data(), nullptr) == cudaSuccess);
    for (std::size_t t = 0; t < 96; t++) {
      CHECK(out[3 * t] == 64);      // threads of 96 with t % 3 != 0
      CHECK(out[3 * t + 1] == 0);   // all
      CHECK(out[3 * t + 2] == 1);   // any
    }
  });
}

TEST_CASE("shuffles of every kind, width and size") {
  for_each_order([] {
    DeviceBuffer<double> out(64 * 6);
    CHECK(shuffle_kinds(out.data(), nullptr) == cudaSuccess);
    for (int t = 0; t < 64; t++) {
      const int lane = t % 32, warp = t / 32 * 32;
      auto value = [&](int source) { return 0.5 * (warp + source); };
      const int want[6] = {7, lane >= 3 ? lane - 3 : lane, lane + 5 < 32 ? lane + 5 : lane, lane ^ 9,
                           lane / 8 * 8 + 2, lane % 8 >= 1 ? lane - 1 : lane};
      for (int k = 0; k < 6; k++) CHECK(out[std::size_t(t * 6 + k)] == value(want[k]));
    }
  });
}

TEST_CASE("lanes of one warp in different branches, each with its own mask") {
  for_each_order([] {
    DeviceBuffer<int> out(32);
    CHECK(divergent_warp(out.data(), nullptr) == cudaSuccess);
    for (int lane = 0; lane < 32; lane++) {
      // Even lanes add up in pairs of even lanes, odd lanes count themselves.
      CHECK(out[std::size_t(lane)] == (lane % 2 == 0 ? lane + (lane ^ 2) : 16));
    }
  }, 4);
}

TEST_CASE("atomics") {
  for_each_order([] {
    DeviceBuffer<int> i{0, 0, 1000, -1000, -1, 0, 0, 5, 0};
    DeviceBuffer<float> f{0.0f};
    DeviceBuffer<double> d{0.0};
    DeviceBuffer<unsigned long long> u{0ull};
    CHECK(atomic_kinds(i.data(), f.data(), d.data(), u.data(), nullptr) == cudaSuccess);
    // 4 blocks of 64 threads; t is the thread's number in the grid
    CHECK(i[0] == 256 * 255 / 2);
    CHECK(i[1] == -256);
    CHECK(i[2] == 0);      // min of t
    CHECK(i[3] == 255);    // max of t
    CHECK(i[4] == 0);      // and
    CHECK(i[5] == 255);    // or
    CHECK(i[6] == 0);      // xor of 0..255
    CHECK(i[7] == 77);     // exchanged by compare-and-swap, once
    CHECK(i[8] == 1);      // how many saw it happen
    CHECK(f[0] == 128.0f);
    CHECK(d[0] == 64.0);
    CHECK(u[0] == 256ull << 33);
  });
}

TEST_CASE("fresh shared memory holds no block's former values") {
  DeviceBuffer<unsigned> out(2 * 32);
  CHECK(fresh_shared(out.data(), nullptr) == cudaSuccess);
  CHECK(out.values() == std::vector<unsigned>(2 * 32, 0xFFFFFFFFu));
}

TEST_CASE("a result that depends on the order shows a race") {
  // What x holds at the end, for one order after the other.
  std::vector<std::vector<int>> results;
  for_each_order([&] {
    DeviceBuffer<int> x(64);
    CHECK(reversal_without_barrier(x.data(), nullptr) == cudaSuccess);
    results.push_back(x.values());
  });
  CHECK(results[0] != results[1]);
}

TEST_CASE("the emulator alone finds: barriers, masks, deadlocks, shared memory") {
  std::size_t found = 0;
  for (const PlantedBug& bug : planted_bugs()) {
    if (!bug.needs_checker) found += finds(bug);
  }
  CHECK(found >= 8);
}

TEST_CASE("after a finding the next launch runs as if nothing had happened") {
  for (const PlantedBug& bug : planted_bugs()) {
    if (!bug.needs_checker) finds(bug);
    DeviceBuffer<int> visits(std::vector<int>(8, 0));
    CHECK(probe_launch(visits.data(), 1, 8, 0, nullptr) == cudaSuccess);
    CHECK(visits.values() == std::vector<int>(8, 1));
  }
  CHECK(finding() == std::string());
}
