// The free blocks of one pool and one stream, ordered by (size, order). A list of sorted chunks of at most 64
// entries: for the usual tens of blocks one small array, for 100,000 blocks still two binary searches and a short move.
// Blocks are owned elsewhere; their keys must not change while they are inside.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include <limpid/base/macros.h>
#include <limpid/memory/block.h>

namespace limpid::memory {

class FreeList {
 public:
  struct Position {
    std::size_t chunk = 0;
    std::size_t index = 0;
  };

  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }

  // The first block with (size, order) >= the key; Position of end() when there is none.
  Position lower_bound(std::size_t size, std::uint64_t order = 0) const {
    Position at;
    if (chunks_.size() > 1) {
      std::size_t low = 0, high = chunks_.size();
      while (low < high) {
        std::size_t middle = (low + high) / 2;
        const Chunk& c = *chunks_[middle];
        less(c.entries[c.count - 1], size, order) ? low = middle + 1 : high = middle;
      }
      at.chunk = low;
    }
    if (at.chunk == chunks_.size()) return at;
    const Chunk& c = *chunks_[at.chunk];
    std::size_t low = 0, high = c.count;
    while (low < high) {
      std::size_t middle = (low + high) / 2;
      less(c.entries[middle], size, order) ? low = middle + 1 : high = middle;
    }
    at.index = low;
    if (low == c.count) at = {at.chunk + 1, 0};
    return at;
  }
  bool is_end(Position at) const { return at.chunk >= chunks_.size(); }
  Block* operator[](Position at) const { return chunks_[at.chunk]->entries[at.index].block; }
  Position next(Position at) const {
    return at.index + 1 < chunks_[at.chunk]->count ? Position{at.chunk, at.index + 1} : Position{at.chunk + 1, 0};
  }
  Block* last() const { return empty() ? nullptr : chunks_.back()->entries[chunks_.back()->count - 1].block; }

  void insert(Block* block) {
    Position at = lower_bound(block->size, block->order);
    if (chunks_.empty()) chunks_.push_back(std::make_unique<Chunk>());
    if (is_end(at)) at = {chunks_.size() - 1, chunks_.back()->count};
    if (chunks_[at.chunk]->count == kChunk) split(at);
    Chunk& c = *chunks_[at.chunk];
    std::memmove(c.entries + at.index + 1, c.entries + at.index, (c.count - at.index) * sizeof(Entry));
    c.entries[at.index] = {block->size, block};
    c.count++;
    count_++;
  }
  void erase(Position at) {
    Chunk& c = *chunks_[at.chunk];
    c.count--;
    count_--;
    std::memmove(c.entries + at.index, c.entries + at.index + 1, (c.count - at.index) * sizeof(Entry));
    if (c.count == 0 && chunks_.size() > 1) chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk));
  }
  // Puts `block` in the place of the entry at `at`, and then where its key belongs: most often the same place.
  void replace(Position at, Block* block) {
    Chunk& c = *chunks_[at.chunk];
    bool after_former = at.index > 0 ? less(c.entries[at.index - 1], block->size, block->order) : at.chunk == 0;
    bool before_next = at.index + 1 < c.count ? !less(c.entries[at.index + 1], block->size, block->order)
                                              : at.chunk + 1 == chunks_.size();
    if (LIMPID_LIKELY(after_former && before_next)) {
      c.entries[at.index] = {block->size, block};
    } else {
      erase(at);
      insert(block);
    }
  }
  // False when the block is not inside.
  bool erase(const Block* block) {
    Position at = find(block);
    if (is_end(at)) return false;
    erase(at);
    return true;
  }
  // Position of end() when the block is not inside.
  Position find(const Block* block) const {
    Position at = lower_bound(block->size, block->order);
    return !is_end(at) && (*this)[at] == block ? at : Position{chunks_.size(), 0};
  }
  template <class F>
  void for_each(F&& f) const {
    for (const auto& chunk : chunks_) {
      for (std::size_t i = 0; i < chunk->count; i++) f(chunk->entries[i].block);
    }
  }

 private:
  static constexpr std::size_t kChunk = 64;
  struct Entry {
    std::size_t size;
    Block* block;
  };
  struct Chunk {
    std::size_t count = 0;
    Entry entries[kChunk];
  };
  static bool less(const Entry& entry, std::size_t size, std::uint64_t order) {
    return entry.size != size ? entry.size < size : entry.block->order < order;
  }
  void split(Position& at) {
    auto upper = std::make_unique<Chunk>();
    Chunk& lower = *chunks_[at.chunk];
    upper->count = kChunk / 2;
    lower.count = kChunk - kChunk / 2;
    std::memcpy(upper->entries, lower.entries + lower.count, upper->count * sizeof(Entry));
    chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk + 1), std::move(upper));
    if (at.index > lower.count) at = {at.chunk + 1, at.index - lower.count};
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::size_t count_ = 0;
};

}  // namespace limpid::memory
