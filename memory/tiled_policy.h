// What every policy here shares: the table of segments, the Block objects, the links between neighbours, virtual ranges
// with unmapped tiles, frees that wait for other streams, and the bookkeeping of free blocks. It takes no decision
// about where bytes go: a policy adds its lists of free blocks, allocate() and take_back().
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <limpid/memory/policy.h>

namespace limpid::memory {

class TiledPolicy : public Policy {
 public:
  // Every policy rounds to this; the facade promises it as alignment.
  static constexpr std::size_t kMinBlock = 512;

  ~TiledPolicy() override;
  TiledPolicy(const TiledPolicy&) = delete;
  TiledPolicy& operator=(const TiledPolicy&) = delete;

  void free(Block* block) noexcept override;
  void record_stream(Block* block, StreamId stream) override;
  void release_cached() override;
  void release_to(std::uint64_t keep) override;
  void set_limit(std::optional<std::uint64_t> bytes) override { limit_ = bytes; }
  void for_each_segment(const std::function<void(const Segment&)>& visit) const override;

 protected:
  explicit TiledPolicy(const PolicyContext& context)
      : device_(context.device), settings_(context.settings), books_(context.books) {}

  // --- for the policy to fill in
  // Nobody uses the block any more: merge it with free neighbours and offer it again.
  virtual void take_back(Block* block) = 0;
  // Takes a free block out of the policy's lists and out of the books' free bytes.
  virtual void remove_free(Block* block) = 0;
  // Gives back to the device what is wholly free; every pending block has been waited for.
  virtual void release_free() = 0;
  // Gives back up to `most` bytes of a free block, if the device takes parts of it or it is a segment of that size.
  virtual void give_back(Block* block, std::size_t most);

  // --- segments
  // One whole block in no list; nullptr when the device or the limit says no.
  Block* reserve_segment(PoolKind kind, StreamId stream, std::size_t bytes);
  void release_segment(Block* whole);  // a free block that is its whole segment
  bool within_limit(std::size_t bytes) const {
    if (LIMPID_LIKELY(!limit_ || books_.rows.reserved + bytes <= *limit_)) return true;
    books_.refused(bytes);
    return false;
  }

  // --- virtual ranges: a segment whose tiles may be unmapped
  // One unmapped tile as large as the range; nullptr when the device has no such range of addresses.
  Block* reserve_range(PoolKind kind, StreamId stream, std::size_t bytes);
  void release_range(Block* whole);  // an unmapped tile that is its whole range
  // Maps the first bytes of an unmapped tile, which becomes a block in no list; the rest stays unmapped behind it.
  // False when the device says no; the limit is the caller's business.
  bool map_front(Block* tile, std::size_t bytes);
  // Unmaps a block that is in no list, and joins it with unmapped neighbours. Waits for its stream first, unless told
  // that somebody did.
  void unmap(Block* block, bool idle = false);
  // Called for an unmapped tile before it disappears or changes, and after it has appeared or changed.
  virtual void unmapped_removed(Block*) {}
  virtual void unmapped_added(Block*) {}
  virtual void wait_for_stream(StreamId stream);

  // --- blocks
  Block* new_block() {
    if (LIMPID_UNLIKELY(!spare_blocks_)) add_spare_blocks();
    Block* block = spare_blocks_;
    spare_blocks_ = block->next;
    return block;
  }
  void delete_block(Block* block) noexcept {
    block->next = spare_blocks_;
    spare_blocks_ = block;
  }
  // Hands out the front of a block as a new block in no list; `rest` keeps what is behind.
  Block* split_front(Block* rest, std::size_t bytes) {
    Block* block = new_block();
    block->ptr = rest->ptr;
    block->size = bytes;
    block->stream = rest->stream;
    block->pool = rest->pool;
    block->state = BlockState::allocated;
    block->segment = rest->segment;
    block->prev = rest->prev;
    block->next = rest;
    if (block->prev) {
      block->prev->next = block;
    } else {
      block->segment->first = block;
    }
    rest->prev = block;
    rest->ptr = static_cast<char*>(rest->ptr) + bytes;
    rest->size -= bytes;
    return block;
  }
  // Joins a neighbour, which is in no list, to the block.
  void absorb(Block* block, Block* neighbour) {
    if (neighbour == block->prev) {
      block->ptr = neighbour->ptr;
      block->prev = neighbour->prev;
      if (block->prev) {
        block->prev->next = block;
      } else {
        block->segment->first = block;
      }
    } else {
      block->next = neighbour->next;
      if (block->next) block->next->prev = block;
    }
    block->size += neighbour->size;
    delete_block(neighbour);
  }
  static bool is_free(const Block* block) { return block && block->state == BlockState::free; }
  static std::uint64_t offset_of(const Block* block) {
    return static_cast<std::uint64_t>(static_cast<char*>(block->ptr) - static_cast<char*>(block->segment->base));
  }
  // A key that orders blocks by age of their segment, then by offset: what a device's addresses cannot change.
  static std::uint64_t place_of(const Block* block) {
    return block->segment->id << kPlaceBits | offset_of(block) / kMinBlock;
  }
  static constexpr int kPlaceBits = 34;
  static constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << kPlaceBits) * kMinBlock;  // 8 TiB in one segment
  static constexpr std::uint64_t kMostSegments = std::uint64_t{1} << (64 - kPlaceBits);
  static bool comes_before(const Block* a, const Block* b) { return place_of(a) < place_of(b); }
  static std::size_t ceil_to(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

  // The state and the books of a block that enters or leaves a policy's lists of free blocks, with the links that it
  // has as a free block.
  void enter_free(Block* block) {
    block->state = BlockState::free;
    count_free(block, 1);
  }
  void leave_free(Block* block) { count_free(block, -1); }
  // The last step of allocate().
  static Block* hand_out(Block* block, std::size_t requested, std::size_t rounded) {
    block->state = BlockState::allocated;
    block->requested = requested;
    block->rounded = rounded;
    return block;
  }

  // --- frees that wait for other streams
  void poll() {
    if (LIMPID_UNLIKELY(!events_.empty() || !deferred_.empty())) process_events();
  }
  void wait_for_events();

  // Everything that check() can say about any policy: links, no free block listed twice. `listed`: free blocks in the
  // policy's lists. may_touch: two free blocks may lie side by side.
  void check_tiles(std::size_t listed, bool (*may_touch)(const Block*, const Block*) = nullptr) const;

  MemoryDevice& device_;
  const AllocatorSettings& settings_;
  Books& books_;
  std::optional<std::uint64_t> limit_;
  std::vector<std::unique_ptr<Segment>> segments_;

 private:
  struct Pending {
    EventId event;
    Block* block;
  };
  struct StreamEvents {
    StreamId stream;
    std::deque<Pending> queue;
  };

  void add_spare_blocks();
  void count_free(Block* block, std::int64_t sign);
  Segment* add_segment(void* base, std::size_t bytes, PoolKind kind, StreamId stream, bool expandable, Block* first);
  void check_place(std::uint64_t id, std::uint64_t end) const;
  void forget_segment(Segment* segment);
  void insert_events(Block* block);
  void retry_deferred();
  void process_events();
  void event_done(Block* block);

  std::vector<StreamEvents> events_;  // ordered by stream; only streams with pending events
  std::vector<Block*> deferred_;      // freed while the device could not record an event
  std::vector<std::unique_ptr<Block[]>> block_chunks_;
  Block* spare_blocks_ = nullptr;
};

}  // namespace limpid::memory
