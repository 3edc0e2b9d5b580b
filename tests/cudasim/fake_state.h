// Inside the fake CUDA libraries: their one state, and the gate through which every call goes. Tests include
// fake_cuda.h.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda.h"

namespace limpid::cudasim::fake {

struct EventState {
  std::uint64_t issued = 0, done = 0;  // records
  double time = 0;
};
struct StreamState;
struct Dependency {
  std::shared_ptr<StreamState> stream;
  std::uint64_t operation;  // number of operations that must be done there
};
struct Operation {
  std::string what;
  double us = 0;
  std::function<int()> run = {};
  std::shared_ptr<EventState> records = {}, waits = {};
  std::uint64_t generation = 0;  // of the event
  std::vector<Dependency> after = {};
};
struct StreamState {
  int device = 0;
  bool blocking = true;  // waits for the default stream, and the default stream for it
  std::deque<Operation> queue = {};
  std::uint64_t issued = 0, done = 0;  // operations
  double time = 0;
};
struct Block {
  std::size_t bytes;
  int device;
};
struct Physical {  // memory of cuMemCreate: lives while its handle or a mapping does
  std::size_t bytes;
  int device;
  bool handle = true;
  int mappings = 0;
};
struct Mapping {
  std::size_t bytes;
  cu::MemoryHandle memory = 0;
  bool accessible = false;
};
struct Fault {
  std::string api;  // "" = any
  std::uint64_t n;
  int status;
};

struct State {
  Config config;
  std::recursive_mutex mutex;
  std::uint64_t random = 1;
  double clock = 0;
  int sticky = 0;
  std::vector<Call> trace;
  std::vector<Fault> faults;
  std::uint64_t calls = 0;
  bool fault_happened = false;
  bool readable = false;  // device memory, for the host
  int device_depth = 0;  // > 0: the device runs, its memory is readable

  std::map<cu::StreamHandle, std::shared_ptr<StreamState>> streams;
  std::map<int, std::shared_ptr<StreamState>> default_streams;
  std::map<cu::EventHandle, std::shared_ptr<EventState>> events;

  // Each device's segments lie in an arena of its own; one byte of addresses behind a segment belongs to nobody.
  std::map<int, char*> arenas;
  std::map<int, std::map<char*, std::size_t>> gaps;  // free addresses
  std::map<char*, Block> blocks;
  std::map<char*, std::size_t> pinned, reserved;
  std::map<cu::MemoryHandle, Physical> physical;
  std::map<char*, Mapping> mappings;
  std::map<int, std::uint64_t> used;
  cu::MemoryHandle next_handle = 1;
  std::uintptr_t next_name = 0x5EED0000;  // of streams and events: no addresses
  std::map<int, std::vector<std::pair<unsigned, std::uint64_t>>> processes;
  MemoryObserver observer;
};
State& state();

// This thread's current device and last error.
int& current_device();
int& last_error();

using Lock = std::unique_lock<std::recursive_mutex>;
inline Lock lock() { return Lock(state().mutex); }

// Enters a call in the trace. Not 0: the call fails with it and is to do nothing.
int gate(Call call);
// The status of a runtime call: remembers it as the last error.
int finish(int status);

// ---- streams (fake_streams.cpp)
std::shared_ptr<StreamState> stream_of(cu::StreamHandle handle);  // null when there is no such stream
void push(const std::shared_ptr<StreamState>& stream, Operation operation);
bool step();  // runs one operation that may run; false when there is none
void run_until(const std::function<bool()>& reached);
void run_all();
void run_all_of(int device);

// ---- memory (fake_memory.cpp)
constexpr std::size_t kPage = std::size_t{2} << 20;
bool is_device(const void* at, std::size_t bytes);
bool is_pinned(const void* at);
void device_begins();  // its memory becomes readable
void device_ends();
struct DeviceRuns {
  DeviceRuns() { device_begins(); }
  ~DeviceRuns() { device_ends(); }
  DeviceRuns(const DeviceRuns&) = delete;
  DeviceRuns& operator=(const DeviceRuns&) = delete;
};

}  // namespace limpid::cudasim::fake
