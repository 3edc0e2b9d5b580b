#include <limpid/memory/list_policy.h>

#include <algorithm>

#include <limpid/base/error.h>

namespace limpid::memory {

ListPolicy::StreamList& ListPolicy::list_of(StreamId stream) {
  auto at = std::lower_bound(lists_.begin(), lists_.end(), stream,
                             [](const auto& list, StreamId s) { return list->stream < s; });
  if (at == lists_.end() || (*at)->stream != stream) {
    at = lists_.insert(at, std::make_unique<StreamList>(StreamList{stream, {}}));
  }
  return **at;
}

std::size_t ListPolicy::available() const {
  MemoryInfo memory = device_.mem_info();
  std::uint64_t bytes = memory.free;
  if (limit_) bytes = std::min(bytes, *limit_ - std::min(*limit_, books_.rows.reserved));
  return bytes / kSegmentRounding * kSegmentRounding;
}

Block* ListPolicy::allocate(std::size_t bytes, StreamId stream) {
  poll();
  std::size_t rounded = round(bytes);
  StreamList& list = list_of(stream);
  Block* block = take_fit(list, rounded);
  if (!block) block = steal(list, rounded);
  if (!block) block = extend(list, rounded);
  if (!block) {
    release_cached();
    books_.retried(ceil_to(rounded, kSegmentRounding), stream);
    block = take_fit(list, rounded);  // what has been waited for may have made room
    if (!block) block = extend(list, rounded);
    if (!block) return nullptr;
  }
  return hand_out(cut(block, rounded), bytes, rounded);
}

Block* ListPolicy::take_fit(StreamList& list, std::size_t rounded) {
  FreeList::Position at = list.blocks.lower_bound(rounded);
  if (list.blocks.is_end(at)) return nullptr;
  Block* block = list.blocks[at];
  list.blocks.erase(at);
  leave_free(block);
  return block;
}

Block* ListPolicy::cut(Block* block, std::size_t rounded) {
  if (!should_split(*block, rounded)) return block;
  Block* front = split_front(block, rounded);
  insert_free(block);
  return front;
}

void ListPolicy::insert_free(Block* block) {
  block->order = place_of(block);
  list_of(block->stream).blocks.insert(block);
  enter_free(block);
}

void ListPolicy::remove_free(Block* block) {
  bool inside = list_of(block->stream).blocks.erase(block);
  LIMPID_ASSERT(inside);
  leave_free(block);
}

void ListPolicy::join_own_neighbours(Block* block) {
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_free(neighbour) || neighbour->stream != block->stream) continue;
    remove_free(neighbour);
    absorb(block, neighbour);
  }
}

void ListPolicy::take_back(Block* block) {
  join_own_neighbours(block);
  insert_free(block);
}

void ListPolicy::release_free() {
  std::vector<Block*> whole;
  for (auto& list : lists_) {
    list->blocks.for_each([&](Block* block) {
      if (!block->is_split()) whole.push_back(block);
    });
  }
  for (Block* block : whole) release_segment(block);
}

void ListPolicy::check() const {
  std::size_t listed = 0;
  for (const auto& list : lists_) {
    const Block* former = nullptr;
    list->blocks.for_each([&](const Block* block) {
      listed++;
      LIMPID_ASSERT(block->state == BlockState::free && block->stream == list->stream);
      LIMPID_ASSERT(!former || former->size < block->size ||
                    (former->size == block->size && former->order < block->order));
      former = block;
    });
  }
  check_tiles(listed, [](const Block* a, const Block* b) { return a->stream != b->stream; });
}

}  // namespace limpid::memory
