// The fake's state, its gate, and the streams: what may run, in which order it runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "fake_state.h"

namespace limpid::cudasim::fake {
namespace {

// LIMPID_FAKE_CUDA="devices=2,capacity_mib=64,driver=12020": for programs that know nothing of the fake.
Config from_environment() {
  Config config;
  const char* text = std::getenv("LIMPID_FAKE_CUDA");
  std::istringstream stream(text ? text : "");
  for (std::string item; std::getline(stream, item, ',');) {
    const std::size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const long value = equals == std::string::npos ? 0 : std::atol(item.c_str() + equals + 1);
    if (key == "devices") config.devices = static_cast<int>(value);
    if (key == "capacity_mib") config.capacity = static_cast<std::uint64_t>(value) << 20;
    if (key == "driver") config.driver_version = static_cast<int>(value);
  }
  return config;
}

std::uint64_t next_random() {
  std::uint64_t& r = state().random;
  r ^= r << 13;
  r ^= r >> 7;
  r ^= r << 17;
  return r;
}

void seed(std::uint64_t value) { state().random = value * 0x9E3779B97F4A7C15ull | 1; }

bool may_run(const StreamState& stream) {
  if (stream.queue.empty()) return false;
  const Operation& front = stream.queue.front();
  if (front.waits && front.waits->done < front.generation) return false;
  return std::all_of(front.after.begin(), front.after.end(),
                     [](const Dependency& d) { return d.stream->done >= d.operation; });
}

void run_front(StreamState& stream) {
  State& s = state();
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.time = std::max(stream.time, s.clock);
  if (operation.waits) stream.time = std::max(stream.time, operation.waits->time);
  for (const Dependency& d : operation.after) stream.time = std::max(stream.time, d.stream->time);
  stream.time += operation.us;
  if (operation.run && s.sticky == 0) {
    const DeviceRuns running;
    const int status = operation.run();
    if (status != 0) s.sticky = status;
  }
  if (operation.records && operation.records->done < operation.generation) {
    operation.records->done = operation.generation;
    operation.records->time = stream.time;
  }
  stream.done++;
}

std::vector<StreamState*> all_streams() {
  std::vector<StreamState*> all;
  for (auto& [device, stream] : state().default_streams) all.push_back(stream.get());
  for (auto& [handle, stream] : state().streams) all.push_back(stream.get());
  return all;
}

bool idle(int device) {
  const auto streams = all_streams();
  return std::all_of(streams.begin(), streams.end(), [device](const StreamState* s) {
    return (device >= 0 && s->device != device) || s->queue.empty();
  });
}

void advance_clock(int device) {
  for (const StreamState* s : all_streams()) {
    if (device < 0 || s->device == device) state().clock = std::max(state().clock, s->time);
  }
}

}  // namespace

State& state() {
  static State* const s = [] {
    auto* made = new State;
    made->config = from_environment();
    return made;
  }();
  return *s;
}

int& current_device() {
  static thread_local int device = 0;
  return device;
}
int& last_error() {
  static thread_local int status = 0;
  return status;
}

int gate(Call call) {
  State& s = state();
  const std::string api = call.api;
  s.trace.push_back(std::move(call));
  s.calls++;
  for (Fault& fault : s.faults) {
    if (!fault.api.empty() && fault.api != api) continue;
    if (fault.n > 0 && --fault.n == 0) {
      s.fault_happened = true;
      return fault.status;
    }
  }
  return s.sticky;
}

int finish(int status) {
  if (status != 0 && status != cu::kNotReady) last_error() = status;
  return status;
}

// ---- streams

std::shared_ptr<StreamState> stream_of(cu::StreamHandle handle) {
  State& s = state();
  if (!handle) {
    auto& stream = s.default_streams[current_device()];
    if (!stream) stream = std::make_shared<StreamState>(StreamState{.device = current_device()});
    return stream;
  }
  auto found = s.streams.find(handle);
  return found == s.streams.end() ? nullptr : found->second;
}

void push(const std::shared_ptr<StreamState>& stream, Operation operation) {
  State& s = state();
  auto default_stream = s.default_streams.find(stream->device);
  if (default_stream != s.default_streams.end() && default_stream->second == stream) {
    for (auto& [handle, other] : s.streams) {
      if (other->blocking && other->device == stream->device) operation.after.push_back({other, other->issued});
    }
  } else if (stream->blocking && default_stream != s.default_streams.end()) {
    operation.after.push_back({default_stream->second, default_stream->second->issued});
  }
  stream->issued++;
  stream->queue.push_back(std::move(operation));
  while (s.config.exec == Exec::eager && step()) {
  }
}

bool step() {
  std::vector<StreamState*> ready = all_streams();
  std::erase_if(ready, [](const StreamState* stream) { return !may_run(*stream); });
  if (ready.empty()) return false;
  run_front(*ready[next_random() % ready.size()]);
  return true;
}

void run_until(const std::function<bool()>& reached) {
  if (reached()) return;
  const DeviceRuns running;  // once for all: changing the protection is the dearest part
  while (!reached()) {
    if (step()) continue;
    std::fprintf(stderr, "fake CUDA: the streams wait for each other\n");
    std::abort();
  }
}

void run_all() {
  run_until([] { return idle(-1); });
  advance_clock(-1);
}

void run_all_of(int device) {
  run_until([device] { return idle(device); });
  advance_clock(device);
}

// ---- what a test asks

void reset(const Config& config) {
  const Lock guard = lock();
  State& s = state();
  s.sticky = 0;
  s.faults.clear();
  run_all();
  s.config = config;
  s.clock = 0;
  for (StreamState* stream : all_streams()) stream->time = 0;
  s.trace.clear();
  s.calls = 0;
  s.fault_happened = false;
  s.processes.clear();
  last_error() = 0;
  seed(config.seed);
}

const Config& config() { return state().config; }
const std::vector<Call>& trace() { return state().trace; }

std::size_t count(const std::string& api) {
  const Lock guard = lock();
  const auto& calls = state().trace;
  return static_cast<std::size_t>(
      std::count_if(calls.begin(), calls.end(), [&](const Call& c) { return c.api == api; }));
}

std::vector<std::string> step_offences(std::size_t from) {
  static const std::set<std::string> kNever{"cudaMalloc",
                                            "cudaFree",
                                            "cudaHostAlloc",
                                            "cudaFreeHost",
                                            "cuMemCreate",
                                            "cuMemMap",
                                            "cuMemUnmap",
                                            "cuMemAddressReserve",
                                            "cuMemAddressFree",
                                            "cudaDeviceSynchronize",
                                            "cudaStreamSynchronize",
                                            "cudaEventSynchronize"};
  const Lock guard = lock();
  std::vector<std::string> found;
  for (std::size_t i = from; i < state().trace.size(); i++) {
    const Call& call = state().trace[i];
    if (kNever.count(call.api)) found.push_back(call.api);
    if (call.kind == cu::kDeviceToHost) found.push_back(call.api + " from the device");
  }
  return found;
}

void fail_call(std::uint64_t n, int status) {
  const Lock guard = lock();
  state().faults.clear();
  state().fault_happened = false;
  if (n > 0) state().faults.push_back({"", n, status});
}
void fail_call_of(const std::string& api, std::uint64_t n, int status) {
  const Lock guard = lock();
  state().faults.clear();
  state().fault_happened = false;
  state().faults.push_back({api, n, status});
}
std::uint64_t calls() { return state().calls; }
bool fault_happened() { return state().fault_happened; }
void break_device(int status) { state().sticky = status; }

std::size_t live_events() { return state().events.size(); }
std::size_t live_streams() { return state().streams.size(); }
double now_us() { return state().clock; }
void set_processes(int device, std::vector<std::pair<unsigned, std::uint64_t>> list) {
  state().processes[device] = std::move(list);
}
void set_memory_observer(MemoryObserver observer) { state().observer = std::move(observer); }

int enqueue(KernelLaunch launch) {
  const Lock guard = lock();
  const int failure = gate({.api = "cudaLaunchKernel", .stream = launch.stream, .kernel = launch.kernel});
  if (failure) return finish(failure);
  const auto stream = stream_of(launch.stream);
  if (!stream) return finish(400);  // cudaErrorInvalidResourceHandle
  const double us = launch.us > 0 ? launch.us : state().config.kernel_us;
  push(stream, {.what = launch.kernel, .us = us, .run = std::move(launch.run)});
  return finish(0);
}

}  // namespace limpid::cudasim::fake
