// Devices, streams and events of CUDA, with the meaning that PyTorch gives them: every thread has a current device and,
// on each device, a current stream; work is queued on the current stream and runs in order there. Different streams run
// in no order but the one that events make.
//
//   cu::Stream side = cu::pool_stream(0);
//   {
//     cu::StreamScope scope(side);          // work of this thread goes to `side`
//     y = x.to({DeviceType::cuda, 0}, true);
//   }
//   cu::Event done(0);
//   done.record(side);
//   done.hold_up(cu::current_stream(0));    // what is queued from now on comes behind it
//   cu::record_stream(y, cu::current_stream(0));
//
// DeviceError when there is no such device, CudaError when a call fails. Whoever waits for a stream also gets the IndexError
// of an indexing operation that ran there (index_errors.h).
#pragma once

#include <cstdint>
#include <string>

#include <limpid/cuda/api.h>
#include <limpid/memory/device.h>

namespace limpid {
class Tensor;
}

namespace limpid::cu {

bool is_available();            // at least one device can be used; never throws
int device_count();             // 0 when none can be used; never throws
void check_device(int device);  // DeviceError: why it cannot be used
std::string device_name(int device = 0);

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int warp_size = 32;
  std::int64_t l2_bytes = 0;
  std::uint64_t total_bytes = 0;  // memory
  std::string pci_bus_id;         // "0000:01:00.0"
};
const DeviceProperties& device_properties(int device = 0);

int current_device();  // of this thread
// Makes a device current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int former_;
  int device_;
};

// A queue of a device. A handle: copies are the same queue, which lives to the end of the program, so that blocks of
// the allocator may name it for ever.
struct Stream {
  int device = 0;
  StreamHandle handle = nullptr;  // null: the default stream, which waits for the work of blocking streams
  bool operator==(const Stream&) const = default;
  memory::StreamId id() const { return static_cast<memory::StreamId>(reinterpret_cast<std::uintptr_t>(handle)); }
  bool query() const;        // is all of its work done?
  void synchronize() const;  // waits until it is
};
Stream default_stream(int device);
// One of a small fixed set that are handed out in turn; they do not wait for the default stream.
Stream pool_stream(int device);
// The stream for copies beside the computing, one a device.
Stream copy_stream(int device);

Stream current_stream(int device);  // of this thread: the default stream, unless a scope says otherwise
Stream current_stream();            // on the current device
class StreamScope {
 public:
  explicit StreamScope(Stream stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  DeviceGuard device_;
  Stream stream_, former_;
};

void synchronize(int device);  // waits for all work of the device
// Also `stream` uses the tensor's memory: it is not reused before that stream has got there.
void record_stream(const Tensor& tensor, Stream stream);

// A place in a stream's work.
class Event {
 public:
  explicit Event(int device, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event& operator=(Event&&) = delete;

  void record(Stream stream);                 // behind all work that is in the stream now; again: the new place counts
  void hold_up(Stream stream) const;          // later work of the stream waits for the event; the host does not
  bool query() const;                         // has the device got there? true before the first record()
  void synchronize() const;                   // the host waits
  double ms_since(const Event& start) const;  // both with timing and reached

 private:
  int device_;
  EventHandle handle_ = nullptr;
};

}  // namespace limpid::cu
