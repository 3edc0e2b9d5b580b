// Random operations on the allocator: invariants after every one, the same decisions as a naive reference, and a device
// whose k-th call fails.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/simulated_memory.h>

#include "naive_native.h"
#include "random_requests.h"

using namespace limpid;
using namespace limpid::memory;
using limpid_test::kMiB;
using limpid_test::random_size;
using limpid_test::scripted_run;

namespace {

struct Config {
  const char* settings;
  std::uint64_t capacity_mib;
  double fraction;  // > 1: not set
};
const Config kConfigs[] = {
    {"", 4096, 2},
    {"", 256, 2},
    {"max_split_size_mb:20", 700, 2},
    {"max_split_size_mb:64,max_non_split_rounding_mb:30,large_segment_size_mb:12", 500, 2},
    {"roundup_power2_divisions:4", 1024, 2},
    {"roundup_power2_divisions:[1:2,4:8,32:1,>:16]", 600, 0.9},
    {"garbage_collection_threshold:0.5", 800, 0.8},
    {"garbage_collection_threshold:0.3,max_split_size_mb:30,roundup_power2_divisions:8", 600, 0.9},
    {"large_segment_size_mb:12", 300, 2},
    {"large_segment_size_mb:64,max_split_size_mb:64", 900, 0.5},
};

class Player {
 public:
  Player(std::uint64_t seed, const Config& config)
      : random_(seed),
        settings_(parse_allocator_settings(config.settings)),
        device_(std::make_shared<SimulatedMemory>(config.capacity_mib * kMiB)),
        allocator_(device_, settings_),
        naive_(config.capacity_mib * kMiB, settings_) {
    if (config.fraction > 1) return;
    allocator_.set_memory_fraction(config.fraction);
    naive_.limit = static_cast<std::uint64_t>(config.fraction * static_cast<double>(config.capacity_mib * kMiB));
  }

  void run(int operations) {
    for (int i = 0; i < operations; i++) {
      operation();
      compare();
      allocator_.check();
    }
    device_->set_events_pending(false);
    while (!live_.empty()) free(live_.begin());
    allocator_.empty_cache();
    allocator_.check();
    CHECK(device_->used() == 0);
    CHECK(device_->event_count() == 0);
    Ledger ledger = allocator_.ledger();
    CHECK(ledger.reserved == 0);
    CHECK(ledger.peak_live == ledger_peak_);
  }

 private:
  struct Live {
    Block* block;
    std::size_t requested;
  };
  using Iterator = std::map<std::uint64_t, Live>::iterator;

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  Iterator any() {
    Iterator it = live_.lower_bound(last_ + below(1 << 30));
    return it == live_.end() ? live_.begin() : it;
  }
  void free(Iterator it) {
    naive_.free(it->first);
    live_bytes_ -= it->second.requested;
    allocator_.free(it->second.block);
    live_.erase(it);
  }

  void allocate() {
    std::size_t bytes = random_size(random_);
    StreamId stream = below(5) < 3 ? 0 : below(3);
    std::uint64_t expected = naive_.allocate(bytes, stream);
    Block* block = nullptr;
    try {
      block = allocator_.allocate(bytes, static_cast<Role>(below(kRoleCount)), static_cast<NameId>(below(3)), stream);
    } catch (const OutOfMemoryError& error) {
      REQUIRE(error.info().requested == bytes);
    }
    auto address = reinterpret_cast<std::uintptr_t>(block ? block->ptr : nullptr);
    REQUIRE(address == expected);
    if (!block) return;
    REQUIRE(address % 512 == 0);
    REQUIRE(block->size >= bytes);
    REQUIRE(block->requested == bytes);
    REQUIRE(block->rounded == naive_.round(bytes));
    auto next = live_.lower_bound(address);
    REQUIRE((next == live_.end() || address + block->size <= next->first));
    if (next != live_.begin()) {
      auto before = std::prev(next);
      REQUIRE(before->first + before->second.block->size <= address);
    }
    live_[address] = {block, bytes};
    last_ = address;
    live_bytes_ += bytes;
    ledger_peak_ = std::max(ledger_peak_, live_bytes_);
  }

  void operation() {
    std::uint64_t kind = below(1000);
    if (live_.empty() || kind < 450 || (kind < 520 && live_.size() < 40)) {
      allocate();
    } else if (kind < 900) {
      free(any());
    } else if (kind < 950) {
      Iterator it = any();
      StreamId stream = below(4);
      allocator_.record_stream(it->second.block, stream);
      naive_.record_stream(it->first, stream);
    } else if (kind < 975) {
      allocator_.set_role(any()->second.block, static_cast<Role>(below(kRoleCount)));
      allocator_.set_name(any()->second.block, static_cast<NameId>(below(5)));
    } else if (kind < 985) {
      bool pending = below(2) == 0;
      device_->set_events_pending(pending);
      naive_.events_pending = pending;
    } else if (kind < 993) {
      device_->complete_events();
      naive_.complete_events();
    } else {
      allocator_.empty_cache();
      naive_.empty_cache();
    }
  }

  void compare() {
    Stats stats = allocator_.stats();
    auto current = [&](Metric m) { return static_cast<std::uint64_t>(stats.get(m).current); };
    REQUIRE(current(Metric::reserved_bytes) == naive_.reserved());
    REQUIRE(current(Metric::allocated_bytes) == naive_.allocated());
    REQUIRE(current(Metric::active_bytes) == naive_.active());
    REQUIRE(current(Metric::inactive_split_bytes) == naive_.inactive_split());
    REQUIRE(device_->calls().reserve == naive_.mallocs);
    REQUIRE(device_->calls().release == naive_.frees);
    REQUIRE(stats.num_alloc_retries == naive_.retries);
    REQUIRE(allocator_.ledger().live_total == live_bytes_);
    REQUIRE(device_->used() == naive_.reserved());
  }

  std::mt19937_64 random_;
  AllocatorSettings settings_;
  std::shared_ptr<SimulatedMemory> device_;
  Allocator allocator_;
  NaiveNative naive_;
  std::map<std::uint64_t, Live> live_;
  std::uint64_t last_ = 0, live_bytes_ = 0, ledger_peak_ = 0;
};

void fuzz(std::uint64_t first_seed, int rounds, int operations) {
  for (int r = 0; r < rounds; r++) {
    std::uint64_t seed = first_seed + static_cast<std::uint64_t>(r);
    const Config& config = kConfigs[static_cast<std::size_t>(r) % std::size(kConfigs)];
    INFO("seed " << seed << ", " << config.settings << ", " << config.capacity_mib << " MiB");
    Player(seed, config).run(operations);
  }
}

}  // namespace

TEST_CASE("random operations: invariants, and the decisions of a naive reference") { fuzz(1, 20, 5000); }

TEST_CASE("long: a million random operations") { fuzz(1000, 200, 5000); }

TEST_CASE("a free list of thousands of blocks keeps its order") {
  auto device = std::make_shared<SimulatedMemory>(64 * 1024 * kMiB);
  Allocator allocator(device);
  std::vector<Block*> blocks;
  std::mt19937_64 random(3);
  for (int i = 0; i < 6000; i++) blocks.push_back(allocator.allocate(1 + random() % 20000, Role::temp));
  for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
  allocator.check();
  for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i] = allocator.allocate(1 + random() % 20000, Role::temp);
  allocator.check();
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (std::size_t i = 0; i < blocks.size(); i++) {
    allocator.free(blocks[i]);
    if (i % 100 == 0) allocator.check();
  }
  allocator.empty_cache();
  allocator.check();
  CHECK(device->used() == 0);
}

TEST_CASE("the k-th device call fails, for every k") {
  int calls_seen = 0, failures_seen = 0;
  for (std::uint64_t k = 1;; k++) {
    INFO("k = " << k);
    auto device = std::make_shared<SimulatedMemory>(300 * kMiB);
    Allocator allocator(device, parse_allocator_settings("max_split_size_mb:30"));
    std::vector<Block*> live;
    device->fail_call(k);
    failures_seen += scripted_run(allocator, *device, live);
    bool never_reached = device->fault_pending();
    device->fail_call(0);
    // Usable afterwards, and nothing is lost.
    device->set_events_pending(false);
    Block* block = allocator.allocate(5 * kMiB, Role::temp);
    REQUIRE(block);
    allocator.free(block);
    for (Block* b : live) allocator.free(b);
    allocator.empty_cache();
    allocator.check();
    REQUIRE(allocator.ledger().reserved == 0);
    REQUIRE(device->used() == 0);
    REQUIRE(device->event_count() == 0);
    REQUIRE(device->segment_count() == 0);
    if (never_reached) break;
    calls_seen++;
  }
  CHECK(calls_seen > 50);
  CHECK(failures_seen > 20);
}
