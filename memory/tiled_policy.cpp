#include <limpid/memory/tiled_policy.h>

#include <algorithm>
#include <set>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {
namespace {

bool is_unmapped(const Block* block) { return block && block->state == BlockState::unmapped; }

// First and last+1 tile of the mapped run that starts at `first`.
const Block* end_of_run(const Block* first) {
  while (first && !is_unmapped(first)) first = first->next;
  return first;
}

}  // namespace

TiledPolicy::~TiledPolicy() {
  // Unmapping does not wait for kernels as release() does, so wait for every stream that may use a range.
  std::set<StreamId> busy;
  for (StreamEvents& stream : events_) {
    busy.insert(stream.stream);
    for (Pending& pending : stream.queue) device_.event_release(pending.event);
  }
  for (auto& segment : segments_) {
    for (Block* block = segment->first; block; block = block->next) {
      if (segment->expandable) busy.insert(block->stream);
      if (block->stream_uses) busy.insert(block->stream_uses->begin(), block->stream_uses->end());
      delete block->stream_uses;
    }
  }
  bool any_range = std::any_of(segments_.begin(), segments_.end(), [](const auto& s) { return s->expandable; });
  for (StreamId stream : busy) {
    try {
      if (any_range) TiledPolicy::wait_for_stream(stream);
    } catch (const Error&) {  // nobody is left to tell
    }
  }
  for (auto& segment : segments_) {
    try {
      if (!segment->expandable) {
        device_.release(segment->base, segment->size);
        continue;
      }
      for (const Block* block = segment->first; block;) {
        const Block* end = end_of_run(block);
        std::size_t bytes = 0;
        for (const Block* b = block; b != end; b = b->next) bytes += b->size;
        if (bytes > 0) device_.unmap(block->ptr, bytes);
        block = end ? end->next : nullptr;
      }
      device_.range_release(segment->base, segment->size);
    } catch (const Error&) {  // nobody is left to tell
    }
  }
}

// --- segments

Segment* TiledPolicy::add_segment(void* base, std::size_t bytes, PoolKind kind, StreamId stream, bool expandable,
                                  Block* first) {
  segments_.push_back(std::make_unique<Segment>());
  Segment* segment = segments_.back().get();
  segment->base = base;
  segment->size = bytes;
  segment->stream = stream;
  segment->id = books_.next_segment++;
  segment->pool = kind;
  segment->expandable = expandable;
  segment->first = first;
  segment->index = segments_.size() - 1;
  first->ptr = base;
  first->size = bytes;
  first->stream = stream;
  first->pool = kind;
  first->segment = segment;
  first->prev = first->next = nullptr;
  return segment;
}

void TiledPolicy::forget_segment(Segment* segment) {
  std::size_t index = segment->index;
  if (index + 1 != segments_.size()) {
    segments_[index] = std::move(segments_.back());
    segments_[index]->index = index;
  }
  segments_.pop_back();
}

// Beyond these, place_of() would give two places one key.
void TiledPolicy::check_place(std::uint64_t id, std::uint64_t end) const {
  LIMPID_CHECK(end < kMostBytes, ArgumentError, "[", name(), " policy] ", format_bytes(end),
               " in one segment or range: the policies count places below ", format_bytes(kMostBytes));
  LIMPID_CHECK(id < kMostSegments, ArgumentError, "[", name(), " policy] segment number ", id,
               ": an allocator takes at most ", kMostSegments - 1, " in its life");
}

Block* TiledPolicy::reserve_segment(PoolKind kind, StreamId stream, std::size_t bytes) {
  if (!within_limit(bytes)) return nullptr;
  check_place(books_.next_segment, 0);
  Block* block = new_block();
  void* base = nullptr;
  try {
    base = device_.reserve(bytes);
    if (base && bytes >= kMostBytes) {  // asked first: what no device holds is out of memory
      device_.release(base, bytes);
      check_place(books_.next_segment, bytes);
    }
  } catch (...) {
    delete_block(block);
    throw;
  }
  if (!base) {
    delete_block(block);
    books_.refused(bytes);
    return nullptr;
  }
  block->state = BlockState::allocated;
  books_.segment_added(*add_segment(base, bytes, kind, stream, false, block));
  return block;
}

void TiledPolicy::release_segment(Block* block) {
  Segment* segment = block->segment;
  device_.release(segment->base, segment->size);
  remove_free(block);
  books_.segment_removed(*segment);
  delete_block(block);
  forget_segment(segment);
}

// --- virtual ranges

Block* TiledPolicy::reserve_range(PoolKind kind, StreamId stream, std::size_t bytes) {
  bytes = ceil_to(bytes, device_.page_size());
  check_place(books_.next_segment, 0);
  Block* tile = new_block();
  void* base = nullptr;
  try {
    base = device_.range_reserve(bytes);
  } catch (...) {
    delete_block(tile);
    throw;
  }
  if (!base) {
    delete_block(tile);
    return nullptr;
  }
  add_segment(base, bytes, kind, stream, true, tile);
  tile->state = BlockState::unmapped;
  unmapped_added(tile);
  return tile;
}

void TiledPolicy::release_range(Block* whole) {
  Segment* segment = whole->segment;
  device_.range_release(segment->base, segment->size);
  unmapped_removed(whole);
  delete_block(whole);
  forget_segment(segment);
}

bool TiledPolicy::map_front(Block* tile, std::size_t bytes) {
  check_place(tile->segment->id, offset_of(tile) + bytes);
  Block* behind = bytes < tile->size ? new_block() : nullptr;
  bool mapped = false;
  try {
    mapped = device_.map(tile->ptr, bytes);
  } catch (...) {
    if (behind) delete_block(behind);
    throw;
  }
  if (!mapped) {
    if (behind) delete_block(behind);
    books_.refused(bytes);
    return false;
  }
  unmapped_removed(tile);
  tile->state = BlockState::allocated;
  if (behind) {
    behind->ptr = static_cast<char*>(tile->ptr) + bytes;
    behind->size = tile->size - bytes;
    behind->stream = tile->stream;
    behind->pool = tile->pool;
    behind->segment = tile->segment;
    behind->prev = tile;
    behind->next = tile->next;
    if (behind->next) behind->next->prev = behind;
    tile->next = behind;
    tile->size = bytes;
    behind->state = BlockState::unmapped;
    unmapped_added(behind);
  }
  books_.segment_grown(*tile->segment, bytes);
  return true;
}

void TiledPolicy::unmap(Block* block, bool idle) {
  if (!idle) wait_for_stream(block->stream);
  device_.unmap(block->ptr, block->size);
  books_.segment_shrunk(*block->segment, block->size);
  block->state = BlockState::unmapped;
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_unmapped(neighbour)) continue;
    unmapped_removed(neighbour);
    absorb(block, neighbour);
  }
  unmapped_added(block);
}

void TiledPolicy::wait_for_stream(StreamId stream) {
  EventId event = device_.event_record(stream);
  try {
    device_.event_wait(event);
  } catch (...) {
    device_.event_release(event);
    throw;
  }
  device_.event_release(event);
}

// --- blocks

void TiledPolicy::add_spare_blocks() {
  constexpr std::size_t kChunk = 128;
  block_chunks_.push_back(std::make_unique<Block[]>(kChunk));
  Block* blocks = block_chunks_.back().get();
  for (std::size_t i = 0; i < kChunk; i++) {
    blocks[i].next = i + 1 < kChunk ? blocks + i + 1 : nullptr;
  }
  spare_blocks_ = blocks;
}

void TiledPolicy::count_free(Block* block, std::int64_t sign) {
  sign > 0 ? books_.free_added(*block) : books_.free_removed(*block);
  if (block->is_split() && !block->segment->expandable) {
    books_.inactive_split(block->pool, sign, sign * static_cast<std::int64_t>(block->size));
  }
}

void TiledPolicy::free(Block* block) noexcept {
  if (LIMPID_LIKELY(!block->stream_uses)) {
    books_.deactivated(block->pool, block->size, block->requested);
    take_back(block);
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

void TiledPolicy::release_cached() {
  wait_for_events();
  release_free();
}

void TiledPolicy::release_to(std::uint64_t keep) {
  if (keep == 0) return release_cached();
  wait_for_events();
  std::vector<Block*> blocks;
  for (const auto& segment : segments_) {
    for (Block* block = segment->first; block; block = block->next) {
      if (is_free(block)) blocks.push_back(block);
    }
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) {
    return a->size != b->size ? a->size > b->size : comes_before(a, b);
  });
  for (Block* block : blocks) {
    if (books_.rows.reserved <= keep) return;
    give_back(block, books_.rows.reserved - keep);
  }
}

void TiledPolicy::give_back(Block* block, std::size_t most) {
  if (!block->segment->expandable && !block->is_split() && block->size <= most) release_segment(block);
}

// --- streams

void TiledPolicy::record_stream(Block* block, StreamId stream) {
  if (stream == block->stream) return;
  if (!block->stream_uses) block->stream_uses = new std::vector<StreamId>;
  auto at = std::lower_bound(block->stream_uses->begin(), block->stream_uses->end(), stream);
  if (at == block->stream_uses->end() || *at != stream) block->stream_uses->insert(at, stream);
}

// One event a stream. A stream leaves stream_uses once its event is in the queue, so that a failure can be repeated.
void TiledPolicy::insert_events(Block* block) {
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

void TiledPolicy::retry_deferred() {
  while (!deferred_.empty()) {
    insert_events(deferred_.back());  // one event at least: that of the stream which failed
    deferred_.pop_back();
  }
}

void TiledPolicy::event_done(Block* block) {
  if (block->event_count > 0 || block->stream_uses) return;
  books_.pending_ends(block->size);
  books_.deactivated(block->pool, block->size, block->requested);
  take_back(block);
}

void TiledPolicy::process_events() {
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

void TiledPolicy::wait_for_events() {
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

// A range shows as one segment for each mapped run.
void TiledPolicy::for_each_segment(const std::function<void(const Segment&)>& visit) const {
  for (const auto& segment : segments_) {
    if (!segment->expandable) {
      visit(*segment);
      continue;
    }
    for (Block* block = segment->first; block;) {
      if (is_unmapped(block)) {
        block = block->next;
        continue;
      }
      Segment run = *segment;
      run.base = block->ptr;
      run.first = block;
      run.size = 0;
      for (; block && !is_unmapped(block); block = block->next) run.size += block->size;
      run.end = block;
      visit(run);
    }
  }
}

void TiledPolicy::check_tiles(std::size_t listed, bool (*may_touch)(const Block*, const Block*)) const {
  std::size_t free_blocks = 0;
  for (std::size_t i = 0; i < segments_.size(); i++) {
    const Segment& segment = *segments_[i];
    LIMPID_ASSERT(segment.index == i);
    std::size_t bytes = 0;
    for (const Block* block = segment.first; block; block = block->next) {
      LIMPID_ASSERT(block->segment == &segment && block->pool == segment.pool);
      LIMPID_ASSERT(offset_of(block) == bytes && block->size % kMinBlock == 0);
      LIMPID_ASSERT(block->next == nullptr || block->next->prev == block);
      LIMPID_ASSERT(segment.expandable || block->state != BlockState::unmapped);
      LIMPID_ASSERT(!is_unmapped(block) || !is_unmapped(block->next));
      bytes += block->size;
      if (!is_free(block)) continue;
      free_blocks++;
      LIMPID_ASSERT(!block->stream_uses && block->event_count == 0);
      bool adjacent = is_free(block->next) && !(may_touch && may_touch(block, block->next));
      LIMPID_CHECK(!adjacent, InternalError, "[", name(), " policy] two free blocks side by side, of ", block->size,
                   " and ", block->next->size, " bytes");
    }
    LIMPID_ASSERT(bytes == segment.size);
  }
  LIMPID_CHECK(listed == free_blocks, InternalError, "[", name(), " policy] ", free_blocks, " blocks are free, ",
               listed, " are listed");
}

}  // namespace limpid::memory
