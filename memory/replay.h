// Replay: a trace run again under any policy, on a device of addresses with a chosen capacity. It is the same Allocator
// and the same policy code as a live run, so under the recorded policy it repeats the recorded run to the byte. It
// answers what a run would need and how well a policy packs it; finding the smallest capacity is replay_scan.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <limpid/memory/allocator.h>
#include <limpid/memory/fragmentation.h>
#include <limpid/memory/simulated_memory.h>
#include <limpid/memory/trace_log.h>

namespace limpid::memory {

// What is left of a trace when names are gone and ids are dense: one array to run through, 32 bytes an operation.
struct ReplayOp {
  std::uint64_t bytes;
  StreamId stream;
  std::uint32_t slot;    // of the block: dense, used again after its free
  std::uint32_t record;  // place in the log
  TraceKind kind;        // alloc, free, role, record_stream, oom, empty_cache
  Role role;
};

struct ReplayScript {
  ReplayScript() = default;
  // DataError when an id is allocated twice or the log has 2^32 records and more. Operations on blocks that the log
  // never allocated are left out and counted.
  explicit ReplayScript(const TraceLog& log);
  // The number of an operation, from 0: what people are told of as event N, the same under every policy. ArgumentError
  // when the record is no operation.
  std::uint32_t event_of(std::uint32_t record) const;

  std::vector<ReplayOp> ops;
  std::uint32_t slots = 0;      // highest number of live blocks
  std::uint64_t peak_live = 0;  // highest sum of requested bytes: no policy and no plan needs less
  std::uint32_t peak_live_record = 0;
  std::uint64_t allocations = 0, frees = 0;
  std::uint64_t unknown = 0;  // operations left out
};

// Estimates of what calls of a device cost, in seconds: orders of magnitude of a GPU driver, not measurements of yours.
struct DeviceLatency {
  double reserve = 200e-6, release = 200e-6;  // cudaMalloc, cudaFree
  double map = 60e-6, unmap = 60e-6;          // create + map + set access; unmap + release
  double range = 10e-6;                       // reserving or releasing a virtual range
  double event = 2e-6, query = 1e-6;
  double wait = 20e-6;        // of an event that is pending
  double operation = 0.1e-6;  // of the policy itself: allocate or free
};

struct ReplayOptions {
  static constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 45;
  PolicyFactory policy = make_native_policy;
  AllocatorSettings settings;
  std::uint64_t capacity = kUnlimited;  // bytes
  // Frees of blocks that other streams use complete at once; true: only when the policy waits for them. The two bound
  // a real run, whose times nobody knows.
  bool events_pending = false;
  bool layouts = true;  // fill Fragmentation; costs a second, partial run
  DeviceLatency latency;
};

struct ReplayFailure {
  std::uint32_t record = 0;  // the request that could not be served
  OutOfMemoryInfo info;
  Layout layout;  // at that instant, the cache given back
};

struct ReplayResult {
  std::string policy;
  std::uint64_t capacity = 0;
  bool completed = false;
  std::optional<ReplayFailure> failure;  // the run ends there
  std::uint64_t operations = 0;          // done
  std::uint64_t lower_bound = 0;         // ReplayScript::peak_live
  std::uint64_t peak_live = 0;           // requested bytes, as far as the run came
  std::uint64_t peak_active = 0;         // block sizes, pending ones included
  std::uint64_t peak_reserved = 0;
  std::uint32_t peak_live_record = 0, peak_reserved_record = 0;
  LedgerRows at_peak_live, at_peak_reserved;
  Fragmentation fragmentation;
  Stats stats;
  SimulatedMemory::Calls calls;
  std::int64_t retries = 0;
  std::uint64_t failed_before = 0;  // requests that failed in the recorded run, and here too
  std::uint64_t rescued = 0;        // and that were served here (and freed at once)
  double modelled_seconds = 0;      // device calls and operations; DeviceLatency's estimates
  std::int64_t device_calls() const { return calls.reserve + calls.release + calls.map + calls.unmap; }
};

// Called after each operation that did something; blocks are valid during the call. What the device was asked for
// comes before the operation that asked.
class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;
  enum class DeviceEvent : std::uint8_t { reserve, release, map, unmap };
  virtual void on_start(Allocator&) {}  // the allocator that runs the trace; valid until on_end() has returned
  virtual void on_device(DeviceEvent, std::uint64_t /*address*/, std::uint64_t /*bytes*/) {}
  // A virtual range begins (or goes): addresses, to which on_device() then maps memory.
  virtual void on_range(std::uint64_t /*address*/, std::uint64_t /*bytes*/, bool /*begins*/) {}
  virtual void on_alloc(const ReplayOp&, const Block&) {}
  virtual void on_free(const ReplayOp&, const Block&, bool /*waits*/) {}  // before it happens; waits: for a stream
  virtual void on_role(const ReplayOp&, const Block&) {}
  virtual void on_oom(const ReplayOp&, const OutOfMemoryInfo&) {}
  virtual void on_step(const ReplayOp&, const LedgerRows&) {}  // after every operation
  virtual void on_end(Allocator&) {}                           // after the last operation, or the failure
};

ReplayResult replay(const ReplayScript& script, const ReplayOptions& options, ReplayObserver* observer = nullptr);

}  // namespace limpid::memory
