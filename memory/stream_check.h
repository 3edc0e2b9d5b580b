// Proof of stream safety without a GPU: a simulated device whose streams run kernels that take time, and a checker by
// happens-before. Every stream and the host have a vector clock; events and waits carry clocks from one to another. A
// kernel that touches memory which a kernel of an earlier allocation touched must come after it, else it is a premature
// reuse, whatever the timing of this run was. Memory held longer than the kernels need it is reported, not an error.
// It checks allocators, not programs: two kernels on the same allocation are the program's business.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <limpid/memory/simulated_memory.h>

namespace limpid::memory {

// A MemoryDevice over SimulatedMemory with a clock in units of the caller's choice.
class StreamedMemory : public MemoryDevice {
 public:
  explicit StreamedMemory(std::uint64_t capacity) : memory_(capacity, "streamed") {}

  // --- what a program does
  // Enqueues a kernel that touches an allocation; InternalError when it may run before the memory's former owners are
  // done. `allocation`: a number that no other allocation has.
  void launch(StreamId stream, std::uint64_t allocation, const void* at, std::size_t bytes, std::uint64_t duration);
  void stream_wait(StreamId stream, EventId event);  // later kernels of the stream start after the event
  void advance(std::uint64_t time) { now_ += time; }
  // --- what the checker is told, for the report
  void freed(std::uint64_t allocation, StreamId owner);
  // Bytes of freed allocations that kernels of other streams than the owner still use: what an allocator must hold.
  std::size_t bytes_to_hold() const;
  // Pending bytes beyond bytes_to_hold(), summed over the time since the call before: too long held.
  void account_pending(std::size_t pending_bytes);
  double overheld() const { return overheld_; }  // bytes * time

  std::uint64_t now() const { return now_; }
  const SimulatedMemory& memory() const { return memory_; }
  SimulatedMemory& memory() { return memory_; }

  const std::string& name() const override { return memory_.name(); }
  MemoryInfo mem_info() const override { return memory_.mem_info(); }
  void set_capacity(std::uint64_t bytes) override { memory_.set_capacity(bytes); }
  void* reserve(std::size_t bytes) override { return memory_.reserve(bytes); }
  void release(void* segment, std::size_t bytes) override;  // waits for every stream, as cudaFree does
  EventId event_record(StreamId stream) override;
  bool event_query(EventId event) override;
  void event_wait(EventId event) override;
  void event_release(EventId event) noexcept override { events_.erase(event); }
  bool has_virtual_ranges() const override { return true; }
  void* range_reserve(std::size_t bytes) override { return memory_.range_reserve(bytes); }
  void range_release(void* range, std::size_t bytes) override { memory_.range_release(range, bytes); }
  bool map(void* at, std::size_t bytes) override { return memory_.map(at, bytes); }
  void unmap(void* at, std::size_t bytes) override;  // InternalError while a kernel may use it: nobody waits

 private:
  using Clock = std::map<StreamId, std::uint64_t>;  // how many kernels of each stream are known to be done
  struct Stream {
    Clock clock;  // what its next kernel comes after
    std::uint64_t launched = 0;
    std::uint64_t busy_until = 0;
  };
  struct Event {
    Clock clock;
    std::uint64_t time = 0;  // when it is reached
  };
  struct Use {
    std::uint64_t begin, end;  // addresses
    std::uint64_t allocation;
    StreamId stream;
    std::uint64_t number;  // of the kernel on its stream
    std::uint64_t finish;
  };
  struct Freed {
    StreamId owner;
    std::size_t bytes;
    std::uint64_t needed_until;
  };

  static void merge(Clock& into, const Clock& from);
  static bool covers(const Clock& clock, const Use& use);
  void forget_known();

  SimulatedMemory memory_;
  std::uint64_t now_ = 0, accounted_ = 0;
  double overheld_ = 0;
  Clock host_;
  std::map<StreamId, Stream> streams_;
  std::map<EventId, Event> events_;
  EventId next_event_ = 1;
  std::vector<Use> uses_;
  std::vector<Freed> freed_;
};

}  // namespace limpid::memory
