// The native policy against PyTorch's own event logs, and the known sequences that describe it.
#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "allocator_script.h"

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

void replay(const std::string& name, const std::string& settings, std::uint64_t capacity_mib) {
  std::vector<Step> steps = read_packed_log(std::string(LIMPID_TEST_DATA) + "/allocator/" + name + ".gz");
  REQUIRE(steps.size() >= 5000);
  ScriptPlayer player(capacity_mib * kMiB, settings);
  for (std::size_t i = 0; i < steps.size(); i++) {
    Event event = player.play(steps[i].command);
    INFO(name << " event " << i << ": " << steps[i].command);
    REQUIRE_MESSAGE(event == steps[i].event,
                    "limpid  " << to_string(event) << "\nPyTorch " << to_string(steps[i].event));
    if (i % 64 == 0) player.allocator.check();
  }
  player.allocator.check();
  CHECK(player.device->used() == 0);
  CHECK(player.device->event_count() == 0);
}

std::size_t reserved_mib(Allocator& a) { return static_cast<std::size_t>(a.ledger().reserved / kMiB); }

}  // namespace

TEST_CASE("every configuration of PyTorch's logs, event for event") {
  std::ifstream configs(std::string(LIMPID_TEST_DATA) + "/allocator/configs.txt");
  REQUIRE(configs.good());
  int count = 0;
  for (std::string line; std::getline(configs, line); count++) {
    std::size_t a = line.find('|'), b = line.find('|', a + 1), c = line.find('|', b + 1);
    replay(line.substr(0, a), line.substr(a + 1, b - a - 1), std::stoull(line.substr(b + 1, c - b - 1)));
  }
  CHECK(count == 13);
}

TEST_CASE("8 x 16 MiB, then 4 x 32 MiB, and the other way round") {
  auto device = std::make_shared<SimulatedMemory>(8192 * kMiB);
  auto run = [&](Allocator& a, int count, std::size_t bytes) {
    std::vector<Block*> blocks;
    for (int i = 0; i < count; i++) blocks.push_back(a.allocate(bytes, Role::activation));
    std::size_t reserved = reserved_mib(a);
    for (Block* block : blocks) a.free(block);
    return reserved;
  };
  Allocator up(device), down(device);
  CHECK(run(up, 8, 16 * kMiB) == 128);
  CHECK(reserved_mib(up) == 128);
  CHECK(run(up, 4, 32 * kMiB) == 256);
  CHECK(run(down, 4, 32 * kMiB) == 128);
  CHECK(run(down, 8, 16 * kMiB) == 128);
}

TEST_CASE("holes of 16 MiB do not serve 32 MiB") {
  Allocator a(std::make_shared<SimulatedMemory>(8192 * kMiB));
  std::array<Block*, 4> blocks;
  for (Block*& block : blocks) block = a.allocate(16 * kMiB, Role::activation);
  a.free(blocks[0]);
  a.free(blocks[2]);
  CHECK(reserved_mib(a) == 64);
  a.allocate(32 * kMiB, Role::activation);
  CHECK(reserved_mib(a) == 96);
  a.check();
}

TEST_CASE("small and large requests have their own pools") {
  Allocator a(std::make_shared<SimulatedMemory>(8192 * kMiB));
  Block* first = a.allocate(2 * kMiB, Role::activation);
  CHECK(reserved_mib(a) == 20);
  a.free(first);
  Block* half = a.allocate(kMiB / 2, Role::activation);
  CHECK(reserved_mib(a) == 22);
  CHECK(half->size == kMiB / 2);
  a.free(a.allocate(2 * kMiB, Role::activation));
  CHECK(reserved_mib(a) == 22);
}

TEST_CASE("sizes: rounding, segments, split limits") {
  struct Row {
    std::size_t bytes, size, segment;
  };
  const Row rows[] = {{1, 512, 2 * kMiB},
                      {512, 512, 2 * kMiB},
                      {513, 1024, 2 * kMiB},
                      {kMiB, kMiB, 2 * kMiB},
                      {kMiB + 1, kMiB + 512, 20 * kMiB},
                      {10 * kMiB - 512, 10 * kMiB - 512, 20 * kMiB},
                      {10 * kMiB, 10 * kMiB, 10 * kMiB},
                      {10 * kMiB + 1, 12 * kMiB, 12 * kMiB},  // the rest of 2 MiB - 512 B is split off below
                      {19 * kMiB, 20 * kMiB, 20 * kMiB}};     // a rest of exactly 1 MiB is not
  for (const Row& row : rows) {
    Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB));
    Block* block = a.allocate(row.bytes, Role::activation);
    std::size_t segment = a.ledger().reserved;
    CHECK(segment == row.segment);
    std::size_t rest = segment - (row.bytes + 511) / 512 * 512;
    bool split = row.bytes <= kMiB ? rest >= 512 : rest > kMiB;
    CHECK(block->size == (split ? (row.bytes + 511) / 512 * 512 : segment));
    CHECK(block->requested == row.bytes);
    a.check();
  }
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), parse_allocator_settings("roundup_power2_divisions:4"));
  CHECK(a.allocate(1200, Role::activation)->size == 1536);  // divisions start above 512 * 4
  CHECK(a.allocate(2100, Role::activation)->size == 2560);
  CHECK(a.allocate(4096, Role::activation)->size == 4096);
}
