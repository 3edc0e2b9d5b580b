// What the fuzz tests of the allocator and of its policies ask for: sizes of every kind, and a fixed script of operations
// for devices that fail.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/simulated_memory.h>

namespace limpid_test {

constexpr std::uint64_t kMiB = 1 << 20;

// Small and large, whole blocks and odd bytes, now and then a very large one.
inline std::size_t random_size(std::mt19937_64& random) {
  auto below = [&random](std::uint64_t n) { return random() % n; };
  std::uint64_t kind = below(100);
  if (kind < 30) return 1 + below(4096);
  if (kind < 55) return 1 + below(kMiB);
  if (kind < 65) return (1 + below(20)) * 512 * (kind % 2 ? 1 : 2048);
  if (kind < 80) return kMiB + 1 + below(10 * kMiB);
  return 10 * kMiB + below((kind < 97 ? 40 : 120) * kMiB);
}

// A fixed mix with streams, splits, a flush and a retry. Returns the number of calls that threw. `set_pending(on)`: events
// stay pending from now on, or not; `stream(i)`: the device's stream number i, up to 3.
template <class SetPending, class StreamNumber>
int scripted_run(limpid::memory::Allocator& allocator, SetPending set_pending, StreamNumber stream,
                 std::vector<limpid::memory::Block*>& live) {
  using namespace limpid;
  using namespace limpid::memory;
  int thrown = 0;
  auto check = [&] {
    try {
      allocator.check();
    } catch (const DeviceError&) {  // it asks a device for its memory, which may fail too
      thrown++;
      allocator.check();
    }
  };
  auto attempt = [&](auto&& action) {
    try {
      action();
    } catch (const DeviceError&) {
      thrown++;
    } catch (const OutOfMemoryError&) {
      thrown++;
    }
    check();
  };
  std::mt19937_64 random(7);
  for (int i = 0; i < 160; i++) {
    std::uint64_t kind = random() % 10, a = random(), b = random();
    set_pending(i % 40 < 25);
    if (kind < 5 || live.empty()) {
      std::size_t bytes = a % 3 == 0 ? 1 + b % (40 * kMiB) : 1 + b % (2 * kMiB);
      attempt([&] { live.push_back(allocator.allocate(bytes, Role::temp, 0, stream(a % 2))); });
    } else if (kind < 6) {
      attempt([&] { allocator.record_stream(live[a % live.size()], stream(2 + b % 2)); });
    } else if (kind < 9) {
      std::swap(live[a % live.size()], live.back());
      allocator.free(live.back());
      live.pop_back();
      check();
    } else if (b % 4 == 0) {
      attempt([&] { allocator.empty_cache(); });
    }
  }
  return thrown;
}
inline int scripted_run(limpid::memory::Allocator& allocator, limpid::memory::SimulatedMemory& device,
                        std::vector<limpid::memory::Block*>& live) {
  return scripted_run(
      allocator, [&device](bool on) { device.set_events_pending(on); },
      [](std::uint64_t number) { return limpid::memory::StreamId{number}; }, live);
}

}  // namespace limpid_test
