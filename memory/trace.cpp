#include <limpid/memory/trace.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include <limpid/base/error.h>

namespace limpid::memory {

const char* to_string(TraceKind kind) {
  switch (kind) {
    case TraceKind::alloc:
      return "alloc";
    case TraceKind::free:
      return "free";
    case TraceKind::role:
      return "role";
    case TraceKind::name:
      return "name";
    case TraceKind::record_stream:
      return "record_stream";
    case TraceKind::segment_alloc:
      return "segment_alloc";
    case TraceKind::segment_free:
      return "segment_free";
    case TraceKind::retry:
      return "retry";
    case TraceKind::oom:
      return "oom";
    case TraceKind::segment_map:
      return "segment_map";
    case TraceKind::segment_unmap:
      return "segment_unmap";
    case TraceKind::empty_cache:
      return "empty_cache";
  }
  return "?";
}

void Trace::make_ring() { ring_.reset(new TraceRecord[mask_ + 1]); }

void Trace::half_full() {
  if (sink_) spill();
}

// At most half a ring is unseen when this runs, so the records are in at most two pieces.
void Trace::spill() {
  while (spilled_ < total_) {
    std::size_t at = static_cast<std::size_t>(spilled_) & mask_;
    std::size_t count = std::min<std::size_t>(static_cast<std::size_t>(total_ - spilled_), mask_ + 1 - at);
    spilled_ += count;
    sink_(ring_.get() + at, count);
  }
}

std::uint64_t Trace::total() const {
  std::lock_guard guard(lock_);
  return total_;
}

std::size_t Trace::capacity() const {
  std::lock_guard guard(lock_);
  return mask_ + 1;
}

std::vector<TraceRecord> Trace::records() const {
  std::lock_guard guard(lock_);
  std::uint64_t capacity = mask_ + 1;
  std::uint64_t oldest = std::max(first_, total_ > capacity ? total_ - capacity : 0);
  std::vector<TraceRecord> out;
  out.reserve(static_cast<std::size_t>(total_ - oldest));
  for (std::uint64_t i = oldest; i < total_; i++) out.push_back(ring_[static_cast<std::size_t>(i) & mask_]);
  return out;
}

void Trace::set_capacity(std::size_t records) {
  LIMPID_CHECK(records >= 2 && std::has_single_bit(records), ArgumentError,
               "[trace] capacity must be a power of two, at least 2, got ", records);
  std::lock_guard guard(lock_);
  if (sink_) spill();
  ring_.reset();
  mask_ = records - 1;
  first_ = total_;
}

void Trace::set_sink(Sink sink) {
  std::lock_guard guard(lock_);
  start_sink(std::move(sink), false);
}

void Trace::start_sink(Sink sink, bool with_past) {
  if (sink_) spill();
  sink_ = std::move(sink);
  spilled_ = with_past ? 0 : total_;
  if (sink_) spill();
}

void Trace::flush() {
  std::lock_guard guard(lock_);
  if (sink_) spill();
}

}  // namespace limpid::memory
