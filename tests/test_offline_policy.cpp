// The policy that follows a plan made from a trace, and what it does when the run differs.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/offline_policy.h>
#include <limpid/memory/simulated_memory.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// One line of a run: an allocation of `bytes` as number `id`, the free of number `id` (bytes 0), or its use on
// stream 9.
struct Line {
  int id;
  std::size_t bytes;
  StreamId stream = 0;
  bool use = false;
};

std::vector<Line> random_run(std::uint64_t seed, int count, bool streams) {
  std::mt19937_64 random(seed);
  std::vector<Line> lines;
  std::vector<int> live;
  int next = 0;
  for (int i = 0; i < count; i++) {
    if (live.empty() || random() % 100 < 55) {
      std::size_t bytes = random() % 3 == 0 ? 1 + random() % (30 * kMiB) : 1 + random() % 100000;
      lines.push_back({next, bytes, streams ? random() % 2 : 0});
      live.push_back(next++);
    } else {
      std::swap(live[random() % live.size()], live.back());
      if (streams && random() % 5 == 0) lines.push_back({live.back(), 0, 9, true});
      lines.push_back({live.back(), 0});
      live.pop_back();
    }
  }
  return lines;
}

struct Run {
  explicit Run(PolicyFactory policy, std::size_t mib = 8192)
      : device(std::make_shared<SimulatedMemory>(mib * kMiB)), allocator(device, {}, std::move(policy)) {}
  void play(const Line& line) {
    if (line.use) {
      allocator.record_stream(blocks.at(line.id), line.stream);
    } else if (line.bytes > 0) {
      Block* block = blocks[line.id] = allocator.allocate(line.bytes, Role::temp, 0, line.stream);
      auto at = reinterpret_cast<std::uintptr_t>(block->ptr);
      for (const auto& [id, other] : blocks) {
        auto from = reinterpret_cast<std::uintptr_t>(other->ptr);
        REQUIRE((other == block || at + block->size <= from || from + other->size <= at));
      }
    } else {
      allocator.free(blocks.at(line.id));
      blocks.erase(line.id);
    }
    allocator.check();
  }
  void finish() {
    for (auto& [id, block] : blocks) allocator.free(block);
    blocks.clear();
    allocator.empty_cache();
    allocator.check();
    REQUIRE(device->used() == 0);
    REQUIRE(device->event_count() == 0);
  }
  std::shared_ptr<SimulatedMemory> device;
  Allocator allocator;
  std::map<int, Block*> blocks;
};

std::shared_ptr<TracePlan> plan_of(const std::vector<Line>& lines, std::size_t exact_up_to = 60) {
  Run run(make_native_policy);
  run.allocator.trace().set_capacity(1 << 14);
  for (const Line& line : lines) run.play(line);
  return std::make_shared<TracePlan>(plan_trace(run.allocator.trace().records(), exact_up_to));
}

}  // namespace

TEST_CASE("a run that repeats its trace needs one device call and the planned height") {
  for (std::uint64_t seed = 1; seed <= 20; seed++) {
    INFO("seed " << seed);
    bool streams = seed % 2 == 0;
    std::vector<Line> lines = random_run(seed, seed < 10 ? 60 : 600, streams);
    auto plan = plan_of(lines);
    check_plan(plan->buffers, plan->plan);
    CHECK(plan->plan.height >= plan->lower_bound);
    if (!streams) CHECK(plan->plan.height <= plan->lower_bound * 5 / 4);
    auto report = std::make_shared<OfflineReport>();
    Run run(make_offline_policy(plan, report));
    for (const Line& line : lines) run.play(line);
    CHECK(!report->mismatch);
    CHECK(report->followed == plan->events.size());
    CHECK(run.device->calls().reserve == 1);
    CHECK(run.allocator.ledger().peak_reserved == (plan->plan.height + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB));
    CHECK(std::string(run.allocator.policy_name()) == "offline");
    CHECK(to_string(*report) == "the plan was followed for " + std::to_string(plan->events.size()) + " events");
    run.finish();
  }
}

TEST_CASE("the first difference is named, and the native policy serves the rest") {
  const std::vector<Line> lines = {{0, 3 * kMiB}, {1, 5 * kMiB}, {0, 0}, {2, 2 * kMiB}, {1, 0}, {2, 0}};
  auto plan = plan_of(lines);
  CHECK(plan->plan.optimal);
  CHECK(plan->plan.height == 8 * kMiB);
  struct Case {
    std::size_t at;
    Line line;
    std::string expected, got;
  };
  const Case cases[] = {
      {0,
       {0, 3 * kMiB + 1},
       "an allocation of 3145728 bytes on stream 0",
       "an allocation of 3145729 bytes on stream 0"},
      {1, {1, 5 * kMiB, 4}, "an allocation of 5242880 bytes on stream 0", "an allocation of 5242880 bytes on stream 4"},
      {2, {1, 0}, "the free of buffer 0 (3145728 bytes)", "the free of buffer 1 (5242880 bytes)"},
      {3, {1, 0}, "an allocation of 2097152 bytes on stream 0", "the free of buffer 1 (5242880 bytes)"},
      {4, {3, 7}, "the free of buffer 1 (5242880 bytes)", "an allocation of 7 bytes on stream 0"},
      {6, {3, 7}, "the end of the trace", "an allocation of 7 bytes on stream 0"},
  };
  for (const Case& c : cases) {
    INFO("at event " << c.at);
    auto report = std::make_shared<OfflineReport>();
    Run run(make_offline_policy(plan, report));
    for (std::size_t i = 0; i < c.at; i++) run.play(lines[i]);
    CHECK(!report->mismatch);
    run.play(c.line);
    CHECK(report->mismatch);
    CHECK(report->event == c.at);
    CHECK(report->followed == c.at);
    CHECK(report->expected == c.expected);
    CHECK(report->got == c.got);
    CHECK(to_string(*report) == "the plan was followed for " + std::to_string(c.at) + " events; at event " +
                                    std::to_string(c.at) + " it expects " + c.expected + ", got " + c.got);
    run.play({10, 40 * kMiB});
    run.play({11, 100});
    run.play({10, 0});
    CHECK(report->event == c.at);  // only the first
    run.finish();
  }
}

TEST_CASE("a difference anywhere leaves a consistent allocator") {
  for (std::uint64_t seed = 1; seed <= 30; seed++) {
    INFO("seed " << seed);
    std::vector<Line> lines = random_run(seed, 200, seed % 2 == 0);
    auto report = std::make_shared<OfflineReport>();
    Run run(make_offline_policy(plan_of(lines), report));
    std::size_t at = seed * 6;
    while (at < lines.size() && lines[at].bytes == 0) at++;
    for (std::size_t i = 0; i < lines.size(); i++) {
      if (i == at) run.play({1000, 12345});
      run.play(lines[i]);
    }
    CHECK(report->mismatch == true);
    run.finish();
  }
}

TEST_CASE("no memory for the slab, and a place that a stream still uses") {
  const std::vector<Line> lines = {{0, 30 * kMiB}, {0, 0}, {1, 30 * kMiB}, {1, 0}};
  auto plan = plan_of(lines);
  auto report = std::make_shared<OfflineReport>();
  {
    Run small(make_offline_policy(plan, report), 16);
    CHECK_THROWS_AS(small.play(lines[0]), OutOfMemoryError);
    CHECK(report->got == "no memory for the slab of 31457280 bytes");
  }
  Run run(make_offline_policy(plan, report));
  run.device->set_events_pending(true);
  run.play(lines[0]);
  run.play({0, 0, 7, true});  // not in the trace: the free will have to wait
  run.play(lines[1]);
  run.play(lines[2]);
  CHECK(report->event == 2);
  CHECK(report->got == "the same, but its place at 0 is still in use");
  run.finish();
}

TEST_CASE("a trace without allocations, frees of strangers, a null plan") {
  auto empty = std::make_shared<TracePlan>(plan_trace({}));
  CHECK(empty->plan.height == 0);
  TraceRecord stranger{};
  stranger.kind = TraceKind::free;
  stranger.id = 77;
  CHECK(plan_trace({stranger}).events.empty());
  Run run(make_offline_policy(empty));
  run.play({0, 100});
  run.finish();
  CHECK_THROWS_AS(Run(make_offline_policy(nullptr)), ArgumentError);
}

TEST_CASE("the k-th device call fails under a plan, for every k") {
  std::vector<Line> lines = random_run(4, 120, true);
  auto plan = plan_of(lines);
  for (std::uint64_t k = 1;; k++) {
    INFO("k = " << k);
    Run run(make_offline_policy(plan), 3000);
    run.device->fail_call(k);
    for (const Line& line : lines) {
      if (line.bytes == 0 && !run.blocks.count(line.id)) continue;
      try {
        run.play(line);
      } catch (const DeviceError&) {
        run.blocks.erase(line.id);  // only allocations throw here
      } catch (const OutOfMemoryError&) {
        run.blocks.erase(line.id);
      }
      run.allocator.check();
    }
    bool never_reached = run.device->fault_pending();
    run.device->fail_call(0);
    run.finish();
    if (never_reached) break;
  }
}
