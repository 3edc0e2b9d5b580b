#include <limpid/memory/explain.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include <limpid/base/format.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/replay_scan.h>

namespace limpid::memory {
namespace {

// Up to and with the request that fails, which is a plain allocation there.
TraceLog cut_at(const TraceLog& log, std::uint32_t record) {
  TraceLog out;
  out.info = log.info;
  out.names = log.names;
  out.records.assign(log.records.begin(), log.records.begin() + record + 1);
  TraceRecord& last = out.records.back();
  last.kind = TraceKind::alloc;
  last.id = UINT64_MAX;
  return out;
}

// Remembers which record each allocation of the replay came from.
class Origins final : public ReplayObserver {
 public:
  void on_alloc(const ReplayOp& op, const Block& block) override { record_of[block.id] = op.record; }
  std::unordered_map<std::uint64_t, std::uint32_t> record_of;
};

ReplayOptions without_layouts(ReplayOptions options) {
  options.layouts = false;
  return options;
}

// The names of the trace instead of those that the replay does not know.
void name_all(OutOfMemoryInfo& info, const TraceLog& log, const Origins& origins) {
  const TraceRecord& request = log.records.back();
  info.name = log.name(request.name);
  info.scope = {intern(log.name(request.op)), intern(log.name(request.module)), request.phase, request.step,
                request.micro_batch};
  for (Pin& pin : info.pins.blocks) pin.id = log.records[origins.record_of.at(pin.id)].id;
  // Names given later than the allocation.
  std::unordered_map<std::uint64_t, NameId> renamed;
  std::map<std::uint64_t, std::size_t> live;  // id -> record
  std::unordered_map<std::uint64_t, Role> roles;
  for (std::size_t i = 0; i + 1 < log.records.size(); i++) {
    const TraceRecord& r = log.records[i];
    if (r.kind == TraceKind::alloc) live[r.id] = i;
    if (r.kind == TraceKind::alloc || r.kind == TraceKind::role) roles[r.id] = r.role;
    if (r.kind == TraceKind::name) renamed[r.id] = r.name;
    if (r.kind == TraceKind::free) live.erase(r.id);
  }
  auto label = [&](const TraceRecord& r) {
    auto it = renamed.find(r.id);
    return it != renamed.end() && it->second != 0 ? log.name(it->second) : log.label(r);
  };
  for (Pin& pin : info.pins.blocks) pin.name = label(log.records[live.at(pin.id)]);
  std::map<std::pair<Role, std::string>, Holder> holders;
  for (const auto& [id, i] : live) {
    const TraceRecord& r = log.records[i];
    Holder& h = holders[{roles[id], label(r)}];
    h.role = roles[id];
    h.name = label(r);
    h.bytes += r.bytes;
    h.count++;
  }
  const std::size_t shown = std::max<std::size_t>(info.holders.size(), 1);
  info.holders.clear();
  for (auto& [key, h] : holders) info.holders.push_back(std::move(h));
  std::stable_sort(info.holders.begin(), info.holders.end(),
                   [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  if (info.holders.size() > shown) info.holders.resize(shown);
  info.earlier_request.reset();
  for (const TraceRecord& r : log.records) {
    if (r.kind == TraceKind::alloc && r.step < request.step && r.op == request.op && r.module == request.module &&
        r.phase == request.phase && r.role == request.role && r.name == request.name) {
      info.earlier_request = std::max(info.earlier_request.value_or(0), r.bytes);
    }
  }
}

// Whether the request is served when the pins have been freed just before it.
bool pins_help(const TraceLog& cut, const PinSet& pins, const ReplayOptions& options) {
  TraceLog log = cut;
  const TraceRecord request = log.records.back();
  log.records.pop_back();
  for (const Pin& pin : pins.blocks) {
    TraceRecord free{};
    free.id = pin.id;
    free.bytes = pin.bytes;
    free.kind = TraceKind::free;
    free.role = pin.role;
    log.records.push_back(free);
  }
  log.records.push_back(request);
  return replay(ReplayScript(log), options).completed;
}

// `run`: what must be served: the whole trace, or, when it ends with the failure, everything up to and with that.
void add_advice(OutOfMemoryInfo& info, const TraceLog& run, const ReplayOptions& options, std::string_view policy,
                const std::function<void(const char*)>& progress) {
  const ReplayScript script(run);
  for (const PolicyEntry& entry : policies()) {
    if (entry.name == policy) continue;
    if (progress) progress(entry.name);
    ReplayOptions other = options;
    other.policy = entry.make;
    const ReplayResult result = replay(script, other);
    if (!result.completed) continue;
    info.advice.push_back({"policy", concat("with policy ", entry.name), result.peak_reserved});
  }
  std::stable_sort(info.advice.begin(), info.advice.end(),
                   [](const Advice& a, const Advice& b) { return a.peak_reserved < b.peak_reserved; });
  if (progress) progress("larger capacities");
  ReplayOptions more = options;
  const CapacityScan scan = scan_capacity(script, more, {.budget = 20'000'000});
  if (scan.smallest && *scan.smallest > options.capacity) {
    more.capacity = *scan.smallest;
    const ReplayResult result = replay(script, more);
    if (result.completed) {
      info.advice.push_back({"capacity",
                             concat("with ", format_bytes(more.capacity - options.capacity), " more capacity, ",
                                    format_bytes(more.capacity), " in all"),
                             result.peak_reserved});
    }
  }
}

}  // namespace

std::optional<Explanation> explain(const TraceLog& log, const ReplayOptions& given, bool advice,
                                   const std::function<void(const char*)>& progress) {
  const ReplayOptions options = without_layouts(given);
  Explanation out;
  const ReplayResult whole = replay(ReplayScript(log), options);
  if (whole.failure) {
    out.record = whole.failure->record;
  } else {
    // The trace of a run that failed ends with the request that was not served.
    std::size_t last = log.records.size();
    while (last > 0 && log.records[last - 1].kind != TraceKind::oom) last--;
    if (last == 0 || whole.failed_before == 0) return std::nullopt;
    out.record = static_cast<std::uint32_t>(last - 1);
    out.recorded = true;
  }
  const TraceLog cut = cut_at(log, out.record);
  Origins origins;
  const ReplayResult result = replay(ReplayScript(cut), options, &origins);
  if (!result.failure) return std::nullopt;
  out.info = result.failure->info;
  name_all(out.info, cut, origins);
  if (!out.info.pins.blocks.empty()) out.info.pins.replayed = pins_help(cut, out.info.pins, options);
  if (!advice) return out;
  add_advice(out.info, out.recorded ? cut : log, options, whole.policy, progress);
  if (out.info.advice.empty()) {
    out.info.advice_note = "none: replayed, no other policy and no larger capacity that was tried fits";
  } else if (out.recorded) {
    out.info.advice_note = "replayed up to the request that failed; what would have come after it is not in the trace";
  }
  return out;
}

void advise(OutOfMemoryInfo& info, Allocator& allocator) {
  const TraceLog log = capture_trace(allocator);
  if (!log.notes.empty() || log.info.preexisting > 0) {
    info.advice_note = "none: the trace no longer holds the beginning of the run";
    return;
  }
  ReplayOptions options;
  options.policy = policy_named(allocator.policy_name());
  options.settings = allocator.settings();
  options.capacity = info.capacity - std::min(info.capacity, info.held_by_others);
  if (info.limit) options.capacity = std::min(options.capacity, *info.limit);
  const std::optional<Explanation> explanation = explain(log, options);
  if (!explanation || !explanation->recorded) {
    info.advice_note = "none: a replay of the trace does not fail where the run did";
    return;
  }
  info.advice = explanation->info.advice;
  info.advice_note = explanation->info.advice_note;
  info.pins.replayed = explanation->info.pins.replayed;
}

}  // namespace limpid::memory
