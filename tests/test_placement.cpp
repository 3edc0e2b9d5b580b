// Where blocks lie, event by event: small traces with the answer written down, and what must hold for any trace.
#include <algorithm>
#include <map>

#include <doctest/doctest.h>

#include <limpid/memory/native_policy.h>
#include <limpid/memory/placement.h>
#include <limpid/memory/policies.h>

#include "view/traces.h"

using namespace limpid;
using namespace limpid::memory;
using limpid_test::TraceBuilder;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

Placement placed(const TraceLog& log, std::string_view policy = "native", std::uint64_t capacity = 0) {
  ReplayOptions options;
  options.policy = policy_named(policy);
  if (capacity > 0) options.capacity = capacity;
  return place(log, options);
}

// What every placement keeps: rectangles inside memory that is there, none over another, sums that are the replay's.
void check_invariants(const TraceLog& log, const Placement& p) {
  std::uint64_t peak = 0;
  std::uint32_t peak_event = 0;
  std::vector<std::size_t> live;
  std::size_t next = 0;
  for (std::uint32_t t = 0; t < p.events; t++) {
    std::erase_if(live, [&](std::size_t i) { return p.blocks[i].end <= t; });
    for (; next < p.blocks.size() && p.blocks[next].begin == t; next++) {
      if (p.blocks[next].end > t) live.push_back(next);
    }
    std::uint64_t requested = 0;
    for (std::size_t i : live) {
      const PlacedKind& kind = p.kinds[p.blocks[i].kind];
      if (!kind.pending) requested += kind.requested;
    }
    if (requested > peak) {
      peak = requested;
      peak_event = t;
    }
    if (t % 97 != 0 && t + 1 != p.events) continue;
    // In the picture, and in address.
    std::map<std::uint64_t, std::uint64_t> lanes, runs;
    std::uint64_t largest = 0;
    for (std::size_t i : live) {
      const PlacedBlock& b = p.blocks[i];
      const Region& region = p.regions[b.region];
      REQUIRE(region.begin <= t);
      REQUIRE(region.end > t);
      REQUIRE(b.offset + p.kinds[b.kind].size <= region.size);
      REQUIRE(lanes.emplace(region.lane + b.offset, region.lane + b.offset + p.kinds[b.kind].size).second);
      runs[region.address + b.offset] = region.address + b.offset + p.kinds[b.kind].size;
    }
    std::uint64_t end = 0;
    for (const auto& [low, high] : lanes) {
      REQUIRE(low >= end);
      end = high;
    }
    REQUIRE(end <= p.lanes);
    // The free runs, counted anew.
    std::map<std::uint64_t, std::uint64_t> memory;
    for (const RegionPiece& piece : p.pieces) {
      if (piece.begin > t || piece.end <= t) continue;
      const std::uint64_t at = p.regions[piece.region].address + piece.offset;
      memory[at] = at + piece.size;
    }
    std::uint64_t free_from = 0, memory_end = 0;
    auto close = [&](std::uint64_t to) { largest = std::max(largest, to > free_from ? to - free_from : 0); };
    for (const auto& [low, high] : memory) {
      if (low != memory_end) {
        close(memory_end);
        free_from = low;
      }
      for (auto it = runs.lower_bound(low); it != runs.end() && it->first < high; ++it) {
        close(it->first);
        free_from = it->second;
      }
      memory_end = high;
    }
    close(memory_end);
    REQUIRE(p.largest_free[t] == largest);
  }
  CHECK(next == p.blocks.size());
  CHECK(peak == p.peak.live_total);
  CHECK(peak == p.replay.peak_live);
  CHECK(peak_event == p.peak_event);
  CHECK(p.events == p.largest_free.size());
  CHECK(p.events == p.replay.operations);
  CHECK(p.events <= log.records.size());
}

}  // namespace

TEST_CASE("a block has a place, a life and the free run beside it") {
  TraceBuilder b;
  const auto a = b.alloc(4 * kMiB, Role::param, "a");
  const auto c = b.alloc(3 * kMiB, Role::temp, "c");
  b.free(a);
  b.alloc(2 * kMiB, Role::temp, "d");
  b.free(c);
  const Placement p = placed(b.log);
  REQUIRE(p.events == 5);
  REQUIRE(p.blocks.size() == 3);
  REQUIRE(p.regions.size() == 1);
  CHECK(p.regions[0].size == 20 * kMiB);
  CHECK(p.regions[0].pool == PoolKind::large);
  CHECK(p.lanes == 20 * kMiB);
  CHECK(p.blocks[0].offset == 0);
  CHECK(p.blocks[0].begin == 0);
  CHECK(p.blocks[0].end == 2);
  CHECK(p.blocks[0].died == 2);
  CHECK(p.blocks[1].offset == 4 * kMiB);
  CHECK(p.blocks[1].end == 4);
  CHECK(p.blocks[2].offset == 0);
  CHECK(p.blocks[2].end == kStays);
  CHECK(p.largest_free == std::vector<std::uint64_t>{16 * kMiB, 13 * kMiB, 13 * kMiB, 13 * kMiB, 18 * kMiB});
  CHECK(p.peak_event == 1);
  CHECK(p.peak.live_total == 7 * kMiB);
  CHECK(b.log.name(p.kinds[p.blocks[2].kind].name) == "d");
}

TEST_CASE("a role that changes divides a block, a name does not") {
  TraceBuilder b;
  b.scope.step = 3;
  b.scope.phase = Phase::forward;
  b.scope.module = b.name("conv1");
  const auto a = b.alloc(1000, Role::activation);
  b.rename(a, "late name");
  b.role(a, Role::saved);
  b.role(a, Role::saved);
  b.scope.step = 4;
  b.free(a);
  const Placement p = placed(b.log);
  REQUIRE(p.events == 4);  // names are no events
  REQUIRE(p.blocks.size() == 2);
  const PlacedKind &first = p.kinds[p.blocks[0].kind], &second = p.kinds[p.blocks[1].kind];
  CHECK(first.role == Role::activation);
  CHECK(second.role == Role::saved);
  CHECK(first.requested == 1000);
  CHECK(first.size == 1024);
  CHECK(b.log.name(first.name) == "late name");
  CHECK(b.log.name(second.name) == "late name");
  CHECK(b.log.name(second.module) == "conv1");
  CHECK(second.phase == Phase::forward);
  CHECK(p.blocks[0].end == 1);
  CHECK(p.blocks[1].begin == 1);
  for (const PlacedBlock& block : p.blocks) {
    CHECK(block.born == 0);
    CHECK(block.died == 3);
  }
  REQUIRE(p.scopes.size() == 2);
  CHECK(p.scopes[1].begin == 3);
  CHECK(p.scopes[1].step == 4);
}

TEST_CASE("a block that another stream uses waits after its free, until the next request") {
  TraceBuilder b;
  const auto a = b.alloc(4 * kMiB, Role::activation, "a", 1);
  b.use(a, 2);
  b.free(a);
  const auto c = b.alloc(100, Role::temp, "small", 1);
  b.free(c);
  const Placement p = placed(b.log);
  REQUIRE(p.blocks.size() == 3);
  CHECK(p.blocks[0].end == 2);
  CHECK(p.kinds[p.blocks[1].kind].pending);
  CHECK(p.blocks[1].begin == 2);
  CHECK(p.blocks[1].end == 3);
  CHECK(p.blocks[1].died == 2);
  CHECK(p.largest_free[2] == 16 * kMiB);
  CHECK(p.largest_free[3] == 20 * kMiB);
  CHECK(p.regions[0].stream == 1);
  check_invariants(b.log, p);
}

TEST_CASE("streams and pools have segments of their own") {
  TraceBuilder b;
  for (std::uint64_t stream : {0, 7, 9}) {
    b.alloc(1000, Role::temp, "", stream);
    b.alloc(2 * kMiB, Role::temp, "", stream);
  }
  const Placement p = placed(b.log);
  REQUIRE(p.regions.size() == 6);
  for (std::size_t i = 0; i < 6; i++) {
    CHECK(p.regions[i].stream == std::vector<std::uint64_t>{0, 7, 9}[i / 2]);
    CHECK(p.regions[i].pool == (i % 2 == 0 ? PoolKind::small : PoolKind::large));
  }
  CHECK(p.lanes == 3 * (2 + 20) * kMiB);
}

TEST_CASE("a place in the picture is used again once its segment is gone") {
  TraceBuilder b;
  const auto first = b.alloc(30 * kMiB, Role::temp), second = b.alloc(40 * kMiB, Role::temp);
  b.free(first);
  TraceRecord empty{};
  empty.kind = TraceKind::empty_cache;
  b.log.records.push_back(empty);
  b.alloc(24 * kMiB, Role::temp);
  const Placement p = placed(b.log);
  REQUIRE(p.regions.size() == 3);
  CHECK(p.regions[0].end == 3);
  CHECK(p.regions[1].end == kStays);
  CHECK(p.regions[1].lane == 30 * kMiB);
  CHECK(p.regions[2].lane == 0);
  CHECK(p.lanes == 70 * kMiB);
  CHECK(second == 2);
  check_invariants(b.log, p);
}

TEST_CASE("a request that fails ends the run and is written down") {
  TraceBuilder b;
  b.scope.module = b.name("fc");
  b.alloc(30 * kMiB, Role::param, "weight");
  b.alloc(50 * kMiB, Role::activation, "too large");
  b.alloc(1000, Role::temp);
  const Placement p = placed(b.log, "native", 64 * kMiB);
  CHECK(p.events == 2);
  CHECK_FALSE(p.replay.completed);
  REQUIRE(p.failed.size() == 1);
  CHECK(p.failed[0].event == 1);
  CHECK(p.failed[0].bytes == 50 * kMiB);
  CHECK(p.failed[0].role == Role::activation);
  CHECK(b.log.name(p.failed[0].name) == "too large");
  CHECK(b.log.name(p.failed[0].module) == "fc");
  CHECK(p.blocks.size() == 1);
}

TEST_CASE("a failure of the recorded run fails again, or fits and leaves no block") {
  TraceBuilder b;
  b.alloc(30 * kMiB, Role::param, "weight");
  b.failed(50 * kMiB, "too large");
  b.alloc(1000, Role::temp);
  const Placement again = placed(b.log, "native", 64 * kMiB);
  CHECK(again.events == 3);
  CHECK(again.replay.completed);
  REQUIRE(again.failed.size() == 1);
  CHECK(again.failed[0].event == 1);
  const Placement fits = placed(b.log);
  CHECK(fits.failed.empty());
  CHECK(fits.blocks.size() == 2);
  CHECK(fits.peak.live_total == 30 * kMiB + 1000);
}

TEST_CASE("an empty trace, and operations on blocks the trace does not have") {
  const Placement p = placed(TraceLog{});
  CHECK(p.events == 0);
  CHECK(p.blocks.empty());
  CHECK(p.lanes == 0);
  TraceBuilder b;
  b.free(99);
  b.rename(98, "nobody");
  b.alloc(1000, Role::temp);
  CHECK(placed(b.log).events == 1);
}

TEST_CASE("invariants under every policy") {
  const TraceLog log = limpid_test::training_loop(20000, 24);
  for (const PolicyEntry& policy : policies()) {
    CAPTURE(policy.name);
    const Placement p = placed(log, policy.name);
    CHECK(p.replay.policy == policy.name);
    check_invariants(log, p);
  }
}
