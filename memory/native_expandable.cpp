// Expandable segments of the native policy: a virtual range for each pool and stream, mapped page by page at the lowest
// address that gives enough room, and unmapped by whole pages when the cache is given back.
#include <algorithm>

#include <limpid/base/error.h>
#include <limpid/memory/native_policy.h>

namespace limpid::memory {
void NativePolicy::unmapped_added(Block* tile) {
  std::vector<Block*>& tiles = list_of(pool_of(tile->pool), tile->stream).unmapped;
  tiles.insert(std::lower_bound(tiles.begin(), tiles.end(), tile, comes_before), tile);
}

void NativePolicy::unmapped_removed(Block* tile) {
  std::vector<Block*>& tiles = list_of(pool_of(tile->pool), tile->stream).unmapped;
  auto at = std::lower_bound(tiles.begin(), tiles.end(), tile, comes_before);
  LIMPID_ASSERT(at != tiles.end() && *at == tile);
  tiles.erase(at);
}

// The first run of free blocks and unmapped tiles, in address order, that has `rounded` bytes; it begins with an
// unmapped tile or with the free block before one.
Block* NativePolicy::find_room(const StreamList& list, std::size_t rounded) const {
  for (Block* tile : list.unmapped) {
    Block* first = is_free(tile->prev) ? tile->prev : tile;
    std::size_t room = 0;
    for (Block* b = first; b && room < rounded && (is_free(b) || b->state == BlockState::unmapped); b = b->next) {
      room += b->size;
    }
    if (room >= rounded) return first;
  }
  return nullptr;
}

Block* NativePolicy::grow_range(PoolKind kind, StreamId stream, std::size_t rounded) {
  std::size_t page = page_of(kind);
  Block* block = find_room(list_of(pool_of(kind), stream), rounded);
  if (!block) {
    // Room for all memory of the device and an eighth more, because holes may stay in the middle.
    std::size_t total = device_.mem_info().total;
    block = reserve_range(kind, stream, ceil_to(std::max(total + total / 8, rounded), page));
    if (!block) {
      books_.refused(rounded);
      return nullptr;
    }
  }
  if (block->state == BlockState::unmapped) block = map_more(block, std::min(block->size, rounded), page);
  while (block && block->size < rounded) {
    block = map_more(block->next, std::min(block->next->size, rounded - block->size), page);
  }
  if (block) remove_free(block);
  return block;
}

// Maps the front of a tile and joins it with the free blocks around it, as a free block. nullptr: out of memory.
Block* NativePolicy::map_more(Block* tile, std::size_t bytes, std::size_t page) {
  bytes = ceil_to(bytes, page);
  Block* left = is_free(tile->prev) ? tile->prev : nullptr;
  Block* right = bytes == tile->size && is_free(tile->next) ? tile->next : nullptr;
  if (left) remove_free(left);
  if (right) remove_free(right);
  bool mapped = false;
  try {
    mapped = map_front(tile, bytes);
  } catch (...) {
    if (left) insert_free(left);
    if (right) insert_free(right);
    throw;
  }
  if (!mapped) {
    if (left) insert_free(left);
    if (right) insert_free(right);
    return nullptr;
  }
  if (left) absorb(tile, left);
  if (right) absorb(tile, right);
  insert_free(tile);
  return tile;
}

std::size_t NativePolicy::unmap_pages(Block* block, std::size_t page, std::size_t most) {
  std::size_t offset = offset_of(block);
  std::size_t before = ceil_to(offset, page) - offset;
  std::size_t end = (offset + block->size) / page * page;
  if (end <= offset + before) return 0;
  std::size_t bytes = std::min(end - offset - before, most);
  wait_for_stream(block->stream);
  remove_free(block);
  Block* front = before > 0 ? split_front(block, before) : nullptr;
  Block* back = nullptr;
  if (bytes < block->size) {
    back = block;
    block = split_front(back, bytes);
  }
  try {
    unmap(block, true);
  } catch (...) {
    if (front) absorb(block, front);
    if (back) absorb(block, back);
    insert_free(block);
    throw;
  }
  if (front) insert_free(front);
  if (back) insert_free(back);
  if (!block->prev && !block->next) release_range(block);
  return bytes;
}

}  // namespace limpid::memory
