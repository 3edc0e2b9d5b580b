// Replay: the same run again to the byte, figures against hand-made examples, the smallest capacity against a scan.
#include <doctest/doctest.h>

#include <map>

#include <limpid/autograd/functions.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/replay_scan.h>
#include <limpid/memory/strip.h>
#include <limpid/memory/trace_import.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/tensor/creation.h>

#include "temp_folder.h"
#include "trace_test.h"

using namespace limpid_test;

namespace {

ReplayResult run(const std::string& script, ReplayOptions options = {}) {
  return replay(ReplayScript(log_of(script)), options);
}

// The sizes of segments as they came and went.
class SegmentEvents final : public ReplayObserver {
 public:
  std::vector<std::pair<bool, std::uint64_t>> events;
  void on_device(DeviceEvent event, std::uint64_t, std::uint64_t bytes) override {
    events.emplace_back(event == DeviceEvent::reserve, bytes);
  }
};

std::vector<std::pair<bool, std::uint64_t>> segment_events(const TraceLog& log) {
  std::vector<std::pair<bool, std::uint64_t>> out;
  for (const TraceRecord& r : log.records) {
    if (r.kind == TraceKind::segment_alloc) out.emplace_back(true, r.bytes);
    if (r.kind == TraceKind::segment_free) out.emplace_back(false, r.bytes);
  }
  return out;
}

}  // namespace

TEST_CASE("a random run replays to the same statistics, peaks and segments") {
  for (unsigned seed = 0; seed < 12; seed++) {
    CAPTURE(seed);
    const char* kSettings[] = {"", "max_split_size_mb:32", "roundup_power2_divisions:4",
                               "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9"};
    const AllocatorSettings settings = parse_allocator_settings(kSettings[seed % 4]);
    const bool pending = seed % 3 == 2;
    const std::uint64_t capacity = (100 + 50 * (seed % 4)) * kMiB;
    auto device = std::make_shared<SimulatedMemory>(capacity);
    device->set_events_pending(pending);
    Allocator live(device, settings);
    live.trace().set_capacity(1 << 16);
    RandomRun random(live, seed);
    random.steps(6000);
    const TraceLog log = capture_trace(live);
    REQUIRE(log.notes.empty());
    ReplayOptions options;
    options.settings = parse_allocator_settings(log.info.settings);
    options.capacity = log.info.capacity;
    options.events_pending = pending;
    SegmentEvents segments;
    const ReplayResult result = replay(ReplayScript(log), options, &segments);
    CHECK(result.completed);
    CHECK(memory_stats(result.stats) == memory_stats(live.stats()));
    CHECK(segments.events == segment_events(log));
    CHECK(result.failed_before == static_cast<std::uint64_t>(live.stats().num_ooms));
    CHECK(result.rescued == 0);
    CHECK(result.peak_live == live.ledger_at_peak().live_total);
    CHECK(result.peak_reserved == live.ledger_at_reserved_peak().reserved);
    for (std::size_t r = 0; r < kRoleCount; r++) {
      CHECK(result.at_peak_live.live[r] == live.ledger_at_peak().live[r]);
      CHECK(result.at_peak_reserved.live[r] == live.ledger_at_reserved_peak().live[r]);
    }
    CHECK(result.at_peak_reserved.pending_free == live.ledger_at_reserved_peak().pending_free);
    CHECK(result.calls.reserve == device->calls().reserve);
    CHECK(result.calls.event_query == device->calls().event_query);
    random.free_all();
  }
}

TEST_CASE("training on real memory replays to the byte") {
  TempFolder folder;
  Allocator& pool = host_allocator();
  TraceRecording recording(pool, folder / "t.bin");
  {
    auto model = nn::make_model("lenet-bn", {.input = {1, 28, 28}, .classes = 10});
    optim::Adam optimizer(model->parameters(), {.lr = 1e-3});
    for (std::uint32_t step = 0; step < 4; step++) {
      set_step(step);
      const std::int64_t batch = step == 3 ? 5 : 16;
      Tensor x = randn({batch, 1, 28, 28});
      Tensor y = zeros({batch}, {.dtype = int64});
      optimizer.zero_grad();
      cross_entropy((*model)(x), y).backward();
      optimizer.step();
      if (step == 1) pool.empty_cache();
    }
  }
  const Stats live = pool.stats();
  const Ledger peak = pool.ledger_at_peak();
  recording.close();
  const TraceLog log = read_trace(folder / "t.bin");
  REQUIRE_FALSE(log.cut);
  REQUIRE(log.info.preexisting == 0);
  SegmentEvents segments;
  const ReplayResult result = replay(ReplayScript(log), {}, &segments);
  CHECK(result.completed);
  CHECK(memory_stats(result.stats) == memory_stats(live));
  CHECK(segments.events == segment_events(log));
  CHECK(result.peak_live == peak.live_total);
  for (std::size_t r = 0; r < kRoleCount; r++) CHECK(result.at_peak_live.live[r] == peak.live[r]);
  const TraceRecord& at = log.records[result.peak_live_record];
  CHECK(at.step == peak.scope.step);
  CHECK(log.name(at.op) == name_of(peak.scope.op));
  CHECK(log.name(at.module) == name_of(peak.scope.module));
  CHECK(result.lower_bound == result.peak_live);
}

TEST_CASE("the figures of a small example, by hand") {
  // 12 MiB and 15 MiB get segments of 12 and 16 MiB; the rest of 1 MiB stays with the block. Then 3 MiB are cut from
  // the free 12.
  const ReplayResult r = run("+1:12M +2:15M -1 +3:3M");
  CHECK(r.completed);
  CHECK(r.operations == 4);
  CHECK(r.lower_bound == 27 * kMiB);
  CHECK(r.peak_live == 27 * kMiB);
  CHECK(r.peak_live_record == 1);
  CHECK(r.peak_active == 28 * kMiB);
  CHECK(r.peak_reserved == 28 * kMiB);
  CHECK(r.peak_reserved_record == 1);
  const Fragmentation& f = r.fragmentation;
  CHECK(f.utilisation == 1.0);
  CHECK(f.excess == kMiB);
  CHECK(f.peak_gap == 13 * kMiB);
  CHECK(f.mean_gap == doctest::Approx(6.0 * kMiB));  // 0, 1, 13, 10
  CHECK(f.misses == 2);
  CHECK(f.mean_gap_at_miss == 0);
  CHECK(f.peak_non_releasable == 9 * kMiB);
  CHECK(f.at_peak.reserved == 28 * kMiB);
  CHECK(f.at_peak.requested == 27 * kMiB);
  CHECK(f.at_peak.allocated == 28 * kMiB);
  CHECK(f.at_peak.internal == kMiB);
  CHECK(f.at_peak.external == 0);
  CHECK(f.at_peak.segments == 2);
  CHECK(f.at_peak.bfc() == 0);
  CHECK(f.at_peak.snapshot_ratio() == 1);
  CHECK(r.calls.reserve == 2);
  CHECK(r.calls.release == 0);
  CHECK(r.device_calls() == 2);
  DeviceLatency l;
  CHECK(r.modelled_seconds == doctest::Approx(2 * l.reserve + 4 * l.operation));
}

TEST_CASE("holes are measured where they are") {
  // 4 x 16 MiB in segments of their own, the first and third free again, then 20 MiB: a miss with 32 MiB free.
  const ReplayResult r = run("+1:16M +2:16M +3:16M +4:16M -1 -3 +5:20M");
  const Layout& l = r.fragmentation.at_peak;
  CHECK(l.reserved == 84 * kMiB);
  CHECK(l.external == 32 * kMiB);
  CHECK(l.largest_free == 16 * kMiB);
  CHECK(l.free_blocks == 2);
  CHECK(l.bfc() == 0.5);
  CHECK(l.snapshot_ratio() == doctest::Approx(52.0 / 84));
  CHECK(l.sum_of_squares == doctest::Approx(2.0 * 16 * 16 / (84.0 * 84)));
  CHECK(l.reserved == l.requested + l.internal + l.external);
  CHECK(r.fragmentation.misses == 5);
  CHECK(r.fragmentation.mean_gap_at_miss == 32 * kMiB / 5);
  CHECK(r.fragmentation.utilisation == doctest::Approx(64.0 / 84));
}

TEST_CASE("a request that does not fit ends the run and says where") {
  ReplayOptions options;
  options.capacity = 40 * kMiB;
  const ReplayResult r = run("+1:16M +2:16M -1 +3:20M +4:16M -2", options);
  CHECK_FALSE(r.completed);
  REQUIRE(r.failure);
  CHECK(r.failure->record == 4);
  CHECK(r.failure->info.requested == 16 * kMiB);
  CHECK(r.failure->layout.reserved == 36 * kMiB);
  CHECK(r.operations == 5);
  CHECK(r.retries == 2);
  CHECK(r.lower_bound == 52 * kMiB);
  CHECK(r.peak_live == 36 * kMiB);
}

TEST_CASE("a request that failed in the recording is tried again and does not end the run") {
  ReplayOptions options;
  options.capacity = 40 * kMiB;
  ReplayResult r = run("+1:16M !0:30M +2:16M", options);
  CHECK(r.completed);
  CHECK(r.failed_before == 1);
  CHECK(r.rescued == 0);
  CHECK(r.stats.num_ooms == 1);
  options.capacity = 100 * kMiB;
  r = run("+1:16M !0:30M +2:16M", options);
  CHECK(r.rescued == 1);
  CHECK(r.failed_before == 0);
  CHECK(r.stats.num_ooms == 0);
}

TEST_CASE("scripts: slots are dense, unknown blocks are left out, double allocation is an error") {
  const ReplayScript script(log_of("+9:1M +7:2M -9 +5:3M -7 -5 -5 -99 e"));
  CHECK(script.slots == 2);
  CHECK(script.ops.size() == 7);
  CHECK(script.unknown == 2);
  CHECK(script.peak_live == 5 * kMiB);
  CHECK(script.peak_live_record == 3);
  CHECK(script.event_of(8) == 6);  // frees of blocks that are not live are no operations
  CHECK(contains(message_of<ArgumentError>([&] { script.event_of(6); }), "record 6 is no operation"));
  CHECK(script.allocations == 3);
  CHECK(script.frees == 3);
  CHECK(contains(message_of<DataError>([] { ReplayScript(log_of("+1:1M +1:2M")); }), "block 1, which is live"));
  const ReplayResult empty = run("");
  CHECK(empty.completed);
  CHECK(empty.peak_reserved == 0);
  CHECK(empty.fragmentation.utilisation == 1);
  CHECK(replay(ReplayScript(), {}).completed);
}

TEST_CASE("published sequences of the native policy") {
  // PyTorch's notes on its allocator: the order of sizes decides.
  const std::string eight = "+1:16M +2:16M +3:16M +4:16M +5:16M +6:16M +7:16M +8:16M ";
  const std::string four = "+11:32M +12:32M +13:32M +14:32M ";
  const ReplayResult up = run(eight + "-1 -2 -3 -4 -5 -6 -7 -8 " + four);
  CHECK(up.peak_reserved == 256 * kMiB);
  const ReplayResult down = run(four + "-11 -12 -13 -14 " + eight);
  CHECK(down.peak_reserved == 128 * kMiB);
  const CapacityScan scan = scan_capacity(ReplayScript(log_of(eight + "-1 -2 -3 -4 -5 -6 -7 -8 " + four)), {});
  CHECK(scan.smallest == 128 * kMiB);
  CHECK(scan.smallest_no_retry == 256 * kMiB);
}

TEST_CASE("the scan is done in few tries, however far the bounds lie apart") {
  // Without splitting the freed places of 1 TiB serve nothing: the policy takes TiB more than is ever live.
  std::string text;
  for (int i = 1; i <= 6; i++) text += "+" + std::to_string(i) + ":" + std::to_string((i + 4) << 18) + "M -" + std::to_string(i) + " ";
  const ReplayScript script(log_of(text));
  for (std::uint64_t budget : {std::uint64_t{0}, std::uint64_t{20'000}, std::uint64_t{2'000'000}}) {
    CAPTURE(budget);
    ReplayOptions options;
    options.policy = make_native_policy;
    const CapacityScan scan = scan_capacity(script, options, {.budget = budget});
    REQUIRE(scan.to - scan.from > std::uint64_t{4} << 40);
    CHECK(scan.smallest == script.peak_live);
    REQUIRE(scan.smallest_no_retry);
    CHECK(*scan.smallest_no_retry == scan.to);
    CHECK(scan.tries < 3000);
  }
  CHECK_THROWS_WITH_AS(scan_capacity(script, {}, {.granularity = 2 * kMiB}), doctest::Contains("give larger steps"),
                       ArgumentError);
}

TEST_CASE("the smallest capacity is what trying every page finds") {
  for (unsigned seed : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(seed);
    Allocator live(std::make_shared<SimulatedMemory>(4096 * kMiB));
    RandomRun random(live, seed);
    random.steps(120);
    const ReplayScript script(capture_trace(live));
    random.free_all();
    const CapacityScan scan = scan_capacity(script, {});
    REQUIRE(scan.exact());
    std::optional<std::uint64_t> smallest, no_retry;
    for (std::uint64_t c = 2 * kMiB; c <= scan.to + 20 * kMiB; c += 2 * kMiB) {
      ReplayOptions options;
      options.capacity = c;
      options.layouts = false;
      const ReplayResult r = replay(script, options);
      if (!r.completed) continue;
      if (!smallest) smallest = c;
      if (!no_retry && r.retries == 0) no_retry = c;
    }
    CHECK(scan.smallest == smallest);
    CHECK(scan.smallest_no_retry == no_retry);
    CHECK(*scan.smallest >= script.peak_live);
    CHECK(*scan.smallest_no_retry <= scan.to);
    // Coarser steps find no smaller capacity, and say that they were coarse.
    const CapacityScan coarse = scan_capacity(script, {}, {.granularity = 32 * kMiB});
    CHECK_FALSE(coarse.exact());
    CHECK(*coarse.smallest >= *scan.smallest);
    CHECK(*coarse.smallest <= scan.to);
    const CapacityScan hurried = scan_capacity(script, {}, {.budget = 1});
    CHECK(hurried.granularity >= scan.granularity);
    CHECK(hurried.tries <= 1 + 9 + 2 * (hurried.granularity / (2 * kMiB)));
  }
  CHECK_THROWS_AS(scan_capacity(ReplayScript(), {}, {.granularity = 3}), ArgumentError);
  const CapacityScan nothing = scan_capacity(ReplayScript(), {});
  CHECK(nothing.smallest == 2 * kMiB);
}

TEST_CASE("every policy replays, and none beats the lower bound") {
  Allocator live(std::make_shared<SimulatedMemory>(4096 * kMiB));
  RandomRun random(live, 17);
  random.steps(1500);
  const ReplayScript script(capture_trace(live));
  for (const PolicyEntry& policy : policies()) {
    CAPTURE(policy.name);
    ReplayOptions options;
    options.policy = policy.make;
    options.capacity = 8192 * kMiB;
    const ReplayResult r = replay(script, options);
    CHECK(r.completed);
    CHECK(r.policy == policy.name);
    CHECK(r.peak_live == script.peak_live);
    CHECK(r.peak_reserved >= r.lower_bound);
    const Layout& l = r.fragmentation.at_peak;
    CHECK(l.reserved == r.peak_reserved);
    CHECK(l.reserved == l.requested + l.internal + l.external);
    CHECK(l.external == r.at_peak_reserved.free_in_used + r.at_peak_reserved.free_whole);
  }
  random.free_all();
}

TEST_CASE("observers see blocks inside reserved memory, and the curve") {
  class Watcher final : public ReplayObserver {
   public:
    std::map<std::uint64_t, std::uint64_t> segments;
    std::uint64_t allocs = 0, frees = 0, steps = 0, waits = 0, ends = 0;
    bool inside = true;
    void on_device(DeviceEvent event, std::uint64_t address, std::uint64_t bytes) override {
      if (event == DeviceEvent::reserve) segments[address] = bytes;
      if (event == DeviceEvent::release) segments.erase(address);
    }
    void check(const Block& b) {
      const auto at = reinterpret_cast<std::uintptr_t>(b.ptr);
      auto it = segments.upper_bound(at);
      inside = inside && it != segments.begin() && at + b.size <= std::prev(it)->first + std::prev(it)->second;
    }
    void on_alloc(const ReplayOp& op, const Block& b) override {
      allocs++;
      check(b);
      inside = inside && b.requested == op.bytes;
    }
    void on_free(const ReplayOp&, const Block& b, bool waiting) override {
      frees++;
      waits += waiting;
      check(b);
    }
    void on_step(const ReplayOp&, const LedgerRows& rows) override {
      steps++;
      inside = inside && rows.balanced();
    }
    void on_end(Allocator& a) override {
      ends++;
      a.check();
    }
  } watcher;
  Allocator live(std::make_shared<SimulatedMemory>(300 * kMiB));
  RandomRun random(live, 5);
  random.steps(3000);
  const ReplayScript script(capture_trace(live));
  ReplayOptions options;
  options.capacity = 300 * kMiB;
  replay(script, options, &watcher);
  CHECK(watcher.inside);
  CHECK(watcher.allocs == script.allocations);
  CHECK(watcher.frees == script.frees);
  CHECK(watcher.steps == script.ops.size());
  CHECK(watcher.waits > 0);
  CHECK(watcher.ends == 1);
  random.free_all();
}

TEST_CASE("pending events bound the run from the other side") {
  TraceLog log = log_of("+1:20M -1 +2:20M");
  TraceRecord use = log.records[0];
  use.kind = TraceKind::record_stream;
  use.stream = 4;
  log.records.insert(log.records.begin() + 1, use);
  ReplayOptions options;
  CHECK(replay(ReplayScript(log), options).peak_reserved == 20 * kMiB);
  options.events_pending = true;
  CHECK(replay(ReplayScript(log), options).peak_reserved == 40 * kMiB);
  options.capacity = 30 * kMiB;  // then it must wait
  const ReplayResult r = replay(ReplayScript(log), options);
  CHECK(r.completed);
  CHECK(r.retries == 1);
  CHECK(r.calls.event_wait == 1);
}

TEST_CASE("the strip shows what is used, what is free and what is not there") {
  // A segment of 16 MiB at the bottom for ever, one of 16 above it that is free in the second half.
  const Strip strip = draw_strip(ReplayScript(log_of("+1:16M +2:16M e e -2 +3:1 -3 +4:1")), {},
                                 {.width = 8, .height = 17, .unicode = false});
  REQUIRE(strip.rows.size() == 17);
  CHECK(strip.bytes_a_row == 2 * kMiB);
  CHECK(strip.operations_a_column == 1);
  CHECK(strip.rows[16] == "@@@@@@@@");
  CHECK(strip.rows[9] == "@@@@@@@@");
  CHECK(strip.rows[8] == " @@@....");
  CHECK(strip.rows[1] == " @@@....");
  CHECK(strip.rows[0].substr(0, 5) == "     ");
  CHECK(strip.live[3] == 32 * kMiB);
  CHECK(strip.reserved.back() == 34 * kMiB);
  const Strip blocks = draw_strip(ReplayScript(log_of("+1:16M")), {}, {.width = 8, .height = 2});
  CHECK(contains(blocks.rows[1], "█"));
  CHECK_THROWS_AS(draw_strip(ReplayScript(), {}, {.width = 1}), ArgumentError);
  CHECK(draw_strip(ReplayScript(), {}).rows.size() == 24);
}
