#include <limpid/memory/replay.h>

#include <algorithm>
#include <unordered_map>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

// A simulated device that tells an observer, with addresses, what was asked of it.
class WatchedMemory final : public SimulatedMemory {
 public:
  using SimulatedMemory::SimulatedMemory;
  ReplayObserver* observer = nullptr;

  void* reserve(std::size_t bytes) override {
    void* segment = SimulatedMemory::reserve(bytes);
    if (segment) tell(ReplayObserver::DeviceEvent::reserve, segment, bytes);
    return segment;
  }
  void release(void* segment, std::size_t bytes) override {
    SimulatedMemory::release(segment, bytes);
    tell(ReplayObserver::DeviceEvent::release, segment, bytes);
  }
  void* range_reserve(std::size_t bytes) override {
    void* range = SimulatedMemory::range_reserve(bytes);
    if (range && observer) observer->on_range(reinterpret_cast<std::uintptr_t>(range), bytes, true);
    return range;
  }
  void range_release(void* range, std::size_t bytes) override {
    SimulatedMemory::range_release(range, bytes);
    if (observer) observer->on_range(reinterpret_cast<std::uintptr_t>(range), bytes, false);
  }
  bool map(void* at, std::size_t bytes) override {
    const bool ok = SimulatedMemory::map(at, bytes);
    if (ok) tell(ReplayObserver::DeviceEvent::map, at, bytes);
    return ok;
  }
  void unmap(void* at, std::size_t bytes) override {
    SimulatedMemory::unmap(at, bytes);
    tell(ReplayObserver::DeviceEvent::unmap, at, bytes);
  }

 private:
  void tell(ReplayObserver::DeviceEvent event, void* at, std::size_t bytes) {
    if (observer) observer->on_device(event, reinterpret_cast<std::uintptr_t>(at), bytes);
  }
};

double modelled_seconds(const SimulatedMemory::Calls& c, std::uint64_t operations, const DeviceLatency& l) {
  auto times = [](std::int64_t n, double seconds) { return static_cast<double>(n) * seconds; };
  return times(c.reserve, l.reserve) + times(c.release, l.release) + times(c.map, l.map) + times(c.unmap, l.unmap) +
         times(c.range_reserve + c.range_release, l.range) + times(c.event_record, l.event) +
         times(c.event_query, l.query) + times(c.event_wait, l.wait) + static_cast<double>(operations) * l.operation;
}

// One run. The second run for the layout at the peak stops after the operation `stop_after`.
class Runner {
 public:
  Runner(const ReplayScript& script, const ReplayOptions& options, ReplayObserver* observer)
      : script_(script),
        observer_(observer),
        device_(std::make_shared<WatchedMemory>(options.capacity)),
        allocator_(device_, options.settings, options.policy),
        blocks_(script.slots) {
    device_->observer = observer;
    device_->set_events_pending(options.events_pending);
    allocator_.trace().set_capacity(2);  // what it would record is the input
  }

  void run(ReplayResult& result, std::uint64_t stop_after = UINT64_MAX) {
    const LedgerRows& rows = allocator_.books().rows;
    Fragmentation& f = result.fragmentation;
    double gap_sum = 0, miss_sum = 0;
    if (observer_) observer_->on_start(allocator_);
    std::uint64_t device_memory_calls = 0;
    std::uint64_t done = 0;
    for (const ReplayOp& op : script_.ops) {
      if (done == stop_after) break;
      const std::uint64_t gap_before = rows.reserved - rows.live_total;
      const bool served = step(op, result);
      if (observer_) observer_->on_step(op, rows);
      done++;
      if (rows.live_total > result.peak_live) {
        result.peak_live = rows.live_total;
        result.peak_live_record = op.record;
      }
      if (rows.reserved > result.peak_reserved) {
        result.peak_reserved = rows.reserved;
        result.peak_reserved_record = op.record;
        peak_reserved_done_ = done;
      }
      const std::uint64_t gap = rows.reserved - rows.live_total;
      f.peak_gap = std::max(f.peak_gap, gap);
      gap_sum += static_cast<double>(gap);
      const auto calls = static_cast<std::uint64_t>(device_->calls().reserve + device_->calls().map);
      if (calls != device_memory_calls) {
        device_memory_calls = calls;
        f.misses++;
        miss_sum += static_cast<double>(gap_before);
      }
      if (!served) break;
    }
    result.operations = done;
    if (done > 0) f.mean_gap = gap_sum / static_cast<double>(done);
    if (f.misses > 0) f.mean_gap_at_miss = static_cast<std::uint64_t>(miss_sum / static_cast<double>(f.misses));
  }

  void finish(ReplayResult& result, const ReplayOptions& options) {
    result.completed = !result.failure;
    result.policy = allocator_.policy_name();
    result.stats = allocator_.stats();
    result.peak_active = static_cast<std::uint64_t>(result.stats.get(Metric::active_bytes).peak);
    result.fragmentation.peak_non_releasable =
        static_cast<std::uint64_t>(result.stats.get(Metric::inactive_split_bytes).peak);
    result.at_peak_live = allocator_.ledger_at_peak();
    result.at_peak_reserved = allocator_.ledger_at_reserved_peak();
    result.retries = result.stats.num_alloc_retries;
    result.calls = device_->calls();
    result.modelled_seconds = modelled_seconds(result.calls, result.operations, options.latency);
    if (observer_) observer_->on_end(allocator_);
    device_->observer = nullptr;  // what the allocator's end gives back is no part of the run
  }

  std::uint64_t peak_reserved_done() const { return peak_reserved_done_; }
  Allocator& allocator() { return allocator_; }

 private:
  // False when the run ends here.
  bool step(const ReplayOp& op, ReplayResult& result) {
    switch (op.kind) {
      case TraceKind::alloc: {
        Block* block = request(op, result, true);
        blocks_[op.slot] = block;
        if (block && observer_) observer_->on_alloc(op, *block);
        return block != nullptr;
      }
      case TraceKind::free: {
        Block* block = blocks_[op.slot];
        if (observer_) observer_->on_free(op, *block, block->stream_uses != nullptr);
        allocator_.free(block);
        return true;
      }
      case TraceKind::role:
        allocator_.set_role(blocks_[op.slot], op.role);
        if (observer_) observer_->on_role(op, *blocks_[op.slot]);
        return true;
      case TraceKind::record_stream:
        allocator_.record_stream(blocks_[op.slot], op.stream);
        return true;
      case TraceKind::empty_cache:
        allocator_.empty_cache(op.bytes);
        return true;
      case TraceKind::oom:
        if (Block* block = request(op, result, false)) {
          result.rescued++;
          allocator_.free(block);
        } else {
          result.failed_before++;
        }
        return true;
      default:
        return true;
    }
  }

  Block* request(const ReplayOp& op, ReplayResult& result, bool must_succeed) {
    try {
      return allocator_.allocate(op.bytes, op.role, 0, op.stream);
    } catch (const OutOfMemoryError& error) {
      if (observer_) observer_->on_oom(op, error.info());
      if (must_succeed) result.failure = ReplayFailure{op.record, error.info(), layout_of(allocator_)};
      return nullptr;
    }
  }

  const ReplayScript& script_;
  ReplayObserver* observer_;
  std::shared_ptr<WatchedMemory> device_;
  Allocator allocator_;
  std::vector<Block*> blocks_;
  std::uint64_t peak_reserved_done_ = 0;
};

}  // namespace

ReplayScript::ReplayScript(const TraceLog& log) {
  LIMPID_CHECK(log.records.size() < UINT32_MAX, DataError, "[replay] ", log.records.size(),
               " records, more than 2^32 - 2");
  struct Live {
    std::uint32_t slot;
    std::uint64_t bytes;
  };
  std::unordered_map<std::uint64_t, Live> live;
  std::vector<std::uint32_t> spare;
  std::uint64_t live_bytes = 0;
  for (std::size_t i = 0; i < log.records.size(); i++) {
    const TraceRecord& r = log.records[i];
    ReplayOp op{r.bytes, r.stream, 0, static_cast<std::uint32_t>(i), r.kind, r.role};
    switch (r.kind) {
      case TraceKind::alloc: {
        if (spare.empty()) spare.push_back(slots++);
        op.slot = spare.back();
        spare.pop_back();
        const bool is_new = live.try_emplace(r.id, Live{op.slot, r.bytes}).second;
        LIMPID_CHECK(is_new, DataError, "[replay] record ", i, " allocates block ", r.id, ", which is live already");
        live_bytes += r.bytes;
        allocations++;
        if (live_bytes > peak_live) {
          peak_live = live_bytes;
          peak_live_record = op.record;
        }
        break;
      }
      case TraceKind::free:
      case TraceKind::role:
      case TraceKind::record_stream: {
        auto it = live.find(r.id);
        if (it == live.end()) {
          unknown++;
          continue;
        }
        op.slot = it->second.slot;
        if (r.kind != TraceKind::free) break;
        live_bytes -= it->second.bytes;
        frees++;
        spare.push_back(op.slot);
        live.erase(it);
        break;
      }
      case TraceKind::oom:
      case TraceKind::empty_cache:
        break;
      default:
        continue;
    }
    ops.push_back(op);
  }
}

std::uint32_t ReplayScript::event_of(std::uint32_t record) const {
  const auto at = std::lower_bound(ops.begin(), ops.end(), record,
                                   [](const ReplayOp& op, std::uint32_t r) { return op.record < r; });
  LIMPID_CHECK(at != ops.end() && at->record == record, ArgumentError, "[replay] record ", record, " is no operation");
  return static_cast<std::uint32_t>(at - ops.begin());
}

ReplayResult replay(const ReplayScript& script, const ReplayOptions& options, ReplayObserver* observer) {
  ReplayResult result;
  result.capacity = options.capacity;
  result.lower_bound = script.peak_live;
  Runner runner(script, options, observer);
  runner.run(result);
  runner.finish(result, options);
  Fragmentation& f = result.fragmentation;
  if (result.peak_reserved > 0) {
    f.utilisation = static_cast<double>(result.peak_active) / static_cast<double>(result.peak_reserved);
  }
  f.excess = result.peak_reserved - std::min(result.peak_reserved, result.lower_bound);
  if (options.layouts) {
    Runner again(script, options, nullptr);
    ReplayResult ignored;
    again.run(ignored, runner.peak_reserved_done());
    f.at_peak = layout_of(again.allocator());
  }
  return result;
}

Layout layout_of(const Allocator& allocator) {
  Layout out;
  double squares = 0;
  for (const SegmentInfo& segment : allocator.snapshot()) {
    out.reserved += segment.size;
    out.segments++;
    for (const BlockInfo& block : segment.blocks) {
      if (block.state == BlockState::free) {
        out.external += block.size;
        out.largest_free = std::max<std::uint64_t>(out.largest_free, block.size);
        out.free_blocks++;
        squares += static_cast<double>(block.size) * static_cast<double>(block.size);
      } else {
        out.allocated += block.size;
        out.requested += block.requested;
      }
    }
  }
  out.internal = out.allocated - out.requested;
  if (out.reserved > 0) {
    out.sum_of_squares = squares / (static_cast<double>(out.reserved) * static_cast<double>(out.reserved));
  }
  return out;
}

}  // namespace limpid::memory
