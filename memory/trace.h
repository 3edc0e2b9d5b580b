// The always-on record of what the allocator did: a ring of fixed-size, address-free records (ids and interned names,
// no pointers), so that a trace can be replayed under any policy. A sink receives every record once, in halves of the
// ring. Appending is the allocator's business; everything public takes the allocator's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <limpid/base/macros.h>
#include <limpid/base/scope.h>
#include <limpid/memory/block.h>
#include <limpid/memory/role.h>
#include <limpid/memory/spin_lock.h>

namespace limpid::memory {

enum class TraceKind : std::uint8_t {
  alloc,          // id of the allocation, requested bytes
  free,           // id, requested bytes
  role,           // id: the block now has this role
  name,           // id: the block now has this name
  record_stream,  // id: the block is also used on this stream
  segment_alloc,  // id of the segment, its bytes
  segment_free,   // id of the segment, its bytes
  retry,        // the device was out of memory; the cache was given back and the call made again; bytes of the segment
  oom,          // the request failed; requested bytes
  segment_map,  // id of an expandable segment: it grew by these bytes
  segment_unmap,  // id of an expandable segment: it gave these bytes back
  empty_cache,    // the owner asked for the cache to be given back, down to so many reserved bytes
};
inline constexpr int kTraceKindCount = 12;
const char* to_string(TraceKind kind);

struct TraceRecord {
  std::uint64_t id;
  std::uint64_t bytes;
  StreamId stream;
  NameId name, op, module;
  std::uint32_t step, micro_batch;
  TraceKind kind;
  Role role;
  Phase phase;
  std::uint8_t unused;
};
static_assert(sizeof(TraceRecord) == 48);

class Trace {
 public:
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 16;
  // Called under the allocator's lock with consecutive records: it must not allocate from that allocator.
  using Sink = std::function<void(const TraceRecord* records, std::size_t count)>;

  explicit Trace(SpinLock& lock) : lock_(lock) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  std::uint64_t total() const;  // records ever appended
  std::size_t capacity() const;
  std::vector<TraceRecord> records() const;  // those still in the ring, oldest first
  void set_capacity(std::size_t records);    // a power of two, at least 2; forgets what the ring holds
  void set_sink(Sink sink);                  // an empty function removes it; records from now on go to the sink
  void flush();  // gives the sink what it has not seen yet

  // For the allocator, under its lock.
  bool is_whole() const { return first_ == 0 && total_ <= mask_ + 1; }  // the ring holds every record ever appended
  template <class Visit>
  void visit(Visit&& each) const {  // what the ring holds, newest first
    for (std::uint64_t i = total_; i > first_ && total_ - i <= mask_; i--)
      each(ring_[static_cast<std::size_t>(i - 1) & mask_]);
  }
  void start_sink(Sink sink, bool with_past);  // with_past: the sink gets at once what the ring holds
  LIMPID_INLINE void append(TraceKind kind, std::uint64_t id, std::uint64_t bytes, Role role, NameId name,
                            StreamId stream, const Scope& scope) {
    if (LIMPID_UNLIKELY(!ring_)) make_ring();
    TraceRecord& r = ring_[static_cast<std::size_t>(total_) & mask_];
    r.id = id;
    r.bytes = bytes;
    r.stream = stream;
    r.name = name;
    r.op = scope.op;
    r.module = scope.module;
    r.step = scope.step;
    r.micro_batch = scope.micro_batch;
    r.kind = kind;
    r.role = role;
    r.phase = scope.phase;
    r.unused = 0;
    total_++;
    if (LIMPID_UNLIKELY((total_ & (mask_ >> 1)) == 0)) half_full();
  }

 private:
  LIMPID_NOINLINE void make_ring();
  LIMPID_NOINLINE void half_full();
  void spill();

  SpinLock& lock_;
  std::unique_ptr<TraceRecord[]> ring_;
  std::size_t mask_ = kDefaultCapacity - 1;
  std::uint64_t total_ = 0;
  std::uint64_t first_ = 0;    // oldest record that belongs to the present ring
  std::uint64_t spilled_ = 0;  // what the sink has seen
  Sink sink_;
};

}  // namespace limpid::memory
