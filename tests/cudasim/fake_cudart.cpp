// The fake's runtime library: devices, copies, streams and events under CUDA's names. Memory is in fake_memory.cpp.
#include <cstdio>
#include <cstring>
#include <memory>

#include "fake_state.h"

using namespace limpid::cudasim::fake;
namespace cu = limpid::cu;

namespace {

constexpr int kInvalidValue = 1, kInvalidDevice = 101, kInvalidHandle = 400, kIllegalAddress = 700;

std::shared_ptr<EventState> event_of(cu::EventHandle handle) {
  auto found = state().events.find(handle);
  return found == state().events.end() ? nullptr : found->second;
}

template <class Handle>
Handle fresh_name() {
  return reinterpret_cast<Handle>(state().next_name += 16);
}

// A copy whose sides are known to be what `kind` says. What is no longer there when it runs is a fault of the device.
int queue_copy(void* to, const void* from, std::size_t bytes, int kind, const std::shared_ptr<StreamState>& stream) {
  const bool to_device = kind == cu::kHostToDevice || kind == cu::kDeviceToDevice;
  const bool from_device = kind == cu::kDeviceToHost || kind == cu::kDeviceToDevice;
  if (is_device(to, bytes) != to_device || is_device(from, bytes) != from_device) return kInvalidValue;
  const double rate = to_device && from_device ? config().device_gb_per_s : config().host_gb_per_s;
  std::shared_ptr<std::vector<char>> staged;
  if (!from_device && !is_pinned(from)) {  // pageable memory is read now
    const char* begin = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
  }
  const bool pageable_target = !to_device && !is_pinned(to);
  if (!to_device) std::memset(to, 0xCD, bytes);  // rubbish until the copy has run
  push(stream, {.what = "copy", .us = 2 + static_cast<double>(bytes) / (rate * 1e3), .run = [=]() -> int {
                  if ((to_device && !is_device(to, bytes)) || (from_device && !is_device(from, bytes)))
                    return kIllegalAddress;
                  std::memcpy(to, staged ? staged->data() : from, bytes);
                  const MemoryObserver& observer = state().observer;
                  if (to_device && from_device && observer.copied) observer.copied(to, from, bytes);
                  if (to_device && !from_device && observer.written) observer.written(to, bytes);
                  return 0;
                }});
  if (pageable_target) run_until([stream] { return stream->queue.empty(); });
  return state().sticky;
}

}  // namespace

extern "C" {

// ---- versions, devices, errors

int cudaRuntimeGetVersion(int* version) {
  *version = config().runtime_version;
  return 0;
}
int cudaDriverGetVersion(int* version) {
  *version = config().driver_version;
  return 0;
}
int cudaGetDeviceCount(int* n) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaGetDeviceCount"})) return finish(failure);
  *n = 0;
  if (config().driver_version < config().runtime_version) return finish(cu::kInsufficientDriver);
  if (config().devices == 0) return finish(cu::kNoDevice);
  *n = config().devices;
  return finish(0);
}
int cudaGetDevice(int* device) {  // not in the trace: every call of limpid begins with it
  *device = current_device();
  return 0;
}
int cudaSetDevice(int device) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaSetDevice"})) return finish(failure);
  if (device < 0 || device >= config().devices) return finish(kInvalidDevice);
  current_device() = device;
  return finish(0);
}
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaDeviceGetAttribute"})) return finish(failure);
  if (device < 0 || device >= config().devices) return finish(kInvalidDevice);
  switch (attribute) {
    case cu::kWarpSize:
      *value = 32;
      break;
    case cu::kMultiprocessors:
      *value = 132;
      break;
    case cu::kL2CacheBytes:
      *value = 60 << 20;
      break;
    case cu::kCapabilityMajor:
      *value = 9;
      break;
    case cu::kCapabilityMinor:
      *value = 0;
      break;
    default:
      *value = 0;
  }
  return finish(0);
}
int cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaDeviceGetPCIBusId"})) return finish(failure);
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02d:00.0", device + 1);
  return finish(0);
}
int cudaDeviceSynchronize() {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaDeviceSynchronize"})) return finish(failure);
  run_all_of(current_device());
  return finish(state().sticky);
}
int cudaGetLastError() {
  const int status = last_error();
  last_error() = state().sticky;
  return status;
}
const char* cudaGetErrorName(int status) {
  switch (status) {
    case 0:
      return "cudaSuccess";
    case kInvalidValue:
      return "cudaErrorInvalidValue";
    case cu::kMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cu::kInitializationError:
      return "cudaErrorInitializationError";
    case cu::kInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cu::kNoDevice:
      return "cudaErrorNoDevice";
    case kInvalidDevice:
      return "cudaErrorInvalidDevice";
    case kInvalidHandle:
      return "cudaErrorInvalidResourceHandle";
    case cu::kNotReady:
      return "cudaErrorNotReady";
    case kIllegalAddress:
      return "cudaErrorIllegalAddress";
    case 716:
      return "cudaErrorMisalignedAddress";
    case 719:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(int status) {
  switch (status) {
    case kInvalidValue:
      return "invalid argument";
    case cu::kMemoryAllocation:
      return "out of memory";
    case cu::kInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case kInvalidHandle:
      return "invalid resource handle";
    case kIllegalAddress:
      return "an illegal memory access was encountered";
    case 719:
      return "unspecified launch failure";
    default:
      return "unknown error";
  }
}

// ---- copies

int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, cu::StreamHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaMemcpyAsync", .bytes = bytes, .stream = handle, .kind = kind}))
    return finish(failure);
  const auto stream = stream_of(handle);
  if (!stream) return finish(kInvalidHandle);
  return finish(bytes == 0 ? 0 : queue_copy(to, from, bytes, kind, stream));
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cu::StreamHandle handle) {
  const Lock guard = lock();
  if (int failure =
          gate({.api = "cudaMemcpyPeerAsync", .bytes = bytes, .stream = handle, .kind = cu::kDeviceToDevice})) {
    return finish(failure);
  }
  const auto stream = stream_of(handle);
  if (!stream) return finish(kInvalidHandle);
  return finish(bytes == 0 ? 0 : queue_copy(to, from, bytes, cu::kDeviceToDevice, stream));
}
int cudaMemsetAsync(void* to, int value, std::size_t bytes, cu::StreamHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaMemsetAsync", .bytes = bytes, .stream = handle})) return finish(failure);
  const auto stream = stream_of(handle);
  if (!stream) return finish(kInvalidHandle);
  if (bytes == 0) return finish(0);
  if (!is_device(to, bytes)) return finish(kInvalidValue);
  push(stream,
       {.what = "set", .us = 2 + static_cast<double>(bytes) / (config().device_gb_per_s * 1e3), .run = [=]() -> int {
          if (!is_device(to, bytes)) return kIllegalAddress;
          std::memset(to, value, bytes);
          if (state().observer.written) state().observer.written(to, bytes);
          return 0;
        }});
  return finish(0);
}

// ---- streams

int cudaStreamCreateWithFlags(cu::StreamHandle* out, unsigned flags) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaStreamCreateWithFlags"})) return finish(failure);
  *out = fresh_name<cu::StreamHandle>();
  state().streams[*out] = std::make_shared<StreamState>(
      StreamState{.device = current_device(), .blocking = !(flags & cu::kStreamNonBlocking)});
  return finish(0);
}
int cudaStreamDestroy(cu::StreamHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaStreamDestroy", .stream = handle})) return finish(failure);
  const auto stream = handle ? stream_of(handle) : nullptr;
  if (!stream) return finish(kInvalidHandle);
  run_until([stream] { return stream->queue.empty(); });
  state().streams.erase(handle);
  return finish(0);
}
int cudaStreamSynchronize(cu::StreamHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaStreamSynchronize", .stream = handle})) return finish(failure);
  const auto stream = stream_of(handle);
  if (!stream) return finish(kInvalidHandle);
  run_until([stream] { return stream->queue.empty(); });
  state().clock = std::max(state().clock, stream->time);
  return finish(state().sticky);
}
int cudaStreamQuery(cu::StreamHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaStreamQuery", .stream = handle})) return finish(failure);
  const auto stream = stream_of(handle);
  if (!stream) return finish(kInvalidHandle);
  if (!stream->queue.empty()) step();  // so that a loop of queries ends
  return finish(stream->queue.empty() ? state().sticky : static_cast<int>(cu::kNotReady));
}
int cudaStreamWaitEvent(cu::StreamHandle handle, cu::EventHandle event_handle, unsigned) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaStreamWaitEvent", .stream = handle})) return finish(failure);
  const auto stream = stream_of(handle);
  const auto event = event_of(event_handle);
  if (!stream || !event) return finish(kInvalidHandle);
  if (event->issued > 0) push(stream, {.what = "wait", .waits = event, .generation = event->issued});
  return finish(0);
}

// ---- events

int cudaEventCreateWithFlags(cu::EventHandle* out, unsigned) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaEventCreateWithFlags"})) return finish(failure);
  *out = fresh_name<cu::EventHandle>();
  state().events[*out] = std::make_shared<EventState>();
  return finish(0);
}
int cudaEventDestroy(cu::EventHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaEventDestroy"})) return finish(failure);
  return finish(state().events.erase(handle) ? 0 : kInvalidHandle);
}
int cudaEventRecord(cu::EventHandle handle, cu::StreamHandle stream_handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaEventRecord", .stream = stream_handle})) return finish(failure);
  const auto event = event_of(handle);
  const auto stream = stream_of(stream_handle);
  if (!stream || !event) return finish(kInvalidHandle);
  event->issued++;
  push(stream, {.what = "record", .records = event, .generation = event->issued});
  return finish(0);
}
int cudaEventQuery(cu::EventHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaEventQuery"})) return finish(failure);
  const auto event = event_of(handle);
  if (!event) return finish(kInvalidHandle);
  if (event->done < event->issued) step();  // so that a loop of queries ends
  return finish(event->done < event->issued ? static_cast<int>(cu::kNotReady) : state().sticky);
}
int cudaEventSynchronize(cu::EventHandle handle) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaEventSynchronize"})) return finish(failure);
  const auto event = event_of(handle);
  if (!event) return finish(kInvalidHandle);
  run_until([event] { return event->done >= event->issued; });
  state().clock = std::max(state().clock, event->time);
  return finish(state().sticky);
}
int cudaEventElapsedTime(float* milliseconds, cu::EventHandle from, cu::EventHandle to) {
  const Lock guard = lock();
  if (int failure = gate({.api = "cudaEventElapsedTime"})) return finish(failure);
  const auto a = event_of(from), b = event_of(to);
  if (!a || !b || a->issued == 0 || b->issued == 0) return finish(kInvalidHandle);
  if (a->done < a->issued || b->done < b->issued) return finish(cu::kNotReady);
  *milliseconds = static_cast<float>((b->time - a->time) / 1000);
  return finish(0);
}

}  // extern "C"
