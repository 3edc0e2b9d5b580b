// The verdict on a failed request: each cause by construction, the smallest set of blocks in the way against brute
// force, and advice that was replayed.
#include <random>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limpid/memory/explain.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/verdict.h>

#include "trace_test.h"

using namespace limpid_test;

namespace {

struct Pool {
  explicit Pool(std::uint64_t capacity, const char* settings = "", const char* policy = "native")
      : device(std::make_shared<SimulatedMemory>(capacity)),
        allocator(device, parse_allocator_settings(settings), policy_named(policy)) {}
  Block* get(std::uint64_t bytes, StreamId stream = 0, Role role = Role::activation) {
    return allocator.allocate(bytes, role, 0, stream);
  }
  OutOfMemoryInfo failure(std::uint64_t bytes, StreamId stream = 0) {
    try {
      get(bytes, stream);
    } catch (const OutOfMemoryError& error) {
      allocator.check();
      return error.info();
    }
    FAIL("the request was served");
    return {};
  }
  std::shared_ptr<SimulatedMemory> device;
  Allocator allocator;
};

}  // namespace

TEST_CASE("capacity: live bytes and the request exceed the device") {
  Pool pool(100 * kMiB);
  pool.get(80 * kMiB);
  const OutOfMemoryInfo info = pool.failure(40 * kMiB);
  CHECK(info.cause == OomCause::capacity);
  CHECK(info.reason.find("by 20.00 MiB") != std::string::npos);
  CHECK(info.device_asked == 40 * kMiB);
  REQUIRE(info.pins.blocks.size() == 1);
  CHECK(info.pins.blocks[0].bytes == 80 * kMiB);
  CHECK(info.pins.hole == 80 * kMiB);
  CHECK_FALSE(info.pins.whole_segments);
}

TEST_CASE("a request larger than the device has nothing in the way") {
  Pool pool(100 * kMiB);
  pool.get(kMiB);
  const OutOfMemoryInfo info = pool.failure(200 * kMiB);
  CHECK(info.cause == OomCause::capacity);
  CHECK(info.pins.blocks.empty());
  CHECK(report(info).find("the request alone is larger than the device") != std::string::npos);
  CHECK(pool.failure(std::uint64_t{1} << 62).cause == OomCause::capacity);  // cannot even be rounded
}

TEST_CASE("external: others hold what is missing") {
  auto device = std::make_shared<SimulatedMemory>(100 * kMiB);
  Allocator first(device), second(device);
  first.allocate(60 * kMiB, Role::param);
  second.allocate(20 * kMiB, Role::param);
  try {
    second.allocate(40 * kMiB, Role::activation);
    FAIL("served");
  } catch (const OutOfMemoryError& error) {
    CHECK(error.info().cause == OomCause::external);
    CHECK(error.info().held_by_others == 60 * kMiB);
    CHECK(error.info().reason.find("others hold 60.00 MiB") != std::string::npos);
  }
}

TEST_CASE("limit: the memory fraction, not the device, says no") {
  Pool pool(100 * kMiB);
  pool.allocator.set_memory_fraction(0.5);
  pool.get(40 * kMiB);
  const OutOfMemoryInfo info = pool.failure(20 * kMiB);
  CHECK(info.cause == OomCause::limit);
  CHECK(info.limit == 50 * kMiB);
  CHECK(info.device_asked == 20 * kMiB);
  CHECK(info.reason.find("the limit of 50.00 MiB") != std::string::npos);
}

TEST_CASE("fragmentation: enough is free, in places that are too small") {
  Pool pool(60 * kMiB);  // three segments of 20 MiB, each with a block left in the middle
  std::vector<Block*> fill, keep;
  for (int i = 0; i < 3; i++) {
    fill.push_back(pool.get(9 * kMiB));
    keep.push_back(pool.get(2 * kMiB));
    fill.push_back(pool.get(9 * kMiB));
  }
  for (Block* b : fill) pool.allocator.free(b);
  const OutOfMemoryInfo info = pool.failure(15 * kMiB);
  CHECK(info.cause == OomCause::fragmentation);
  CHECK(info.largest_free == 9 * kMiB);
  CHECK(info.live == 6 * kMiB);
  REQUIRE(info.pins.blocks.size() == 1);  // any of the three opens a segment
  CHECK(info.pins.bytes == 2 * kMiB);
  CHECK(info.pins.hole == 20 * kMiB);
  CHECK(info.reason.find("54.00 MiB are free") != std::string::npos);
  // The advice is true: what it names serves the request, and so does releasing the pin.
  OutOfMemoryInfo advised = info;
  advise(advised, pool.allocator);
  CHECK(advised.pins.replayed == true);
  bool expandable = false;
  for (const Advice& a : advised.advice) expandable |= a.change == "with policy expandable";
  CHECK(expandable);
  pool.allocator.free(*std::find_if(keep.begin(), keep.end(),
                                    [&](Block* b) { return b->id == info.pins.blocks[0].id; }));
  CHECK_NOTHROW(pool.get(15 * kMiB));
}

TEST_CASE("granularity: the device is asked in units that are too large") {
  Pool pool(24 * kMiB);
  pool.get(10 * kMiB);
  pool.get(10 * kMiB);
  const OutOfMemoryInfo info = pool.failure(3 * kMiB);  // 4 MiB are left; a segment for it has 20
  CHECK(info.cause == OomCause::granularity);
  CHECK(info.device_asked == 20 * kMiB);
  CHECK(info.device_free == 4 * kMiB);
  // Rounding of the request itself.
  Pool rounded(40 * kMiB, "roundup_power2_divisions:2");
  rounded.get(12 * kMiB);
  const OutOfMemoryInfo second = rounded.failure(25 * kMiB);  // becomes 32 MiB
  CHECK(second.cause == OomCause::granularity);
}

TEST_CASE("other stream and other pool: a large enough place that this request may not use") {
  Pool pool(20 * kMiB);
  Block* a = pool.get(8 * kMiB, 1);
  pool.get(2 * kMiB, 1);
  pool.allocator.free(a);
  const OutOfMemoryInfo info = pool.failure(5 * kMiB, 2);
  CHECK(info.cause == OomCause::other_stream);
  CHECK(info.reason.find("stream 1") != std::string::npos);
  const OutOfMemoryInfo small = pool.failure(1000, 1);  // its pool has no segment, the large pool has places
  CHECK(small.cause == OomCause::other_pool);
  CHECK(small.reason.find("(of large requests)") != std::string::npos);
}

TEST_CASE("other pool: a free place in the pool of other roles") {
  Pool pool(40 * kMiB, "role_pools:param");
  Block* a = pool.get(9 * kMiB, 0, Role::param);  // a segment of 20 MiB of the parameters' own
  pool.get(9 * kMiB, 0, Role::param);
  pool.allocator.free(a);
  pool.get(18 * kMiB);
  const OutOfMemoryInfo info = pool.failure(6 * kMiB);
  CHECK(info.cause == OomCause::other_pool);
  CHECK(info.reason.find("9.00 MiB") != std::string::npos);
  CHECK(info.reason.find("of other roles") != std::string::npos);
  CHECK(pool.get(6 * kMiB, 0, Role::param) != nullptr);  // a parameter may have it
}

TEST_CASE("pending: a place waits for another stream") {
  // A policy that waits for pending blocks never fails for them; one that does not is judged directly.
  Segment segment;
  Block pending, live;
  pending.state = BlockState::pending;
  pending.size = 8 * kMiB;
  pending.pool = live.pool = PoolKind::large;
  live.state = BlockState::allocated;
  live.size = live.requested = live.rounded = 4 * kMiB;
  pending.next = &live;
  live.prev = &pending;
  pending.segment = live.segment = &segment;
  segment.first = &pending;
  segment.size = 12 * kMiB;
  struct Frozen final : Policy {
    explicit Frozen(const Segment& s) : segment(s) {}
    const char* name() const override { return "frozen"; }
    std::size_t round(std::size_t bytes) const override { return bytes; }
    Block* allocate(std::size_t, StreamId) override { return nullptr; }
    void free(Block*) noexcept override {}
    void record_stream(Block*, StreamId) override {}
    void release_cached() override {}
    void release_to(std::uint64_t) override {}
    void set_limit(std::optional<std::uint64_t>) override {}
    void for_each_segment(const std::function<void(const Segment&)>& visit) const override { visit(segment); }
    void check() const override {}
    const Segment& segment;
  };
  std::vector<std::unique_ptr<Policy>> pools;
  pools.push_back(std::make_unique<Frozen>(segment));
  LedgerRows rows;
  rows.live_total = 4 * kMiB;
  rows.pending_free = 8 * kMiB;
  rows.reserved = 12 * kMiB;
  OutOfMemoryInfo info;
  info.requested = info.rounded = 6 * kMiB;
  info.capacity = 12 * kMiB;
  info.reserved = 12 * kMiB;
  judge(info, pools, 0, rows, 0);
  CHECK(info.cause == OomCause::pending);
  CHECK(info.reason.find("8.00 MiB") != std::string::npos);
  CHECK(info.holders.size() == 1);
}

TEST_CASE("exactly one cause, and pins that help and are the fewest, on random failures") {
  std::mt19937 random(7);
  int causes[8] = {}, checked = 0;
  for (int round = 0; round < 400; round++) {
    const std::uint64_t capacity = (20 + 2 * (random() % 30)) * kMiB;
    Pool pool(capacity);
    std::vector<Block*> live;
    for (;;) {
      if (!live.empty() && random() % 3 == 0) {
        const std::size_t i = random() % live.size();
        pool.allocator.free(live[i]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      const std::uint64_t bytes = random() % 2 ? random() % (900 * 1024) + 1 : (random() % 12 + 1) * kMiB + random() % 999;
      OutOfMemoryInfo info;
      try {
        live.push_back(pool.get(bytes));
        continue;
      } catch (const OutOfMemoryError& error) {
        info = error.info();
      }
      causes[static_cast<int>(info.cause)]++;
      CHECK_FALSE(info.reason.empty());
      const TraceLog log = capture_trace(pool.allocator);
      ReplayOptions options;
      options.capacity = capacity;
      const auto explanation = explain(log, options, false);
      REQUIRE(explanation);
      CHECK(explanation->recorded);
      CHECK(explanation->info.cause == info.cause);
      CHECK(explanation->info.pins.blocks.size() == info.pins.blocks.size());
      if (info.pins.blocks.empty()) {
        CHECK(info.rounded > capacity - capacity % (2 * kMiB));
        break;
      }
      CHECK(explanation->info.pins.replayed == true);
      // No smaller set helps: all sets of at most two blocks fewer than that, by replay.
      if (info.pins.blocks.size() >= 2 && info.pins.blocks.size() <= 3 && live.size() <= 24) {
        const auto served_without = [&](std::vector<std::size_t> out) {
          TraceLog trial = log;
          trial.records.pop_back();
          for (std::size_t i : out) {
            TraceRecord free{};
            free.kind = TraceKind::free;
            free.id = live[i]->id;
            free.bytes = live[i]->requested;
            trial.records.push_back(free);
          }
          TraceRecord request = log.records.back();
          request.kind = TraceKind::alloc;
          request.id = UINT64_MAX;
          trial.records.push_back(request);
          ReplayOptions plain = options;
          plain.layouts = false;
          return replay(ReplayScript(trial), plain).completed;
        };
        for (std::size_t i = 0; i < live.size(); i++) {
          CHECK_FALSE(served_without({i}));
          for (std::size_t j = i + 1; j < live.size() && info.pins.blocks.size() == 3; j++)
            CHECK_FALSE(served_without({i, j}));
        }
        checked++;
      }
      break;
    }
  }
  CHECK(causes[static_cast<int>(OomCause::capacity)] > 20);
  CHECK(causes[static_cast<int>(OomCause::fragmentation)] > 20);
  CHECK(causes[static_cast<int>(OomCause::granularity)] > 5);
  CHECK(checked > 10);
}

TEST_CASE("a request that is larger than in earlier steps is said to be") {
  Pool pool(64 * kMiB);
  const NameId op = intern("conv2d"), layer = intern("net.conv1");
  OpScope op_scope(op);
  ModuleScope layer_scope(layer);
  PhaseScope phase(Phase::forward);
  for (std::uint32_t step = 0; step < 3; step++) {
    set_step(step);
    pool.allocator.free(pool.get((10 + step) * kMiB));
  }
  set_step(3);
  const OutOfMemoryInfo info = pool.failure(70 * kMiB);
  CHECK(info.earlier_request == 12 * kMiB);
  const std::string text = report(info);
  CHECK(text.find("larger than in earlier steps, where this place asked for at most 12.00 MiB") != std::string::npos);
  CHECK(text.find("for conv2d (layer net.conv1, forward, role activation), step 3") != std::string::npos);
  set_step(0);
  const auto json = nlohmann::json::parse(to_json(info));
  CHECK(json["cause"] == "capacity");
  CHECK(json["requested"] == 70 * kMiB);
  CHECK(json["layer"] == "net.conv1");
  CHECK(json["earlier_request"] == 12 * kMiB);
}

TEST_CASE("explain: a trace that ran is explained under a smaller capacity, with its own names") {
  Pool pool(1000 * kMiB);
  const NameId weight = intern("layer.weight");
  Block* w = pool.allocator.allocate(30 * kMiB, Role::param, weight);
  Block* x = pool.get(30 * kMiB);
  pool.allocator.free(x);
  pool.allocator.free(w);
  const TraceLog log = capture_trace(pool.allocator);
  ReplayOptions options;
  CHECK_FALSE(explain(log, options));
  options.capacity = 50 * kMiB;
  const auto explanation = explain(log, options);
  REQUIRE(explanation);
  CHECK_FALSE(explanation->recorded);
  CHECK(explanation->info.cause == OomCause::capacity);
  REQUIRE(explanation->info.holders.size() == 1);
  CHECK(explanation->info.holders[0].name == "layer.weight");
  REQUIRE(explanation->info.pins.blocks.size() == 1);
  CHECK(explanation->info.pins.blocks[0].name == "layer.weight");
  CHECK(explanation->info.pins.replayed == true);
  // No policy can help; the smallest capacity does, and was replayed.
  REQUIRE(explanation->info.advice.size() == 1);
  CHECK(explanation->info.advice[0].kind == "capacity");
  CHECK(explanation->info.advice[0].change == "with 10.00 MiB more capacity, 60.00 MiB in all");
}

TEST_CASE("advise: a trace whose beginning is gone gives none, and says so") {
  Pool pool(60 * kMiB);
  pool.allocator.trace().set_capacity(16);
  for (int i = 0; i < 40; i++) pool.allocator.free(pool.get(kMiB));
  OutOfMemoryInfo info = pool.failure(70 * kMiB);
  advise(info, pool.allocator);
  CHECK(info.advice.empty());
  CHECK(info.advice_note.find("no longer holds the beginning") != std::string::npos);
}

TEST_CASE("a device that refuses although it reports enough free is an outside cause") {
  Pool pool(100 * kMiB);
  pool.device->fail_call(1);
  Block* b = nullptr;
  CHECK_NOTHROW(b = pool.get(10 * kMiB));  // the retry succeeds
  pool.allocator.free(b);
  OutOfMemoryInfo info;
  info.requested = info.rounded = info.device_asked = 10 * kMiB;
  info.capacity = info.device_free = 100 * kMiB;
  std::vector<std::unique_ptr<Policy>> pools;
  AllocatorSettings settings;
  SpinLock lock;
  Books books(lock);
  pools.push_back(make_native_policy({*pool.device, settings, books}));
  judge(info, pools, 0, LedgerRows{}, 0);
  CHECK(info.cause == OomCause::external);
  CHECK(info.reason.find("did not give 10.00 MiB") != std::string::npos);
}
