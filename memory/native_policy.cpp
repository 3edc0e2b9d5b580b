#include <limpid/memory/native_policy.h>

#include <algorithm>
#include <bit>

#include <limpid/base/error.h>

namespace limpid::memory {

NativePolicy::NativePolicy(const PolicyContext& context, const Variant& variant)
    : TiledPolicy(context), ranges_(variant.expandable || context.settings.expandable_segments), variant_(variant) {
  books_.oversize = settings_.max_split_size;
  for (std::size_t divisions : settings_.roundup_power2_divisions) has_divisions_ = has_divisions_ || divisions > 1;
  LIMPID_CHECK(!ranges_ || device_.has_virtual_ranges(), ArgumentError, "[", variant_.name, " policy] ", device_.name(),
               " has no virtual ranges, which expandable segments need");
}

// --- sizes

std::size_t NativePolicy::round(std::size_t bytes) const {
  if (bytes < kMinBlock) return kMinBlock;
  if (LIMPID_UNLIKELY(has_divisions_)) {
    std::size_t divisions = settings_.divisions_for(bytes);
    if (divisions > 1 && bytes > kMinBlock * divisions) {
      // Up to the next of `divisions` equal steps between the powers of two around it.
      std::size_t step = std::bit_floor(bytes) / divisions;
      return (bytes + step - 1) / step * step;
    }
  }
  return (bytes + kMinBlock - 1) / kMinBlock * kMinBlock;
}

std::size_t NativePolicy::segment_size(std::size_t rounded) const {
  if (rounded <= kSmallRequest) return kSmallSegment;
  if (rounded < kOwnSegment) return settings_.large_segment_size;
  return (rounded + kSegmentRounding - 1) / kSegmentRounding * kSegmentRounding;
}

bool NativePolicy::should_split(const Block& block, std::size_t rounded) const {
  if (LIMPID_UNLIKELY(!variant_.splits)) return false;
  std::size_t rest = block.size - rounded;
  if (block.pool == PoolKind::small || ranges_) return rest >= kMinBlock;
  return rounded < settings_.max_split_size && rest > kSmallRequest;
}

// --- the life of a block

NativePolicy::StreamList& NativePolicy::find_list(Pool& pool, StreamId stream) {
  auto at = std::lower_bound(pool.streams.begin(), pool.streams.end(), stream,
                             [](const auto& list, StreamId s) { return list->stream < s; });
  if (at == pool.streams.end() || (*at)->stream != stream) {
    at = pool.streams.insert(at, std::make_unique<StreamList>(StreamList{stream, {}, {}}));
  }
  pool.last_used = at->get();
  return **at;
}

void NativePolicy::set_free_keys(Pool& pool, Block* block) {
  block->order = place_of(block);
  block->age_base = pool.searches;
  block->state = BlockState::free;
}

void NativePolicy::remove_free(Block* block) {
  bool inside = list_of(pool_of(block->pool), block->stream).blocks.erase(block);
  LIMPID_ASSERT(inside);
  books_.free_removed(*block);
}

void NativePolicy::insert_free(Block* block) {
  Pool& pool = pool_of(block->pool);
  set_free_keys(pool, block);
  list_of(pool, block->stream).blocks.insert(block);
  books_.free_added(*block);
}

Block* NativePolicy::allocate(std::size_t bytes, StreamId stream) {
  poll();
  std::size_t rounded = round(bytes);
  PoolKind kind = pool_for(rounded);
  Block* block = serve_cached(kind, stream, rounded);
  if (LIMPID_UNLIKELY(!block)) {
    block = take_new(kind, stream, rounded);
    if (!block) return nullptr;
    if (should_split(*block, rounded)) {
      Block* rest = block;
      block = split_front(rest, rounded);
      insert_free(rest);
      if (!rest->segment->expandable) books_.inactive_split(kind, 1, static_cast<std::int64_t>(rest->size));
    }
  }
  return hand_out(block, bytes, rounded);
}

// Best fit: the smallest block of the stream that is large enough; among equals the first in the oldest segment.
FreeList::Position NativePolicy::best_fit(const FreeList& list, std::size_t rounded) const {
  FreeList::Position at = list.lower_bound(rounded);
  if (LIMPID_LIKELY(!ranges_) || list.is_end(at)) return at;
  // A block that could grow counts as large as it could become: a slightly larger one in the middle is preferred to
  // the one at the end of the range.
  auto could_be = [](const Block* b) {
    return b->size + (b->next && b->next->state == BlockState::unmapped ? b->next->size : 0);
  };
  for (FreeList::Position next = list.next(at); !list.is_end(next) && could_be(list[next]) < could_be(list[at]);
       next = list.next(next)) {
    at = next;
  }
  return at;
}

// Only the one candidate of best_fit() is tested against the limits for oversize blocks.
Block* NativePolicy::serve_cached(PoolKind kind, StreamId stream, std::size_t rounded) {
  Pool& pool = pool_of(kind);
  if (LIMPID_UNLIKELY(collects_garbage())) pool.searches++;
  FreeList& list = list_of(pool, stream).blocks;
  FreeList::Position at = best_fit(list, rounded);
  if (list.is_end(at)) return nullptr;
  Block* block = list[at];
  std::size_t limit = settings_.max_split_size;
  if (rounded < limit ? block->size >= limit : block->size - rounded >= settings_.max_non_split_rounding)
    return nullptr;
  bool was_split = block->is_split();
  bool counts = !block->segment->expandable;  // towards inactive_split
  if (should_split(*block, rounded)) {
    Block* rest = block;
    books_.free_removed(*rest);
    block = split_front(rest, rounded);
    set_free_keys(pool, rest);
    list.replace(at, rest);
    books_.free_added(*rest);
    if (was_split) {
      if (counts) books_.inactive_split(kind, 0, -static_cast<std::int64_t>(rounded));
    } else {
      if (counts) books_.inactive_split(kind, 1, static_cast<std::int64_t>(rest->size));
    }
  } else {
    list.erase(at);
    books_.free_removed(*block);
    if (was_split && counts) books_.inactive_split(kind, -1, -static_cast<std::int64_t>(block->size));
  }
  return block;
}

void NativePolicy::take_back(Block* block) {
  Pool& pool = pool_of(block->pool);
  FreeList& list = list_of(pool, block->stream).blocks;
  std::int64_t blocks = 0, bytes = 0;
  Block* prev = is_free(block->prev) ? block->prev : nullptr;
  Block* next = is_free(block->next) ? block->next : nullptr;
  if (prev && next) {
    remove_free(prev);
    blocks--;
    bytes -= static_cast<std::int64_t>(prev->size);
    absorb(block, prev);
    prev = nullptr;
  }
  if (Block* neighbour = prev ? prev : next) {
    // Takes the neighbour's place in the list: one search instead of two.
    FreeList::Position at = list.find(neighbour);
    LIMPID_ASSERT(!list.is_end(at));
    books_.free_removed(*neighbour);
    blocks--;
    bytes -= static_cast<std::int64_t>(neighbour->size);
    absorb(block, neighbour);
    set_free_keys(pool, block);
    list.replace(at, block);
  } else {
    set_free_keys(pool, block);
    list.insert(block);
  }
  books_.free_added(*block);
  if (block->is_split()) {
    blocks++;
    bytes += static_cast<std::int64_t>(block->size);
  }
  if (!block->segment->expandable) books_.inactive_split(block->pool, blocks, bytes);
}

// --- the device

// Resorts in PyTorch's order: collect garbage; a new segment; give back oversize blocks and try again; wait for every
// pending block, give back every whole segment and try again.
Block* NativePolicy::take_new(PoolKind kind, StreamId stream, std::size_t rounded) {
  if (collects_garbage()) collect_garbage();
  if (Block* block = take_from_device(kind, stream, rounded, false)) return block;
  if (release_oversize(kind, stream, rounded)) {
    if (Block* block = take_from_device(kind, stream, rounded, false)) return block;
  }
  release_cached();
  return take_from_device(kind, stream, rounded, true);
}

Block* NativePolicy::take_from_device(PoolKind kind, StreamId stream, std::size_t rounded, bool is_retry) {
  std::size_t bytes = segment_size(rounded);
  if (is_retry) books_.retried(bytes, stream);
  if (!within_limit(bytes)) return nullptr;
  return ranges_ ? grow_range(kind, stream, rounded) : reserve_segment(kind, stream, bytes);
}

// With a split limit: one cached block that is large enough alone, or else the largest ones until they are together.
bool NativePolicy::release_oversize(PoolKind kind, StreamId stream, std::size_t rounded) {
  if (settings_.max_split_size == AllocatorSettings::kNoSplitLimit || ranges_) return false;
  FreeList& list = list_of(pool_of(kind), stream).blocks;
  std::size_t wanted = std::max(rounded, settings_.max_split_size);
  FreeList::Position at = list.lower_bound(wanted);
  if (!list.is_end(at)) {
    release_segment(list[at]);
    return true;
  }
  std::size_t released = 0;
  for (Block* block = list.last(); block && released < wanted && block->size >= settings_.max_split_size;
       block = list.last()) {
    released += block->size;
    release_segment(block);
  }
  return released >= wanted;
}

// Gives back whole free blocks of the large pool that have lain unused longer than the mean, pass by pass, until the
// reserved bytes are below the threshold or a pass finds none. Does not wait for anything.
void NativePolicy::collect_garbage() {
  auto threshold = static_cast<std::size_t>(settings_.garbage_collection_threshold * static_cast<double>(*limit_));
  if (books_.rows.reserved <= threshold) return;
  std::size_t target = books_.rows.reserved - threshold, reclaimed = 0;
  Pool& pool = pool_of(PoolKind::large);
  std::vector<Block*> whole;
  std::uint64_t total_age = 0;
  for (auto& list : pool.streams) {
    list->blocks.for_each([&](Block* block) {
      if (block->is_split() || block->segment->expandable) return;
      whole.push_back(block);
      total_age += pool.searches - block->age_base;
    });
  }
  bool progress = true;
  while (reclaimed < target && progress && !whole.empty()) {
    double mean_age = static_cast<double>(total_age) / static_cast<double>(whole.size());
    progress = false;
    std::vector<Block*> younger;
    for (Block* block : whole) {
      std::uint64_t age = pool.searches - block->age_base;
      if (static_cast<double>(age) < mean_age) {
        younger.push_back(block);
        continue;
      }
      progress = true;
      reclaimed += block->size;
      total_age -= age;
      release_segment(block);
    }
    whole.swap(younger);
  }
}

void NativePolicy::release_whole(Pool& pool) {
  std::vector<Block*> blocks;
  for (auto& list : pool.streams) {
    list->blocks.for_each([&](Block* block) {
      if (block->segment->expandable || !block->is_split()) blocks.push_back(block);
    });
  }
  for (Block* block : blocks) {
    if (block->segment->expandable) {
      unmap_pages(block, page_of(block->pool));
    } else {
      release_segment(block);
    }
  }
}

void NativePolicy::release_free() {
  release_whole(pool_of(PoolKind::large));
  release_whole(pool_of(PoolKind::small));
}

void NativePolicy::give_back(Block* block, std::size_t most) {
  if (!block->segment->expandable) return TiledPolicy::give_back(block, most);
  const std::size_t page = page_of(block->pool);
  if (most >= page) unmap_pages(block, page, most / page * page);
}

// --- views

void NativePolicy::check_lists(std::size_t listed_elsewhere) const {
  std::size_t listed = listed_elsewhere, unmapped = 0;
  for (std::size_t p = 0; p < pools_.size(); p++) {
    for (const auto& list : pools_[p].streams) {
      const Block* former = nullptr;
      list->blocks.for_each([&](const Block* block) {
        listed++;
        bool ok = block->state == BlockState::free && block->stream == list->stream &&
                  static_cast<std::size_t>(block->pool) == p;
        LIMPID_CHECK(ok, InternalError, "[native policy] a block of ", block->size, " bytes is in the wrong free list");
        bool ordered =
            !former || former->size < block->size || (former->size == block->size && former->order < block->order);
        LIMPID_CHECK(ordered, InternalError, "[native policy] the free list is out of order at ", block->size,
                     " bytes");
        former = block;
      });
      for (std::size_t i = 0; i < list->unmapped.size(); i++) {
        const Block* tile = list->unmapped[i];
        LIMPID_ASSERT(tile->state == BlockState::unmapped && tile->stream == list->stream);
        LIMPID_ASSERT(i == 0 || place_of(list->unmapped[i - 1]) < place_of(tile));
        unmapped++;
      }
    }
  }
  for (const auto& segment : segments_) {
    for (const Block* block = segment->first; block; block = block->next) {
      if (block->state == BlockState::unmapped) unmapped--;
    }
  }
  LIMPID_ASSERT(unmapped == 0);
  check_tiles(listed);
}

std::unique_ptr<Policy> make_native_policy(const PolicyContext& context) {
  return std::make_unique<NativePolicy>(context);
}

std::unique_ptr<Policy> make_nosplit_policy(const PolicyContext& context) {
  return std::make_unique<NativePolicy>(context, NativePolicy::Variant{.name = "nosplit", .splits = false});
}

std::unique_ptr<Policy> make_expandable_policy(const PolicyContext& context) {
  return std::make_unique<NativePolicy>(context, NativePolicy::Variant{.name = "expandable", .expandable = true});
}

}  // namespace limpid::memory
