// The ledger: whose every byte is, at one instant. It balances to the byte:
//   capacity = other + reserved + device_free
//   reserved = live (sum over roles) + rounding + slack + pending_free + free_in_used + free_whole
// Memory of outside owners (from_blob) stands beside it as `external`: nobody here reserved it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <limpid/base/scope.h>
#include <limpid/memory/role.h>

namespace limpid::memory {

// The part of the ledger that changes with every operation; the allocator keeps it up to date.
struct LedgerRows {
  std::array<std::uint64_t, kRoleCount> live{};  // requested bytes of allocated blocks, by role
  std::uint64_t live_total = 0;                  // their sum
  std::uint64_t rounding = 0;                    // the policy's rounding of allocated blocks
  std::uint64_t slack = 0;                       // rest of allocated blocks that was too small to split off
  std::uint64_t pending_free = 0;                // freed blocks that wait for another stream
  std::uint64_t free_in_used = 0;                // free blocks in segments that are partly used
  std::uint64_t free_whole = 0;                  // free whole segments
  std::uint64_t reserved = 0;                    // sum of segments
  std::uint64_t external = 0;                    // memory of outside owners; not part of reserved

  bool balanced() const { return reserved == live_total + rounding + slack + pending_free + free_in_used + free_whole; }
};

struct Ledger : LedgerRows {
  std::uint64_t capacity = 0;
  std::uint64_t other = 0;  // handed out by the device to somebody else
  std::uint64_t device_free = 0;
  Scope scope;                      // what was running at this instant
  std::uint64_t peak_live = 0;      // highest live_total so far
  std::uint64_t peak_reserved = 0;  // highest reserved so far; in general at another instant

  std::uint64_t role(Role r) const { return live[static_cast<std::size_t>(r)]; }
  std::uint64_t allocated() const { return live_total + rounding + slack; }
  std::uint64_t cached() const { return free_in_used + free_whole; }
  void check() const;  // InternalError when it does not balance
};

// One line a row, for people.
std::string to_string(const Ledger& ledger);

}  // namespace limpid::memory
