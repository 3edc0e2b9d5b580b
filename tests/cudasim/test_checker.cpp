// The access checker: every planted bug is reported with file and line, whatever the order, and clean code is not.
#include <vector>

#include <doctest/doctest.h>

#include <cudasim/device_buffer.h>
#include <cudasim/find_bugs.h>
#include <cudasim/memory_map.h>
#include <cudasim/orders.h>
#include <cudasim/probe_kernels.h>

using namespace limpid::cudasim;

TEST_CASE("each planted bug is found in each order") {
  for (const PlantedBug& bug : planted_bugs()) {
    const Config former = config();
    for (Order order : {Order::forward, Order::reverse, Order::warp_reverse, Order::random}) {
      config().order = order;
      config().seed = random_seed();
      INFO("CUDASIM_SEED=", random_seed());
      finds(bug);
    }
    config() = former;
  }
}

TEST_CASE("the probes that are right have no finding") {
  for_each_order([] {
    DeviceBuffer<int> votes(3 * 96), divergent(32);
    DeviceBuffer<double> shuffles(64 * 6), d{0.0};
    DeviceBuffer<int> i{0, 0, 1000, -1000, -1, 0, 0, 5, 0};
    DeviceBuffer<float> f{0.0f};
    DeviceBuffer<unsigned long long> u{0ull};
    CHECK(barrier_votes(votes.data(), nullptr) == cudaSuccess);
    CHECK(shuffle_kinds(shuffles.data(), nullptr) == cudaSuccess);
    CHECK(divergent_warp(divergent.data(), nullptr) == cudaSuccess);
    CHECK(atomic_kinds(i.data(), f.data(), d.data(), u.data(), nullptr) == cudaSuccess);
  }, 3);
}

TEST_CASE("more launches than launch numbers: old accesses are no races") {
  DeviceBuffer<int> visits(std::vector<int>(64, 0));
  for (int i = 0; i < 300; i++) CHECK(probe_launch(visits.data(), 1, 64, 0, nullptr) == cudaSuccess);
  CHECK(visits.values() == std::vector<int>(64, 300));
  CHECK(finding() == std::string());
}

TEST_CASE("what is known of memory: regions, inner regions, initialised bytes") {
  alignas(16) unsigned char memory[64] = {}, other[64] = {};
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  CHECK(find_region(address) == nullptr);
  add_memory(memory, 40, Space::device, true, "outer");
  add_memory(memory + 8, 8, Space::device, true, "inner");
  add_memory(memory, 0, Space::device, true, "nothing");
  REQUIRE(find_region(address + 39) != nullptr);
  CHECK(find_region(address + 39)->what == "outer");
  CHECK(find_region(address + 40) == nullptr);
  CHECK(find_region(address + 8)->what == "inner");
  CHECK(find_region(address + 15)->what == "inner");
  CHECK(find_region(address + 16)->what == "outer");
  CHECK(region_before(address + 40)->what == "outer");
  remove_memory(memory + 8);
  CHECK(find_region(address + 8)->what == "outer");
  remove_memory(memory);
  CHECK(find_region(address) == nullptr);

  // Through a kernel: 8 ints of which 4 have been written, copied, and forgotten again.
  add_memory(memory, 64, Space::device, false, "a");
  add_memory(other, 64, Space::device, false, "b");
  auto readable = [](unsigned char* p, unsigned n) {
    clear_finding();
    const bool ok = probe_launch(reinterpret_cast<int*>(p), 1, n, 0, nullptr) == cudaSuccess;
    clear_finding();
    return ok;
  };
  CHECK_FALSE(readable(memory, 1));
  mark_initialised(memory, 15);
  CHECK(readable(memory, 3));
  CHECK_FALSE(readable(memory + 12, 1));  // its last byte is missing
  copy_initialised(other + 4, memory + 4, 12);
  CHECK_FALSE(readable(other, 1));
  CHECK(readable(other + 4, 2));
  CHECK_FALSE(readable(other + 12, 1));
  mark_uninitialised(memory + 4, 1);
  CHECK(readable(memory, 1));
  CHECK_FALSE(readable(memory + 4, 1));
  remove_memory(memory);
  remove_memory(other);
  CHECK_FALSE(readable(memory, 1));
}
