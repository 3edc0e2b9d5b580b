// Placement: where each block of a trace lies under a policy, event by event. It is what the pictures of memory are
// drawn from: an observer of a replay. Time is counted in events, the operations of the replay's script, which are the
// same under every policy. Not here: figures about a policy (replay.h), drawing (cli/view).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <limpid/memory/ledger.h>
#include <limpid/memory/replay.h>
#include <limpid/memory/trace_log.h>

namespace limpid::memory {

inline constexpr std::uint32_t kStays = UINT32_MAX;  // end of what is still there after the last event

// What blocks have in common. The steps of a training run repeat the same few kinds.
struct PlacedKind {
  std::uint64_t requested = 0, size = 0;  // size: rounding and slack included
  StreamId stream = 0;
  NameId name = 0, op = 0, module = 0;  // places in TraceLog::names; the last name the block had
  Role role = Role::other;
  Phase phase = Phase::none;  // when it was allocated
  bool pending = false;       // freed, waiting for another stream
  bool operator==(const PlacedKind&) const = default;
};

// A rectangle of the address x time map: [offset, offset + size) of a region during the events [begin, end). A block
// whose role changes, or that waits after its free, is several of them, one after another.
struct PlacedBlock {
  std::uint64_t offset = 0;
  std::uint32_t kind = 0, region = 0;
  std::uint32_t begin = 0, end = kStays;
  std::uint32_t born = 0, died = kStays;  // of the whole block; died: the event of its free
};

// A segment, or a virtual range into which memory is mapped. `lane` is its place in the picture: regions that exist at
// the same time do not overlap there, and a place is used again once its region is gone.
struct Region {
  std::uint64_t address = 0, size = 0, lane = 0;  // size of a range: up to the highest byte ever mapped
  StreamId stream = 0;
  std::uint32_t begin = 0, end = kStays;
  PoolKind pool = PoolKind::small;
  bool is_range = false;
};

// Memory behind a region: all of a segment, or one mapped part of a range.
struct RegionPiece {
  std::uint64_t offset = 0, size = 0;
  std::uint32_t region = 0;
  std::uint32_t begin = 0, end = kStays;
};

// Step, micro-batch and phase from an event on.
struct ScopeRun {
  std::uint32_t begin = 0, step = 0, micro_batch = 0;
  Phase phase = Phase::none;
};

// A request that failed under this policy.
struct FailedRequest {
  std::uint64_t bytes = 0;
  std::uint32_t event = 0;
  NameId name = 0, op = 0, module = 0;
  Role role = Role::other;
};

struct Placement {
  std::uint32_t events = 0;
  std::vector<PlacedKind> kinds;
  std::vector<PlacedBlock> blocks;  // ordered by begin
  std::vector<Region> regions;      // in the order in which the policy asked for them
  std::vector<RegionPiece> pieces;  // ordered by begin
  std::vector<ScopeRun> scopes;
  std::vector<FailedRequest> failed;
  std::vector<std::uint64_t> largest_free;  // after each event: the longest run of free bytes inside one region
  std::uint64_t lanes = 0;                  // height of the picture in bytes
  std::uint32_t peak_event = 0;             // the first instant with the most live bytes
  LedgerRows peak;                          // the ledger then
  ReplayResult replay;
};

// Replays the whole log. Where a request fails under this policy and capacity that did not fail when it was recorded,
// the run and the picture end. A block of another stream's waits from its free to the next request.
Placement place(const TraceLog& log, const ReplayOptions& options);

}  // namespace limpid::memory
