#include <limpid/memory/trace_log.h>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>

namespace limpid::memory {

std::string TraceLog::label(const TraceRecord& record) const {
  for (NameId id : {record.name, record.module, record.op}) {
    if (id != 0) return name(id);
  }
  return to_string(record.role);
}

NameId NameTable::add(std::string_view text) {
  if (text.empty()) return 0;
  auto [it, is_new] = ids_.try_emplace(std::string(text), static_cast<NameId>(names_.size()));
  if (is_new) names_.emplace_back(text);
  return it->second;
}

TraceLog capture_trace(Allocator& allocator) {
  TraceLog log;
  log.info.device = allocator.device_name();
  log.info.policy = allocator.policy_name();
  log.info.settings = to_string(allocator.settings());
  log.info.capacity = allocator.device().mem_info().total;
  log.records = allocator.trace().records();
  const std::uint64_t total = allocator.trace().total();
  if (total > log.records.size()) {
    log.notes.push_back(concat("the ring has dropped the oldest ", total - log.records.size(), " records"));
  }
  NameTable table(log.names);
  std::unordered_map<NameId, NameId> places;
  auto place = [&](NameId& id) {
    if (id == 0) return;
    auto [it, is_new] = places.try_emplace(id, 0);
    if (is_new) it->second = table.add(name_of(id));
    id = it->second;
  };
  for (TraceRecord& record : log.records) {
    place(record.name);
    place(record.op);
    place(record.module);
  }
  return log;
}

std::string problem_of(const TraceRecord& r, std::size_t names) {
  if (static_cast<int>(r.kind) >= kTraceKindCount) return concat("unknown kind ", static_cast<int>(r.kind));
  if (static_cast<int>(r.role) >= kRoleCount) return concat("unknown role ", static_cast<int>(r.role));
  if (r.phase > Phase::data) return concat("unknown phase ", static_cast<int>(r.phase));
  for (NameId id : {r.name, r.op, r.module}) {
    if (id >= names) return concat("name ", id, " is not defined");
  }
  const bool sized = r.kind != TraceKind::empty_cache;
  if (sized && (r.bytes == 0 || r.bytes > std::uint64_t{1} << 60)) {
    return concat("a size of ", r.bytes, " bytes for ", to_string(r.kind));
  }
  return "";
}

}  // namespace limpid::memory
