#include <limpid/memory/buddy_policy.h>

#include <algorithm>
#include <bit>

#include <limpid/base/error.h>

namespace limpid::memory {

std::size_t BuddyPolicy::round(std::size_t bytes) const { return std::bit_ceil(std::max(bytes, kMinBlock)); }

Block* BuddyPolicy::extend(StreamList& list, std::size_t rounded) {
  std::size_t least = std::max(rounded, kSegmentRounding);
  for (std::size_t bytes = std::max(kRegion, least); bytes >= least; bytes /= 2) {
    if (Block* block = reserve_segment(PoolKind::large, list.stream, bytes)) return block;
  }
  return nullptr;
}

Block* BuddyPolicy::cut(Block* block, std::size_t rounded) {
  while (should_split(*block, rounded)) {
    Block* front = split_front(block, block->size / 2);
    insert_free(block);
    block = front;
  }
  return block;
}

void BuddyPolicy::take_back(Block* block) {
  while (block->size < block->segment->size) {
    bool is_upper = (offset_of(block) & block->size) != 0;
    Block* buddy = is_upper ? block->prev : block->next;
    if (!is_free(buddy) || buddy->size != block->size) break;
    remove_free(buddy);
    absorb(block, buddy);
  }
  insert_free(block);
}

void BuddyPolicy::check() const {
  std::size_t listed = 0;
  for (const auto& list : lists_) listed += list->blocks.size();
  for (const auto& segment : segments_) {
    for (const Block* block = segment->first; block; block = block->next) {
      LIMPID_ASSERT(std::has_single_bit(block->size) && offset_of(block) % block->size == 0);
    }
  }
  check_tiles(listed, [](const Block* a, const Block* b) {
    return a->size != b->size || (offset_of(a) & a->size) != 0;  // not each other's buddy
  });
}

std::unique_ptr<Policy> make_buddy_policy(const PolicyContext& context) {
  return std::make_unique<BuddyPolicy>(context);
}

}  // namespace limpid::memory
