// The error of a request that could not be served, with what one needs to see why: the true request, where memory is,
// and who holds most of it. The allocator is unchanged by the failure, except that its cache was given back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/memory/device.h>
#include <limpid/memory/role.h>

namespace limpid::memory {

// Live blocks of one role that share a name; without a name, the layer or else the operation that allocated them.
struct Holder {
  Role role = Role::other;
  std::string name;
  std::uint64_t bytes = 0;  // requested
  std::uint64_t count = 0;
};

// Exactly one of these is why; verdict.h says how it is decided.
enum class OomCause : std::uint8_t {
  capacity,       // live blocks and the request together exceed the device
  external,       // they would fit if others held nothing of the device
  limit,          // they would fit without the limit (memory fraction)
  pending,        // a large enough place waits for another stream's work
  other_stream,   // a large enough free place belongs to another stream
  other_pool,     // a large enough free place lies in the other pool
  granularity,    // there is room for the bytes, but not for the units in which the device is asked
  fragmentation,  // enough bytes are free, but no place is large enough
};
const char* to_string(OomCause cause);

// A live block that stands in the way.
struct Pin {
  std::uint64_t id = 0;  // of the allocation, as in the trace
  Role role = Role::other;
  std::string name;         // as Holder::name
  std::uint64_t bytes = 0;  // requested
};

// The fewest live blocks whose release makes a place for the request.
struct PinSet {
  std::vector<Pin> blocks;       // in address order; empty: no release helps
  std::uint64_t bytes = 0;       // requested, of all of them
  std::uint64_t hole = 0;        // the place that appears
  bool whole_segments = false;   // it appears on the device, because whole segments go back; else inside one segment
  std::optional<bool> replayed;  // a replay that released them served the request (or did not); empty: not replayed
};

// Something that makes it fit: `change` was made and the run was run again, in replay or dry, and it fitted.
struct Advice {
  std::string kind;    // policy, capacity, batch, micro_batches, eval_first
  std::string change;  // "with policy expandable", "with batch 112"
  std::uint64_t peak_reserved = 0;
};

struct OutOfMemoryInfo {
  std::string device;
  std::uint64_t requested = 0;  // what the caller asked for
  std::uint64_t rounded = 0;    // after the policy's rounding
  std::string sum_of;           // `requested` is no single allocation, but all that this needs; empty: it is one
  std::uint64_t live = 0;       // allocated blocks, rounding and slack included
  std::uint64_t reserved = 0;
  std::uint64_t cached = 0;       // free inside reserved
  std::uint64_t pending = 0;      // freed, waiting for another stream
  std::uint64_t device_free = 0;  // not reserved by anybody
  std::uint64_t capacity = 0;
  std::optional<std::uint64_t> limit;  // of the memory fraction
  std::uint64_t largest_free = 0;      // largest free block inside reserved
  Role role = Role::other;
  std::string name;
  Scope scope;                  // of the request
  std::vector<Holder> holders;  // largest first, at most 8

  OomCause cause = OomCause::capacity;
  std::string reason;               // the cause as a sentence with its numbers
  std::uint64_t device_asked = 0;   // bytes of the last call of the device that got nothing; 0: it was not asked
  std::uint64_t held_by_others = 0;  // of the capacity, by other owners
  std::vector<DeviceProcess> processes;  // who held the device's memory, where that is known
  PinSet pins;
  // The largest request of the same operation, layer, phase and role in an earlier step, if the trace still knows one.
  std::optional<std::uint64_t> earlier_request;
  // Of a training step: bytes of its input, and of the largest input of an earlier step.
  std::optional<std::uint64_t> input, largest_input_before;
  std::vector<Advice> advice;  // only what was tried and fitted
  std::string advice_note;     // why there is none, or what it rests on
};

class OutOfMemoryError : public Error {
 public:
  explicit OutOfMemoryError(OutOfMemoryInfo info);
  const OutOfMemoryInfo& info() const noexcept { return info_; }
  std::uint64_t requested() const noexcept { return info_.requested; }

 private:
  OutOfMemoryInfo info_;
};

std::string to_string(const OutOfMemoryInfo& info);  // one paragraph
std::string report(const OutOfMemoryInfo& info);     // the verdict on several lines: cause, pins, input, advice
std::string to_json(const OutOfMemoryInfo& info);

}  // namespace limpid::memory
