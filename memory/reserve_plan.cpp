#include <limpid/memory/reserve_plan.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/base/scope.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/replay.h>

namespace limpid::memory {
namespace {

std::int64_t device_calls(const Allocator& allocator) {
  const Stats stats = allocator.stats();
  return stats.num_device_alloc + stats.num_device_free;
}

// Equal when every segment lies where it lay and is cut as it was.
std::vector<std::uint64_t> layout(const Allocator& allocator) {
  std::vector<std::uint64_t> out;
  for (const SegmentInfo& segment : allocator.snapshot()) {
    out.push_back(segment.address);
    for (const BlockInfo& block : segment.blocks) out.push_back(block.size * 2 + (block.state == BlockState::free));
  }
  return out;
}

// The blocks of one pass; whatever ends it, they are freed.
class Pass {
 public:
  Pass(Allocator& allocator, const ReplayScript& script) : allocator_(allocator), blocks_(script.slots, nullptr) {}
  ~Pass() {
    for (Block* block : blocks_) allocator_.free(block);
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void step(const ReplayOp& op) {
    Block*& block = blocks_[op.slot];
    switch (op.kind) {
      case TraceKind::alloc:
        block = allocator_.allocate(op.bytes, op.role, 0, op.stream);
        break;
      case TraceKind::free:
        allocator_.free(block);
        block = nullptr;
        break;
      case TraceKind::role:
        allocator_.set_role(block, op.role);
        break;
      case TraceKind::record_stream:
        allocator_.record_stream(block, op.stream);
        break;
      default:
        break;
    }
  }

 private:
  Allocator& allocator_;
  std::vector<Block*> blocks_;
};

}  // namespace

std::uint64_t first_of_steps(const TraceLog& log) {
  std::uint64_t first = std::min<std::uint64_t>(log.info.preexisting, log.records.size());
  for (std::uint64_t i = first; i < log.records.size(); i++) {
    const TraceRecord& r = log.records[i];
    if (r.phase == Phase::forward) break;
    const bool lasting = r.kind == TraceKind::alloc && (r.role == Role::param || r.role == Role::optimizer);
    if (lasting || r.kind == TraceKind::empty_cache) first = i + 1;
  }
  return first;
}

ReservePlanResult reserve_plan(Allocator& allocator, const TraceLog& log, std::uint64_t first, int max_passes) {
  LIMPID_CHECK(first <= log.records.size(), ArgumentError, "[reserve_plan] the trace has ", log.records.size(),
               " records, the first one asked for is ", first);
  TraceLog part;
  part.records.assign(log.records.begin() + static_cast<std::ptrdiff_t>(first), log.records.end());
  const ReplayScript script(part);
  static const NameId label = intern("reserve_plan");
  const OpScope op_scope(label);

  ReservePlanResult out;
  out.operations = script.ops.size();
  out.peak_live = script.peak_live;
  out.live_before = allocator.ledger().live_total;
  out.reserved_before = allocator.ledger().reserved;
  out.segments_before = static_cast<std::int64_t>(allocator.snapshot().size());
  bool at_rest = false;
  for (int i = 0; i < max_passes && !at_rest; i++) {
    const std::int64_t calls = device_calls(allocator);
    const std::vector<std::uint64_t> before = layout(allocator);
    try {
      Pass pass(allocator, script);
      for (const ReplayOp& op : script.ops) pass.step(op);
    } catch (OutOfMemoryError& error) {
      error.add_context(concat("[reserve_plan] the trace needs ", format_bytes(script.peak_live), " besides the ",
                               format_bytes(out.reserved_before), " reserved before, and does not fit: "));
      throw;
    }
    out.passes.push_back({device_calls(allocator) - calls, allocator.ledger().reserved});
    at_rest = out.passes.back().device_calls == 0 && layout(allocator) == before;
  }
  LIMPID_CHECK(at_rest, ArgumentError, "[reserve_plan] after ", max_passes, " passes under ", allocator.policy_name(),
               " a pass still makes ", out.passes.empty() ? 0 : out.passes.back().device_calls,
               " device calls: the capacity of ", format_bytes(allocator.device().mem_info().total),
               " is too small, or the policy moves pages instead of keeping more of them");
  out.reserved_after = allocator.ledger().reserved;
  out.segments_after = static_cast<std::int64_t>(allocator.snapshot().size());
  allocator.reset_peak_stats();
  return out;
}

std::string to_string(const ReservePlanResult& r) {
  return "reserved " + format_bytes(r.reserved_after - std::min(r.reserved_before, r.reserved_after)) + " in " +
         format_count(r.segments_after - r.segments_before) + " segments for a run of " +
         format_count(static_cast<std::int64_t>(r.operations)) + " operations with at most " +
         format_bytes(r.peak_live) + " live, besides " + format_bytes(r.live_before) + " live in " +
         format_bytes(r.reserved_before) + " before; " + format_count(static_cast<std::int64_t>(r.passes.size())) +
         " passes, the last without a device call";
}

std::string to_json(const ReservePlanResult& r) {
  using Json = nlohmann::ordered_json;
  Json passes = Json::array();
  for (const auto& pass : r.passes) {
    passes.push_back({{"device_calls", pass.device_calls}, {"reserved", pass.reserved}});
  }
  return Json{{"operations", r.operations},           {"peak_live", r.peak_live},
              {"live_before", r.live_before},
              {"reserved_before", r.reserved_before}, {"reserved_after", r.reserved_after},
              {"segments_before", r.segments_before}, {"segments_after", r.segments_after},
              {"passes", std::move(passes)}}
      .dump();
}

}  // namespace limpid::memory
