// Stream safety of every policy, by happens-before on a simulated device whose kernels take random time; and policies
// broken on purpose, which must be caught.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/native_policy.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/stream_check.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A program that tells the allocator everything it must: kernels on the block's own stream, and on others after
// record_stream. Kernels of other streams run after the owner's kernels that wrote the block.
void run_program(std::shared_ptr<StreamedMemory> device, const PolicyFactory& policy, std::uint64_t seed,
                 int operations) {
  Allocator allocator(device, {}, policy);
  struct Live {
    Block* block;
    std::uint64_t id;
  };
  std::mt19937_64 random(seed);
  std::vector<Live> live;
  for (int i = 0; i < operations; i++) {
    std::uint64_t kind = random() % 100;
    device->advance(random() % 20);
    device->account_pending(allocator.ledger().pending_free);
    if (live.empty() || kind < 35) {
      std::size_t bytes = random() % 3 ? 1 + random() % (4 * kMiB) : 1 + random() % 60000;
      Block* block = nullptr;
      try {
        block = allocator.allocate(bytes, Role::temp, 0, random() % 3);
      } catch (const OutOfMemoryError&) {
        continue;
      }
      live.push_back({block, block->id});
      device->launch(block->stream, block->id, block->ptr, block->requested, random() % 100);
    } else if (kind < 55) {
      const Live& l = live[random() % live.size()];
      device->launch(l.block->stream, l.id, l.block->ptr, l.block->requested, random() % 100);
    } else if (kind < 65) {
      const Live& l = live[random() % live.size()];
      StreamId other = random() % 4;
      EventId written = device->event_record(l.block->stream);
      device->stream_wait(other, written);
      device->event_release(written);
      device->launch(other, l.id, l.block->ptr, l.block->requested, random() % 400);
      allocator.record_stream(l.block, other);
    } else if (kind < 98) {
      std::swap(live[random() % live.size()], live.back());
      device->freed(live.back().id, live.back().block->stream);
      allocator.free(live.back().block);
      live.pop_back();
    } else {
      allocator.empty_cache();
    }
    if (i % 16 == 0) allocator.check();
  }
  for (const Live& l : live) allocator.free(l.block);
}

std::string first_error(const PolicyFactory& policy) {
  for (std::uint64_t seed = 1; seed <= 10; seed++) {
    try {
      run_program(std::make_shared<StreamedMemory>(200 * kMiB), policy, seed, 1000);
    } catch (const InternalError& error) {
      return error.what();
    }
  }
  return "";
}

// Forgets that other streams use a block.
class ForgetsStreams final : public NativePolicy {
 public:
  using NativePolicy::NativePolicy;
  void record_stream(Block*, StreamId) override {}
};

// Serves every stream from one list.
class MixesStreams final : public NativePolicy {
 public:
  using NativePolicy::NativePolicy;
  Block* allocate(std::size_t bytes, StreamId stream) override {
    Block* block = NativePolicy::allocate(bytes, 0);
    if (block) block->stream = stream;
    return block;
  }
  void free(Block* block) noexcept override {
    block->stream = 0;
    NativePolicy::free(block);
  }
};

// Records the event on the owner's stream instead of the one that uses the block.
class WrongEvent final : public NativePolicy {
 public:
  using NativePolicy::NativePolicy;
  void record_stream(Block* block, StreamId stream) override { NativePolicy::record_stream(block, stream + 1); }
};

// Unmaps without waiting.
class UnmapsBusyPages final : public NativePolicy {
 public:
  explicit UnmapsBusyPages(const PolicyContext& context) : NativePolicy(context, Variant{.expandable = true}) {}

 protected:
  void wait_for_stream(StreamId) override {}
};

template <class P>
PolicyFactory factory() {
  return [](const PolicyContext& context) -> std::unique_ptr<Policy> { return std::make_unique<P>(context); };
}

// Events that never seem to be reached.
class NeverReached final : public StreamedMemory {
 public:
  using StreamedMemory::StreamedMemory;
  bool event_query(EventId) override { return false; }
};

}  // namespace

TEST_CASE("no policy hands out memory that a stream may still use") {
  for (const PolicyEntry& policy : policies()) {
    for (std::uint64_t seed = 1; seed <= 12; seed++) {
      INFO(std::string(policy.name) << ", seed " << seed);
      auto device = std::make_shared<StreamedMemory>((seed % 3 == 0 ? 60 : 400) * kMiB);
      CHECK_NOTHROW(run_program(device, policy.make, seed, 1000));
      CHECK(device->memory().used() == 0);
    }
  }
}

TEST_CASE("policies broken on purpose are caught") {
  CHECK(first_error(make_native_policy) == "");
  CHECK(first_error(factory<ForgetsStreams>()).find("[stream check] premature reuse") == 0);
  CHECK(first_error(factory<MixesStreams>()).find("[stream check] premature reuse") == 0);
  CHECK(first_error(factory<WrongEvent>()).find("[stream check] premature reuse") == 0);
  CHECK(first_error(factory<UnmapsBusyPages>()).find("[stream check] premature unmap") == 0);
}

TEST_CASE("memory held too long is reported") {
  auto good = std::make_shared<StreamedMemory>(2000 * kMiB);
  run_program(good, make_native_policy, 5, 2000);
  auto bad = std::make_shared<NeverReached>(2000 * kMiB);
  run_program(bad, make_native_policy, 5, 2000);
  CHECK(bad->overheld() > 2 * good->overheld());
  CHECK(good->overheld() > 0);  // the native policy looks at events only when it is asked for memory
}

TEST_CASE("the checker itself: what is and what is not ordered") {
  StreamedMemory device(100 * kMiB);
  void* at = device.reserve(2 * kMiB);
  device.launch(1, 1, at, 100, 50);
  CHECK_NOTHROW(device.launch(1, 2, at, 100, 50));  // one stream is in order
  CHECK_THROWS_WITH_AS(device.launch(2, 3, at, 100, 50),
                       "[stream check] premature reuse: a kernel of stream 2 writes allocation 3 while kernel 1 of "
                       "stream 1 may still use allocation 1 in the same memory",
                       InternalError);
  CHECK_NOTHROW(device.launch(3, 4, static_cast<char*>(at) + 100, 100, 1));  // beside it
  EventId one = device.event_record(1);
  CHECK(!device.event_query(one));
  device.stream_wait(4, one);
  CHECK_NOTHROW(device.launch(4, 5, at, 100, 1));
  device.advance(1000);
  CHECK_THROWS_AS(device.launch(5, 6, at, 100, 1), InternalError);  // long done, but nobody asked
  CHECK(device.event_query(one));
  CHECK_THROWS_AS(device.launch(5, 6, at, 100, 1), InternalError);  // stream 4
  EventId four = device.event_record(4);
  device.event_wait(four);
  CHECK_NOTHROW(device.launch(5, 6, at, 100, 1));
  device.event_release(four);
  device.event_release(one);
  CHECK_THROWS_AS(device.event_query(one), DeviceError);
  CHECK_THROWS_AS(device.event_wait(one), DeviceError);
  CHECK_THROWS_AS(device.stream_wait(1, one), DeviceError);
  device.release(at, 2 * kMiB);  // waits for everything
  CHECK_NOTHROW(device.launch(6, 8, at, 100, 1));
  device.launch(6, 7, static_cast<char*>(at) + 4096, 512, 30);
  device.launch(7, 7, static_cast<char*>(at) + 4096, 512, 40);
  device.freed(7, 6);
  CHECK(device.bytes_to_hold() == 512);
  device.account_pending(512);
  device.advance(41);
  CHECK(device.bytes_to_hold() == 0);
  device.account_pending(512);
  CHECK(device.overheld() == 512.0 * 41);
}
