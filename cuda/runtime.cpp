#include <limpid/cuda/runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include <limpid/cuda/error.h>
#include <limpid/cuda/index_errors.h>
#include <limpid/cuda/libraries.h>
#include <limpid/tensor/tensor.h>

namespace limpid::cu {
namespace {

constexpr int kMostDevices = 64;
constexpr std::size_t kPoolStreams = 32;

// The streams of a device, made at first use and never destroyed.
struct DeviceStreams {
  std::mutex mutex;
  std::array<StreamHandle, kPoolStreams> pool{};
  std::size_t next = 0;
  StreamHandle copies = nullptr;
};
DeviceStreams& streams_of(int device) {
  static auto* const all = new std::array<DeviceStreams, kMostDevices>;
  return (*all)[static_cast<std::size_t>(device)];
}

StreamHandle made(StreamHandle& handle, int device) {
  if (handle) return handle;
  DeviceGuard guard(device);
  StreamHandle fresh = nullptr;
  LIMPID_CUDA(cudaStreamCreateWithFlags(&fresh, kStreamNonBlocking));
  return handle = fresh;
}

thread_local std::array<StreamHandle, kMostDevices> current_streams{};

int attribute(DeviceAttribute which, int device) {
  int value = 0;
  LIMPID_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

DeviceProperties read_properties(int device) {
  DeviceProperties p;
  char text[256] = {};
  LIMPID_DRIVER(cuInit(0));
  LIMPID_DRIVER(cuDeviceGetName(text, sizeof text - 1, device));
  p.name = text;
  p.major = attribute(kCapabilityMajor, device);
  p.minor = attribute(kCapabilityMinor, device);
  p.multiprocessors = attribute(kMultiprocessors, device);
  p.warp_size = attribute(kWarpSize, device);
  p.l2_bytes = attribute(kL2CacheBytes, device);
  LIMPID_CUDA(cudaDeviceGetPCIBusId(text, sizeof text - 1, device));
  p.pci_bus_id = text;
  DeviceGuard guard(device);
  std::size_t free = 0, total = 0;
  LIMPID_CUDA(cudaMemGetInfo(&free, &total));
  p.total_bytes = total;
  return p;
}

}  // namespace

// ---- devices

bool is_available() { return device_count() > 0; }
int device_count() { return std::min(availability().devices, kMostDevices); }

void check_device(int device) {
  const Availability& a = availability();
  LIMPID_CHECK(a.devices > 0, DeviceError, "[device] cuda:", device, ": no CUDA device (", a.problem, ")");
  LIMPID_CHECK(device >= 0 && device < device_count(), DeviceError, "[device] cuda:", device,
               " is not there, the last is cuda:", device_count() - 1);
}

std::string device_name(int device) { return device_properties(device).name; }

const DeviceProperties& device_properties(int device) {
  check_device(device);
  static std::mutex mutex;
  static auto* const known = new std::array<const DeviceProperties*, kMostDevices>{};
  std::lock_guard lock(mutex);
  const DeviceProperties*& p = (*known)[static_cast<std::size_t>(device)];
  if (!p) p = new DeviceProperties(read_properties(device));
  return *p;
}

int current_device() {
  int device = 0;
  LIMPID_CUDA(cudaGetDevice(&device));
  return device;
}

DeviceGuard::DeviceGuard(int device) : former_(current_device()), device_(device) {
  if (device_ != former_) LIMPID_CUDA(cudaSetDevice(device_));
}
DeviceGuard::~DeviceGuard() {
  if (device_ == former_) return;
  const auto set = runtime().cudaSetDevice;
  if (set(former_) != kSuccess) set(former_);  // nobody can be told; it was current before
}

// ---- streams

bool Stream::query() const {
  DeviceGuard guard(device);
  const int status = runtime().cudaStreamQuery(handle);
  if (status != kNotReady) {
    check_runtime(status, "cudaStreamQuery", __FILE__, __LINE__);
    return true;
  }
  runtime().cudaGetLastError();
  return false;
}

void Stream::synchronize() const {
  DeviceGuard guard(device);
  LIMPID_CUDA(cudaStreamSynchronize(handle));
  report_index_errors(*this);
}

Stream default_stream(int device) {
  check_device(device);
  return {device, nullptr};
}

Stream pool_stream(int device) {
  check_device(device);
  DeviceStreams& streams = streams_of(device);
  std::lock_guard lock(streams.mutex);
  const StreamHandle handle = made(streams.pool[streams.next], device);
  streams.next = (streams.next + 1) % kPoolStreams;
  return {device, handle};
}

Stream copy_stream(int device) {
  check_device(device);
  DeviceStreams& streams = streams_of(device);
  std::lock_guard lock(streams.mutex);
  return {device, made(streams.copies, device)};
}

Stream current_stream(int device) {
  check_device(device);
  return {device, current_streams[static_cast<std::size_t>(device)]};
}
Stream current_stream() { return current_stream(current_device()); }

StreamScope::StreamScope(Stream stream)
    : device_(stream.device), stream_(stream), former_(current_stream(stream.device)) {
  current_streams[static_cast<std::size_t>(stream.device)] = stream.handle;
}
StreamScope::~StreamScope() { current_streams[static_cast<std::size_t>(stream_.device)] = former_.handle; }

void synchronize(int device) {
  check_device(device);
  DeviceGuard guard(device);
  LIMPID_CUDA(cudaDeviceSynchronize());
  report_index_errors(device);
}

void record_stream(const Tensor& tensor, Stream stream) {
  LIMPID_CHECK(tensor.device() == (Device{DeviceType::cuda, static_cast<std::int8_t>(stream.device)}), DeviceError,
               "[record_stream] ", tensor, " is not on the stream's device, cuda:", stream.device);
  tensor.storage()->record_stream(stream.id());
}

// ---- events

Event::Event(int device, bool timing) : device_(device) {
  check_device(device);
  DeviceGuard guard(device);
  LIMPID_CUDA(cudaEventCreateWithFlags(&handle_, timing ? 0u : static_cast<unsigned>(kEventDisableTiming)));
}
Event::~Event() {
  if (handle_) runtime().cudaEventDestroy(handle_);  // nobody is left to tell
}
Event::Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

void Event::record(Stream stream) {
  LIMPID_CHECK(stream.device == device_, DeviceError, "[event] of cuda:", device_,
               " cannot be recorded on a stream of cuda:", stream.device);
  DeviceGuard guard(device_);
  LIMPID_CUDA(cudaEventRecord(handle_, stream.handle));
}

void Event::hold_up(Stream stream) const {
  DeviceGuard guard(stream.device);
  LIMPID_CUDA(cudaStreamWaitEvent(stream.handle, handle_, 0));
}

bool Event::query() const {
  const int status = runtime().cudaEventQuery(handle_);
  if (status != kNotReady) {
    check_runtime(status, "cudaEventQuery", __FILE__, __LINE__);
    return true;
  }
  runtime().cudaGetLastError();
  return false;
}

void Event::synchronize() const { LIMPID_CUDA(cudaEventSynchronize(handle_)); }

double Event::ms_since(const Event& start) const {
  float ms = 0;
  LIMPID_CUDA(cudaEventElapsedTime(&ms, start.handle_, handle_));
  return ms;
}

}  // namespace limpid::cu
