// PyTorch's native caching policy, event for event (c10/cuda/CUDACachingAllocator of PyTorch 2.15, observed through its
// own logs, tests/golden/allocator): two pools, best fit inside a stream, splitting, merging with free neighbours,
// frees that wait for other streams, garbage collection, and the order of resorts when the device is out of memory.
// With expandable segments a pool and a stream have one virtual range that grows page by page (native_expandable.cpp).
// Nothing depends on addresses, so that a dry run and a live run take the same
// decisions: among blocks of one size the first in the oldest segment wins (PyTorch: the lowest address), and pending
// events are polled in order of stream id (PyTorch: the order of a hash table).
#pragma once

#include <array>
#include <vector>

#include <limpid/memory/free_list.h>
#include <limpid/memory/tiled_policy.h>

namespace limpid::memory {

class NativePolicy : public TiledPolicy {
 public:
  static constexpr std::size_t kSmallRequest = std::size_t{1} << 20;  // the largest request of the small pool
  static constexpr std::size_t kSmallSegment = std::size_t{2} << 20;
  static constexpr std::size_t kOwnSegment = std::size_t{10}
                                             << 20;  // requests from here on get a segment of their size
  static constexpr std::size_t kSegmentRounding = std::size_t{2} << 20;

  struct Variant {
    const char* name = "native";
    bool splits = true;       // false: a segment serves one request at a time, as in PyTorch's MemPool(no_split=True)
    bool expandable = false;  // true: as with the setting expandable_segments
  };

  explicit NativePolicy(const PolicyContext& context) : NativePolicy(context, Variant{}) {}
  NativePolicy(const PolicyContext& context, const Variant& variant);

  const char* name() const override { return variant_.name; }
  std::size_t round(std::size_t bytes) const override;
  PoolKind pool_for(std::size_t rounded) const override {
    return rounded <= kSmallRequest ? PoolKind::small : PoolKind::large;
  }
  std::size_t growth_unit(PoolKind pool) const override { return page_of(pool); }
  Block* allocate(std::size_t bytes, StreamId stream) override;
  void check() const override { check_lists(0); }

 protected:
  struct StreamList {
    StreamId stream;
    FreeList blocks;
    std::vector<Block*> unmapped;  // tiles of virtual ranges, by place
  };
  struct Pool {
    std::vector<std::unique_ptr<StreamList>> streams;  // ordered by stream
    StreamList* last_used = nullptr;
    std::uint64_t searches = 0;  // clock of the garbage collector
  };

  // A block of at least `rounded` bytes in no list, from the device, after whatever resorts that takes.
  virtual Block* take_new(PoolKind kind, StreamId stream, std::size_t rounded);
  virtual bool should_split(const Block& block, std::size_t rounded) const;
  void take_back(Block* block) override;
  void remove_free(Block* block) override;
  void release_free() override;
  void give_back(Block* block, std::size_t most) override;
  void unmapped_removed(Block* tile) override;
  void unmapped_added(Block* tile) override;

  std::size_t segment_size(std::size_t rounded) const;
  Pool& pool_of(PoolKind kind) { return pools_[static_cast<std::size_t>(kind)]; }
  StreamList& list_of(Pool& pool, StreamId stream) {
    StreamList* last = pool.last_used;
    return last && last->stream == stream ? *last : find_list(pool, stream);
  }
  StreamList& find_list(Pool& pool, StreamId stream);
  void check_lists(std::size_t listed_elsewhere) const;
  void insert_free(Block* block);  // as it is, without merging
  // Unmaps the whole pages of a free block and keeps what is left of it as free blocks; the number of bytes unmapped.
  std::size_t unmap_pages(Block* block, std::size_t page, std::size_t most = SIZE_MAX);

  std::array<Pool, 2> pools_;
  std::size_t large_page_ = settings_.large_segment_size;  // of virtual ranges in the large pool
  bool ranges_ = false;                                    // memory comes from virtual ranges, not from segments

 private:
  bool collects_garbage() const { return limit_.has_value() && settings_.garbage_collection_threshold > 0; }
  Block* serve_cached(PoolKind kind, StreamId stream, std::size_t rounded);
  FreeList::Position best_fit(const FreeList& list, std::size_t rounded) const;
  Block* take_from_device(PoolKind kind, StreamId stream, std::size_t rounded, bool is_retry);
  Block* grow_range(PoolKind kind, StreamId stream, std::size_t rounded);
  Block* find_room(const StreamList& list, std::size_t rounded) const;
  Block* map_more(Block* tile, std::size_t bytes, std::size_t page);
  std::size_t page_of(PoolKind kind) const { return kind == PoolKind::small ? kSmallSegment : large_page_; }
  bool release_oversize(PoolKind kind, StreamId stream, std::size_t rounded);
  void collect_garbage();
  void release_whole(Pool& pool);
  void set_free_keys(Pool& pool, Block* block);

  Variant variant_;
  bool has_divisions_ = false;  // some size is rounded to divisions
};

std::unique_ptr<Policy> make_native_policy(const PolicyContext& context);
std::unique_ptr<Policy> make_nosplit_policy(const PolicyContext& context);
std::unique_ptr<Policy> make_expandable_policy(const PolicyContext& context);

}  // namespace limpid::memory
