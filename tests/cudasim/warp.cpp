// Warp operations: lanes that a mask names meet, and each leaves with the values of all.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include <cudasim/block.h>

namespace limpid::cudasim {
namespace {
std::string hex(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}
}  // namespace

unsigned Block::lanes_of(int warp) const {
  const int lanes = count_ - warp * 32;
  return lanes >= 32 ? ~0u : ~(~0u << lanes);
}

unsigned Block::exited_lanes(int warp) const {
  unsigned exited = ~lanes_of(warp);  // lanes beyond the block's end count as exited
  for (int lane = 0; lane < 32 && warp * 32 + lane < count_; lane++) {
    if (threads_[static_cast<std::size_t>(warp * 32 + lane)].state == ThreadState::done) exited |= 1u << lane;
  }
  return exited;
}

// The operation that this lane takes part in: one that others have begun, or a new one.
PendingWarpOp& Block::join_warp_op(unsigned mask, WarpOp op, std::size_t bytes, Site site) {
  const int warp = current_ / 32, lane = current_ % 32;
  auto& operations = warps_[static_cast<std::size_t>(warp)].operations;
  for (auto& pending : operations) {
    const bool same = pending->open && pending->mask == mask && pending->op == op && pending->bytes == bytes;
    if (same && !(pending->arrived >> lane & 1)) return *pending;
  }
  for (auto& pending : operations) {
    // Lanes may be in different branches, each with a mask of its own. Two operations that wait for each other may not be.
    if (pending->open && (pending->mask >> lane & 1) && (pending->arrived & mask)) {
      note_failure(site, cudaErrorLaunchFailure, "warp operation with mask " + hex(mask) + ", while lanes of it wait for this one with mask " +
           hex(pending->mask) + " at " + place_of(pending->site));
      leave_failed();
    }
  }
  auto free = std::find_if(operations.begin(), operations.end(), [](auto& p) { return !p->open && p->readers == 0; });
  if (free == operations.end()) free = operations.insert(operations.end(), std::make_unique<PendingWarpOp>());
  PendingWarpOp& pending = **free;
  pending.op = op;
  pending.mask = mask;
  pending.arrived = 0;
  pending.bytes = bytes;
  pending.site = site;
  pending.open = true;
  return pending;
}

void Block::warp_exchange(unsigned mask, WarpOp op, const void* value, std::size_t bytes, WarpValues& out, Site site) {
  const int warp = current_ / 32, lane = current_ % 32;
  if (!(mask >> lane & 1)) {
    note_failure(site, cudaErrorLaunchFailure, "lane " + std::to_string(lane) + " is not in its own mask " + hex(mask));
    leave_failed();
  }
  const unsigned gone = mask & exited_lanes(warp) & lanes_of(warp);
  if (gone) {
    note_failure(site, cudaErrorLaunchFailure, "mask " + hex(mask) + " names lanes that have exited: " + hex(gone));
    leave_failed();
  }
  PendingWarpOp& pending = join_warp_op(mask, op, bytes, site);
  std::memcpy(pending.values + static_cast<std::size_t>(lane) * bytes, value, bytes);
  pending.arrived |= 1u << lane;
  Thread& thread = threads_[static_cast<std::size_t>(current_)];
  thread.state = ThreadState::in_warp_operation;
  thread.site = site;
  if ((mask & ~exited_lanes(warp) & ~pending.arrived) == 0) complete(pending, warp);
  wait_for_turn();
  out.arrived = pending.arrived;
  std::memcpy(out.values, pending.values, 32 * bytes);
  pending.readers &= ~(1u << lane);
}

void Block::complete(PendingWarpOp& pending, int warp) {
  pending.open = false;
  pending.readers = pending.arrived;
  counters().warp_operations++;
  // Each lane's own clock ticks, then all know what any of them knows.
  LaneClocks& clocks = warps_[static_cast<std::size_t>(warp)].clocks;
  std::array<std::uint16_t, 32> known{};
  for (std::size_t lane = 0; lane < 32; lane++) {
    if (!(pending.arrived >> lane & 1)) continue;
    clocks[lane][lane]++;
    for (std::size_t other = 0; other < 32; other++) known[other] = std::max(known[other], clocks[lane][other]);
  }
  std::vector<int> waiting;
  for (std::size_t lane = 0; lane < 32; lane++) {
    if (!(pending.arrived >> lane & 1)) continue;
    clocks[lane] = known;
    waiting.push_back(warp * 32 + static_cast<int>(lane));
  }
  let_go(waiting);
}

}  // namespace limpid::cudasim
