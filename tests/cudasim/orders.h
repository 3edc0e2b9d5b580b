// Runs a test body under every order of threads and blocks. A kernel whose result depends on the order has a race.
#pragma once

#include <cstdlib>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include <cudasim/emulator.h>

namespace limpid::cudasim {

// Fresh for every process, so that many runs try many orders. CUDASIM_SEED=N repeats that of a failure.
inline std::uint64_t random_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("CUDASIM_SEED");
    return given ? std::strtoull(given, nullptr, 10) : std::random_device()() % 1000000;
  }();
  return seed;
}

// body() for forward, reverse and warp_reverse, and `random_orders` random ones. A failing assertion names order and seed.
// A finding of the emulator fails the test.
template <class Body>
void for_each_order(const Body& body, int random_orders = 1) {
  struct Restore {
    Config former = config();
    ~Restore() { config() = former; }
  } restore;
  auto run = [&](Order order, std::uint64_t seed) {
    config().order = order;
    config().seed = seed;
    const std::string how = std::string("order ") + name_of(order) +
                            (order == Order::random ? ", CUDASIM_SEED=" + std::to_string(random_seed()) : std::string());
    INFO(how);
    clear_finding();
    body();
    CHECK(finding() == std::string());
    clear_finding();
  };
  for (Order order : {Order::forward, Order::reverse, Order::warp_reverse}) run(order, 1);
  for (int i = 0; i < random_orders; i++) run(Order::random, random_seed() * 1000003 + static_cast<std::uint64_t>(i));
}

}  // namespace limpid::cudasim
