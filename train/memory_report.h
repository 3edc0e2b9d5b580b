// The memory of a run in one place: both pools (compute and io) at the instant of the highest use, as a table for
// people and as JSON. Taken from the allocators' own ledgers; nothing is estimated.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <limpid/memory/allocator.h>
#include <limpid/memory/ledger.h>
#include <limpid/memory/role.h>

namespace limpid::train {

// The compute pool's ledger at its peak, with the io pool (data set and loader ring, constant while a run trains)
// added. allocated = sum of roles + rounding, to the byte.
struct MemoryReport {
  std::array<std::uint64_t, memory::kRoleCount> roles{};  // requested bytes of live blocks
  std::uint64_t rounding = 0;                             // of live blocks, unsplit rests included
  std::uint64_t allocated = 0;
  std::uint64_t reserved = 0;     // highest, in general at another instant
  std::uint64_t io_pool = 0;      // part of `allocated` that lies in the io pool
  std::uint64_t io_reserved = 0;  // part of `reserved`
  std::uint64_t external = 0;     // memory of outside owners; in none of the sums
  std::uint64_t capacity = 0;     // of the compute pool
  Scope scope;                    // what was running at the peak

  std::uint64_t role(memory::Role r) const { return roles[static_cast<std::size_t>(r)]; }
};

// The io pool is added where it lies in the same memory: not to a GPU's.
MemoryReport memory_report(const memory::Allocator& compute = memory::host_allocator());
// The io pool's ledger, now or at its peak; empty when `compute` is a GPU's pool.
memory::Ledger data_ledger(const memory::Allocator& compute, bool at_peak = false);
// The same of any two pools, from their ledgers at the peak.
MemoryReport memory_report(const memory::Ledger& compute, const memory::Ledger& io);
// "step 12, forward, conv2d in conv2": the instant of the peak.
std::string describe_instant(const Scope& scope);
// One line a role.
std::string to_string(const MemoryReport& report);
// {"roles": {...}, "rounding": ..., "allocated": ..., "reserved": ..., "at": {"step": ..., "phase": ..., ...}, ...}
std::string to_json(const MemoryReport& report);
// The compute pool now, as one JSON object for ledger.jsonl: {"roles": {...}, "rounding": ..., ...}
std::string memory_line(const memory::Allocator& compute = memory::host_allocator());

}  // namespace limpid::train
