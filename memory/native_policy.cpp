#include <limpid/memory/native_policy.h>

#include <algorithm>
#include <bit>

#include <limpid/base/error.h>

namespace limpid::memory {

NativePolicy::NativePolicy(const PolicyContext& context, const Variant& variant)
    : device_(context.device), settings_(context.settings), books_(context.books), variant_(variant) {
  books_.oversize = settings_.max_split_size;
  for (std::size_t divisions : settings_.roundup_power2_divisions) has_divisions_ = has_divisions_ || divisions > 1;
}

NativePolicy::~NativePolicy() {
  for (StreamEvents& stream : events_) {
    for (Pending& pending : stream.queue) device_.event_release(pending.event);
  }
  for (auto& segment : segments_) {
    for (Block* block = segment->first; block; block = block->next) delete block->stream_uses;
    try {
      device_.release(segment->base, segment->size);
    } catch (const Error&) {  // nobody is left to tell
    }
  }
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
  if (block.pool == PoolKind::small) return rest >= kMinBlock;
  return rounded < settings_.max_split_size && rest > kSmallRequest;
}

// --- the life of a block

Block* NativePolicy::new_block() {
  if (LIMPID_UNLIKELY(!spare_blocks_)) {
    constexpr std::size_t kChunk = 128;
    block_chunks_.push_back(std::make_unique<Block[]>(kChunk));
    Block* blocks = block_chunks_.back().get();
    for (std::size_t i = 0; i < kChunk; i++) {
      blocks[i].next = i + 1 < kChunk ? blocks + i + 1 : nullptr;
    }
    spare_blocks_ = blocks;
  }
  Block* block = spare_blocks_;
  spare_blocks_ = block->next;
  return block;
}

void NativePolicy::delete_block(Block* block) noexcept {
  block->next = spare_blocks_;
  spare_blocks_ = block;
}

FreeList& NativePolicy::find_list(Pool& pool, StreamId stream) {
  auto at = std::lower_bound(pool.streams.begin(), pool.streams.end(), stream,
                             [](const auto& list, StreamId s) { return list->stream < s; });
  if (at == pool.streams.end() || (*at)->stream != stream) {
    at = pool.streams.insert(at, std::make_unique<StreamList>(StreamList{stream, {}}));
  }
  pool.last_used = at->get();
  return (*at)->blocks;
}

void NativePolicy::set_free_keys(Pool& pool, Block* block) {
  auto offset = static_cast<std::uint64_t>(static_cast<char*>(block->ptr) - static_cast<char*>(block->segment->base));
  block->order = block->segment->id << 32 | offset / kMinBlock;
  block->age_base = pool.searches;
  block->state = BlockState::free;
}

void NativePolicy::remove_free(Block* block) {
  bool inside = list_of(pool_of(block->pool), block->stream).erase(block);
  LIMPID_ASSERT(inside);
  books_.free_removed(*block);
}

Block* NativePolicy::allocate(std::size_t bytes, StreamId stream) {
  if (LIMPID_UNLIKELY(!events_.empty() || !deferred_.empty())) process_events();
  std::size_t rounded = round(bytes);
  PoolKind kind = rounded <= kSmallRequest ? PoolKind::small : PoolKind::large;
  Block* block = serve_cached(kind, stream, rounded);
  if (LIMPID_UNLIKELY(!block)) {
    block = take_new(kind, stream, rounded);
    if (!block) return nullptr;
    if (should_split(*block, rounded)) {
      Block* rest = block;
      block = split_front(rest, rounded);
      Pool& pool = pool_of(kind);
      set_free_keys(pool, rest);
      list_of(pool, stream).insert(rest);
      books_.free_added(*rest);
      books_.inactive_split(kind, 1, static_cast<std::int64_t>(rest->size));
    }
  }
  block->state = BlockState::allocated;
  block->requested = bytes;
  block->rounded = rounded;
  return block;
}

// Hands out the front of a free block as a new block; the rest stays what it was.
Block* NativePolicy::split_front(Block* rest, std::size_t rounded) {
  Block* block = new_block();
  block->ptr = rest->ptr;
  block->size = rounded;
  block->stream = rest->stream;
  block->pool = rest->pool;
  block->segment = rest->segment;
  block->prev = rest->prev;
  block->next = rest;
  if (block->prev) {
    block->prev->next = block;
  } else {
    block->segment->first = block;
  }
  rest->prev = block;
  rest->ptr = static_cast<char*>(rest->ptr) + rounded;
  rest->size -= rounded;
  return block;
}

// Best fit: the smallest block of the stream that is large enough; among equals the first in the oldest segment. Only
// this one candidate is tested against the limits for oversize blocks.
Block* NativePolicy::serve_cached(PoolKind kind, StreamId stream, std::size_t rounded) {
  Pool& pool = pool_of(kind);
  if (LIMPID_UNLIKELY(collects_garbage())) pool.searches++;
  FreeList& list = list_of(pool, stream);
  FreeList::Position at = list.lower_bound(rounded);
  if (list.is_end(at)) return nullptr;
  Block* block = list[at];
  std::size_t limit = settings_.max_split_size;
  if (rounded < limit ? block->size >= limit : block->size - rounded >= settings_.max_non_split_rounding)
    return nullptr;
  bool was_split = block->is_split();
  if (should_split(*block, rounded)) {
    Block* rest = block;
    books_.free_removed(*rest);
    block = split_front(rest, rounded);
    set_free_keys(pool, rest);
    list.replace(at, rest);
    books_.free_added(*rest);
    if (was_split) {
      books_.inactive_split(kind, 0, -static_cast<std::int64_t>(rounded));
    } else {
      books_.inactive_split(kind, 1, static_cast<std::int64_t>(rest->size));
    }
  } else {
    list.erase(at);
    books_.free_removed(*block);
    if (was_split) books_.inactive_split(kind, -1, -static_cast<std::int64_t>(block->size));
  }
  return block;
}

void NativePolicy::free(Block* block) noexcept {
  if (LIMPID_LIKELY(!block->stream_uses)) {
    books_.deactivated(block->pool, block->size, block->requested);
    make_free(block);
    return;
  }
  block->state = BlockState::pending;
  books_.pending_begins(block->size);
  try {
    insert_events(block);
  } catch (const Error&) {
    deferred_.push_back(block);  // the next operation tries again, and reports
  }
}

void NativePolicy::absorb(Block* block, Block* neighbour) {
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

void NativePolicy::make_free(Block* block) {
  Pool& pool = pool_of(block->pool);
  FreeList& list = list_of(pool, block->stream);
  std::int64_t blocks = 0, bytes = 0;
  Block* prev = block->prev && block->prev->state == BlockState::free ? block->prev : nullptr;
  Block* next = block->next && block->next->state == BlockState::free ? block->next : nullptr;
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
  books_.inactive_split(block->pool, blocks, bytes);
}

// --- the device

// Resorts in PyTorch's order: collect garbage; a new segment; give back oversize blocks and try again; wait for every
// pending block, give back every whole segment and try again.
Block* NativePolicy::take_new(PoolKind kind, StreamId stream, std::size_t rounded) {
  std::size_t bytes = segment_size(rounded);
  if (collects_garbage()) collect_garbage();
  if (Block* block = reserve_segment(kind, stream, bytes, false)) return block;
  if (release_oversize(kind, stream, rounded)) {
    if (Block* block = reserve_segment(kind, stream, bytes, false)) return block;
  }
  release_cached();
  return reserve_segment(kind, stream, bytes, true);
}

Block* NativePolicy::reserve_segment(PoolKind kind, StreamId stream, std::size_t bytes, bool is_retry) {
  if (is_retry) books_.retried(bytes, stream);
  if (limit_ && books_.rows.reserved + bytes > *limit_) return nullptr;
  auto segment = std::make_unique<Segment>();
  segments_.reserve(segments_.size() + 1);
  Block* block = new_block();
  void* base = nullptr;
  try {
    base = device_.reserve(bytes);
  } catch (...) {
    delete_block(block);
    throw;
  }
  if (!base) {
    delete_block(block);
    return nullptr;
  }
  segment->base = base;
  segment->size = bytes;
  segment->stream = stream;
  segment->id = next_segment_++;
  segment->pool = kind;
  segment->first = block;
  segment->index = segments_.size();
  block->ptr = base;
  block->size = bytes;
  block->stream = stream;
  block->pool = kind;
  block->segment = segment.get();
  block->prev = block->next = nullptr;
  books_.segment_added(*segment);
  segments_.push_back(std::move(segment));
  return block;
}

void NativePolicy::release_segment(Block* block) {
  Segment* segment = block->segment;
  device_.release(segment->base, segment->size);
  remove_free(block);
  books_.segment_removed(*segment);
  delete_block(block);
  std::size_t index = segment->index;
  if (index + 1 != segments_.size()) {
    segments_[index] = std::move(segments_.back());
    segments_[index]->index = index;
  }
  segments_.pop_back();
}

// With a split limit: one cached block that is large enough alone, or else the largest ones until they are together.
bool NativePolicy::release_oversize(PoolKind kind, StreamId stream, std::size_t rounded) {
  if (settings_.max_split_size == AllocatorSettings::kNoSplitLimit) return false;
  FreeList& list = list_of(pool_of(kind), stream);
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
      if (block->is_split()) return;
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

void NativePolicy::release_whole_segments(Pool& pool) {
  std::vector<Block*> whole;
  for (auto& list : pool.streams) {
    list->blocks.for_each([&](Block* block) {
      if (!block->is_split()) whole.push_back(block);
    });
  }
  for (Block* block : whole) release_segment(block);
}

void NativePolicy::release_cached() {
  wait_for_events();
  release_whole_segments(pool_of(PoolKind::large));
  release_whole_segments(pool_of(PoolKind::small));
}

// --- streams

void NativePolicy::record_stream(Block* block, StreamId stream) {
  if (stream == block->stream) return;
  if (!block->stream_uses) block->stream_uses = new std::vector<StreamId>;
  auto at = std::lower_bound(block->stream_uses->begin(), block->stream_uses->end(), stream);
  if (at == block->stream_uses->end() || *at != stream) block->stream_uses->insert(at, stream);
}

// One event a stream. A stream leaves stream_uses once its event is in the queue, so that a failure can be repeated.
void NativePolicy::insert_events(Block* block) {
  while (!block->stream_uses->empty()) {
    StreamId stream = block->stream_uses->back();
    auto at = std::lower_bound(events_.begin(), events_.end(), stream,
                               [](const StreamEvents& e, StreamId s) { return e.stream < s; });
    EventId event = device_.event_record(stream);
    if (at == events_.end() || at->stream != stream) at = events_.insert(at, StreamEvents{stream, {}});
    at->queue.push_back({event, block});
    block->event_count++;
    block->stream_uses->pop_back();
  }
  delete block->stream_uses;
  block->stream_uses = nullptr;
}

void NativePolicy::retry_deferred() {
  while (!deferred_.empty()) {
    insert_events(deferred_.back());
    Block* block = deferred_.back();
    deferred_.pop_back();
    if (block->event_count == 0) event_done(block);  // its first events were done while the last could not be recorded
  }
}

void NativePolicy::event_done(Block* block) {
  if (block->event_count > 0 || block->stream_uses) return;
  books_.pending_ends(block->size);
  books_.deactivated(block->pool, block->size, block->requested);
  make_free(block);
}

void NativePolicy::process_events() {
  retry_deferred();
  for (std::size_t i = 0; i < events_.size();) {
    std::deque<Pending>& queue = events_[i].queue;
    while (!queue.empty() && device_.event_query(queue.front().event)) {
      Pending done = queue.front();
      queue.pop_front();
      device_.event_release(done.event);
      done.block->event_count--;
      event_done(done.block);
    }
    if (queue.empty()) {
      events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      i++;
    }
  }
}

void NativePolicy::wait_for_events() {
  books_.syncs++;
  retry_deferred();
  while (!events_.empty()) {
    std::deque<Pending>& queue = events_.front().queue;
    while (!queue.empty()) {
      device_.event_wait(queue.front().event);
      Pending done = queue.front();
      queue.pop_front();
      device_.event_release(done.event);
      done.block->event_count--;
      event_done(done.block);
    }
    events_.erase(events_.begin());
  }
}

// --- views

void NativePolicy::for_each_segment(const std::function<void(const Segment&)>& visit) const {
  for (const auto& segment : segments_) visit(*segment);
}

void NativePolicy::check() const {
  std::size_t listed = 0;
  for (std::size_t p = 0; p < pools_.size(); p++) {
    for (const auto& list : pools_[p].streams) {
      const Block* former = nullptr;
      list->blocks.for_each([&](const Block* block) {
        listed++;
        bool ok = block->state == BlockState::free && block->stream == list->stream &&
                  static_cast<std::size_t>(block->pool) == p && !block->stream_uses && block->event_count == 0;
        LIMPID_CHECK(ok, InternalError, "[native policy] a block of ", block->size, " bytes is in the wrong free list");
        bool ordered =
            !former || former->size < block->size || (former->size == block->size && former->order < block->order);
        LIMPID_CHECK(ordered, InternalError, "[native policy] the free list is out of order at ", block->size,
                     " bytes");
        former = block;
      });
    }
  }
  std::size_t free_blocks = 0;
  for (std::size_t i = 0; i < segments_.size(); i++) {
    LIMPID_ASSERT(segments_[i]->index == i);
    for (const Block* block = segments_[i]->first; block; block = block->next) {
      bool is_free = block->state == BlockState::free;
      free_blocks += is_free ? 1 : 0;
      bool adjacent = is_free && block->next && block->next->state == BlockState::free;
      LIMPID_CHECK(!adjacent, InternalError, "[native policy] two free blocks side by side, of ", block->size, " and ",
                   block->next->size, " bytes");
      LIMPID_ASSERT(block->pool == segments_[i]->pool && block->stream == segments_[i]->stream);
    }
  }
  LIMPID_CHECK(listed == free_blocks, InternalError, "[native policy] ", free_blocks, " blocks are free, ", listed,
               " are listed");
}

std::unique_ptr<Policy> make_native_policy(const PolicyContext& context) {
  return std::make_unique<NativePolicy>(context);
}

std::unique_ptr<Policy> make_nosplit_policy(const PolicyContext& context) {
  return std::make_unique<NativePolicy>(context, NativePolicy::Variant{.name = "nosplit", .splits = false});
}

}  // namespace limpid::memory
