// Block: a run of bytes inside a segment, allocated, waiting for an event, or free. The handle that allocate() returns.
// Segment: what the device gave in one call. Every segment is tiled by its blocks in address order, under every policy;
// snapshots and checks rely on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <limpid/base/names.h>
#include <limpid/base/scope.h>
#include <limpid/memory/device.h>
#include <limpid/memory/role.h>

namespace limpid::memory {

// pending: freed, but a stream may still use it. unmapped: addresses without memory, inside a virtual range.
enum class BlockState : std::uint8_t { free, allocated, pending, unmapped };
enum class PoolKind : std::uint8_t { small, large };
struct Segment;

// Fields are written by the allocator under its lock; the owner of an allocated block may read all but the links.
struct alignas(64) Block {
  void* ptr = nullptr;
  std::size_t size = 0;       // bytes that belong to the block
  std::size_t requested = 0;  // bytes asked for
  std::size_t rounded = 0;    // the request after the policy's rounding; size - rounded is slack that was not split off
  StreamId stream = 0;        // the stream that may reuse it without waiting
  Block* prev = nullptr;      // neighbours inside the segment
  Block* next = nullptr;
  Segment* segment = nullptr;

  std::uint64_t id = 0;                          // of the allocation, as in the trace
  std::uint64_t order = 0;                       // breaks ties of size among free blocks
  std::uint64_t age_base = 0;                    // the pool's clock when it became free
  std::vector<StreamId>* stream_uses = nullptr;  // streams of record_stream(), owner excluded; null when none
  NameId name = 0;
  NameId op = 0;  // what was running when it was allocated
  NameId module = 0;
  std::uint32_t event_count = 0;
  Role role = Role::other;
  Phase phase = Phase::none;
  BlockState state = BlockState::free;
  PoolKind pool = PoolKind::small;
  std::uint8_t role_pool = 0;  // of the role that it was allocated with (AllocatorSettings::role_pools)

  // It has a neighbour with memory.
  bool is_split() const {
    return (prev && prev->state != BlockState::unmapped) || (next && next->state != BlockState::unmapped);
  }
};

struct Segment {
  void* base = nullptr;
  std::size_t size = 0;
  StreamId stream = 0;
  std::uint64_t id = 0;
  PoolKind pool = PoolKind::small;
  bool expandable = false;  // part of a virtual range
  Block* first = nullptr;
  const Block* end = nullptr;  // where the tiles stop: null, or the unmapped tile behind this run of a virtual range
  std::size_t index = 0;       // place in the policy's table
};

// Copies for snapshots.
struct BlockInfo {
  std::uintptr_t address = 0;
  std::size_t size = 0, requested = 0, rounded = 0;
  BlockState state = BlockState::free;
  Role role = Role::other;
  Phase phase = Phase::none;
  NameId name = 0, op = 0, module = 0;
  std::uint64_t id = 0;
};
struct SegmentInfo {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  StreamId stream = 0;
  PoolKind pool = PoolKind::small;
  std::uint8_t role_pool = 0;
  bool expandable = false;
  std::vector<BlockInfo> blocks;  // in address order, without gaps
};

}  // namespace limpid::memory
