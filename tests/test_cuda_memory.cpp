// The allocator engine on CudaMemory: every policy keeps its invariants on the (fake) driver, real segments and virtual
// ranges hold what is written, a device whose k-th call fails leaves everything usable and balanced.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include <limpid/base/error.h>
#include <limpid/cuda/cuda_memory.h>
#include <limpid/cuda/error.h>
#include <limpid/cuda/libraries.h>
#include <limpid/cuda/pinned_memory.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/simulated_memory.h>

#include "cuda_test.h"
#include "random_requests.h"

using namespace limpid;
using namespace limpid::memory;
using namespace cuda_test;
using limpid_test::random_size;
using limpid_test::scripted_run;

namespace {

// Every policy, and `native` with expandable segments.
struct Variant {
  std::string name;
  PolicyFactory policy;
  AllocatorSettings settings = {};
  bool expandable = false;
};
std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const PolicyEntry& entry : policies())
    all.push_back({entry.name, entry.make, {}, std::string(entry.name) == "expandable"});
  all.push_back({"native, expandable", make_native_policy, parse_allocator_settings("expandable_segments:True"), true});
  return all;
}

// Streams of the device by number; 0 is the default stream.
StreamId stream(std::uint64_t number) {
  static const std::array<cu::Stream, 3> side{cu::pool_stream(0), cu::pool_stream(0), cu::pool_stream(0)};
  return number == 0 ? 0 : side.at(number - 1).id();
}
void no_change(bool) {}  // the fake's events are pending until the device got there

void check_nothing_left() {
  CHECK(fake::used_bytes() == 0);
  CHECK(fake::allocations() == 0);
  CHECK(fake::ranges() == 0);
  CHECK(fake::mapped_pages() == 0);
  CHECK(fake::memory_handles() == 0);
  CHECK(fake::live_events() == 0);
}

}  // namespace

TEST_CASE("segments and virtual ranges of the device, within a capacity") {
  fake::reset({.capacity = 64 * kMiB});
  {
    cu::CudaMemory device(0, 32 * kMiB);
    CHECK(device.name() == "cuda:0");
    CHECK(device.mem_info().total == 32 * kMiB);
    void* segment = device.reserve(20 * kMiB);
    REQUIRE(segment);
    CHECK(device.mem_info().free == 12 * kMiB);
    CHECK(device.reserve(13 * kMiB) == nullptr);
    CHECK_THROWS_AS(device.set_capacity(kMiB), ArgumentError);
    device.set_capacity(0);
    CHECK(device.mem_info().total == 64 * kMiB);
    CHECK(device.reserve(60 * kMiB) == nullptr);
    CHECK(cu::runtime().cudaGetLastError() == 0);  // the refusal is no error that lingers
    device.release(segment, 20 * kMiB);
    REQUIRE(device.has_virtual_ranges());
    const std::size_t page = device.page_size();
    char* range = static_cast<char*>(device.range_reserve(40 * page));
    CHECK(device.map(range + page, 10 * page));
    CHECK(device.map(range + 11 * page, 20 * page));
    CHECK_FALSE(device.map(range + 31 * page, 3 * page));  // 2 pages are left
    CHECK(fake::used_bytes() == 30 * page);
    CHECK_THROWS_AS(device.range_release(range, 40 * page), cu::CudaError);
    device.unmap(range + 5 * page, 10 * page);  // parts of both
    CHECK(device.used() == 20 * page);
    CHECK(device.map(range + 5 * page, 10 * page));
    device.unmap(range + page, 30 * page);
    device.range_release(range, 40 * page);
    CHECK(device.range_reserve(std::size_t{1} << 50) == nullptr);
    CHECK(fake::memory_handles() == 0);
  }
  check_nothing_left();
}

TEST_CASE("a device without virtual memory says so, and native does without") {
  fake::reset({.virtual_memory = false});
  CHECK_FALSE(cu::CudaMemory(0).has_virtual_ranges());
  CHECK_THROWS_AS(Allocator(std::make_shared<cu::CudaMemory>(0), {}, policy_named("stitch")), ArgumentError);
  Allocator a(std::make_shared<cu::CudaMemory>(0));
  a.free(a.allocate(100, Role::temp));
}

TEST_CASE("every policy: the same requests make the same log as on the simulated device") {
  for (const Variant& v : variants()) {
    INFO(v.name);
    fake::reset({.capacity = 300 * kMiB, .exec = fake::Exec::eager, .protect = false, .fill = false});
    auto simulated = std::make_shared<SimulatedMemory>(300 * kMiB);
    Allocator real(std::make_shared<cu::CudaMemory>(0), v.settings, v.policy), dry(simulated, v.settings, v.policy);
    std::vector<Block*> real_live, dry_live;
    scripted_run(real, no_change, stream, real_live);
    scripted_run(
        dry, no_change, [](std::uint64_t n) { return n == 0 ? 0 : stream(n); }, dry_live);
    REQUIRE(real_live.size() == dry_live.size());
    CHECK(memory_stats(real.stats()) == memory_stats(dry.stats()));
    CHECK(fake::used_bytes() == real.ledger().reserved);
    for (std::size_t i = 0; i < real_live.size(); i++) {
      CHECK(real_live[i]->size == dry_live[i]->size);
      real.free(real_live[i]);
      dry.free(dry_live[i]);
    }
  }
  check_nothing_left();
}

TEST_CASE("every policy: blocks keep what streams write to them, whatever the order") {
  for (const Variant& v : variants()) {
    INFO(v.name);
    for (std::uint64_t seed = 1; seed <= 2; seed++) {
      fake::reset({.capacity = 200 * kMiB, .seed = seed, .protect = false, .fill = false});
      {
        Allocator allocator(std::make_shared<cu::CudaMemory>(0), v.settings, v.policy);
        struct Held {
          Block* block;
          int mark;
        };
        std::vector<Held> live;
        std::mt19937_64 random(seed);
        const auto set = [](const Block* block, int mark, StreamId on) {
          REQUIRE(cu::runtime().cudaMemsetAsync(block->ptr, mark, std::min<std::size_t>(block->requested, 4096),
                                                reinterpret_cast<cu::StreamHandle>(on)) == 0);
        };
        for (int i = 0; i < 250; i++) {
          if (live.empty() || random() % 100 < 55) {
            const std::size_t bytes = random() % 4 == 0 ? 1 + random() % (12 * kMiB) : 1 + random() % 300000;
            try {
              const StreamId own = stream(random() % 2);
              live.push_back({allocator.allocate(bytes, Role::temp, 0, own), static_cast<int>(random() % 200)});
              set(live.back().block, live.back().mark, own);
            } catch (const OutOfMemoryError&) {
            }
          } else {
            std::swap(live[random() % live.size()], live.back());
            const Held held = live.back();
            live.pop_back();
            if (random() % 3 == 0) {  // another stream writes too, behind the owner
              cu::Event written(0);
              written.record({0, reinterpret_cast<cu::StreamHandle>(held.block->stream)});
              written.hold_up({0, reinterpret_cast<cu::StreamHandle>(stream(2))});
              set(held.block, 250, stream(2));
              allocator.record_stream(held.block, stream(2));
            }
            allocator.free(held.block);
          }
          if (i % 100 == 99) allocator.empty_cache();
          allocator.check();
          REQUIRE(fake::used_bytes() == allocator.ledger().reserved);
        }
        cu::synchronize(0);
        for (const Held& h : live) {
          std::vector<unsigned char> bytes(std::min<std::size_t>(h.block->requested, 4096));
          fake::peek(bytes.data(), h.block->ptr, bytes.size());
          CHECK(std::all_of(bytes.begin(), bytes.end(), [&](unsigned char b) { return b == h.mark; }));
        }
      }  // with live blocks
      check_nothing_left();
    }
  }
}

namespace {

// The script with the k-th call of the driver failing; true when there was no k-th call.
bool run_with_failing_call(const Variant& v, std::uint64_t k, int status, int& thrown) {
  fake::reset({.capacity = 300 * kMiB, .seed = k, .protect = false, .fill = false});
  std::vector<Block*> live;
  bool happened = false;
  {
    Allocator allocator(std::make_shared<cu::CudaMemory>(0), v.settings, v.policy);
    fake::fail_call(k, status);
    thrown += scripted_run(allocator, no_change, stream, live);
    happened = fake::fault_happened();
    fake::fail_call(0, 0);
    for (Block* b : live) allocator.free(b);
    cu::synchronize(0);
    Block* block = allocator.allocate(200 * kMiB, Role::temp);
    allocator.free(block);
    allocator.empty_cache();
    allocator.check();
    REQUIRE(allocator.ledger().reserved == 0);
    REQUIRE(fake::used_bytes() == 0);
    // Expandable segments keep a bare range for their next request when its release failed; nobody else may.
    if (!v.expandable) REQUIRE(fake::ranges() == 0);
  }
  REQUIRE(fake::used_bytes() == 0);
  REQUIRE(fake::ranges() == 0);
  REQUIRE(fake::allocations() == 0);
  REQUIRE(fake::memory_handles() == 0);
  return !happened;
}

// k = first, first + stride, ...: of each policy
void fail_calls(std::uint64_t stride) {
  for (const Variant& v : variants()) {
    for (int status : {999, 2}) {  // an unknown error, out of memory
      int thrown = 0;
      std::uint64_t k = 1;
      for (;; k += stride) {
        INFO(v.name << ", status " << status << ", k = " << k);
        if (run_with_failing_call(v, k, status, thrown)) break;
      }
      INFO(v.name << ", status " << status);
      CHECK(k > 50);
      CHECK((status == 2 || thrown > 2));
    }
  }
}

}  // namespace

TEST_CASE("every policy: a call of the driver fails, for one k of 23") { fail_calls(23); }
TEST_CASE("long: every policy: the k-th call of the driver fails, for every k") { fail_calls(1); }

TEST_CASE("out of memory carries the device and who holds its memory") {
  fake::reset({.capacity = 64 * kMiB});
  Allocator a(std::make_shared<cu::CudaMemory>(0));
  Block* held = a.allocate(30 * kMiB, Role::param, intern("weight"));
  fake::set_processes(0, {{1, 7 * kMiB}, {4000000, 50 * kMiB}});
  bool caught = false;
  try {
    a.allocate(40 * kMiB, Role::activation);
  } catch (const OutOfMemoryError& e) {
    caught = true;
    CHECK(e.info().device == "cuda:0");
    REQUIRE(e.info().processes.size() == 3);
    CHECK(e.info().processes[0].pid == 4000000);
    CHECK(e.info().processes[0].bytes == 50 * kMiB);
    CHECK(e.info().processes[1].bytes == 30 * kMiB);  // this program
    CHECK(e.info().processes[1].name.substr(0, 9) == "test_cuda");
    const std::string text = e.what();
    CHECK(text.find("Programs on cuda:0: (unnamed) (pid 4000000) 50.00 MiB, test_cuda") != std::string::npos);
    CHECK(to_json(e.info()).find("\"processes\":[{\"pid\":4000000,\"name\":\"\",\"bytes\":52428800}") !=
          std::string::npos);
  }
  CHECK(caught);
  a.free(held);
}

TEST_CASE("pinned memory: a block that a copy reads is reused when the copy is done") {
  fake::reset({});
  Allocator a(std::make_shared<cu::PinnedMemory>());
  const cu::Stream side = cu::pool_stream(0);
  Block* block = a.allocate(3 * kMiB, Role::io);
  CHECK(fake::pinned_bytes() > 0);
  std::memset(block->ptr, 1, 3 * kMiB);
  void* target = nullptr;
  REQUIRE(cu::runtime().cudaMalloc(&target, 3 * kMiB) == 0);
  fake::enqueue({.kernel = "slow", .stream = side.handle, .us = 500, .run = [] { return 0; }});
  REQUIRE(cu::runtime().cudaMemcpyAsync(target, block->ptr, 3 * kMiB, cu::kHostToDevice, side.handle) == 0);
  a.record_stream(block, cu::PinnedMemory::stream_id(side));
  void* const where = block->ptr;
  a.free(block);
  CHECK(a.ledger().pending_free > 0);
  side.synchronize();
  Block* again = a.allocate(3 * kMiB, Role::io);
  CHECK(again->ptr == where);
  // The default stream of the first device is a stream too, not the host.
  a.record_stream(again, cu::PinnedMemory::stream_id(cu::default_stream(0)));
  fake::enqueue({.kernel = "slow", .run = [] { return 0; }});
  a.free(again);
  CHECK(a.ledger().pending_free > 0);
  a.empty_cache();
  CHECK(a.ledger().reserved == 0);
  CHECK(fake::pinned_bytes() == 0);
  CHECK(cu::runtime().cudaFree(target) == 0);
  CHECK(fake::live_events() == 0);
}
