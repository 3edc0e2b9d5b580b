#include <limpid/memory/simulated_memory.h>

#include <iterator>

#include <limpid/base/error.h>
#include <limpid/base/format.h>

namespace limpid::memory {
namespace {
constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kSegments = 0x700000000000, kFarRanges = std::uint64_t{1} << 60;
std::uint64_t round_to_page(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
std::uint64_t address(void* p) { return reinterpret_cast<std::uintptr_t>(p); }
}  // namespace

SimulatedMemory::SimulatedMemory(std::uint64_t capacity, std::string name)
    : name_(std::move(name)), device_capacity_(capacity), capacity_(capacity) {
  LIMPID_CHECK(capacity > 0, ArgumentError, "[memory] a simulated device needs a capacity above 0");
}

void SimulatedMemory::set_capacity(std::uint64_t bytes) {
  if (bytes == 0) bytes = device_capacity_;
  LIMPID_CHECK(used_ <= bytes, ArgumentError, "[memory] ", name_, " has handed out ", format_bytes(used_),
               ", more than the capacity asked for, ", format_bytes(bytes));
  capacity_ = bytes;
}

void SimulatedMemory::fail_if_told(const char* call) {
  LIMPID_CHECK(!fails(), DeviceError, "[memory] ", name_, ": injected failure of ", call);
}

void* SimulatedMemory::reserve(std::size_t bytes) {
  calls_.reserve++;
  std::uint64_t rounded = round_to_page(bytes);
  if (fails() || rounded < bytes || rounded > capacity_ - used_) return nullptr;
  std::uint64_t segment = next_segment_;
  segments_[segment] = rounded;
  next_segment_ += rounded + kPage;
  used_ += rounded;
  return reinterpret_cast<void*>(segment);
}

void SimulatedMemory::release(void* segment, std::size_t bytes) {
  calls_.release++;
  fail_if_told("release");
  auto it = segments_.find(address(segment));
  LIMPID_CHECK(it != segments_.end() && it->second == round_to_page(bytes), DeviceError, "[memory] ", name_,
               ": release of a segment that was never reserved with ", bytes, " bytes");
  used_ -= it->second;
  segments_.erase(it);
}

EventId SimulatedMemory::event_record(StreamId) {
  calls_.event_record++;
  fail_if_told("event_record");
  events_[next_event_] = false;
  return next_event_++;
}

bool SimulatedMemory::event_query(EventId event) {
  calls_.event_query++;
  fail_if_told("event_query");
  auto it = events_.find(event);
  LIMPID_CHECK(it != events_.end(), DeviceError, "[memory] ", name_, ": query of unknown event ", event);
  return it->second || !events_pending_;
}

void SimulatedMemory::event_wait(EventId event) {
  calls_.event_wait++;
  fail_if_told("event_wait");
  auto it = events_.find(event);
  LIMPID_CHECK(it != events_.end(), DeviceError, "[memory] ", name_, ": wait for unknown event ", event);
  it->second = true;
}

void SimulatedMemory::event_release(EventId event) noexcept { events_.erase(event); }

void SimulatedMemory::complete_events() {
  for (auto& [event, reached] : events_) reached = true;
}

void* SimulatedMemory::range_reserve(std::size_t bytes) {
  calls_.range_reserve++;
  const std::uint64_t rounded = round_to_page(bytes);
  if (fails() || rounded < bytes) return nullptr;
  if (next_range_ < kSegments && rounded > kSegments - next_range_) next_range_ = kFarRanges;
  if (rounded > UINT64_MAX - kPage - next_range_) return nullptr;
  const std::uint64_t range = next_range_;
  ranges_[range] = rounded;
  next_range_ += rounded + kPage;
  return reinterpret_cast<void*>(range);
}

void SimulatedMemory::range_release(void* range, std::size_t bytes) {
  calls_.range_release++;
  fail_if_told("range_release");
  auto it = ranges_.find(address(range));
  LIMPID_CHECK(it != ranges_.end() && it->second == round_to_page(bytes), DeviceError, "[memory] ", name_,
               ": release of a range that was never reserved with ", bytes, " bytes");
  auto run = mapped_.lower_bound(it->first);
  LIMPID_CHECK(run == mapped_.end() || run->first >= it->first + it->second, DeviceError, "[memory] ", name_,
               ": release of a range with mapped pages");
  ranges_.erase(it);
}

bool SimulatedMemory::map(void* at, std::size_t bytes) {
  calls_.map++;
  if (fails() || bytes > capacity_ - used_) return false;
  LIMPID_CHECK(address(at) % kPage == 0 && bytes % kPage == 0, DeviceError, "[memory] ", name_,
               ": map of something that is not whole pages of ", kPage, " bytes");
  auto range = ranges_.upper_bound(address(at));
  bool inside = range != ranges_.begin();
  if (inside) {
    --range;
    inside = address(at) + bytes <= range->first + range->second;
  }
  LIMPID_CHECK(inside, DeviceError, "[memory] ", name_, ": map outside every range");
  const std::uint64_t begin = address(at), end = begin + bytes;
  auto behind = mapped_.lower_bound(end);  // the first run that begins at or behind the new one
  auto before = behind == mapped_.begin() ? mapped_.end() : std::prev(behind);
  LIMPID_CHECK(before == mapped_.end() || before->second <= begin, DeviceError, "[memory] ", name_,
               ": map of a page that is mapped already");
  used_ += bytes;
  if (bytes == 0) return true;
  std::uint64_t run_end = end;
  if (behind != mapped_.end() && behind->first == end) {
    run_end = behind->second;
    mapped_.erase(behind);
  }
  if (before != mapped_.end() && before->second == begin) {
    before->second = run_end;
  } else {
    mapped_[begin] = run_end;
  }
  return true;
}

void SimulatedMemory::unmap(void* at, std::size_t bytes) {
  calls_.unmap++;
  fail_if_told("unmap");
  if (bytes == 0) return;
  const std::uint64_t begin = address(at), end = begin + bytes;
  auto run = mapped_.upper_bound(begin);
  const bool inside = run != mapped_.begin() && end <= (--run)->second;
  LIMPID_CHECK(inside, DeviceError, "[memory] ", name_, ": unmap of a page that is not mapped");
  const std::uint64_t run_end = run->second;
  if (run->first == begin) {
    mapped_.erase(run);
  } else {
    run->second = begin;
  }
  if (end < run_end) mapped_[end] = run_end;
  used_ -= bytes;
}

}  // namespace limpid::memory
