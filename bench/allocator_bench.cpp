// Time of allocate + free on a cache hit, statistics, ledger and trace on: median ns a pair, single thread. Policy:
// native. Prints one line a size; the last lines have other blocks free and live around, as in a training step.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include <limpid/memory/allocator.h>
#include <limpid/memory/simulated_memory.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr int kRounds = 101;
constexpr int kPairs = 20000;

template <class F>
void measure(const char* what, std::size_t bytes, F&& pair) {
  for (int i = 0; i < kPairs; i++) pair();
  std::vector<double> ns;
  for (int r = 0; r < kRounds; r++) {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kPairs; i++) pair();
    ns.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kPairs);
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%-28s %10zu B  median %6.1f ns  min %6.1f ns\n", what, bytes, ns[kRounds / 2], ns[0]);
}

}  // namespace

int main() {
  auto device = std::make_shared<SimulatedMemory>(std::uint64_t{64} << 30);
  for (std::size_t bytes : {std::size_t{512}, std::size_t{100000}, std::size_t{3000000}, std::size_t{60000000}}) {
    Allocator allocator(device);
    measure("allocate + free", bytes, [&] { allocator.free(allocator.allocate(bytes, Role::activation)); });
  }
  for (std::size_t bytes : {std::size_t{512}, std::size_t{3000000}}) {
    Allocator allocator(device);
    std::vector<Block*> blocks;
    for (int i = 0; i < 200; i++) {
      blocks.push_back(allocator.allocate(static_cast<std::size_t>(1 + i * 7919 % 4000000), Role::param));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
    measure("among 100 live, 100 free", bytes, [&] { allocator.free(allocator.allocate(bytes, Role::activation)); });
  }
  {
    Allocator allocator(device);
    constexpr std::size_t kSizes[] = {401408, 12845056, 6422528, 3211264, 40000, 2048, 1605632, 512};
    Block* held[8];
    measure("step of 8 sizes, a block", 0, [&] {
      for (int i = 0; i < 8; i++) held[i] = allocator.allocate(kSizes[i], Role::activation);
      for (int i = 7; i >= 0; i--) allocator.free(held[i]);
    });
    std::printf("  (divide the last line by 8)\n");
  }
  return 0;
}
