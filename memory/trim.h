// TrimResult: the account of Allocator::trim(): what went back to the device, what stayed, and why it stayed: live
// blocks inside (who they are), blocks that wait for a stream, or the wish to keep so many bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <limpid/memory/block.h>
#include <limpid/memory/oom.h>

namespace limpid::memory {

struct TrimResult {
  enum class Reason : std::uint8_t {
    in_use,    // live blocks inside
    pending,   // freed blocks inside that a stream may still use
    retained,  // free, and giving it back would leave less than `keep`
  };
  static const char* name_of(Reason reason);

  // Segments of one pool and stream; `mapped`: pages of virtual ranges, counted in runs.
  struct Given {
    std::string roles;  // of the pool, as AllocatorSettings::pool_name()
    PoolKind kind = PoolKind::small;
    StreamId stream = 0;
    bool mapped = false;
    std::int64_t segments = 0;  // fewer than before; a run from which a part was taken stays, or becomes two
    std::uint64_t bytes = 0;
  };
  // One segment, or one run of mapped pages of a virtual range.
  struct Kept {
    std::string roles;
    PoolKind kind = PoolKind::small;
    StreamId stream = 0;
    bool mapped = false;
    std::uint64_t segment = 0;  // id, as in the trace
    std::uint64_t bytes = 0, live = 0, pending = 0, free = 0;  // live: block sizes
    Reason reason = Reason::in_use;
    std::uint64_t blocks = 0;  // live or pending
    std::vector<Holder> pins;  // who they are, largest first, at most kMaxPins
  };
  static constexpr std::size_t kMaxPins = 8;

  std::string device;
  std::uint64_t keep = 0;
  std::uint64_t reserved_before = 0, reserved_after = 0;
  std::vector<Given> given;
  std::vector<Kept> kept;  // largest first

  std::uint64_t bytes_given() const { return reserved_before - reserved_after; }
};

std::string to_string(const TrimResult& result);  // a few lines for people
std::string to_json(const TrimResult& result);    // one object

}  // namespace limpid::memory
