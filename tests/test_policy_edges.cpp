// Decisions of the policies at their borders, which random operations rarely meet. Each case is the answer to a mutant
// that survived (tests/mutations.md).
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
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
