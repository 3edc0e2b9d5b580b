// Books: everything an allocator counts, in one place: PyTorch's statistics, the rows of the ledger with their peaks,
// and the trace. The facade and the policy write here, under the allocator's lock; a policy has no counters of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <limpid/base/macros.h>
#include <limpid/base/scope.h>
#include <limpid/memory/block.h>
#include <limpid/memory/ledger.h>
#include <limpid/memory/stats.h>
#include <limpid/memory/trace.h>

namespace limpid::memory {

// Current, peak and total of one metric: [0] small pool, [1] large pool; the peak of both together is kept apart.
struct Counter {
  std::array<std::int64_t, 2> current{};
  std::array<std::int64_t, 2> peak{};
  std::array<std::int64_t, 2> increased{};
  std::int64_t peak_all = 0;

  LIMPID_INLINE void add(PoolKind pool, std::int64_t n) {
    auto p = static_cast<std::size_t>(pool);
    current[p] += n;
    increased[p] += n;
    peak[p] = std::max(peak[p], current[p]);
    peak_all = std::max(peak_all, current[0] + current[1]);
  }
  LIMPID_INLINE void sub(PoolKind pool, std::int64_t n) { current[static_cast<std::size_t>(pool)] -= n; }
  // A net change: one increase or one decrease.
  LIMPID_INLINE void change(PoolKind pool, std::int64_t n) { n > 0 ? add(pool, n) : sub(pool, -n); }
  void reset_peak() {
    peak = current;
    peak_all = current[0] + current[1];
  }
};

inline void increase(Stat& stat, std::int64_t n) {
  stat.current += n;
  stat.allocated += n;
  stat.peak = std::max(stat.peak, stat.current);
}
inline void decrease(Stat& stat, std::int64_t n) {
  stat.current -= n;
  stat.freed += n;
}

class Books {
 public:
  explicit Books(SpinLock& lock) : trace(lock) {}

  // --- for the policy
  void segment_added(const Segment& segment) {
    rows.reserved += segment.size;
    metric(Metric::segment).add(segment.pool, 1);
    metric(Metric::reserved_bytes).add(segment.pool, static_cast<std::int64_t>(segment.size));
    if (segment.size >= oversize) increase(oversize_segments, 1);
    device_allocs++;
    device_changed = true;
    trace.append(TraceKind::segment_alloc, segment.id, segment.size, Role::other, 0, segment.stream, current_scope());
  }
  void segment_removed(const Segment& segment) {
    rows.reserved -= segment.size;
    metric(Metric::segment).sub(segment.pool, 1);
    metric(Metric::reserved_bytes).sub(segment.pool, static_cast<std::int64_t>(segment.size));
    if (segment.size >= oversize) decrease(oversize_segments, 1);
    device_frees++;
    device_changed = true;
    trace.append(TraceKind::segment_free, segment.id, segment.size, Role::other, 0, segment.stream, current_scope());
  }
  // A virtual range gets or loses memory. As in PyTorch it does not count as a segment.
  void segment_grown(const Segment& segment, std::size_t bytes) {
    rows.reserved += bytes;
    metric(Metric::reserved_bytes).add(segment.pool, static_cast<std::int64_t>(bytes));
    device_allocs++;
    device_changed = true;
    trace.append(TraceKind::segment_map, segment.id, bytes, Role::other, 0, segment.stream, current_scope());
  }
  void segment_shrunk(const Segment& segment, std::size_t bytes) {
    rows.reserved -= bytes;
    metric(Metric::reserved_bytes).sub(segment.pool, static_cast<std::int64_t>(bytes));
    device_frees++;
    device_changed = true;
    trace.append(TraceKind::segment_unmap, segment.id, bytes, Role::other, 0, segment.stream, current_scope());
  }
  // A block enters or leaves the set of free blocks.
  LIMPID_INLINE void free_added(const Block& block) {
    (block.is_split() ? rows.free_in_used : rows.free_whole) += block.size;
  }
  LIMPID_INLINE void free_removed(const Block& block) {
    (block.is_split() ? rows.free_in_used : rows.free_whole) -= block.size;
  }
  LIMPID_INLINE void inactive_split(PoolKind pool, std::int64_t blocks, std::int64_t bytes) {
    if (blocks != 0) metric(Metric::inactive_split).change(pool, blocks);
    if (bytes != 0) metric(Metric::inactive_split_bytes).change(pool, bytes);
  }
  // A block, freed by its owner, has to wait; and has waited. `size` is that of the block when it was freed.
  void pending_begins(std::size_t size) { rows.pending_free += size; }
  void pending_ends(std::size_t size) { rows.pending_free -= size; }
  LIMPID_INLINE void deactivated(PoolKind pool, std::size_t size, std::size_t requested) {
    metric(Metric::active).sub(pool, 1);
    metric(Metric::active_bytes).sub(pool, static_cast<std::int64_t>(size));
    metric(Metric::requested_bytes).sub(pool, static_cast<std::int64_t>(requested));
  }
  // The device or the limit said no.
  void refused(std::size_t bytes) { device_refused = bytes; }
  void retried(std::size_t segment_bytes, StreamId stream) {
    retries++;
    trace.append(TraceKind::retry, 0, segment_bytes, Role::other, 0, stream, current_scope());
  }

  // --- for the facade
  LIMPID_INLINE void allocated(const Block& block, const Scope& scope) {
    auto size = static_cast<std::int64_t>(block.size);
    metric(Metric::allocation).add(block.pool, 1);
    metric(Metric::allocated_bytes).add(block.pool, size);
    metric(Metric::active).add(block.pool, 1);
    metric(Metric::active_bytes).add(block.pool, size);
    metric(Metric::requested_bytes).add(block.pool, static_cast<std::int64_t>(block.requested));
    if (LIMPID_UNLIKELY(block.size >= oversize)) increase(oversize_allocations, 1);
    rows.live[static_cast<std::size_t>(block.role)] += block.requested;
    rows.live_total += block.requested;
    rows.rounding += block.rounded - block.requested;
    rows.slack += block.size - block.rounded;
    if (LIMPID_UNLIKELY(rows.live_total > peak_live.live_total)) {
      peak_live = rows;
      peak_live_scope = scope;
    }
    trace.append(TraceKind::alloc, block.id, block.requested, block.role, block.name, block.stream, scope);
  }
  LIMPID_INLINE void freed(const Block& block, const Scope& scope) {
    metric(Metric::allocation).sub(block.pool, 1);
    metric(Metric::allocated_bytes).sub(block.pool, static_cast<std::int64_t>(block.size));
    if (LIMPID_UNLIKELY(block.size >= oversize)) decrease(oversize_allocations, 1);
    rows.live[static_cast<std::size_t>(block.role)] -= block.requested;
    rows.live_total -= block.requested;
    rows.rounding -= block.rounded - block.requested;
    rows.slack -= block.size - block.rounded;
    trace.append(TraceKind::free, block.id, block.requested, block.role, block.name, block.stream, scope);
  }
  // At the end of every operation that called the device: the instant of peak reserved is a state between operations.
  void note_reserved_peak() {
    if (rows.reserved > peak_reserved.reserved) {
      peak_reserved = rows;
      peak_reserved_scope = current_scope();
    }
  }
  void reset_peaks();
  Stats stats() const;

  Counter& metric(Metric m) { return metrics[static_cast<std::size_t>(m)]; }

  Trace trace;
  LedgerRows rows;
  LedgerRows peak_live;      // rows when live_total was highest
  LedgerRows peak_reserved;  // rows when reserved was highest
  Scope peak_live_scope;
  Scope peak_reserved_scope;
  std::array<Counter, kMetricCount> metrics;
  Stat oversize_allocations;
  Stat oversize_segments;
  std::int64_t retries = 0, ooms = 0, syncs = 0, device_allocs = 0, device_frees = 0;
  std::uint64_t next_segment = 1;   // id; one count for all policies that share the books
  std::size_t oversize = SIZE_MAX;  // blocks and segments of this size and more count as oversize
  std::uint64_t device_refused = 0;  // bytes of the last refused call since one succeeded
  bool device_changed = false;
};

}  // namespace limpid::memory
