#include <limpid/memory/placement.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

std::uint64_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// The free bytes, as runs between what is allocated. Regions are never neighbours in address, so no run spans two.
class FreeRuns {
 public:
  void add(std::uint64_t at, std::uint64_t size) {
    auto next = runs_.lower_bound(at);
    if (next != runs_.end() && next->first == at + size) {
      size += next->second;
      next = erase(next);
    }
    if (next != runs_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        at = before->first;
        size += before->second;
        erase(before);
      }
    }
    insert(at, size);
  }
  // What of [at, at + size) is free stops being so.
  void remove(std::uint64_t at, std::uint64_t size) {
    const std::uint64_t end = at + size;
    auto it = runs_.upper_bound(at);
    if (it != runs_.begin() && std::prev(it)->first + std::prev(it)->second > at) it = std::prev(it);
    while (it != runs_.end() && it->first < end) {
      const std::uint64_t first = it->first, last = it->first + it->second;
      it = erase(it);
      if (first < at) insert(first, at - first);
      if (last > end) insert(end, last - end);
    }
  }
  std::uint64_t largest() const { return sizes_.empty() ? 0 : *sizes_.rbegin(); }

 private:
  using Runs = std::map<std::uint64_t, std::uint64_t>;
  void insert(std::uint64_t at, std::uint64_t size) {
    runs_.emplace(at, size);
    sizes_.insert(size);
  }
  Runs::iterator erase(Runs::iterator it) {
    sizes_.erase(sizes_.find(it->second));
    return runs_.erase(it);
  }
  Runs runs_;  // address -> size
  std::multiset<std::uint64_t> sizes_;
};

// What the device has handed out, over time.
class RegionBook {
 public:
  std::uint32_t now = 0;
  FreeRuns free_runs;
  std::vector<Region> regions;
  std::vector<RegionPiece> pieces;

  void segment(std::uint64_t at, std::uint64_t size) {
    open(at, size, false);
    mapped(at, size);
  }
  void segment_gone(std::uint64_t at, std::uint64_t size) {
    unmapped(at, size);
    close(at);
  }
  void range(std::uint64_t at) { open(at, 0, true); }
  void range_gone(std::uint64_t at) { close(at); }
  void mapped(std::uint64_t at, std::uint64_t size) {
    const std::uint32_t r = region_of(at);
    const std::uint64_t offset = at - regions[r].address;
    regions[r].size = std::max(regions[r].size, offset + size);
    live_pieces_[at] = static_cast<std::uint32_t>(pieces.size());
    pieces.push_back({offset, size, r, now, kStays});
    free_runs.add(at, size);
  }
  // May be a part of what was mapped in one call, or several of them.
  void unmapped(std::uint64_t at, std::uint64_t size) {
    free_runs.remove(at, size);
    const std::uint64_t end = at + size;
    auto it = live_pieces_.upper_bound(at);
    if (it != live_pieces_.begin()) it = std::prev(it);
    while (it != live_pieces_.end() && it->first < end) {
      RegionPiece piece = pieces[it->second];
      const std::uint64_t first = it->first, last = first + piece.size;
      if (last <= at) {
        ++it;
        continue;
      }
      pieces[it->second].end = now;
      it = live_pieces_.erase(it);
      auto keep = [&](std::uint64_t from, std::uint64_t to) {
        if (from >= to) return;
        live_pieces_[from] = static_cast<std::uint32_t>(pieces.size());
        pieces.push_back({from - regions[piece.region].address, to - from, piece.region, now, kStays});
      };
      keep(first, at);
      keep(end, last);
    }
  }
  std::uint32_t region_of(std::uint64_t at) const {
    auto it = live_.upper_bound(at);
    LIMPID_CHECK(it != live_.begin(), InternalError, "[placement] address ", at, " is in no segment");
    return std::prev(it)->second;
  }

 private:
  void open(std::uint64_t at, std::uint64_t size, bool is_range) {
    live_[at] = static_cast<std::uint32_t>(regions.size());
    Region region;
    region.address = at;
    region.size = size;
    region.begin = now;
    region.is_range = is_range;
    regions.push_back(region);
  }
  void close(std::uint64_t at) {
    auto it = live_.find(at);
    if (it == live_.end()) return;
    regions[it->second].end = now;
    live_.erase(it);
  }
  std::map<std::uint64_t, std::uint32_t> live_, live_pieces_;  // by address
};

struct KindHash {
  std::size_t operator()(const PlacedKind& k) const {
    std::uint64_t h = 0;
    for (std::uint64_t part : {k.requested, k.size, k.stream, std::uint64_t{k.name} << 32 | k.op,
                               std::uint64_t{k.module} << 32 | static_cast<std::uint64_t>(k.role) << 16 |
                                   static_cast<std::uint64_t>(k.phase) << 8 | std::uint64_t{k.pending}}) {
      h = (h ^ part) * 0x9e3779b97f4a7c15;
      h ^= h >> 29;
    }
    return h;
  }
};

class Placer final : public ReplayObserver {
 public:
  Placer(const TraceLog& log, const ReplayScript& script) : log_(log), live_(script.slots) {
    // A block is shown under its last name, which may come long after its allocation.
    std::unordered_map<std::uint64_t, std::uint32_t> allocations;
    for (std::size_t i = 0; i < log.records.size(); i++) {
      const TraceRecord& r = log.records[i];
      if (r.kind == TraceKind::alloc) allocations[r.id] = static_cast<std::uint32_t>(i);
      if (r.kind != TraceKind::name) continue;
      auto it = allocations.find(r.id);
      if (it != allocations.end()) names_[it->second] = r.name;
    }
  }

  void on_device(DeviceEvent event, std::uint64_t address, std::uint64_t bytes) override {
    if (!in_free_) end_waiting();
    book_.now = now();
    switch (event) {
      case DeviceEvent::reserve:
        return book_.segment(address, bytes);
      case DeviceEvent::release:
        return book_.segment_gone(address, bytes);
      case DeviceEvent::map:
        return book_.mapped(address, bytes);
      case DeviceEvent::unmap:
        return book_.unmapped(address, bytes);
    }
  }

  void on_range(std::uint64_t address, std::uint64_t, bool begins) override {
    book_.now = now();
    begins ? book_.range(address) : book_.range_gone(address);
  }

  void on_alloc(const ReplayOp& op, const Block& block) override {
    end_waiting();
    const TraceRecord& r = log_.records[op.record];
    const std::uint64_t at = address_of(block.ptr);
    book_.free_runs.remove(at, block.size);
    const std::uint32_t index = book_.region_of(at);
    Region& region = book_.regions[index];
    region.stream = block.stream;
    region.pool = block.pool;
    const auto renamed = names_.find(op.record);
    const NameId name = renamed == names_.end() ? r.name : renamed->second;
    PlacedBlock rectangle;
    rectangle.offset = at - region.address;
    rectangle.kind = kind({op.bytes, block.size, op.stream, name, r.op, r.module, op.role, r.phase, false});
    rectangle.region = index;
    rectangle.begin = rectangle.born = now();
    const std::uint32_t place = open(rectangle);
    live_[op.slot] = {place, place};
  }

  void on_role(const ReplayOp& op, const Block&) override {
    Live& live = live_[op.slot];
    PlacedKind next = out_.kinds[out_.blocks[live.last].kind];
    if (next.role == op.role) return;
    next.role = op.role;
    live.last = continue_as(live.last, next);
  }

  void on_free(const ReplayOp& op, const Block& block, bool waits) override {
    in_free_ = true;
    Live& live = live_[op.slot];
    const std::uint64_t at = address_of(block.ptr);
    if (waits) {
      PlacedKind next = out_.kinds[out_.blocks[live.last].kind];
      next.pending = true;
      live.last = continue_as(live.last, next);
      waiting_.push_back({at, block.size, live.last});
    } else {
      out_.blocks[live.last].end = now();
      book_.free_runs.add(at, block.size);  // at once: the policy may give the segment back in this very call
    }
    for (std::uint32_t i = live.first;; i = next_[i]) {
      out_.blocks[i].died = now();
      if (i == live.last) break;
    }
  }

  void on_oom(const ReplayOp& op, const OutOfMemoryInfo&) override {
    end_waiting();
    const TraceRecord& r = log_.records[op.record];
    out_.failed.push_back({op.bytes, now(), r.name, r.op, r.module, op.role});
  }

  void on_step(const ReplayOp& op, const LedgerRows& rows) override {
    const TraceRecord& r = log_.records[op.record];
    if (op.kind == TraceKind::empty_cache) end_waiting();
    const ScopeRun scope{now(), r.step, r.micro_batch, r.phase};
    if (out_.scopes.empty() || !same(out_.scopes.back(), scope)) out_.scopes.push_back(scope);
    if (rows.live_total > out_.peak.live_total) {
      out_.peak = rows;
      out_.peak_event = now();
    }
    out_.largest_free.push_back(book_.free_runs.largest());
    in_free_ = false;
    out_.events++;
  }

  // The allocator's own end is no part of the story.
  Placement finish(ReplayResult result) {
    out_.replay = std::move(result);
    assign_lanes();
    return std::move(out_);
  }
  void on_end(Allocator&) override {
    out_.regions = book_.regions;
    out_.pieces = book_.pieces;
    std::erase_if(out_.pieces, [](const RegionPiece& p) { return p.begin == p.end; });
    trim_ranges();
  }

 private:
  struct Live {
    std::uint32_t first, last;  // rectangles: the block's first and the open one
  };
  struct Waiting {
    std::uint64_t address, size;
    std::uint32_t rectangle;
  };

  std::uint32_t now() const { return out_.events; }
  static bool same(const ScopeRun& a, const ScopeRun& b) {
    return a.step == b.step && a.micro_batch == b.micro_batch && a.phase == b.phase;
  }

  std::uint32_t kind(const PlacedKind& value) {
    auto [it, is_new] = places_.try_emplace(value, static_cast<std::uint32_t>(out_.kinds.size()));
    if (is_new) out_.kinds.push_back(value);
    return it->second;
  }

  std::uint32_t open(const PlacedBlock& rectangle) {
    out_.blocks.push_back(rectangle);
    next_.push_back(kStays);
    return static_cast<std::uint32_t>(out_.blocks.size() - 1);
  }

  // The open rectangle of a block ends here and another goes on.
  std::uint32_t continue_as(std::uint32_t last, const PlacedKind& value) {
    PlacedBlock rectangle = out_.blocks[last];
    rectangle.kind = kind(value);
    rectangle.begin = now();
    out_.blocks[last].end = now();
    const std::uint32_t place = open(rectangle);
    next_[last] = place;
    return place;
  }

  // The events of SimulatedMemory have been reached as soon as one asks, and policies ask before they serve a request.
  void end_waiting() {
    for (const Waiting& w : waiting_) {
      out_.blocks[w.rectangle].end = now();
      book_.free_runs.add(w.address, w.size);
    }
    waiting_.clear();
  }

  // A range is shown while it has memory: policies keep addresses much longer.
  void trim_ranges() {
    std::vector<bool> seen(out_.regions.size());
    for (const RegionPiece& p : out_.pieces) {
      Region& region = out_.regions[p.region];
      if (!region.is_range) continue;
      region.begin = seen[p.region] ? std::min(region.begin, p.begin) : p.begin;
      region.end = seen[p.region] ? std::max(region.end, p.end) : p.end;
      seen[p.region] = true;
    }
  }

  // Each region takes the lowest gap that is long enough among the regions that exist when it begins.
  void assign_lanes() {
    std::map<std::uint64_t, std::uint64_t> taken;  // lane -> its end
    std::multimap<std::uint32_t, std::uint64_t> ends;
    std::vector<std::uint32_t> order(out_.regions.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return out_.regions[a].begin < out_.regions[b].begin; });
    for (std::uint32_t place : order) {
      Region& region = out_.regions[place];
      while (!ends.empty() && ends.begin()->first <= region.begin) {
        taken.erase(ends.begin()->second);
        ends.erase(ends.begin());
      }
      if (region.size == 0 || region.begin == region.end) continue;
      std::uint64_t lane = 0;
      for (const auto& [from, to] : taken) {
        if (from - lane >= region.size) break;
        lane = to;
      }
      region.lane = lane;
      taken[lane] = lane + region.size;
      if (region.end != kStays) ends.emplace(region.end, lane);
      out_.lanes = std::max(out_.lanes, lane + region.size);
    }
  }

  const TraceLog& log_;
  RegionBook book_;
  Placement out_;
  std::vector<Live> live_;           // by slot
  std::vector<std::uint32_t> next_;  // of a rectangle: the one that continues its block
  std::vector<Waiting> waiting_;
  std::unordered_map<PlacedKind, std::uint32_t, KindHash> places_;
  std::unordered_map<std::uint32_t, NameId> names_;  // of records whose block is renamed later
  bool in_free_ = false;
};

}  // namespace

Placement place(const TraceLog& log, const ReplayOptions& options) {
  const ReplayScript script(log);
  LIMPID_CHECK(script.ops.size() < kStays - 1, DataError, "[placement] the trace has ", script.ops.size(),
               " events, more than ", kStays - 2);
  Placer placer(log, script);
  ReplayOptions plain = options;
  plain.layouts = false;
  ReplayResult result = replay(script, plain, &placer);
  return placer.finish(std::move(result));
}

}  // namespace limpid::memory
