// The recount: everything that Books keeps incrementally, counted anew from the blocks of every segment.
#include <array>
#include <mutex>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>

namespace limpid::memory {
namespace {

void same(const char* what, std::uint64_t kept, std::uint64_t counted) {
  LIMPID_CHECK(kept == counted, InternalError, "[allocator] ", what, " is kept as ", kept, ", counted as ", counted);
}

}  // namespace

void Allocator::check() const {
  std::lock_guard guard(lock_);
  LedgerRows rows;
  std::array<std::array<std::int64_t, 2>, kMetricCount> metrics{};
  std::int64_t oversize_blocks = 0, oversize_segments = 0;
  for_each_segment([&](const Segment& segment, std::uint8_t role_pool) {
    auto pool = static_cast<std::size_t>(segment.pool);
    auto count = [&](Metric m, std::size_t n) {
      metrics[static_cast<std::size_t>(m)][pool] += static_cast<std::int64_t>(n);
    };
    rows.reserved += segment.size;
    if (!segment.expandable) count(Metric::segment, 1);  // as in PyTorch: a virtual range is no segment
    count(Metric::reserved_bytes, segment.size);
    if (segment.size >= books_.oversize && !segment.expandable) oversize_segments++;
    bool starts = segment.first && (!segment.first->prev || segment.first->prev->state == BlockState::unmapped);
    LIMPID_CHECK(starts, InternalError, "[allocator] a segment has no first block");
    const char* at = static_cast<const char*>(segment.base);
    for (const Block* b = segment.first; b != segment.end; b = b->next) {
      LIMPID_CHECK(
          b->ptr == at, InternalError, "[allocator] segment ", segment.id, " is not tiled: a block of ", b->size,
          " bytes stands at offset ",
          static_cast<std::uint64_t>(static_cast<const char*>(b->ptr) - static_cast<const char*>(segment.base)));
      LIMPID_CHECK(b->size > 0 && b->segment->id == segment.id, InternalError, "[allocator] a block of ", b->size,
                   " bytes is not of its segment");
      LIMPID_CHECK(!b->next || b->next->prev == b, InternalError, "[allocator] broken links after a block of ", b->size,
                   " bytes");
      at += b->size;
      if (b->state == BlockState::free) {
        (b->is_split() ? rows.free_in_used : rows.free_whole) += b->size;
        if (b->is_split() && !segment.expandable) {
          count(Metric::inactive_split, 1);
          count(Metric::inactive_split_bytes, b->size);
        }
        continue;
      }
      LIMPID_CHECK(b->requested > 0 && b->requested <= b->rounded && b->rounded <= b->size, InternalError,
                   "[allocator] a block of ", b->size, " bytes was asked for as ", b->requested, ", rounded to ",
                   b->rounded);
      LIMPID_CHECK(b->role_pool == role_pool, InternalError, "[allocator] a block of role pool ", b->role_pool,
                   " lies in pool ", role_pool);
      count(Metric::active, 1);
      count(Metric::active_bytes, b->size);
      count(Metric::requested_bytes, b->requested);
      if (b->state == BlockState::pending) {
        rows.pending_free += b->size;
        continue;
      }
      count(Metric::allocation, 1);
      count(Metric::allocated_bytes, b->size);
      if (b->size >= books_.oversize) oversize_blocks++;
      rows.live[static_cast<std::size_t>(b->role)] += b->requested;
      rows.live_total += b->requested;
      rows.rounding += b->rounded - b->requested;
      rows.slack += b->size - b->rounded;
    }
    LIMPID_CHECK(at == static_cast<const char*>(segment.base) + segment.size, InternalError, "[allocator] segment ",
                 segment.id, " of ", segment.size, " bytes is not filled by its blocks");
  });
  for (int m = 0; m < kMetricCount; m++) {
    for (std::size_t p = 0; p < 2; p++) {
      const Counter& kept = books_.metrics[static_cast<std::size_t>(m)];
      same(to_string(static_cast<Metric>(m)), static_cast<std::uint64_t>(kept.current[p]),
           static_cast<std::uint64_t>(metrics[static_cast<std::size_t>(m)][p]));
      LIMPID_ASSERT(kept.peak[p] >= kept.current[p] && kept.peak_all >= kept.current[0] + kept.current[1]);
    }
  }
  const LedgerRows& kept = books_.rows;
  for (int r = 0; r < kRoleCount; r++) {
    same(to_string(static_cast<Role>(r)), kept.live[static_cast<std::size_t>(r)],
         rows.live[static_cast<std::size_t>(r)]);
  }
  same("live", kept.live_total, rows.live_total);
  same("rounding", kept.rounding, rows.rounding);
  same("slack", kept.slack, rows.slack);
  same("pending free", kept.pending_free, rows.pending_free);
  same("free in used segments", kept.free_in_used, rows.free_in_used);
  same("free whole segments", kept.free_whole, rows.free_whole);
  same("reserved", kept.reserved, rows.reserved);
  same("oversize allocations", static_cast<std::uint64_t>(books_.oversize_allocations.current),
       static_cast<std::uint64_t>(oversize_blocks));
  same("oversize segments", static_cast<std::uint64_t>(books_.oversize_segments.current),
       static_cast<std::uint64_t>(oversize_segments));
  complete(books_.rows, current_scope()).check();
  for (const auto& policy : policies_) policy->check();
}

}  // namespace limpid::memory
