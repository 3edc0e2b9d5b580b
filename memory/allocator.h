// The allocator: every byte of every tensor and workspace on one device comes from here. A facade over a policy that
// adds the lock, names and roles, pools by role, the ledger, statistics, the trace and the out-of-memory error. Thread
// safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <limpid/base/names.h>
#include <limpid/memory/block.h>
#include <limpid/memory/books.h>
#include <limpid/memory/device.h>
#include <limpid/memory/ledger.h>
#include <limpid/memory/native_policy.h>
#include <limpid/memory/oom.h>
#include <limpid/memory/policy.h>
#include <limpid/memory/role.h>
#include <limpid/memory/settings.h>
#include <limpid/memory/spin_lock.h>
#include <limpid/memory/stats.h>
#include <limpid/memory/trace.h>
#include <limpid/memory/trim.h>

namespace limpid::memory {

class Allocator {
 public:
  explicit Allocator(std::shared_ptr<MemoryDevice> device, AllocatorSettings settings = {},
                     PolicyFactory policy = make_native_policy);
  ~Allocator();  // gives every segment back, live blocks included
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // `bytes` uninitialised bytes, aligned to 512, in order with `stream`. 0 bytes: nullptr. OutOfMemoryError.
  Block* allocate(std::size_t bytes, Role role, NameId name = 0, StreamId stream = 0);
  void free(Block* block) noexcept;  // nullptr is fine
  void set_role(Block* block, Role role) noexcept;
  void set_name(Block* block, NameId name) noexcept;
  // Also `stream` uses the block: once freed, it is not reused before that stream has got there.
  void record_stream(Block* block, StreamId stream);
  // Waits for pending blocks and gives wholly free segments back to the device: all of them, or the largest first as
  // long as the reserved bytes do not fall below `keep`.
  void empty_cache(std::uint64_t keep = 0);
  // The same, with an account of what went back, what stayed and why.
  TrimResult trim(std::uint64_t keep = 0);
  // A training step ends: empties the cache down to settings().retain when the reserved bytes are above it.
  void end_step();

  // Memory that somebody else owns and a tensor wraps. It counts in its own row, not in reserved nor against capacity.
  void add_external(std::size_t bytes);
  void remove_external(std::size_t bytes);

  // Capacity of the device in bytes; 0 = the device's own. Gives cached segments back when they are above it;
  // ArgumentError when what is in use is above it.
  void set_capacity(std::uint64_t bytes);
  // Reserved bytes do not exceed this fraction of the capacity, in [0, 1]; 1 = no limit besides the device's.
  void set_memory_fraction(double fraction);

  const AllocatorSettings& settings() const { return settings_; }
  const std::string& device_name() const { return device_->name(); }
  const char* policy_name() const { return policies_[0]->name(); }
  MemoryDevice& device() { return *device_; }

  Stats stats() const;
  std::int64_t live_blocks() const;
  void reset_peak_stats();  // also of the ledger
  std::string memory_summary(bool abbreviated = false) const;
  Ledger ledger() const;
  Ledger ledger_at_peak() const;              // at the instant when live bytes were highest
  Ledger ledger_at_reserved_peak() const;     // at the instant when reserved bytes were highest
  std::vector<SegmentInfo> snapshot() const;  // in address order
  Trace& trace() { return books_.trace; }
  // Sends the trace to a sink so that it can be replayed from the start: the sink gets the whole past when the ring
  // still holds it, else an alloc record for every block that is live now. Returns how many such blocks there were.
  std::uint64_t record_to(Trace::Sink sink);
  // The books as they are, without the lock: for a replay, which owns its allocator alone.
  const Books& books() const { return books_; }
  // Counts everything anew from the blocks; InternalError when anything differs from what was kept.
  void check() const;

 private:
  Policy& policy_of(Role role) { return *policies_[settings_.role_pools[static_cast<std::size_t>(role)]]; }
  void for_each_segment(const std::function<void(const Segment& segment, std::uint8_t role_pool)>& visit) const;
  void release(std::uint64_t keep);
  LIMPID_NOINLINE Block* allocate_again(std::size_t bytes, Role role, NameId name, StreamId stream);
  Ledger complete(const LedgerRows& rows, const Scope& scope) const;
  void apply_limit();
  LIMPID_NOINLINE void after_device_call();
  [[noreturn]] LIMPID_NOINLINE void out_of_memory(std::size_t bytes, Role role, NameId name, StreamId stream);
#ifdef NDEBUG
  void assert_balanced() const noexcept {}
#else
  void assert_balanced() const;
#endif
  void after() {
    if (LIMPID_UNLIKELY(books_.device_changed)) after_device_call();
    assert_balanced();
  }

  mutable SpinLock lock_;
  std::shared_ptr<MemoryDevice> device_;
  AllocatorSettings settings_;
  Books books_;
  std::vector<std::unique_ptr<Policy>> policies_;  // one a pool of roles
  double fraction_ = 1;
  std::optional<std::uint64_t> limit_;  // of the fraction
  std::uint64_t next_id_ = 1;
};

// Policy and settings of the pool of CPU tensors. ArgumentError once the pool exists.
void set_host_policy(PolicyFactory policy, const AllocatorSettings& settings = {});
bool host_pool_exists();
// Huge pages for what both pools below take from the system from now on; they are on at the start.
void set_host_huge_pages(bool on);
bool host_huge_pages();
// The pool of CPU tensors and the pool of the data loader's buffers, made at first use. Never destroyed, so that a
// static tensor may be freed after main.
Allocator& host_allocator();
Allocator& io_allocator();

}  // namespace limpid::memory
