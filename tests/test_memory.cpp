// The memory room around the policy: devices, settings, ledger, statistics, trace, the out-of-memory error, threads.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/simulated_memory.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::shared_ptr<SimulatedMemory> simulated(std::size_t mib) { return std::make_shared<SimulatedMemory>(mib * kMiB); }

// A static owner: its block goes back after main, when other statics may be gone.
struct StaticOwner {
  Block* block = host_allocator().allocate(1000, Role::other);
  ~StaticOwner() { host_allocator().free(block); }
};
StaticOwner static_owner;

template <class E, class F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.message();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("roles have names") {
  CHECK(std::string(to_string(Role::param)) == "param");
  CHECK(std::string(to_string(Role::other)) == "other");
  CHECK(static_cast<int>(Role::other) + 1 == kRoleCount);
  CHECK(std::string(to_string(static_cast<Role>(99))) == "?");
}

TEST_CASE("0 bytes are no block, and nullptr can be freed") {
  Allocator a(simulated(64));
  CHECK(a.allocate(0, Role::temp) == nullptr);
  a.free(nullptr);
  a.record_stream(nullptr, 3);
  CHECK(a.ledger().reserved == 0);
  CHECK(a.trace().total() == 0);
}

TEST_CASE("host memory is real, aligned, bounded and given back") {
  auto device = std::make_shared<HostMemory>("toy", 64 * kMiB);
  Allocator a(device);
  Block* small = a.allocate(1000, Role::param);
  Block* large = a.allocate(30 * kMiB + 7, Role::activation);
  std::memset(small->ptr, 1, small->size);
  std::memset(large->ptr, 2, large->size);
  CHECK(static_cast<unsigned char*>(large->ptr)[30 * kMiB + 6] == 2);
  CHECK(static_cast<unsigned char*>(small->ptr)[999] == 1);
  for (const SegmentInfo& segment : a.snapshot()) CHECK(segment.address % (2 * kMiB) == 0);
  CHECK(device->mem_info().total == 64 * kMiB);
  CHECK(device->mem_info().free == 30 * kMiB);
  CHECK_THROWS_AS(a.allocate(33 * kMiB, Role::temp), OutOfMemoryError);
  a.free(large);
  Block* other = a.allocate(33 * kMiB, Role::temp);  // the cached 32 MiB go back first
  CHECK(a.stats().num_alloc_retries == 2);
  a.free(other);
  a.free(small);
  a.empty_cache();
  CHECK(device->mem_info().free == 64 * kMiB);
  HostMemory plain;
  CHECK(plain.mem_info().total > 64 * kMiB);
  CHECK(plain.reserve(std::size_t{1} << 60) == nullptr);
}

TEST_CASE("virtual ranges of both devices") {
  HostMemory host("toy", 4 * kMiB);
  SimulatedMemory dry(4 * kMiB);
  for (MemoryDevice* device : {static_cast<MemoryDevice*>(&host), static_cast<MemoryDevice*>(&dry)}) {
    REQUIRE(device->has_virtual_ranges());
    std::size_t page = device->page_size();
    char* range = static_cast<char*>(device->range_reserve(8 * page));
    CHECK(device->mem_info().free == 4 * kMiB);
    CHECK(device->map(range + page, page));
    CHECK(device->map(range + 2 * page, page));
    CHECK_FALSE(device->map(range, page));
    CHECK(device->mem_info().free == 0);
    if (device == &host) std::memset(range + page, 5, 2 * page);
    device->unmap(range + page, 2 * page);
    CHECK(device->mem_info().free == 4 * kMiB);
    device->range_release(range, 8 * page);
  }
  void* range = dry.range_reserve(4 * kMiB);
  REQUIRE(dry.map(range, 2 * kMiB));
  CHECK_THROWS_AS(dry.map(range, 2 * kMiB), DeviceError);
  CHECK_THROWS_AS(dry.range_release(range, 4 * kMiB), DeviceError);
  CHECK_THROWS_AS(dry.unmap(static_cast<char*>(range) + 2 * kMiB, 2 * kMiB), DeviceError);
  CHECK_THROWS_AS(dry.map(reinterpret_cast<void*>(2 * kMiB), 2 * kMiB), DeviceError);
  CHECK_THROWS_AS(dry.map(static_cast<char*>(range) + 5, 2 * kMiB), DeviceError);
}

TEST_CASE("the simulated device maps any size at once, and unmaps parts of it") {
  constexpr std::size_t kPage = 2 * kMiB, kHuge = std::size_t{1} << 44;  // 8 million pages
  SimulatedMemory dry(2 * kHuge);
  char* range = static_cast<char*>(dry.range_reserve(2 * kHuge));
  for (int i = 0; i < 20; i++) {
    REQUIRE(dry.map(range, kHuge));
    dry.unmap(range, kHuge);
  }
  REQUIRE(dry.map(range, kHuge));
  REQUIRE(dry.map(range + kHuge, kHuge));
  dry.unmap(range + kHuge - kPage, 2 * kPage);  // across both
  CHECK(dry.used() == 2 * kHuge - 2 * kPage);
  CHECK_THROWS_AS(dry.unmap(range + kHuge - 2 * kPage, 2 * kPage), DeviceError);
  CHECK(dry.map(range + kHuge - kPage, kPage));
  CHECK_THROWS_AS(dry.map(range + kHuge - kPage, kPage), DeviceError);
  dry.unmap(range, kHuge);
  CHECK_THROWS_AS(dry.range_release(range, 2 * kHuge), DeviceError);
  dry.unmap(range + kHuge + kPage, kHuge - kPage);
  CHECK(dry.used() == 0);
  dry.range_release(range, 2 * kHuge);
}

TEST_CASE("the simulated device refuses what a driver would") {
  CHECK_THROWS_AS(SimulatedMemory(0), ArgumentError);
  SimulatedMemory device(64 * kMiB);
  void* segment = device.reserve(3 * kMiB);
  CHECK(device.used() == 4 * kMiB);
  CHECK_THROWS_AS(device.release(segment, 20 * kMiB), DeviceError);
  CHECK_THROWS_AS(device.release(static_cast<char*>(segment) + 1, 3 * kMiB), DeviceError);
  device.release(segment, 3 * kMiB);
  CHECK_THROWS_AS(device.release(segment, 3 * kMiB), DeviceError);
  CHECK(device.reserve(SIZE_MAX) == nullptr);
  CHECK_THROWS_AS(device.event_query(77), DeviceError);
  CHECK_THROWS_AS(device.event_wait(77), DeviceError);
  device.fail_call(2);
  CHECK(device.reserve(1) != nullptr);
  CHECK(device.reserve(1) == nullptr);
  CHECK(device.reserve(1) != nullptr);
}

TEST_CASE("settings: PyTorch's string") {
  AllocatorSettings s = parse_allocator_settings(
      " max_split_size_mb:64, garbage_collection_threshold:0.6 ,per_process_memory_fraction:0.5,backend:native,"
      "expandable_segments:False,max_non_split_rounding_mb:21");
  CHECK(s.max_split_size == 64 * kMiB);
  CHECK(s.max_non_split_rounding == 21 * kMiB);
  CHECK(s.garbage_collection_threshold == 0.6);
  CHECK(s.per_process_memory_fraction == 0.5);
  AllocatorSettings defaults = parse_allocator_settings("");
  CHECK(parse_allocator_settings("garbage_collection_threshold:0") == defaults);  // off, as the message says
  CHECK(contains(message_of<ArgumentError>([] { parse_allocator_settings("garbage_collection_threshold:1"); }),
                 "must be in [0, 1), 0 for off, got 1"));
  CHECK(contains(message_of<ArgumentError>([] { parse_allocator_settings("retain_mb:8,max_split_size_mb:64,retain_mb:9"); }),
                 "retain_mb is given twice, the second time as '9'"));
  CHECK(defaults.max_split_size == AllocatorSettings::kNoSplitLimit);
  CHECK(defaults.max_non_split_rounding == 20 * kMiB);
  CHECK(defaults.divisions_for(123456789) == 0);
  CHECK(parse_allocator_settings("large_segment_size_mb:64").max_non_split_rounding == 64 * kMiB);
  AllocatorSettings list = parse_allocator_settings("roundup_power2_divisions:[2:4,8:1,>:16]");
  CHECK(list.divisions_for(1) == 4);
  CHECK(list.divisions_for(3 * kMiB) == 4);
  CHECK(list.divisions_for(5 * kMiB) == 0);  // between the keys: as without rounding
  CHECK(list.divisions_for(9 * kMiB) == 1);
  CHECK(list.divisions_for(16 * kMiB) == 16);
  CHECK(list.divisions_for(std::size_t{1} << 40) == 16);
  for (const char* bad : {"max_split:3",
                          "max_split_size_mb",
                          "max_split_size_mb:",
                          "max_split_size_mb:x",
                          "max_split_size_mb:19",
                          "max_split_size_mb:-30",
                          "max_split_size_mb:64,",
                          "max_split_size_mb:[64:2]",
                          "roundup_power2_divisions:3",
                          "roundup_power2_divisions:[3:2]",
                          "roundup_power2_divisions:[4]",
                          "roundup_power2_divisions:[4:2",
                          "roundup_power2_divisions:[4:2]x",
                          "garbage_collection_threshold:-0.1",
                          "garbage_collection_threshold:1",
                          "garbage_collection_threshold:nan",
                          "per_process_memory_fraction:1.5",
                          "large_segment_size_mb:10",
                          "large_segment_size_mb:64,max_split_size_mb:30",
                          "max_non_split_rounding_mb:2",
                          "expandable_segments:true",
                          "backend:cudaMallocAsync",
                          "max_split_size_mb:99999999999999999999"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_allocator_settings(bad), ArgumentError);
  }
  CHECK(
      contains(message_of<ArgumentError>([] { parse_allocator_settings("max_split:3"); }), "unknown key 'max_split'"));
  AllocatorSettings broken;
  broken.garbage_collection_threshold = 2;
  CHECK_THROWS_AS(Allocator(simulated(64), broken), ArgumentError);
  CHECK_THROWS_AS(Allocator(nullptr), ArgumentError);
}

TEST_CASE("the ledger balances and knows roles, rounding, slack and external bytes") {
  auto device = simulated(256);
  void* foreign = device->reserve(10 * kMiB);  // somebody else on the same device
  Allocator a(device);
  Block* param = a.allocate(1000, Role::param);
  Block* activation = a.allocate(19 * kMiB + 100, Role::activation);  // segment of 20 MiB, rest below 1 MiB
  a.add_external(12345);
  Ledger l = a.ledger();
  l.check();
  CHECK(l.capacity == 256 * kMiB);
  CHECK(l.other == 10 * kMiB);
  CHECK(l.reserved == 22 * kMiB);
  CHECK(l.device_free == 224 * kMiB);
  CHECK(l.role(Role::param) == 1000);
  CHECK(l.role(Role::activation) == 19 * kMiB + 100);
  CHECK(l.rounding == 24 + 412);
  CHECK(l.slack == kMiB - 512);
  CHECK(l.free_in_used == 2 * kMiB - 1024);
  CHECK(l.free_whole == 0);
  CHECK(l.external == 12345);
  CHECK(l.allocated() == 1024 + 20 * kMiB);
  a.set_role(activation, Role::saved);
  CHECK(a.ledger().role(Role::saved) == 19 * kMiB + 100);
  CHECK(a.ledger().role(Role::activation) == 0);
  a.record_stream(activation, 5);
  device->set_events_pending(true);
  a.free(activation);
  CHECK(a.ledger().pending_free == 20 * kMiB);
  CHECK(a.ledger().role(Role::saved) == 0);
  a.check();
  device->complete_events();
  Block* tiny = a.allocate(1, Role::temp);
  CHECK(a.ledger().pending_free == 0);
  CHECK(a.ledger().free_whole == 20 * kMiB);
  std::string text = to_string(a.ledger());
  CHECK(contains(text, "capacity"));
  CHECK(contains(text, "param"));
  CHECK_FALSE(contains(text, "workspace"));
  a.remove_external(12345);
  CHECK_THROWS_AS(a.remove_external(1), InternalError);
  a.free(tiny);
  a.free(param);
  a.empty_cache();
  CHECK(a.ledger().reserved == 0);
  device->release(foreign, 10 * kMiB);
  Ledger broken = a.ledger();
  broken.rounding = 1;
  CHECK_THROWS_AS(broken.check(), InternalError);
  broken = a.ledger();
  broken.live_total = 1;
  CHECK_THROWS_AS(broken.check(), InternalError);
  broken = a.ledger();
  broken.device_free++;
  CHECK_THROWS_AS(broken.check(), InternalError);
}

TEST_CASE("the peak is kept whole, with what was running") {
  Allocator a(simulated(256));
  Scope scope;
  scope.op = intern("conv2d");
  scope.module = intern("net.conv1");
  scope.phase = Phase::forward;
  scope.step = 3;
  scope.micro_batch = 2;
  Block* param = a.allocate(5000, Role::param);
  Block* saved = nullptr;
  {
    ScopeGuard guard(scope);
    saved = a.allocate(30 * kMiB, Role::saved);
  }
  a.free(saved);
  Block* late = a.allocate(20 * kMiB, Role::grad);
  Ledger peak = a.ledger_at_peak();
  peak.check();
  CHECK(peak.live_total == 5000 + 30 * kMiB);
  CHECK(peak.role(Role::saved) == 30 * kMiB);
  CHECK(peak.role(Role::grad) == 0);
  CHECK(peak.scope.op == scope.op);
  CHECK(peak.scope.module == scope.module);
  CHECK(peak.scope.phase == Phase::forward);
  CHECK(peak.scope.step == 3);
  CHECK(peak.scope.micro_batch == 2);
  CHECK(a.ledger().peak_live == peak.live_total);
  CHECK(a.ledger().peak_reserved == 32 * kMiB);
  Ledger reserved_peak = a.ledger_at_reserved_peak();
  reserved_peak.check();
  CHECK(reserved_peak.reserved == 32 * kMiB);
  CHECK(reserved_peak.live_total == 5000 + 30 * kMiB);
  a.reset_peak_stats();
  CHECK(a.ledger_at_peak().live_total == 5000 + 20 * kMiB);
  CHECK(a.ledger_at_peak().role(Role::grad) == 20 * kMiB);
  a.free(late);
  a.free(param);
}

TEST_CASE("capacity and memory fraction") {
  auto device = std::make_shared<HostMemory>("toy");
  Allocator a(device);
  Block* block = a.allocate(40 * kMiB, Role::param);
  Block* cached = a.allocate(24 * kMiB, Role::param);
  a.free(cached);
  a.set_capacity(48 * kMiB);  // gives the cached 24 MiB back
  CHECK(a.ledger().reserved == 40 * kMiB);
  CHECK(a.ledger().capacity == 48 * kMiB);
  CHECK(a.ledger().device_free == 8 * kMiB);
  CHECK_THROWS_AS(a.allocate(10 * kMiB, Role::param), OutOfMemoryError);
  CHECK(contains(message_of<ArgumentError>([&] { a.set_capacity(30 * kMiB); }), "40.00 MiB"));
  CHECK(a.ledger().capacity == 48 * kMiB);
  a.set_capacity(0);
  a.free(a.allocate(10 * kMiB, Role::param));
  CHECK_THROWS_AS(a.set_memory_fraction(1.5), ArgumentError);
  CHECK_THROWS_AS(a.set_memory_fraction(-0.1), ArgumentError);
  a.set_capacity(100 * kMiB);
  a.set_memory_fraction(0.5);
  std::string message = message_of<OutOfMemoryError>([&] { a.allocate(20 * kMiB, Role::param); });
  CHECK(contains(message, "the memory fraction allows 50.00 MiB"));
  a.set_memory_fraction(1);
  a.free(a.allocate(20 * kMiB, Role::param));
  a.free(block);
  a.check();
  AllocatorSettings half = parse_allocator_settings("per_process_memory_fraction:0.5");
  Allocator limited(simulated(64), half);
  CHECK_THROWS_AS(limited.allocate(33 * kMiB, Role::temp), OutOfMemoryError);
  auto other = simulated(64);
  Allocator dry(other);
  dry.set_capacity(30 * kMiB);
  CHECK(dry.ledger().capacity == 30 * kMiB);
  dry.set_capacity(0);
  CHECK(dry.ledger().capacity == 64 * kMiB);
}

TEST_CASE("out of memory says what was asked, where memory is and who holds it") {
  Allocator a(simulated(64));
  NameId weight = intern("conv1.weight"), layer = intern("layer1.conv2");
  std::vector<Block*> held{a.allocate(100, Role::param, weight)};
  {
    Scope scope;
    scope.module = layer;
    scope.op = intern("relu");
    scope.phase = Phase::forward;
    ScopeGuard guard(scope);
    held.push_back(a.allocate(20 * kMiB, Role::saved));
    held.push_back(a.allocate(11 * kMiB, Role::saved));
  }
  {
    OpScope op(intern("cat"));
    held.push_back(a.allocate(12 * kMiB, Role::temp));
  }
  a.free(held[1]);
  held[1] = a.allocate(12 * kMiB, Role::other);  // leaves a hole of 8 MiB
  Scope scope;
  scope.op = intern("conv2d");
  scope.module = intern("conv1");
  scope.phase = Phase::forward;
  ScopeGuard guard(scope);
  std::string message;
  OutOfMemoryInfo info;
  try {
    a.allocate(30 * kMiB + 1, Role::activation, intern("output"));
  } catch (const OutOfMemoryError& error) {
    message = error.message();
    info = error.info();
  }
  CHECK(info.requested == 30 * kMiB + 1);
  CHECK(info.rounded == 30 * kMiB + 512);
  CHECK(info.live == 512 + (11 + 12 + 12 + 1) * kMiB);  // 11 MiB got a segment of 12, too little to split
  CHECK(info.reserved == 46 * kMiB);
  CHECK(info.cached == 8 * kMiB + 2 * kMiB - 512);
  CHECK(info.largest_free == 8 * kMiB);
  CHECK(info.device_free == 18 * kMiB);
  CHECK(info.capacity == 64 * kMiB);
  CHECK_FALSE(info.limit.has_value());
  CHECK(info.role == Role::activation);
  CHECK(info.name == "output");
  CHECK(info.scope.op == scope.op);
  REQUIRE(info.holders.size() == 4);
  CHECK(info.holders[0].bytes == 12 * kMiB);
  CHECK(info.holders[2].name == "layer1.conv2");
  CHECK(info.holders[2].role == Role::saved);
  CHECK(info.holders[3].name == "conv1.weight");
  CHECK(info.holders[3].bytes == 100);
  CHECK(info.holders[3].count == 1);
  CHECK(contains(message,
                 "out of memory: tried to allocate 30.00 MiB for conv2d (layer conv1, forward, role activation"));
  CHECK(contains(message, "largest block 8.00 MiB"));
  CHECK(contains(message, "saved layer1.conv2 11.00 MiB in 1 block"));
  CHECK(contains(message, "temp cat 12.00 MiB"));
  CHECK(contains(message, "other (unnamed) 12.00 MiB"));
  CHECK(a.stats().num_ooms == 1);
  CHECK_THROWS_AS(a.allocate(SIZE_MAX, Role::temp), OutOfMemoryError);
  CHECK_THROWS_AS(a.allocate(SIZE_MAX - 100, Role::temp), OutOfMemoryError);
  CHECK(a.stats().num_ooms == 3);
  a.check();
  for (int i = 0; i < 20; i++)
    held.push_back(a.allocate(1000 + static_cast<std::size_t>(i), Role::grad, intern("g" + std::to_string(i))));
  try {
    a.allocate(60 * kMiB, Role::temp);
  } catch (const OutOfMemoryError& error) {
    CHECK(error.info().holders.size() == 8);
    CHECK(error.requested() == 60 * kMiB);
  }
  for (Block* block : held) a.free(block);
  a.check();
}

TEST_CASE("statistics have PyTorch's keys") {
  Allocator a(simulated(256), parse_allocator_settings("max_split_size_mb:32"));
  Block* small = a.allocate(1000, Role::temp);
  Block* large = a.allocate(40 * kMiB, Role::temp);
  a.free(small);
  auto stats = memory_stats(a.stats());
  CHECK(stats.size() == 9 * 3 * 4 + 8 + 7);
  CHECK(stats.at("allocation.all.current") == 1);
  CHECK(stats.at("allocation.all.peak") == 2);
  CHECK(stats.at("allocation.small_pool.freed") == 1);
  CHECK(stats.at("allocated_bytes.all.allocated") == static_cast<std::int64_t>(40 * kMiB + 1024));
  CHECK(stats.at("allocated_bytes.small_pool.peak") == 1024);
  CHECK(stats.at("requested_bytes.small_pool.peak") == 1000);
  CHECK(stats.at("reserved_bytes.large_pool.current") == static_cast<std::int64_t>(40 * kMiB));
  CHECK(stats.at("segment.all.current") == 2);
  CHECK(stats.at("active.all.current") == 1);
  CHECK(stats.at("active_bytes.large_pool.current") == static_cast<std::int64_t>(40 * kMiB));
  CHECK(stats.at("inactive_split.all.peak") == 1);
  CHECK(stats.at("inactive_split_bytes.all.current") == 0);
  CHECK(stats.at("oversize_allocations.current") == 1);
  CHECK(stats.at("oversize_segments.peak") == 1);
  CHECK(stats.at("num_alloc_retries") == 0);
  CHECK(stats.at("num_ooms") == 0);
  CHECK(stats.at("num_sync_all_streams") == 0);
  CHECK(stats.at("num_device_alloc") == 2);
  CHECK(stats.at("num_device_free") == 0);
  CHECK(stats.at("num_oom_rejections") == 0);
  CHECK(stats.at("max_split_size") == static_cast<std::int64_t>(32 * kMiB));
  a.free(large);
  a.empty_cache();
  a.reset_peak_stats();
  stats = memory_stats(a.stats());
  CHECK(stats.at("num_device_free") == 2);
  CHECK(stats.at("num_sync_all_streams") == 1);
  CHECK(stats.at("oversize_segments.freed") == 1);
  CHECK(stats.at("allocated_bytes.all.peak") == 0);
  CHECK(memory_stats(Allocator(simulated(64)).stats()).at("max_split_size") == -1);
}

TEST_CASE("the summary has PyTorch's layout") {
  // The same made-up statistics as tests/golden/allocator/summary.py.
  Stats stats;
  std::int64_t i = 0;
  auto value = [&i] {
    std::int64_t power = 1;
    for (int k = 0; k < i % 8; k++) power *= 37;
    return ++i * power;
  };
  auto fill = [&](Stat& s) {
    s.current = value();
    s.peak = value();
    s.allocated = value();
    s.freed = value();
  };
  for (auto& metric : stats.metrics) {
    for (Stat& s : metric) fill(s);
  }
  fill(stats.oversize_allocations);
  fill(stats.oversize_segments);
  stats.num_alloc_retries = 12;
  stats.num_ooms = 345;
  std::ifstream file(std::string(LIMPID_TEST_DATA) + "/allocator/memory_summary.txt");
  REQUIRE(file.good());
  std::istringstream ours(memory_summary(stats, "cpu") + "\n" + memory_summary(stats, "cpu", true) + "\n");
  int lines = 0;
  for (std::string theirs, mine; std::getline(file, theirs); lines++) {
    std::getline(ours, mine);
    auto rename = [&theirs](const std::string& from, const std::string& to) {
      std::size_t at = theirs.find(from);
      if (at != std::string::npos) theirs.replace(at, from.size(), to);
    };
    if (contains(theirs, "memory summary")) {
      CHECK(contains(mine, "limpid memory summary, device cpu"));
      CHECK(mine.size() == 77);
    } else {
      rename("CUDA OOMs", "     OOMs");
      rename("cudaMalloc retries", "    device retries");
      rename("GPU reserved memory  ", "Reserved memory      ");
      rename("GPU reserved segments", "Reserved segments    ");
      rename("Oversize GPU segments", "Oversize segments    ");
      CHECK(mine == theirs);
    }
  }
  CHECK(lines == 78);
  CHECK(contains(Allocator(simulated(64)).memory_summary(), "device simulated"));
}

TEST_CASE("a snapshot shows segments in address order, tiled by blocks") {
  Allocator a(simulated(256));
  Block* first = a.allocate(1000, Role::param, intern("w"), 4);
  Block* second = a.allocate(3 * kMiB, Role::saved);
  std::vector<SegmentInfo> segments = a.snapshot();
  REQUIRE(segments.size() == 2);
  CHECK(segments[0].address < segments[1].address);
  CHECK(segments[0].stream == 4);
  CHECK(segments[0].pool == PoolKind::small);
  REQUIRE(segments[0].blocks.size() == 2);
  CHECK(segments[0].blocks[0].state == BlockState::allocated);
  CHECK(segments[0].blocks[0].requested == 1000);
  CHECK(segments[0].blocks[0].name == intern("w"));
  CHECK(segments[0].blocks[0].id == first->id);
  CHECK(segments[0].blocks[1].state == BlockState::free);
  CHECK(segments[0].blocks[1].address == segments[0].address + 1024);
  CHECK(segments[1].blocks[0].role == Role::saved);
  a.free(first);
  a.free(second);
}

TEST_CASE("the trace records every event without addresses") {
  Allocator a(simulated(64));
  Scope scope;
  scope.op = intern("conv2d");
  scope.module = intern("c1");
  scope.phase = Phase::backward;
  scope.step = 9;
  scope.micro_batch = 1;
  ScopeGuard guard(scope);
  Block* block = a.allocate(1000, Role::temp, intern("n"), 7);
  std::uint64_t id = block->id;
  a.set_role(block, Role::saved);
  a.set_role(block, Role::saved);  // no change, no record
  a.set_name(block, intern("m"));
  a.set_name(block, intern("m"));
  a.record_stream(block, 8);
  a.free(block);
  a.empty_cache();
  CHECK_THROWS_AS(a.allocate(100 * kMiB, Role::grad), OutOfMemoryError);
  std::vector<TraceRecord> r = a.trace().records();
  const TraceKind kinds[] = {
      TraceKind::segment_alloc, TraceKind::alloc, TraceKind::role,        TraceKind::name,
      TraceKind::record_stream, TraceKind::free,  TraceKind::empty_cache, TraceKind::segment_free,
      TraceKind::retry,         TraceKind::oom};
  REQUIRE(r.size() == std::size(kinds));
  for (std::size_t i = 0; i < r.size(); i++) {
    INFO(i);
    CHECK(std::string(to_string(r[i].kind)) == to_string(kinds[i]));
    CHECK(r[i].op == scope.op);
    CHECK(r[i].module == scope.module);
    CHECK(r[i].phase == Phase::backward);
    CHECK(r[i].step == 9);
    CHECK(r[i].micro_batch == 1);
  }
  CHECK(r[0].bytes == 2 * kMiB);
  CHECK(r[1].bytes == 1000);
  CHECK(r[1].id == id);
  CHECK(r[1].role == Role::temp);
  CHECK(r[1].stream == 7);
  CHECK(r[1].name == intern("n"));
  CHECK(r[2].role == Role::saved);
  CHECK(r[3].name == intern("m"));
  CHECK(r[4].stream == 8);
  CHECK(r[5].id == id);
  CHECK(r[6].bytes == 0);
  CHECK(r[7].id == r[0].id);
  CHECK(r[8].bytes == 100 * kMiB);
  CHECK(r[9].bytes == 100 * kMiB);
  CHECK(r[9].role == Role::grad);
}

TEST_CASE("the trace wraps, and a sink sees every record once") {
  Allocator a(simulated(64));
  CHECK(a.trace().capacity() == Trace::kDefaultCapacity);
  a.trace().set_capacity(16);
  std::vector<std::uint64_t> seen;
  auto pair = [&](int times) {
    for (int i = 0; i < times; i++) a.free(a.allocate(static_cast<std::size_t>(100 + i), Role::temp));
  };
  pair(1);
  a.trace().set_sink([&seen](const TraceRecord* records, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) seen.push_back(records[i].id);
  });
  pair(50);
  a.trace().flush();
  CHECK(seen.size() == 100);
  for (std::size_t i = 0; i + 1 < seen.size(); i += 2) {
    CHECK(seen[i] == 2 + i / 2);
    CHECK(seen[i + 1] == seen[i]);
  }
  std::vector<TraceRecord> last = a.trace().records();
  REQUIRE(last.size() == 16);
  CHECK(a.trace().total() == 103);
  CHECK(last.back().bytes == 149);
  CHECK(last.front().bytes == 142);
  a.trace().set_sink({});
  pair(20);
  CHECK(seen.size() == 100);
  a.trace().set_capacity(64);
  CHECK(a.trace().records().empty());
  pair(3);
  CHECK(a.trace().records().size() == 6);
  CHECK_THROWS_AS(a.trace().set_capacity(10), ArgumentError);
  CHECK_THROWS_AS(a.trace().set_capacity(1), ArgumentError);
}

TEST_CASE("a block that another stream uses is not reused before that stream is done") {
  auto device = simulated(64);
  device->set_events_pending(true);
  Allocator a(device);
  Block* block = a.allocate(10 * kMiB, Role::activation, 0, 1);
  void* where = block->ptr;
  a.record_stream(block, 1);  // the owner: nothing to wait for
  a.free(block);
  block = a.allocate(10 * kMiB, Role::activation, 0, 1);
  CHECK(block->ptr == where);
  a.record_stream(block, 2);
  a.record_stream(block, 3);
  a.record_stream(block, 2);
  a.free(block);
  CHECK(device->event_count() == 2);
  Block* other = a.allocate(10 * kMiB, Role::activation, 0, 1);
  CHECK(other->ptr != where);
  device->complete_events();
  Block* again = a.allocate(10 * kMiB, Role::activation, 0, 1);
  CHECK(again->ptr == where);
  Block* elsewhere = a.allocate(10 * kMiB, Role::activation, 0, 2);  // streams do not share blocks
  CHECK(elsewhere->ptr != where);
  for (Block* b : {other, again, elsewhere}) a.free(b);
  device->set_events_pending(false);
  a.check();
}

TEST_CASE("an allocator gives everything back when it goes, live and pending blocks included") {
  auto device = simulated(256);
  device->set_events_pending(true);
  {
    Allocator a(device);
    a.allocate(1000, Role::param);
    Block* block = a.allocate(10 * kMiB, Role::temp);
    a.record_stream(block, 2);
    a.free(block);
    Block* used = a.allocate(12 * kMiB, Role::temp);
    a.record_stream(used, 3);
    CHECK(device->used() > 0);
  }
  CHECK(device->used() == 0);
  CHECK(device->event_count() == 0);
}

TEST_CASE("the host's pools are two, and live for ever") {
  CHECK(&host_allocator() == &host_allocator());
  CHECK(&host_allocator() != &io_allocator());
  CHECK(static_owner.block->requested == 1000);
  Block* batch = io_allocator().allocate(3 * kMiB, Role::io);
  CHECK(io_allocator().ledger().role(Role::io) == 3 * kMiB);
  CHECK(host_allocator().ledger().role(Role::io) == 0);
  io_allocator().free(batch);
  host_allocator().check();
  CHECK(host_allocator().ledger().other == 0);
  CHECK(std::string(host_allocator().policy_name()) == "native");
}

TEST_CASE("threads allocate, hand over and free at once") {
  constexpr int kThreads = 4, kRounds = 4000;
  Allocator a(std::make_shared<HostMemory>("toy"));
  std::vector<std::atomic<Block*>> mailbox(32);
  std::atomic<int> wrong{0};
  auto fill = [](Block* b, unsigned char tag) { std::memset(b->ptr, tag, std::min<std::size_t>(b->requested, 600)); };
  auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    set_step(seed);
    std::vector<Block*> own;
    for (int i = 0; i < kRounds; i++) {
      unsigned kind = random() % 10;
      if (kind < 5) {
        std::size_t bytes = random() % 8 == 0 ? 1 + random() % (3 * kMiB) : 1 + random() % 5000;
        Block* b = a.allocate(bytes, static_cast<Role>(random() % kRoleCount));
        auto tag = static_cast<unsigned char>(b->id);
        fill(b, tag);
        own.push_back(b);
      } else if (!own.empty()) {
        std::swap(own[random() % own.size()], own.back());
        Block* b = own.back();
        own.pop_back();
        for (std::size_t k = 0; k < std::min<std::size_t>(b->requested, 600); k++) {
          if (static_cast<unsigned char*>(b->ptr)[k] != static_cast<unsigned char>(b->id)) wrong++;
        }
        a.set_role(b, Role::saved);
        if (kind < 7) {
          a.free(mailbox[random() % mailbox.size()].exchange(b));  // another thread's block, or none
        } else {
          a.free(b);
        }
      }
      if (i % 500 == 0) a.check();
      if (i % 700 == 0) a.trace().records();
      if (i % 900 == 0) a.empty_cache();
    }
    for (Block* b : own) a.free(b);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; t++) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  for (auto& slot : mailbox) a.free(slot.exchange(nullptr));
  CHECK(wrong == 0);
  a.check();
  CHECK(a.ledger().live_total == 0);
  a.empty_cache();
  CHECK(a.ledger().reserved == 0);
}
