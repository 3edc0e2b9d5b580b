#include <limpid/memory/paged_policy.h>

#include <algorithm>

#include <limpid/base/error.h>

namespace limpid::memory {

PagedPolicy::PagedPolicy(const PolicyContext& context, const Kind& kind)
    : NativePolicy(context, Variant{.name = kind.name}), kind_(kind) {
  LIMPID_CHECK(device_.has_virtual_ranges(), ArgumentError, "[", kind.name, " policy] ", device_.name(),
               " has no virtual ranges");
  LIMPID_CHECK(!ranges_, ArgumentError, "[", kind.name, " policy] does not go together with expandable_segments");
  large_page_ = kPage;
}

std::size_t PagedPolicy::round(std::size_t bytes) const {
  std::size_t rounded = NativePolicy::round(bytes);
  return rounded <= kSmallRequest ? rounded : ceil_to(rounded, kPage);
}

bool PagedPolicy::should_split(const Block& block, std::size_t rounded) const {
  std::size_t rest = block.size - rounded;
  return rest >= (block.pool == PoolKind::small ? kMinBlock : kPage);
}

Block* PagedPolicy::take_new(PoolKind kind, StreamId stream, std::size_t rounded) {
  if (kind == PoolKind::small && !kind_.every_pool) return NativePolicy::take_new(kind, stream, rounded);
  std::size_t bytes = ceil_to(rounded, kPage);
  if (bytes >= kind_.least) unmap_free_pages(kind, stream, bytes);
  if (Block* block = new_range(kind, stream, bytes)) return block;
  release_cached();
  books_.retried(bytes, stream);
  return new_range(kind, stream, bytes);
}

Block* PagedPolicy::new_range(PoolKind kind, StreamId stream, std::size_t bytes) {
  if (!within_limit(bytes)) return nullptr;
  Block* tile = reserve_range(kind, stream, bytes);
  if (!tile) {
    books_.refused(bytes);
    return nullptr;
  }
  bool mapped = false;
  try {
    mapped = map_front(tile, bytes);
  } catch (...) {
    release_range(tile);
    throw;
  }
  if (mapped) return tile;
  release_range(tile);
  return nullptr;
}

// A range whose release failed is bare: nothing is mapped in it, and no request would use it again. Now it may go.
void PagedPolicy::release_free() {
  NativePolicy::release_free();
  for (std::size_t i = segments_.size(); i-- > 0;) {  // the last one takes the place of one that goes
    Block* first = segments_[i]->first;
    if (first->state == BlockState::unmapped && !first->next) release_range(first);
  }
}

// Unmaps up to `bytes` of whole free pages: of this stream and pool, largest block first, then of all others.
void PagedPolicy::unmap_free_pages(PoolKind kind, StreamId stream, std::size_t bytes) {
  std::vector<Block*> blocks;
  auto gather = [&](StreamList& list) {
    std::size_t first = blocks.size();
    list.blocks.for_each([&](Block* block) {
      if (block->size >= kPage && block->segment->expandable) blocks.push_back(block);
    });
    std::reverse(blocks.begin() + static_cast<std::ptrdiff_t>(first), blocks.end());
  };
  gather(list_of(pool_of(kind), stream));
  if (kind_.every_pool) {
    for (Pool& pool : pools_) {
      for (auto& list : pool.streams) {
        if (&pool == &pool_of(kind) && list->stream == stream) continue;
        if (list->stream == stream || is_idle(list->stream)) gather(*list);
      }
    }
  }
  for (std::size_t i = 0; i < blocks.size() && bytes > 0; i++) bytes -= unmap_pages(blocks[i], kPage, bytes);
}

bool PagedPolicy::is_idle(StreamId stream) {
  EventId event = device_.event_record(stream);
  bool idle = false;
  try {
    idle = device_.event_query(event);
  } catch (...) {
    device_.event_release(event);
    throw;
  }
  device_.event_release(event);
  return idle;
}

std::unique_ptr<Policy> make_stitch_policy(const PolicyContext& context) {
  return std::make_unique<PagedPolicy>(context, PagedPolicy::Kind{"stitch", context.settings.stitch_limit, false});
}

std::unique_ptr<Policy> make_async_policy(const PolicyContext& context) {
  return std::make_unique<PagedPolicy>(context, PagedPolicy::Kind{"async", 0, true});
}

}  // namespace limpid::memory
