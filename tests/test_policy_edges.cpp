// Decisions of the policies at their borders, which random operations rarely meet. Each case is the answer to a mutant
// that survived (tests/mutations.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/arena_policy.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/offline_policy.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/simulated_memory.h>
#include <limpid/memory/stream_check.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

std::vector<Block*> allocate(Allocator& allocator, int count, std::size_t bytes, StreamId stream = 0) {
  std::vector<Block*> blocks;
  for (int i = 0; i < count; i++) blocks.push_back(allocator.allocate(bytes, Role::temp, 0, stream));
  return blocks;
}

TraceRecord record(TraceKind kind, std::uint64_t id, std::uint64_t bytes, StreamId stream = 0) {
  TraceRecord r{};
  r.kind = kind;
  r.id = id;
  r.bytes = bytes;
  r.stream = stream;
  return r;
}

using Offsets = std::vector<std::size_t>;

}  // namespace

TEST_CASE("native: of oversize blocks just enough are given back, and that is no retry") {
  Allocator a(std::make_shared<SimulatedMemory>(192 * kMiB), parse_allocator_settings("max_split_size_mb:64"));
  for (Block* block : allocate(a, 3, 64 * kMiB)) a.free(block);
  Block* block = a.allocate(128 * kMiB, Role::temp);
  CHECK(a.ledger().reserved == 192 * kMiB);  // the third one stays
  CHECK(a.stats().num_alloc_retries == 0);
  a.free(block);
  a.check();
}

TEST_CASE("native: the garbage collector stops at the threshold, not behind it") {
  Allocator a(std::make_shared<SimulatedMemory>(1008 * kMiB),
              parse_allocator_settings("garbage_collection_threshold:0.5"));
  a.set_memory_fraction(0.25);  // 252 MiB, collected above 126 MiB
  std::vector<Block*> blocks = allocate(a, 5, 20 * kMiB);
  a.free(blocks[0]);
  allocate(a, 1, 24 * kMiB);
  a.free(blocks[1]);
  a.free(blocks[2]);
  allocate(a, 1, 22 * kMiB);
  REQUIRE(a.ledger().reserved == 146 * kMiB);
  allocate(a, 1, 40 * kMiB);  // 20 MiB above the threshold: the oldest block alone
  CHECK(a.ledger().reserved == (146 - 20 + 40) * kMiB);
  a.check();
}

TEST_CASE("expandable: a hole of just the right size is filled") {
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), parse_allocator_settings("expandable_segments:True"));
  std::vector<Block*> blocks = allocate(a, 3, 20 * kMiB);
  void* hole = blocks[1]->ptr;
  a.free(blocks[1]);
  a.empty_cache();
  REQUIRE(a.ledger().reserved == 40 * kMiB);
  CHECK(a.allocate(20 * kMiB, Role::temp)->ptr == hole);
  a.check();
}

TEST_CASE("expandable: the end of an allocator unmaps what is mapped and nothing else") {
  auto device = std::make_shared<SimulatedMemory>(1024 * kMiB);
  {
    Allocator a(device, parse_allocator_settings("expandable_segments:True"));
    std::vector<Block*> blocks = allocate(a, 3, 20 * kMiB);
    a.free(blocks[0]);  // the range begins with a tile that is not mapped
    a.empty_cache();
    REQUIRE(device->calls().unmap == 1);
  }
  CHECK(device->calls().unmap == 2);
  CHECK(device->used() == 0);
}

TEST_CASE("a stream's events wait in one queue, and only its first is asked for") {
  auto device = std::make_shared<SimulatedMemory>(1024 * kMiB);
  Allocator a(device);
  device->set_events_pending(true);
  for (StreamId stream : {2, 1, 3}) {
    for (Block* block : allocate(a, 3, 20 * kMiB)) {
      a.record_stream(block, stream);
      a.free(block);
    }
  }
  const std::int64_t before = device->calls().event_query;
  a.allocate(512, Role::temp);
  CHECK(device->calls().event_query == before + 3);
}

TEST_CASE("a stream that is done does not wait for one that is not") {
  auto device = std::make_shared<StreamedMemory>(1024 * kMiB);
  Allocator a(device);
  Block *late = a.allocate(20 * kMiB, Role::temp), *early = a.allocate(20 * kMiB, Role::temp);
  void* early_at = early->ptr;
  auto used_on = [&](Block* block, StreamId stream, std::uint64_t duration) {
    device->launch(stream, block->id, block->ptr, block->requested, duration);
    a.record_stream(block, stream);
    a.free(block);
  };
  used_on(late, 2, 1000);
  used_on(early, 1, 10);
  device->advance(20);
  CHECK(a.allocate(20 * kMiB, Role::temp)->ptr == early_at);
  CHECK(a.ledger().pending_free == 20 * kMiB);
  a.check();
}

TEST_CASE("bfc: a region that cannot be smaller is not asked for twice in a row") {
  auto device = std::make_shared<SimulatedMemory>(1024 * kMiB);
  Allocator a(device, {}, policy_named("bfc"));
  device->fail_call(1);
  a.allocate(2 * kMiB, Role::temp);
  CHECK(a.stats().num_alloc_retries == 1);
  CHECK(device->calls().reserve == 2);
}

TEST_CASE("bfc: a rest of just 128 MiB is split off") {
  Allocator a(std::make_shared<SimulatedMemory>(384 * kMiB), {}, policy_named("bfc"));
  a.free(a.allocate(384 * kMiB, Role::temp));
  CHECK(a.allocate(256 * kMiB, Role::temp)->size == 256 * kMiB);
  a.check();
}

TEST_CASE("arena: a region that cannot be smaller is not asked for twice in a row") {
  auto device = std::make_shared<SimulatedMemory>(1024 * kMiB);
  Allocator a(device, {}, policy_named("arena"));
  device->fail_call(1);
  a.allocate(ArenaPolicy::kRegion, Role::temp);
  CHECK(a.stats().num_alloc_retries == 1);
  CHECK(device->calls().reserve == 2);
}

TEST_CASE("stitch: the limit itself is stitched") {
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), parse_allocator_settings("stitch_limit_mb:16"),
              policy_named("stitch"));
  for (Block* block : allocate(a, 2, 8 * kMiB)) a.free(block);
  REQUIRE(a.ledger().reserved == 16 * kMiB);
  a.allocate(16 * kMiB, Role::temp);
  CHECK(a.ledger().reserved == 16 * kMiB);
  a.check();
}

TEST_CASE("rmm_pool: blocks of several streams are waited for when they become one, even if the segment then stays") {
  auto device = std::make_shared<StreamedMemory>(1024 * kMiB);
  Allocator a(device, {}, policy_named("rmm_pool"));
  a.free(a.allocate(40 * kMiB, Role::temp));
  Block* first = a.allocate(20 * kMiB, Role::temp);
  Block* second = a.allocate(20 * kMiB, Role::temp, 0, 1);
  REQUIRE(first->segment == second->segment);
  device->launch(1, second->id, second->ptr, second->requested, 1000);
  a.free(first);
  a.free(second);
  device->memory().fail_call(1);
  CHECK_THROWS_AS(a.empty_cache(), DeviceError);
  REQUIRE(a.ledger().reserved == 40 * kMiB);
  Block* whole = a.allocate(40 * kMiB, Role::temp);
  CHECK_NOTHROW(device->launch(0, whole->id, whole->ptr, whole->requested, 1));
  a.free(whole);
  a.check();
}

TEST_CASE("offline: a block that another stream uses keeps its place, one that changes its role does not") {
  auto height = [](TraceKind kind) {
    return plan_trace({record(TraceKind::alloc, 1, 4096), record(kind, 1, 4096, 7), record(TraceKind::free, 1, 4096),
                       record(kind, 5, 4096, 7), record(TraceKind::alloc, 2, 4096)})
        .plan.height;
  };
  CHECK(height(TraceKind::record_stream) == 8192);
  CHECK(height(TraceKind::role) == 4096);
}

TEST_CASE("offline: a trace of just as many buffers as the search takes is searched") {
  std::mt19937_64 random(3);
  int better = 0;
  for (int i = 0; i < 200; i++) {
    std::vector<TraceRecord> records;
    std::vector<std::uint64_t> live;
    for (std::uint64_t id = 0; id < 12;) {
      if (live.size() < 2 || random() % 2) {
        records.push_back(record(TraceKind::alloc, id, 512 * (1 + random() % 9)));
        live.push_back(id++);
      } else {
        std::swap(live[random() % live.size()], live.back());
        records.push_back(record(TraceKind::free, live.back(), 512));
        live.pop_back();
      }
    }
    const TracePlan plan = plan_trace(records, 12);
    CHECK(plan.plan.height == plan_exact(plan.buffers).height);
    better += plan.plan.height < plan_best_of(plan.buffers).height;
  }
  CHECK(better > 0);
}

TEST_CASE("offline: the method of one stream is its own") {
  CHECK(std::string(plan_trace({record(TraceKind::alloc, 1, 512)}).plan.method) == "size");
  CHECK(std::string(plan_trace({record(TraceKind::alloc, 1, 512), record(TraceKind::alloc, 2, 512, 1)}).plan.method) ==
        "one plan a stream");
}

TEST_CASE("offline: a plan ends with its last event, whatever lies behind it in memory") {
  for (bool alloc : {true, false}) {
    auto plan = std::make_shared<TracePlan>(plan_trace(
        {record(TraceKind::alloc, 1, 4096), record(alloc ? TraceKind::alloc : TraceKind::free, alloc ? 2 : 1, 4096)}));
    plan->events.pop_back();
    auto report = std::make_shared<OfflineReport>();
    Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), {}, make_offline_policy(plan, report));
    Block* block = a.allocate(4096, Role::temp);
    CHECK(!report->mismatch);
    if (alloc) a.allocate(4096, Role::temp);
    a.free(block);
    CHECK(report->mismatch);
    CHECK(report->event == 1);
    CHECK(report->expected == "the end of the trace");
  }
}

TEST_CASE("plans: each order is what it says, ties go by size and then by number") {
  const std::vector<PlanBuffer> three = {{10, 10, 11}, {1, 0, 20}, {6, 8, 14}};
  CHECK(plan_greedy(three, PlanOrder::size).offsets == Offsets{0, 16, 10});
  CHECK(plan_greedy(three, PlanOrder::lifetime).offsets == Offsets{7, 0, 1});
  CHECK(plan_greedy(three, PlanOrder::area).offsets == Offsets{7, 6, 0});
  CHECK(plan_greedy({{2, 0, 5}, {5, 0, 5}, {5, 1, 6}}, PlanOrder::lifetime).offsets == Offsets{10, 0, 5});
  CHECK(std::string(plan_best_of(three).method) == "size");  // the first of equals
  CHECK(std::string(plan_best_of({}).method) == "size");
}

TEST_CASE("plans: the tightest gap, the lowest of equal ones, an exact one too; buffers of no bytes take no room") {
  using Buffers = std::vector<PlanBuffer>;
  CHECK(plan_greedy(Buffers{{10, 0, 30}, {1, 20, 45}, {10, 31, 40}}, PlanOrder::lifetime).offsets == Offsets{0, 10, 0});
  CHECK(plan_greedy(Buffers{{2, 0, 100}, {3, 0, 40}, {1, 35, 74}, {3, 30, 68}, {4, 60, 97}, {3, 70, 73}},
                    PlanOrder::lifetime)
            .offsets == Offsets{0, 2, 5, 6, 9, 2});
  CHECK(plan_greedy(Buffers{{10, 0, 30}, {1, 20, 45}, {5, 30, 38}, {0, 36, 43}, {7, 39, 45}}, PlanOrder::lifetime)
            .offsets == Offsets{0, 10, 0, 5, 0});
  CHECK(plan_greedy(Buffers{{5, 0, 9}, {4, 0, 8}, {0, 0, 7}}, PlanOrder::lifetime).offsets == Offsets{0, 5, 9});
}

TEST_CASE("native: a request of just 1 MiB is a small one") {
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB));
  a.allocate(kMiB, Role::temp);
  CHECK(a.ledger().reserved == 2 * kMiB);
  a.allocate(kMiB + 512, Role::temp);
  CHECK(a.ledger().reserved == 22 * kMiB);
}

TEST_CASE("giving back down to a size: the largest first, one of just the right size too") {
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB));
  std::vector<Block*> blocks = {a.allocate(20 * kMiB, Role::temp), a.allocate(40 * kMiB, Role::temp)};
  for (Block* block : blocks) a.free(block);
  a.empty_cache(20 * kMiB);
  CHECK(a.ledger().reserved == 20 * kMiB);
  a.check();
}

TEST_CASE("expandable: giving back a single page") {
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), parse_allocator_settings("expandable_segments:True"));
  a.free(a.allocate(40 * kMiB, Role::temp));
  REQUIRE(a.ledger().reserved == 40 * kMiB);
  a.empty_cache(20 * kMiB);
  CHECK(a.ledger().reserved == 20 * kMiB);
  a.check();
}

TEST_CASE("expandable: a range has room for the device and an eighth more") {
  struct Ranges final : SimulatedMemory {
    using SimulatedMemory::SimulatedMemory;
    void* range_reserve(std::size_t bytes) override {
      asked.push_back(bytes);
      return SimulatedMemory::range_reserve(bytes);
    }
    std::vector<std::size_t> asked;
  };
  auto device = std::make_shared<Ranges>(1024 * kMiB);
  Allocator a(device, parse_allocator_settings("expandable_segments:True"));
  a.allocate(4 * kMiB, Role::temp);
  CHECK(device->asked == std::vector<std::size_t>{1160 * kMiB});  // 1152, in pages of 20
}

TEST_CASE("a range of addresses that the device refuses is out of memory, and the allocator goes on") {
  struct Narrow final : SimulatedMemory {
    using SimulatedMemory::SimulatedMemory;
    void* range_reserve(std::size_t bytes) override { return refuses ? nullptr : SimulatedMemory::range_reserve(bytes); }
    bool refuses = true;
  };
  for (const char* policy : {"expandable", "stitch", "async"}) {
    CAPTURE(policy);
    auto device = std::make_shared<Narrow>(1024 * kMiB);
    Allocator a(device, {}, policy_named(policy));
    OomCause cause = OomCause::capacity;
    try {
      a.allocate(4 * kMiB, Role::temp);
      FAIL("served");
    } catch (const OutOfMemoryError& error) {
      cause = error.info().cause;
    }
    CHECK(cause == OomCause::external);
    a.check();
    CHECK(a.ledger().reserved == 0);
    device->refuses = false;
    a.free(a.allocate(4 * kMiB, Role::temp));
    a.empty_cache();
    a.check();
    CHECK(device->used() == 0);
  }
}

TEST_CASE("real memory: a range that the system does not have is nullptr, no error of the device") {
  HostMemory host("cpu");
  CHECK(host.range_reserve(std::size_t{1} << 60) == nullptr);
}

TEST_CASE("places are counted up to 8 TiB in one segment or range, and beyond is refused") {
  constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;
  for (const char* policy : {"native", "expandable", "stitch", "bfc"}) {
    CAPTURE(policy);
    Allocator a(std::make_shared<SimulatedMemory>(64 * kTiB), {}, policy_named(policy));
    // Free places beyond 2 TiB keep their order: the lower one is taken.
    std::vector<Block*> blocks = {a.allocate(3 * kTiB, Role::temp), a.allocate(kTiB / 2, Role::temp),
                                  a.allocate(20 * kMiB, Role::temp), a.allocate(kTiB / 2, Role::temp),
                                  a.allocate(20 * kMiB, Role::temp)};
    void* const lower = blocks[1]->ptr;
    const bool ascending = blocks[1]->ptr < blocks[3]->ptr;
    a.free(blocks[3]);
    a.free(blocks[1]);
    a.check();
    if (ascending) CHECK(a.allocate(kTiB / 2, Role::temp)->ptr == lower);
    a.check();
    CHECK_THROWS_WITH_AS(a.allocate(9 * kTiB, Role::temp), doctest::Contains("the policies count places below 8.00 TiB"),
                         ArgumentError);
    a.check();
  }
}

TEST_CASE("bfc: a cache that is emptied a hundred times still grows by what the device has") {
  Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), {}, policy_named("bfc"));
  for (int i = 0; i < 100; i++) {
    a.free(a.allocate(4 * kMiB, Role::temp));
    a.empty_cache();
  }
  a.free(a.allocate(4 * kMiB, Role::temp));
  CHECK(a.ledger().reserved == 1024 * kMiB);
}

TEST_CASE("simulated ranges never reach the addresses of segments") {
  SimulatedMemory device(std::uint64_t{1} << 50);
  const auto segment = reinterpret_cast<std::uintptr_t>(device.reserve(2 * kMiB));
  for (int i = 0; i < 40; i++) {
    const auto range = reinterpret_cast<std::uintptr_t>(device.range_reserve(std::size_t{1} << 40));
    REQUIRE(range != 0);
    CHECK((range + (std::uint64_t{1} << 40) <= segment || range >= segment + 2 * kMiB));
  }
  CHECK(device.range_reserve(SIZE_MAX - 4096) == nullptr);
}

TEST_CASE("offline: giving back a slab of just the right size") {
  auto plan = std::make_shared<TracePlan>(
      plan_trace({record(TraceKind::alloc, 1, 30 * kMiB), record(TraceKind::free, 1, 30 * kMiB)}));
  for (std::uint64_t below : {0, 1}) {
    Allocator a(std::make_shared<SimulatedMemory>(1024 * kMiB), {}, make_offline_policy(plan, std::make_shared<OfflineReport>()));
    Block* other = a.allocate(30 * kMiB, Role::temp);  // the planned one
    a.free(other);
    Block* kept = a.allocate(40 * kMiB, Role::temp);  // behind the plan's end: from the native policy
    const std::uint64_t reserved = a.ledger().reserved;
    REQUIRE(reserved == 70 * kMiB);
    a.empty_cache(40 * kMiB + below);
    CHECK(a.ledger().reserved == (below ? 70 : 40) * kMiB);
    a.free(kept);
    a.check();
  }
}

TEST_CASE("plans: optimal is said of a plan as high as the most live bytes, and of no other") {
  CHECK(plan_greedy({{10, 0, 5}, {7, 5, 9}}, PlanOrder::size).optimal);
  const std::vector<PlanBuffer> fragmented = {{2, 0, 100}, {3, 0, 40}, {1, 35, 74}, {3, 30, 68}, {4, 60, 97}, {3, 70, 73}};
  const Plan plan = plan_greedy(fragmented, PlanOrder::lifetime);
  REQUIRE(plan.height > 11);
  CHECK_FALSE(plan.optimal);
}
