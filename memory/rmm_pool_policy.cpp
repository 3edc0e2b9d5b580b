#include <limpid/memory/rmm_pool_policy.h>

#include <algorithm>

namespace limpid::memory {

Block* RmmPoolPolicy::steal(StreamList& list, std::size_t rounded) {
  for (auto& other : lists_) {
    if (other->stream == list.stream || other->blocks.is_end(other->blocks.lower_bound(rounded))) continue;
    wait_for_stream(other->stream);
    Block* block = take_fit(*other, rounded);
    block->stream = list.stream;
    join_own_neighbours(block);
    return block;
  }
  // No block is large enough, but neighbours of different streams may be together.
  for (auto& other : lists_) {
    if (other->stream == list.stream || other->blocks.empty()) continue;
    wait_for_stream(other->stream);
    while (Block* block = other->blocks.last()) {
      remove_free(block);
      block->stream = list.stream;
      take_back(block);
    }
  }
  return take_fit(list, rounded);
}

Block* RmmPoolPolicy::extend(StreamList& list, std::size_t rounded) {
  std::size_t least = ceil_to(rounded, kSegmentRounding);
  std::size_t bytes = std::max<std::size_t>(least, books_.rows.reserved);
  if (limit_) {
    std::size_t left = *limit_ - std::min(*limit_, books_.rows.reserved);
    bytes = std::max(least, left / 2 / kSegmentRounding * kSegmentRounding);
  }
  for (;;) {
    if (Block* block = reserve_segment(PoolKind::large, list.stream, bytes)) return block;
    if (bytes == least) return nullptr;
    bytes = std::max(least, bytes / 2 / kSegmentRounding * kSegmentRounding);
  }
}

// Free blocks of several streams may fill a segment: they become one before it goes.
void RmmPoolPolicy::release_free() {
  for (auto& segment : segments_) {
    bool all_free = true;
    for (Block* block = segment->first; block; block = block->next) all_free = all_free && is_free(block);
    if (!all_free) continue;
    Block* whole = segment->first;
    while (Block* next = whole->next) {
      if (next->stream != whole->stream) wait_for_stream(next->stream);
      remove_free(next);
      remove_free(whole);
      absorb(whole, next);
      insert_free(whole);
    }
  }
  ListPolicy::release_free();
}

std::unique_ptr<Policy> make_rmm_pool_policy(const PolicyContext& context) {
  return std::make_unique<RmmPoolPolicy>(context);
}

}  // namespace limpid::memory
