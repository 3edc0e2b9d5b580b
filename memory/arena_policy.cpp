#include <limpid/memory/arena_policy.h>

#include <algorithm>
#include <bit>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

constexpr std::size_t kStep = TiledPolicy::kMinBlock;
constexpr std::uint64_t kSuperblockPlaces = ArenaPolicy::kSuperblock / TiledPolicy::kMinBlock;

std::size_t step_at(std::size_t bytes) { return std::max(kStep, std::bit_floor(bytes) / 4); }

}  // namespace

std::size_t FirstFit::round(std::size_t bytes) {
  std::size_t step = step_at(bytes - 1);
  return (bytes + step - 1) / step * step;
}

std::size_t FirstFit::class_of(std::size_t bytes) { return bytes / step_at(bytes) * step_at(bytes); }

Block* FirstFit::find(std::size_t class_size) const {
  Block* first = nullptr;
  for (auto it = classes_.lower_bound(class_size); it != classes_.end(); ++it) {
    if (it->second.empty()) continue;
    Block* block = *it->second.begin();
    if (!first || block->order < first->order) first = block;
  }
  return first;
}

std::size_t FirstFit::size() const {
  std::size_t count = 0;
  for (const auto& [bytes, blocks] : classes_) count += blocks.size();
  return count;
}

std::vector<Block*> FirstFit::blocks() const {
  std::vector<Block*> all;
  for (const auto& [bytes, blocks] : classes_) all.insert(all.end(), blocks.begin(), blocks.end());
  return all;
}

ArenaPolicy::Superblocks::const_iterator ArenaPolicy::superblock_of(const Block* block) const {
  std::uint64_t place = place_of(block);
  auto it = superblocks_.upper_bound(place);
  if (it == superblocks_.begin()) return superblocks_.end();
  --it;
  return place < it->first + kSuperblockPlaces ? it : superblocks_.end();
}

FirstFit& ArenaPolicy::index_of(const Block* block) {
  auto it = superblock_of(block);
  return it == superblocks_.end() ? global_ : arenas_[it->second];
}

void ArenaPolicy::insert_free(Block* block) {
  block->order = place_of(block);
  index_of(block).insert(block);
  enter_free(block);
}

void ArenaPolicy::remove_free(Block* block) {
  bool inside = index_of(block).erase(block);
  LIMPID_ASSERT(inside);
  leave_free(block);
}

Block* ArenaPolicy::allocate(std::size_t bytes, StreamId stream) {
  poll();
  streams_.insert(stream);
  std::size_t rounded = round(bytes);
  Block* block = take(rounded, stream);
  if (!block) {
    release_cached();
    books_.retried(std::max(rounded, kSuperblock), stream);
    block = take(rounded, stream);
    if (!block) return nullptr;
  }
  return hand_out(block, bytes, rounded);
}

Block* ArenaPolicy::take(std::size_t rounded, StreamId stream) {
  if (rounded > kSuperblock) return take_global(rounded, stream);
  Block* block = arenas_[stream].find(rounded);
  if (block) {
    remove_free(block);
  } else {
    block = take_global(kSuperblock, stream);
    if (!block) return nullptr;
    superblocks_[place_of(block)] = stream;
  }
  if (block->size == rounded) return block;
  Block* front = split_front(block, rounded);
  insert_free(block);
  return front;
}

Block* ArenaPolicy::take_global(std::size_t bytes, StreamId stream) {
  Block* block = global_.find(bytes);
  if (!block) {
    if (!grow(bytes, stream)) return nullptr;
    block = global_.find(bytes);
  }
  if (block->stream != stream) {
    for (StreamId other : streams_) {
      if (other != stream && (block->stream == kMixed || block->stream == other)) wait_for_stream(other);
    }
  }
  remove_free(block);
  if (block->size > bytes) {
    Block* front = split_front(block, bytes);
    insert_free(block);
    block = front;
  }
  block->stream = stream;
  return block;
}

bool ArenaPolicy::grow(std::size_t bytes, StreamId stream) {
  std::size_t least = ceil_to(bytes, std::size_t{2} << 20);
  Block* block = reserve_segment(PoolKind::large, stream, std::max(least, kRegion));
  if (!block && least < kRegion) block = reserve_segment(PoolKind::large, stream, least);
  if (!block) return false;
  insert_free(block);
  return true;
}

void ArenaPolicy::take_back(Block* block) {
  auto owner = superblock_of(block);
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_free(neighbour) || superblock_of(neighbour) != owner) continue;
    remove_free(neighbour);
    if (neighbour->stream != block->stream) block->stream = kMixed;
    absorb(block, neighbour);
  }
  if (owner != superblocks_.end() && block->size == kSuperblock) {
    superblocks_.erase(owner);
    take_back(block);  // once more, among the neighbours in the global arena
    return;
  }
  insert_free(block);
}

void ArenaPolicy::release_free() {
  for (Block* block : global_.blocks()) {
    if (!block->is_split()) release_segment(block);
  }
}

void ArenaPolicy::check() const {
  std::size_t listed = global_.size();
  for (const auto& [stream, arena] : arenas_) {
    listed += arena.size();
    for (const Block* block : arena.blocks()) {
      auto owner = superblock_of(block);
      LIMPID_ASSERT(owner != superblocks_.end() && owner->second == stream && block->stream == stream);
      LIMPID_ASSERT(block->size < kSuperblock);
    }
  }
  for (const Block* block : global_.blocks()) LIMPID_ASSERT(superblock_of(block) == superblocks_.end());
  for (const auto& segment : segments_) {
    for (const Block* block = segment->first; block; block = block->next) {
      auto owner = superblock_of(block);
      LIMPID_ASSERT(block->state != BlockState::allocated || block->size == FirstFit::round(block->size));
      if (owner != superblocks_.end()) {
        LIMPID_ASSERT(place_of(block) + block->size / kMinBlock <= owner->first + kSuperblockPlaces);
      }
      bool touches = is_free(block) && is_free(block->next) && superblock_of(block->next) == owner;
      LIMPID_CHECK(!touches, InternalError, "[arena policy] two free blocks side by side, of ", block->size, " bytes");
    }
  }
  check_tiles(listed, [](const Block*, const Block*) { return true; });
}

std::unique_ptr<Policy> make_arena_policy(const PolicyContext& context) {
  return std::make_unique<ArenaPolicy>(context);
}

}  // namespace limpid::memory
