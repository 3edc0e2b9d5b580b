#include <limpid/memory/stream_check.h>

#include <algorithm>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {
std::uint64_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
}  // namespace

void StreamedMemory::merge(Clock& into, const Clock& from) {
  for (auto [stream, count] : from) into[stream] = std::max(into[stream], count);
}

bool StreamedMemory::covers(const Clock& clock, const Use& use) {
  auto it = clock.find(use.stream);
  return it != clock.end() && it->second >= use.number;
}

// What the host knows to be done comes before every later launch.
void StreamedMemory::forget_known() {
  uses_.erase(std::remove_if(uses_.begin(), uses_.end(), [&](const Use& u) { return covers(host_, u); }), uses_.end());
}

void StreamedMemory::launch(StreamId stream, std::uint64_t allocation, const void* at, std::size_t bytes,
                            std::uint64_t duration) {
  Stream& s = streams_[stream];
  merge(s.clock, host_);
  std::uint64_t begin = address(at), end = begin + bytes;
  for (const Use& use : uses_) {
    if (use.allocation == allocation || use.end <= begin || end <= use.begin) continue;
    LIMPID_CHECK(covers(s.clock, use), InternalError, "[stream check] premature reuse: a kernel of stream ", stream,
                 " writes allocation ", allocation, " while kernel ", use.number, " of stream ", use.stream,
                 " may still use allocation ", use.allocation, " in the same memory");
  }
  s.launched++;
  s.clock[stream] = s.launched;  // later kernels of the stream come after this one
  s.busy_until = std::max(s.busy_until, now_) + duration;
  uses_.push_back({begin, end, allocation, stream, s.launched, s.busy_until});
}

void StreamedMemory::stream_wait(StreamId stream, EventId event) {
  auto it = events_.find(event);
  LIMPID_CHECK(it != events_.end(), DeviceError, "[memory] streamed: wait for unknown event ", event);
  Stream& s = streams_[stream];
  merge(s.clock, it->second.clock);
  s.busy_until = std::max(s.busy_until, it->second.time);
}

void StreamedMemory::freed(std::uint64_t allocation, StreamId owner) {
  Freed f{owner, 0, 0};
  for (const Use& use : uses_) {
    if (use.allocation != allocation || use.stream == owner) continue;
    f.bytes = use.end - use.begin;
    f.needed_until = std::max(f.needed_until, use.finish);
  }
  if (f.needed_until > now_) freed_.push_back(f);
}

std::size_t StreamedMemory::bytes_to_hold() const {
  std::size_t bytes = 0;
  for (const Freed& f : freed_) bytes += f.needed_until > now_ ? f.bytes : 0;
  return bytes;
}

void StreamedMemory::account_pending(std::size_t pending_bytes) {
  std::size_t hold = bytes_to_hold();
  if (pending_bytes > hold)
    overheld_ += static_cast<double>(pending_bytes - hold) * static_cast<double>(now_ - accounted_);
  accounted_ = now_;
  freed_.erase(std::remove_if(freed_.begin(), freed_.end(), [&](const Freed& f) { return f.needed_until <= now_; }),
               freed_.end());
}

void StreamedMemory::release(void* segment, std::size_t bytes) {
  memory_.release(segment, bytes);
  for (auto& [id, stream] : streams_) {
    now_ = std::max(now_, stream.busy_until);
    merge(host_, stream.clock);
  }
  forget_known();
}

EventId StreamedMemory::event_record(StreamId stream) {
  const Stream& s = streams_[stream];
  events_[next_event_] = {s.clock, std::max(now_, s.busy_until)};
  return next_event_++;
}

bool StreamedMemory::event_query(EventId event) {
  auto it = events_.find(event);
  LIMPID_CHECK(it != events_.end(), DeviceError, "[memory] streamed: query of unknown event ", event);
  if (it->second.time > now_) return false;
  merge(host_, it->second.clock);
  forget_known();
  return true;
}

void StreamedMemory::event_wait(EventId event) {
  auto it = events_.find(event);
  LIMPID_CHECK(it != events_.end(), DeviceError, "[memory] streamed: wait for unknown event ", event);
  now_ = std::max(now_, it->second.time);
  merge(host_, it->second.clock);
  forget_known();
}

void StreamedMemory::unmap(void* at, std::size_t bytes) {
  std::uint64_t begin = address(at), end = begin + bytes;
  for (const Use& use : uses_) {
    LIMPID_CHECK(use.end <= begin || end <= use.begin, InternalError, "[stream check] premature unmap: kernel ",
                 use.number, " of stream ", use.stream, " may still use allocation ", use.allocation);
  }
  memory_.unmap(at, bytes);
}

}  // namespace limpid::memory
