// A policy decides where bytes go: which cached block serves a request, when to split and merge, when to ask the device
// and when to give back. It knows devices only through MemoryDevice and counts only through Books, so that one policy
// runs live, dry and in replay. The facade (Allocator) holds the lock, the names and the errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <limpid/memory/block.h>
#include <limpid/memory/books.h>
#include <limpid/memory/device.h>
#include <limpid/memory/settings.h>

namespace limpid::memory {

struct PolicyContext {
  MemoryDevice& device;
  const AllocatorSettings& settings;
  Books& books;
};

// All calls come under the allocator's lock. DeviceError may leave any of them that is not noexcept; the state is then
// consistent, and the call may be repeated.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual const char* name() const = 0;
  // The size of a request after rounding, without slack.
  virtual std::size_t round(std::size_t bytes) const = 0;
  // The pool that serves a request of this rounded size.
  virtual PoolKind pool_for(std::size_t /*rounded*/) const { return PoolKind::large; }
  // Virtual ranges grow in multiples of this.
  virtual std::size_t growth_unit(PoolKind /*pool*/) const { return std::size_t{2} << 20; }
  // A block with ptr, size, requested, rounded, stream, pool and state set; nullptr when the device is out of memory
  // and giving back the cache did not help. bytes > 0.
  virtual Block* allocate(std::size_t bytes, StreamId stream) = 0;
  virtual void free(Block* block) noexcept = 0;
  virtual void record_stream(Block* block, StreamId stream) = 0;
  // Waits for pending blocks and returns to the device what is wholly free.
  virtual void release_cached() = 0;
  // The same, the largest first, and only as far as the reserved bytes do not fall below `keep`.
  virtual void release_to(std::uint64_t keep) = 0;
  // Limit on reserved bytes besides the device's own.
  virtual void set_limit(std::optional<std::uint64_t> bytes) = 0;
  virtual void for_each_segment(const std::function<void(const Segment&)>& visit) const = 0;
  // InternalError when the policy's own structures contradict the segments' blocks.
  virtual void check() const = 0;
};

using PolicyFactory = std::function<std::unique_ptr<Policy>(const PolicyContext& context)>;

}  // namespace limpid::memory
