// What a user may set: pools by role, trimming and retention, reserving for a known run, huge pages, the workspace cap.
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include <limpid/tensor/creation.h>
#include <limpid/tensor/dry.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/replay.h>
#include <limpid/memory/reserve_plan.h>
#include <limpid/memory/simulated_memory.h>
#include <limpid/tensor/raw.h>
#include <limpid/tensor/raw_nn.h>
#include <limpid/tensor/workspace_cap.h>
#include <limpid/train/plan.h>

#include "tensor_test.h"

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::shared_ptr<SimulatedMemory> device_of(std::uint64_t mib) { return std::make_shared<SimulatedMemory>(mib * kMiB); }

std::int64_t device_calls(const Allocator& a) {
  const Stats stats = a.stats();
  return stats.num_device_alloc + stats.num_device_free;
}

template <class Kind, class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Kind& error) {
    return error.what();
  }
  return "no error";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A run of `steps` equal steps with sizes from a seed, some blocks living on; the rest is freed.
struct Work {
  std::uint64_t seed;
  std::vector<Block*> kept;
  void run(Allocator& a, int steps, bool free_kept) {
    if (kept.empty()) {
      for (int i = 0; i < 4; i++) kept.push_back(a.allocate(size(i), Role::param));
    }
    for (int step = 0; step < steps; step++) {
      std::vector<Block*> live;
      for (std::uint64_t i = 0; i < 40; i++) {
        live.push_back(a.allocate(size(100 + i), i % 3 == 0 ? Role::grad : Role::activation));
        if (i % 4 == 3) {
          a.free(live[live.size() - 2]);
          live.erase(live.end() - 2);
        }
      }
      for (Block* block : live) a.free(block);
      a.end_step();
    }
    if (free_kept) {
      for (Block* block : kept) a.free(block);
      kept.clear();
    }
  }
  std::size_t size(std::uint64_t i) const {
    const std::uint64_t r = mix_key(seed, i);
    return r % 5 == 0 ? 512 + r % 60'000 : 100'000 + r % (6 * kMiB);
  }
};

}  // namespace

TEST_CASE("settings: role pools, retention and the other knobs survive their text") {
  for (const char* text :
       {"role_pools:[param+optimizer,grad]", "retain_mb:256", "retain_mb:0", "expandable_segments:True",
        "stitch_limit_mb:8", "max_split_size_mb:64,retain_mb:5,role_pools:[saved],roundup_power2_divisions:4",
        "expandable_segments:True,role_pools:[workspace],roundup_power2_divisions:[1:4,>:8]"}) {
    CAPTURE(text);
    const AllocatorSettings s = parse_allocator_settings(text);
    CHECK_FALSE(s == AllocatorSettings());
    CHECK(parse_allocator_settings(to_string(s)) == s);
  }
  const AllocatorSettings s = parse_allocator_settings("role_pools:[optimizer+param,grad]");
  CHECK(s.pool_count() == 3);
  CHECK(s.pool_name(0) == "others");
  CHECK(s.pool_name(1) == "param+optimizer");
  CHECK(s.pool_name(2) == "grad");
  CHECK(parse_allocator_settings("role_pools:param+optimizer").pool_count() == 2);
  CHECK(to_string(AllocatorSettings()) == "");
  for (const char* text : {"role_pools:[params]", "role_pools:[param,param]", "role_pools:[param+]", "role_pools:[]",
                           "role_pools:", "retain_mb:[1]", "retain_mb:x"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_allocator_settings(text), ArgumentError);
  }
  CHECK(contains(error_of<ArgumentError>([] { parse_allocator_settings("role_pools:[params]"); }),
                 "unknown role 'params'; known are param, grad"));
  AllocatorSettings odd;
  odd.retain = 1;
  CHECK_THROWS_AS(odd.validate(), ArgumentError);
  odd = {};
  odd.role_pools[0] = 2;
  CHECK_THROWS_AS(odd.validate(), ArgumentError);
}

TEST_CASE("role pools: no shared segment, a changed role does not move, everything is counted") {
  for (const PolicyEntry& policy : policies()) {
    CAPTURE(policy.name);
    Allocator a(device_of(1024), parse_allocator_settings("role_pools:[param+optimizer,grad]"), policy.make);
    Block* param = a.allocate(3 * kMiB, Role::param);
    Block* state = a.allocate(2 * kMiB, Role::optimizer);
    Block* grad = a.allocate(3 * kMiB, Role::grad);
    Block* saved = a.allocate(1000, Role::saved);
    Block* small = a.allocate(1000, Role::param);
    CHECK(param->role_pool == 1);
    CHECK(grad->role_pool == 2);
    CHECK(saved->role_pool == 0);
    CHECK(param->segment != grad->segment);
    CHECK(small->segment != saved->segment);
    a.set_role(saved, Role::param);
    CHECK(saved->role_pool == 0);
    a.check();
    std::set<std::uint64_t> ids;
    std::set<const Segment*> segments;
    for (Block* b : {param, state, grad, saved, small}) {
      segments.insert(b->segment);
      ids.insert(b->segment->id);
    }
    CHECK(ids.size() == segments.size());
    std::uint64_t reserved = 0, pools = 0;
    for (const SegmentInfo& segment : a.snapshot()) {
      reserved += segment.size;
      pools |= std::uint64_t{1} << segment.role_pool;
    }
    CHECK(reserved == a.ledger().reserved);
    CHECK(pools == 7);
    for (Block* b : {param, state, grad, saved, small}) a.free(b);
    a.check();
    a.empty_cache();
    CHECK(a.ledger().reserved == 0);
    a.check();
  }
}

TEST_CASE("role pools: when memory is short the other pools give back their cache, then the request is made again") {
  Allocator a(device_of(64), parse_allocator_settings("role_pools:[param]"));
  a.free(a.allocate(40 * kMiB, Role::param));
  CHECK(a.ledger().reserved == 40 * kMiB);
  Block* block = a.allocate(40 * kMiB, Role::activation);
  CHECK(a.ledger().reserved == 40 * kMiB);
  CHECK(a.stats().num_ooms == 0);
  CHECK_THROWS_AS(a.allocate(40 * kMiB, Role::param), OutOfMemoryError);
  CHECK(a.stats().num_ooms == 1);
  a.check();
  a.free(block);
}

TEST_CASE("role pools: a replay of the trace repeats the run, because the trace keeps the setting") {
  for (const PolicyEntry& policy : policies()) {
    CAPTURE(policy.name);
    // Large, because rmm_pool takes half of what is left of the device at a time.
    Allocator a(device_of(1 << 14), parse_allocator_settings("role_pools:[param,grad],retain_mb:40"), policy.make);
    Work work{7, {}};
    work.run(a, 6, true);
    const TraceLog log = capture_trace(a);
    ReplayOptions options;
    options.policy = policy_named(log.info.policy);
    options.settings = parse_allocator_settings(log.info.settings);
    options.capacity = log.info.capacity;
    CHECK(options.settings == a.settings());
    const ReplayResult r = replay(ReplayScript(log), options);
    CHECK(r.completed);
    CHECK(r.peak_reserved == a.ledger().peak_reserved);
    CHECK(r.stats.num_device_alloc == a.stats().num_device_alloc);
    CHECK(r.stats.num_device_free == a.stats().num_device_free);
  }
}

TEST_CASE("trim says what went back, what stayed, and who pins it") {
  Allocator a(device_of(1024));
  Block* big = a.allocate(30 * kMiB, Role::activation);
  Block* medium = a.allocate(5 * kMiB, Role::saved, intern("conv1.output"));
  Block* other = a.allocate(4 * kMiB, Role::temp);
  Block* tiny = a.allocate(100, Role::param, intern("bias"));
  Block* stream = a.allocate(12 * kMiB, Role::activation, 0, 3);
  a.free(big);
  a.free(other);
  a.free(stream);
  const TrimResult r = a.trim();
  CHECK(r.reserved_before == (30 + 20 + 2 + 12) * kMiB);
  CHECK(r.bytes_given() == 42 * kMiB);
  CHECK(r.reserved_after == a.ledger().reserved);
  REQUIRE(r.given.size() == 2);
  CHECK(r.given[0].stream == 0);
  CHECK(r.given[0].bytes == 30 * kMiB);
  CHECK(r.given[0].segments == 1);
  CHECK(r.given[1].stream == 3);
  REQUIRE(r.kept.size() == 2);
  CHECK(r.kept[0].bytes == 20 * kMiB);
  CHECK(r.kept[0].reason == TrimResult::Reason::in_use);
  CHECK(r.kept[0].free == 15 * kMiB);
  REQUIRE(r.kept[0].pins.size() == 1);
  CHECK(r.kept[0].pins[0].name == "conv1.output");
  CHECK(r.kept[1].pins[0].role == Role::param);
  const std::string text = to_string(r);
  CHECK(contains(text, "42.00 MiB given back"));
  CHECK(contains(text, "conv1.output"));
  const nlohmann::json json = nlohmann::json::parse(to_json(r));
  CHECK(json["given_back"][0]["bytes"] == 30 * kMiB);
  CHECK(json["kept"][0]["pins"][0]["name"] == "conv1.output");
  CHECK(json["kept"][0]["why"] == "in use");
  a.check();
  a.free(medium);
  a.free(tiny);
}

TEST_CASE("trim keeps at least so many bytes: the largest free segments go that leave them") {
  for (const PolicyEntry& policy : policies()) {
    CAPTURE(policy.name);
    Allocator a(device_of(1024), {}, policy.make);
    std::vector<Block*> blocks;
    for (std::size_t mib : {40, 64, 12, 100, 24}) blocks.push_back(a.allocate(mib * kMiB, Role::activation));
    for (Block* b : blocks) a.free(b);
    const std::uint64_t before = a.ledger().reserved;
    const TrimResult r = a.trim(80 * kMiB);
    CHECK(r.reserved_after >= 80 * kMiB);
    CHECK(r.reserved_after <= before);
    CHECK(r.reserved_after == a.ledger().reserved);
    for (const TrimResult::Kept& k : r.kept) {
      CHECK(k.reason == TrimResult::Reason::retained);
      if (!k.mapped) CHECK(r.reserved_after - k.bytes < 80 * kMiB);
    }
    std::uint64_t given = 0;
    for (const TrimResult::Given& g : r.given) given += g.bytes;
    CHECK(given == r.bytes_given());
    a.check();
    CHECK(a.trim(4096 * kMiB).bytes_given() == 0);
    a.trim();
    CHECK(a.ledger().reserved == 0);
    a.check();
  }
  Allocator pages(device_of(1024), {}, make_expandable_policy);
  pages.free(pages.allocate(100 * kMiB, Role::activation));
  CHECK(pages.trim(50 * kMiB).reserved_after == 60 * kMiB);  // whole pages of 20 MiB
}

TEST_CASE("retention: when a step ends, what is above the threshold goes back; by default nothing does") {
  Allocator keeps(device_of(1024)), gives(device_of(1024), parse_allocator_settings("retain_mb:20"));
  for (Allocator* a : {&keeps, &gives}) {
    Block* live = a->allocate(20 * kMiB, Role::param);
    a->free(a->allocate(64 * kMiB, Role::activation));
    a->free(a->allocate(12 * kMiB, Role::activation));
    a->end_step();
    a->check();
    a->free(live);
  }
  CHECK(keeps.ledger().reserved == 84 * kMiB);
  CHECK(gives.ledger().reserved == 20 * kMiB);  // 84 - 64; the 12 MiB request was served from the 64 MiB
  std::uint64_t trims = 0;
  for (const TraceRecord& r : gives.trace().records()) trims += r.kind == TraceKind::empty_cache && r.bytes == 20 * kMiB;
  CHECK(trims == 1);
  gives.end_step();  // below the threshold: no record, no wait
  CHECK(gives.stats().num_sync_all_streams == 1);
}

TEST_CASE("reserve_plan: the run then makes no device call, under every policy") {
  for (const PolicyEntry& policy : policies()) {
    for (const char* settings : {"", "role_pools:[param,grad]"}) {
      CAPTURE(policy.name);
      CAPTURE(settings);
      Allocator recorded(device_of(2048));
      Work{11, {}}.run(recorded, 3, true);
      const TraceLog log = capture_trace(recorded);
      Allocator a(device_of(1 << 14), parse_allocator_settings(settings), policy.make);
      if (std::string(policy.name) == "async" && *settings) {
        // It would rather move a page than keep two: here it never comes to rest, and that is what it says.
        CHECK(contains(error_of<ArgumentError>([&] { reserve_plan(a, log); }), "after 16 passes under async"));
        CHECK(a.ledger().live_total == 0);
        continue;
      }
      const ReservePlanResult plan = reserve_plan(a, log);
      CHECK(plan.passes.size() >= 2);
      CHECK(plan.passes.back().device_calls == 0);
      CHECK(plan.reserved_after == a.ledger().reserved);
      CHECK(plan.reserved_after >= plan.peak_live);
      CHECK(a.ledger().live_total == 0);
      CHECK(a.ledger().peak_live == 0);
      const std::int64_t calls = device_calls(a);
      Work work{11, {}};
      work.run(a, 8, false);
      CHECK(device_calls(a) == calls);
      a.check();
      work.run(a, 0, true);
      CHECK(contains(to_string(plan), "the last without a device call"));
      CHECK(nlohmann::json::parse(to_json(plan))["passes"].size() == plan.passes.size());
    }
  }
}

TEST_CASE("reserve_plan on CPU memory; what was live before stays, and the model's part of a trace is left out") {
  Allocator recorded(device_of(1024));
  Block* model = recorded.allocate(9 * kMiB, Role::param);
  recorded.empty_cache();
  {
    PhaseScope phase(Phase::forward);
    Work{3, {}}.run(recorded, 2, true);
  }
  recorded.free(model);
  const TraceLog log = capture_trace(recorded);
  const std::uint64_t first = first_of_steps(log);
  REQUIRE(first > 0);
  CHECK(log.records[first - 1].kind == TraceKind::empty_cache);
  Allocator a(std::make_shared<HostMemory>("cpu"));
  Block* own = a.allocate(9 * kMiB, Role::param);
  static_cast<char*>(own->ptr)[0] = 42;
  reserve_plan(a, log, first);
  CHECK(a.ledger().live_total == 9 * kMiB);
  CHECK(static_cast<char*>(own->ptr)[0] == 42);
  const std::int64_t calls = device_calls(a);
  Work{3, {}}.run(a, 5, true);
  CHECK(device_calls(a) == calls);
  a.free(own);
}

TEST_CASE("reserve_plan: what does not fit is an error, and leaves nothing live") {
  Allocator recorded(device_of(2048));
  Work{11, {}}.run(recorded, 3, true);
  const TraceLog log = capture_trace(recorded);
  Allocator a(device_of(64));
  CHECK(contains(error_of<OutOfMemoryError>([&] { reserve_plan(a, log); }), "[reserve_plan] the trace needs "));
  CHECK(a.ledger().live_total == 0);
  a.check();
  CHECK_THROWS_AS(reserve_plan(a, log, log.records.size() + 1), ArgumentError);
  Allocator roomy(device_of(2048));
  CHECK(contains(error_of<ArgumentError>([&] { reserve_plan(roomy, log, 0, 1); }), "after 1 passes under native"));
  CHECK(roomy.ledger().live_total == 0);
}

TEST_CASE("huge pages are asked for or declined") {
  HostMemory memory("cpu");
  CHECK(memory.huge_pages());
  auto flags_of = [](void* at) {
    std::ifstream smaps("/proc/self/smaps");
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    bool inside = false;
    for (std::string line; std::getline(smaps, line);) {
      unsigned long long begin = 0, end = 0;
      if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) inside = begin <= address && address < end;
      if (inside && line.starts_with("VmFlags:")) return line + " ";
    }
    return std::string();
  };
  void* on = memory.reserve(4 * kMiB);
  memory.set_huge_pages(false);
  void* off = memory.reserve(4 * kMiB);
  void* range = memory.range_reserve(4 * kMiB);
  REQUIRE(memory.map(range, 2 * kMiB));
  const std::string with = flags_of(on), without = flags_of(off), mapped = flags_of(range);
  if (with.empty() || (!contains(with, " hg ") && !contains(without, " nh "))) {
    MESSAGE("this system shows no VmFlags of huge pages: not checked");
  } else {
    CHECK(contains(with, " hg "));
    CHECK_FALSE(contains(without, " hg "));
    CHECK(contains(without, " nh "));
    CHECK(contains(mapped, " nh "));
  }
  memory.unmap(range, 2 * kMiB);
  memory.range_release(range, 4 * kMiB);
  memory.release(on, 4 * kMiB);
  memory.release(off, 4 * kMiB);
}

namespace {

// The largest workspace that `action` asks for.
template <class Action>
std::uint64_t largest_workspace(Action&& action) {
  Allocator& pool = host_allocator();
  const std::uint64_t before = pool.trace().total();
  action();
  std::uint64_t largest = 0;
  const std::uint64_t count = pool.trace().total() - before;
  const std::vector<TraceRecord> records = pool.trace().records();
  REQUIRE(count <= records.size());
  for (std::size_t i = records.size() - count; i < records.size(); i++) {
    if (records[i].kind == TraceKind::alloc && records[i].role == Role::workspace)
      largest = std::max(largest, records[i].bytes);
  }
  return largest;
}

// As a share of the largest value.
double difference(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  double most = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); i++) {
    most = std::max(most, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    size = std::max(size, std::abs(static_cast<double>(x[i])));
  }
  return most / size;
}

struct ConvCase {
  const char* name;
  Conv2dDesc desc;
};

}  // namespace

TEST_CASE("workspace cap: convolutions keep to it and give the same result") {
  manual_seed(1);
  const ConvCase cases[] = {
      {"winograd, narrow", {.n = 4, .c = 32, .h = 20, .w = 20, .k = 48, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}},
      {"winograd, wide", {.n = 2, .c = 160, .h = 12, .w = 12, .k = 176, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1}},
      {"direct, stride 2",
       {.n = 3, .c = 24, .h = 19, .w = 21, .k = 40, .r = 3, .s = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}},
      {"direct, 5x5", {.n = 4, .c = 16, .h = 16, .w = 16, .k = 33, .r = 5, .s = 5, .pad_h = 2, .pad_w = 2}},
      {"groups", {.n = 2, .c = 32, .h = 9, .w = 9, .k = 64, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 2}},
      {"depthwise", {.n = 8, .c = 64, .h = 16, .w = 16, .k = 64, .r = 3, .s = 3, .pad_h = 1, .pad_w = 1, .groups = 64}},
  };
  for (const ConvCase& c : cases) {
    for (DType dtype : {DType::float32, DType::float16}) {
      CAPTURE(c.name);
      CAPTURE(to_string(dtype));
      Conv2dDesc d = c.desc;
      d.dtype = dtype;
      const double tolerance = dtype == DType::float32 ? 5e-5 : 2e-3;
      const Tensor x = raw::packed(raw::cast(randn({d.n, d.c, d.h, d.w}), dtype));
      const Tensor w = raw::cast(randn({d.k, d.c / d.groups, d.r, d.s}), dtype);
      const Tensor dy = raw::packed(raw::cast(randn({d.n, d.k, d.oh(), d.ow()}), dtype));
      const std::function<Tensor()> passes[] = {[&] { return raw::conv2d(d, x, w, Tensor()); },
                                                [&] { return raw::conv2d_backward_input(d, dy, w); },
                                                [&] { return raw::conv2d_backward_weight(d, x, dy); }};
      for (std::size_t p = 0; p < 3; p++) {
        CAPTURE(p);
        Tensor free_result;
        const std::uint64_t whole = largest_workspace([&] { free_result = passes[p](); });
        REQUIRE(whole > 0);
        // Down to the smallest plan, which is told by the error.
        int fits = 0;
        for (std::uint64_t cap = whole; cap >= 64; cap = cap * 2 / 3) {
          CAPTURE(cap);
          const WorkspaceCapScope scope(cap);
          Tensor result;
          try {
            const std::uint64_t used = largest_workspace([&] { result = passes[p](); });
            CHECK(used <= cap);
            CHECK(difference(raw::cast(free_result, DType::float32), raw::cast(result, DType::float32)) < tolerance);
            fits++;
          } catch (const ArgumentError& error) {
            CHECK(contains(error.what(), concat("the workspace cap is ", cap)));
            break;
          }
        }
        CHECK(fits >= 1);
        if (dtype == DType::float32 && d.groups == 1) CHECK(fits >= 4);
        const WorkspaceCapScope none(0);
        CHECK(largest_workspace([&] { passes[p](); }) == whole);
      }
    }
  }
}

TEST_CASE("workspace cap: smaller pieces of one algorithm give the same bits") {
  manual_seed(2);
  Conv2dDesc d{.n = 3, .c = 24, .h = 18, .w = 18, .k = 40, .r = 5, .s = 5, .pad_h = 2, .pad_w = 2};
  const Tensor x = raw::packed(randn({3, 24, 18, 18})), w = randn({40, 24, 5, 5}), b = randn({40});
  const Tensor dy = raw::packed(randn({3, 40, 18, 18}));
  const Tensor m = randn({150, 700}), n = randn({700, 130});
  const std::function<Tensor()> actions[] = {[&] { return raw::conv2d(d, x, w, b); },
                                             [&] { return raw::conv2d_backward_input(d, dy, w); },
                                             [&] { return raw::matmul(m, n); }};
  for (const auto& action : actions) {
    Tensor expected;
    const std::uint64_t whole = largest_workspace([&] { expected = action(); });
    for (std::uint64_t share : {2, 4, 8}) {
      CAPTURE(share);
      const WorkspaceCapScope scope(whole / share);
      Tensor result;
      CHECK(largest_workspace([&] { result = action(); }) <= whole / share);
      CHECK(result.to_vector<float>() == expected.to_vector<float>());
    }
  }
}

TEST_CASE("workspace cap: matrix products and batch norm; too small a cap is an error with both values") {
  manual_seed(3);
  const Tensor a = randn({200, 300}), b = randn({300, 250});
  const Tensor rows = randn({20000, 64});
  const std::vector<float> product = raw::matmul(a, b).to_vector<float>();
  const raw::BatchStatistics statistics = raw::batch_norm_statistics(rows, 1e-5);
  const WorkspaceCapScope scope(64 << 10);
  CHECK(largest_workspace([&] { CHECK(raw::matmul(a, b).to_vector<float>() == product); }) <= 64 << 10);
  {
    const WorkspaceCapScope small(4096);
    raw::BatchStatistics again;
    const std::uint64_t used = largest_workspace([&] { again = raw::batch_norm_statistics(rows, 1e-5); });
    CHECK(used <= 4096);
    CHECK(used > 0);
    const std::vector<double> was = statistics.mean.to_vector<double>(), is = again.mean.to_vector<double>();
    for (std::size_t i = 0; i < was.size(); i++) CHECK(std::abs(is[i] - was[i]) < 1e-7);
  }
  {
    const WorkspaceCapScope none(64);
    CHECK(contains(error_of<ArgumentError>([&] { raw::matmul(a, b); }), "the workspace cap is 64"));
    CHECK(contains(error_of<ArgumentError>([&] { raw::batch_norm_statistics(rows, 1e-5); }),
                   "has a workspace of 1536 bytes, the workspace cap is 64"));
  }
  CHECK(workspace_cap() == 64 << 10);
}

TEST_CASE("workspace cap: predicted is measured, and the rows of the ledger keep to it") {
  train::PlanSettings s;
  s.run.train.model = "resnet20";
  s.run.train.input = {3, 16, 16};
  s.run.train.classes = 10;
  s.run.train.batch = 16;
  s.run.full_steps = 2;
  const train::Prediction free = train::predict(s);
  for (std::uint64_t cap : {std::uint64_t{1} << 20, std::uint64_t{200} << 10}) {
    CAPTURE(cap);
    s.run.train.workspace_cap = cap;
    const train::Prediction p = train::predict(s), m = train::measure(s);
    REQUIRE(p.fits);
    REQUIRE(m.fits);
    CHECK(p.run.memory.allocated == m.run.memory.allocated);
    CHECK(p.run.memory.reserved == m.run.memory.reserved);
    CHECK(p.run.live_peak == m.run.live_peak);
    CHECK(p.run.live_peak <= free.run.live_peak);
    CHECK(p.run.stats.num_device_alloc == m.run.stats.num_device_alloc);
  }
  CHECK(workspace_cap() == 0);
}

TEST_CASE("role pools: a model's parameters and the optimizer's state are born in their pools") {
  train::PlanSettings s;
  s.run.train.model = "resnet20";
  s.run.train.input = {3, 16, 16};
  s.run.train.classes = 10;
  s.run.train.batch = 4;
  s.allocator = parse_allocator_settings("role_pools:[param+optimizer]");
  dry::Run run({.settings = s.allocator});
  const dry::Placeholder loss(0);
  std::uint64_t param = 0, elsewhere = 0;
  run.pool().record_to([&](const TraceRecord* records, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) {
      if (records[i].kind == TraceKind::alloc && records[i].role == Role::param) param += records[i].bytes;
      if (records[i].kind != TraceKind::role) continue;
      if (records[i].role == Role::param || records[i].role == Role::optimizer) elsewhere += records[i].bytes;
    }
  });
  const train::RehearsalResult r = train::rehearse(s.run, run.pool(), run.io_pool());
  run.pool().trace().flush();
  CHECK(param >= 4 * static_cast<std::uint64_t>(r.parameters));
  CHECK(elsewhere == 0);
  run.pool().trace().set_sink({});
}
