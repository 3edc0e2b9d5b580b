#include <limpid/memory/offline_policy.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

constexpr std::size_t kUnit = TiledPolicy::kMinBlock;

std::size_t round_up(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

std::string describe(const TracePlan::Event& event) {
  if (!event.is_alloc) return concat("the free of buffer ", event.buffer, " (", event.bytes, " bytes)");
  return concat("an allocation of ", event.bytes, " bytes on stream ", event.stream);
}

}  // namespace

TracePlan plan_trace(const std::vector<TraceRecord>& records, std::size_t exact_up_to, std::uint64_t nodes) {
  TracePlan out;
  std::unordered_map<std::uint64_t, std::size_t> buffer_of;  // by id of the allocation
  std::map<StreamId, std::vector<std::size_t>> by_stream;
  std::set<std::size_t> shared;
  for (const TraceRecord& r : records) {
    if (r.kind == TraceKind::alloc) {
      buffer_of[r.id] = out.buffers.size();
      by_stream[r.stream].push_back(out.buffers.size());
      out.events.push_back({true, r.bytes, r.stream, out.buffers.size()});
      out.buffers.push_back({round_up(r.bytes), out.events.size() - 1, UINT64_MAX});
    } else if (r.kind == TraceKind::free) {
      auto it = buffer_of.find(r.id);
      if (it == buffer_of.end()) continue;
      out.events.push_back({false, r.bytes, r.stream, it->second});
      if (!shared.count(it->second)) out.buffers[it->second].end = out.events.size() - 1;
    } else if (r.kind == TraceKind::record_stream) {
      auto it = buffer_of.find(r.id);
      if (it != buffer_of.end()) shared.insert(it->second);
    }
  }
  for (PlanBuffer& buffer : out.buffers) buffer.end = std::min<std::uint64_t>(buffer.end, out.events.size());
  out.lower_bound = peak_live(out.buffers);
  out.plan.offsets.resize(out.buffers.size());
  out.plan.method = "nothing to plan";
  out.plan.optimal = true;
  for (const auto& [stream, members] : by_stream) {
    std::vector<PlanBuffer> buffers;
    for (std::size_t i : members) buffers.push_back(out.buffers[i]);
    Plan plan = buffers.size() <= exact_up_to ? plan_exact(buffers, nodes) : plan_best_of(buffers);
    for (std::size_t i = 0; i < members.size(); i++) {
      out.plan.offsets[members[i]] = out.plan.height + plan.offsets[i];
    }
    out.plan.height += plan.height;
    out.plan.optimal = out.plan.optimal && plan.optimal;
    out.plan.method = by_stream.size() == 1 ? plan.method : "one plan a stream";
  }
  return out;
}

std::string to_string(const OfflineReport& report) {
  if (!report.mismatch) return concat("the plan was followed for ", report.followed, " events");
  return concat("the plan was followed for ", report.followed, " events; at event ", report.event, " it expects ",
                report.expected, ", got ", report.got);
}

OfflinePolicy::OfflinePolicy(const PolicyContext& context, std::shared_ptr<const TracePlan> plan,
                             std::shared_ptr<OfflineReport> report)
    : NativePolicy(context, Variant{.name = "offline"}),
      plan_(std::move(plan)),
      report_(report ? std::move(report) : std::make_shared<OfflineReport>()) {
  LIMPID_CHECK(plan_, ArgumentError, "[offline policy] needs a plan");
  *report_ = {};
}

void OfflinePolicy::differ(std::string got) {
  report_->mismatch = true;
  report_->event = report_->followed;
  report_->expected =
      report_->followed < plan_->events.size() ? describe(plan_->events[report_->followed]) : "the end of the trace";
  report_->got = std::move(got);
}

Block* OfflinePolicy::allocate(std::size_t bytes, StreamId stream) {
  poll();
  if (!report_->mismatch) {
    const TracePlan::Event* event =
        report_->followed < plan_->events.size() ? &plan_->events[report_->followed] : nullptr;
    if (event && event->is_alloc && event->bytes == bytes && event->stream == stream) {
      if (Block* block = place(*event)) {
        report_->followed++;
        block->stream = stream;
        return hand_out(block, bytes, round_up(bytes));
      }
    } else {
      differ(concat("an allocation of ", bytes, " bytes on stream ", stream));
    }
  }
  return NativePolicy::allocate(bytes, stream);
}

// nullptr: the plan cannot be followed, and why is in the report.
Block* OfflinePolicy::place(const TracePlan::Event& event) {
  if (!slab_) {
    Block* whole = reserve_segment(PoolKind::large, event.stream, ceil_to(plan_->plan.height, kSegmentRounding));
    if (!whole) {
      differ(concat("no memory for the slab of ", plan_->plan.height, " bytes"));
      return nullptr;
    }
    slab_ = whole->segment;
    insert_gap(whole);
  }
  std::size_t offset = plan_->plan.offsets[event.buffer], size = round_up(event.bytes);
  auto it = gaps_.upper_bound(offset);
  Block* gap = it == gaps_.begin() ? nullptr : std::prev(it)->second;
  if (!gap || offset + size > offset_of(gap) + gap->size) {
    differ(concat("the same, but its place at ", offset, " is still in use"));
    return nullptr;
  }
  remove_free(gap);
  if (offset > offset_of(gap)) insert_gap(split_front(gap, offset - offset_of(gap)));
  Block* block = gap;
  if (gap->size > size) {
    block = split_front(gap, size);
    insert_gap(gap);
  }
  buffer_of_[block] = event.buffer;
  return block;
}

void OfflinePolicy::insert_gap(Block* block) {
  gaps_[offset_of(block)] = block;
  enter_free(block);
}

void OfflinePolicy::free(Block* block) noexcept {
  if (!report_->mismatch) {
    const TracePlan::Event* event =
        report_->followed < plan_->events.size() ? &plan_->events[report_->followed] : nullptr;
    auto it = buffer_of_.find(block);
    if (event && !event->is_alloc && it != buffer_of_.end() && it->second == event->buffer) {
      report_->followed++;
    } else {
      differ(it == buffer_of_.end() ? concat("the free of a block of ", block->requested, " bytes outside the slab")
                                    : concat("the free of buffer ", it->second, " (", block->requested, " bytes)"));
    }
  }
  if (in_slab(block)) buffer_of_.erase(block);
  NativePolicy::free(block);
}

void OfflinePolicy::take_back(Block* block) {
  if (!in_slab(block)) {
    NativePolicy::take_back(block);
    return;
  }
  for (Block* neighbour : {block->prev, block->next}) {
    if (!is_free(neighbour)) continue;
    remove_free(neighbour);
    absorb(block, neighbour);
  }
  insert_gap(block);
}

void OfflinePolicy::remove_free(Block* block) {
  if (!in_slab(block)) {
    NativePolicy::remove_free(block);
    return;
  }
  bool inside = gaps_.erase(offset_of(block)) == 1;
  LIMPID_ASSERT(inside);
  leave_free(block);
}

void OfflinePolicy::release_free() {
  NativePolicy::release_free();
  if (!slab_ || slab_->first->next || !is_free(slab_->first)) return;
  release_segment(slab_->first);
  slab_ = nullptr;
}

void OfflinePolicy::give_back(Block* block, std::size_t most) {
  if (!in_slab(block)) return NativePolicy::give_back(block, most);
  if (block->is_split() || block->size > most) return;
  release_segment(block);
  slab_ = nullptr;
}

void OfflinePolicy::check() const {
  for (const auto& [offset, gap] : gaps_) LIMPID_ASSERT(is_free(gap) && offset_of(gap) == offset && in_slab(gap));
  check_lists(gaps_.size());
}

PolicyFactory make_offline_policy(std::shared_ptr<const TracePlan> plan, std::shared_ptr<OfflineReport> report) {
  return [plan, report](const PolicyContext& context) -> std::unique_ptr<Policy> {
    return std::make_unique<OfflinePolicy>(context, plan, report);
  };
}

}  // namespace limpid::memory
