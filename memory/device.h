// What a memory policy needs from a device: segments, events, and (optional) virtual ranges. A live run on real memory
// and a dry run on addresses are the same policy code over two of these.
// Calls are serialised by the allocator that owns the device, except mem_info() and the setters of concrete devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace limpid::memory {

using StreamId = std::uint64_t;  // opaque; 0 is the default stream
using EventId = std::uint64_t;

struct MemoryInfo {
  std::uint64_t free = 0;   // bytes that reserve() could still hand out
  std::uint64_t total = 0;  // capacity
};

// A program that holds memory of a device.
struct DeviceProcess {
  std::int64_t pid = 0;
  std::string name;         // of its executable; "" when it cannot be read
  std::uint64_t bytes = 0;
};

class MemoryDevice {
 public:
  MemoryDevice() = default;
  virtual ~MemoryDevice() = default;
  MemoryDevice(const MemoryDevice&) = delete;
  MemoryDevice& operator=(const MemoryDevice&) = delete;

  virtual const std::string& name() const = 0;
  virtual MemoryInfo mem_info() const = 0;
  // Capacity in bytes, 0 = what the device has. ArgumentError when more than that is handed out already.
  virtual void set_capacity(std::uint64_t bytes) = 0;
  // Host memory that devices read and write by themselves, so that copies need not wait.
  virtual bool is_page_locked() const { return false; }
  // Who holds the device's memory at this moment, this program included, largest first; empty when nobody can say.
  virtual std::vector<DeviceProcess> processes() const { return {}; }

  // A segment of at least `bytes`, aligned to 512; nullptr when the device is out of memory. Any other failure of any
  // call here throws DeviceError and leaves the device as it was.
  virtual void* reserve(std::size_t bytes) = 0;
  virtual void release(void* segment, std::size_t bytes) = 0;

  // Marks the present end of a stream's work.
  virtual EventId event_record(StreamId stream) = 0;
  virtual bool event_query(EventId event) = 0;  // has the device got there?
  virtual void event_wait(EventId event) = 0;
  virtual void event_release(EventId event) noexcept = 0;

  // Virtual ranges: addresses first, memory page by page later. Sizes are multiples of page_size().
  virtual bool has_virtual_ranges() const { return false; }
  virtual std::size_t page_size() const { return std::size_t{2} << 20; }
  virtual void* range_reserve(std::size_t bytes);  // nullptr when there is no such range of addresses left
  virtual void range_release(void* range, std::size_t bytes);
  virtual bool map(void* at, std::size_t bytes);  // false when the device is out of memory
  virtual void unmap(void* at, std::size_t bytes);
};

}  // namespace limpid::memory
