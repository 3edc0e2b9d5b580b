// PyTorch's native caching policy, event for event (c10/cuda/CUDACachingAllocator of PyTorch 2.15, observed through its
// own logs, tests/golden/allocator): two pools, best fit inside a stream, splitting, merging with free neighbours,
// frees that wait for other streams, garbage collection, and the order of resorts when the device is out of memory.
// Expandable segments are not part of it. Nothing depends on addresses, so that a dry run and a live run take the same
// decisions: among blocks of one size the first in the oldest segment wins (PyTorch: the lowest address), and pending
// events are polled in order of stream id (PyTorch: the order of a hash table).
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include <limpid/memory/free_list.h>
#include <limpid/memory/policy.h>

namespace limpid::memory {

class NativePolicy final : public Policy {
 public:
  static constexpr std::size_t kMinBlock = 512;
  static constexpr std::size_t kSmallRequest = std::size_t{1} << 20;  // the largest request of the small pool
  static constexpr std::size_t kSmallSegment = std::size_t{2} << 20;
  static constexpr std::size_t kOwnSegment = std::size_t{10}
                                             << 20;  // requests from here on get a segment of their size
  static constexpr std::size_t kSegmentRounding = std::size_t{2} << 20;

  struct Variant {
    const char* name = "native";
    bool splits = true;  // false: a segment serves one request at a time, as in PyTorch's MemPool(no_split=True)
  };

  explicit NativePolicy(const PolicyContext& context) : NativePolicy(context, Variant{}) {}
  NativePolicy(const PolicyContext& context, const Variant& variant);
  ~NativePolicy() override;
  NativePolicy(const NativePolicy&) = delete;
  NativePolicy& operator=(const NativePolicy&) = delete;

  const char* name() const override { return variant_.name; }
  std::size_t round(std::size_t bytes) const override;
  Block* allocate(std::size_t bytes, StreamId stream) override;
  void free(Block* block) noexcept override;
  void record_stream(Block* block, StreamId stream) override;
  void release_cached() override;
  void set_limit(std::optional<std::uint64_t> bytes) override { limit_ = bytes; }
  void for_each_segment(const std::function<void(const Segment&)>& visit) const override;
  void check() const override;

 private:
  struct StreamList {
    StreamId stream;
    FreeList blocks;
  };
  struct Pool {
    std::vector<std::unique_ptr<StreamList>> streams;  // ordered by stream
    StreamList* last_used = nullptr;
    std::uint64_t searches = 0;  // clock of the garbage collector
  };
  struct Pending {
    EventId event;
    Block* block;
  };
  struct StreamEvents {
    StreamId stream;
    std::deque<Pending> queue;
  };

  std::size_t segment_size(std::size_t rounded) const;
  bool should_split(const Block& block, std::size_t rounded) const;
  bool collects_garbage() const { return limit_.has_value() && settings_.garbage_collection_threshold > 0; }
  Pool& pool_of(PoolKind kind) { return pools_[static_cast<std::size_t>(kind)]; }

  FreeList& list_of(Pool& pool, StreamId stream) {
    StreamList* last = pool.last_used;
    return last && last->stream == stream ? last->blocks : find_list(pool, stream);
  }
  FreeList& find_list(Pool& pool, StreamId stream);
  Block* serve_cached(PoolKind kind, StreamId stream, std::size_t rounded);
  Block* take_new(PoolKind kind, StreamId stream, std::size_t rounded);
  Block* reserve_segment(PoolKind kind, StreamId stream, std::size_t bytes, bool is_retry);
  bool release_oversize(PoolKind kind, StreamId stream, std::size_t rounded);
  void collect_garbage();
  void release_segment(Block* block);
  void release_whole_segments(Pool& pool);

  Block* split_front(Block* block, std::size_t rounded);
  void set_free_keys(Pool& pool, Block* block);
  void remove_free(Block* block);
  void make_free(Block* block);  // merges, and into the list
  void absorb(Block* block, Block* neighbour);

  void insert_events(Block* block);
  void retry_deferred();
  void process_events();
  void wait_for_events();
  void event_done(Block* block);

  Block* new_block();
  void delete_block(Block* block) noexcept;

  MemoryDevice& device_;
  const AllocatorSettings& settings_;
  Books& books_;
  Variant variant_;
  std::array<Pool, 2> pools_;
  std::optional<std::uint64_t> limit_;
  bool has_divisions_ = false;  // some size is rounded to divisions
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<StreamEvents> events_;  // ordered by stream; only streams with pending events
  std::vector<Block*> deferred_;      // freed while the device could not record an event
  std::vector<std::unique_ptr<Block[]>> block_chunks_;
  Block* spare_blocks_ = nullptr;
  std::uint64_t next_segment_ = 1;
};

std::unique_ptr<Policy> make_native_policy(const PolicyContext& context);
std::unique_ptr<Policy> make_nosplit_policy(const PolicyContext& context);

}  // namespace limpid::memory
