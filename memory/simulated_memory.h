// A device of addresses only: nothing may be read or written there. It has a capacity, events that complete at once or
// when told, call counters, and a fault to inject. Address rule, that of the reference logs in tests/golden/allocator:
// segments go upward from 0x700000000000 in steps of the size rounded to 2 MiB plus 2 MiB and are never used again;
// virtual ranges likewise from 0x600000000000; one that would reach the segments, and those after it, from 2^60 on.
#pragma once

#include <map>

#include <limpid/memory/device.h>

namespace limpid::memory {

class SimulatedMemory : public MemoryDevice {
 public:
  struct Calls {
    std::int64_t reserve = 0, release = 0, map = 0, unmap = 0, range_reserve = 0, range_release = 0;
    std::int64_t event_record = 0, event_query = 0, event_wait = 0;
  };

  explicit SimulatedMemory(std::uint64_t capacity, std::string name = "simulated");

  // Pending events: event_query() says no until complete_events() or event_wait(). The switch holds for queries to
  // come, recorded events included.
  void set_events_pending(bool pending) { events_pending_ = pending; }
  void complete_events();  // the device has reached everything recorded until now
  // The k-th call from now (1 = the next) of those counted in Calls fails once: reserve, range_reserve and map say out
  // of memory, the others throw DeviceError. 0 cancels.
  void fail_call(std::uint64_t k) { fail_in_ = k; }
  bool fault_pending() const { return fail_in_ > 0; }
  const Calls& calls() const { return calls_; }
  std::uint64_t used() const { return used_; }
  std::size_t segment_count() const { return segments_.size(); }
  std::size_t event_count() const { return events_.size(); }

  const std::string& name() const override { return name_; }
  MemoryInfo mem_info() const override { return {capacity_ - used_, capacity_}; }
  void set_capacity(std::uint64_t bytes) override;
  void* reserve(std::size_t bytes) override;
  void release(void* segment, std::size_t bytes) override;
  EventId event_record(StreamId stream) override;
  bool event_query(EventId event) override;
  void event_wait(EventId event) override;
  void event_release(EventId event) noexcept override;

  bool has_virtual_ranges() const override { return true; }
  void* range_reserve(std::size_t bytes) override;
  void range_release(void* range, std::size_t bytes) override;
  bool map(void* at, std::size_t bytes) override;
  void unmap(void* at, std::size_t bytes) override;

 private:
  bool fails() { return fail_in_ > 0 && --fail_in_ == 0; }
  void fail_if_told(const char* call);

  std::string name_;
  std::uint64_t device_capacity_;  // what set_capacity(0) goes back to
  std::uint64_t capacity_;
  std::uint64_t used_ = 0;
  std::uint64_t next_segment_ = 0x700000000000;
  std::uint64_t next_range_ = 0x600000000000;
  std::map<std::uint64_t, std::uint64_t> segments_;  // address -> rounded bytes
  std::map<std::uint64_t, std::uint64_t> ranges_;
  std::map<std::uint64_t, std::uint64_t> mapped_;  // begin -> end of a run of mapped pages; no two runs touch
  std::map<EventId, bool> events_;                 // -> reached
  EventId next_event_ = 1;
  bool events_pending_ = false;
  std::uint64_t fail_in_ = 0;
  Calls calls_;
};

}  // namespace limpid::memory
