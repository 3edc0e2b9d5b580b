#include <limpid/train/reserve.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <unordered_map>

#include <limpid/memory/policies.h>
#include <limpid/memory/reserve_plan.h>
#include <limpid/memory/trace_import.h>
#include <limpid/tensor/dry.h>
#include <limpid/train/rehearsal.h>

namespace limpid::train {
namespace {

memory::TraceLog rehearsal_trace(const TrainSettings& settings, const TrainParts& parts) {
  LIMPID_CHECK(!parts.card.model.empty(), ArgumentError,
               "[reserve_plan] a dry rehearsal needs the name of the model; reserve from a trace instead");
  RehearsalSettings s = rehearsal_of(settings, parts);
  s.train.memory_cap = 0;  // whether it fits is for the real pool to say
  dry::Run run({.settings = memory::parse_allocator_settings(settings.alloc_conf),
                .policy = memory::policy_named(settings.policy)});
  const dry::Placeholder loss(0);
  memory::TraceLog log;
  run.pool().record_to([&log](const memory::TraceRecord* records, std::size_t count) {
    log.records.insert(log.records.end(), records, records + count);
  });
  rehearse(s, run.pool(), run.io_pool());
  run.pool().trace().flush();
  run.pool().trace().set_sink({});
  return log;
}

}  // namespace

namespace {

// Live bytes of parameters and buffers where the steps begin; nothing when the trace does not know them all.
std::optional<std::uint64_t> parameter_bytes(const memory::TraceLog& log) {
  if (log.info.preexisting > 0) return std::nullopt;
  std::unordered_map<std::uint64_t, std::uint64_t> live;
  const std::uint64_t first = memory::first_of_steps(log);
  for (std::uint64_t i = 0; i < first; i++) {
    const memory::TraceRecord& r = log.records[i];
    if ((r.kind == memory::TraceKind::alloc || r.kind == memory::TraceKind::role) && r.role == memory::Role::param) {
      live[r.id] = r.bytes;
    } else if (r.kind == memory::TraceKind::free || r.kind == memory::TraceKind::role) {
      live.erase(r.id);
    }
  }
  std::uint64_t sum = 0;
  for (const auto& [id, bytes] : live) sum += bytes;
  return sum > 0 ? std::optional(sum) : std::nullopt;
}

}  // namespace

memory::TraceLog reserve_trace(const TrainSettings& settings, const TrainParts& parts) {
  if (settings.reserve_plan == "dry") return rehearsal_trace(settings, parts);
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(settings.reserve_plan, ignored);
  const std::string file = settings.reserve_plan + (folder ? "/trace.bin" : "");
  memory::TraceLog log = memory::read_trace(file);
  LIMPID_CHECK(!log.cut, DataError, "[reserve_plan] ", file, " ends early: ",
               log.notes.empty() ? "it is cut" : log.notes.front());
  const bool allocates = std::any_of(log.records.begin(), log.records.end(),
                                     [](const auto& r) { return r.kind == memory::TraceKind::alloc; });
  LIMPID_CHECK(allocates, DataError, "[reserve_plan] ", file, " holds no allocation: ", log.records.size(), " records");
  const std::optional<std::uint64_t> recorded = parameter_bytes(log);
  const std::uint64_t own = memory::host_allocator().ledger().role(memory::Role::param);
  LIMPID_CHECK(!recorded || *recorded == own, ArgumentError, "[reserve_plan] ", file, " is the trace of another model: its parameters have ",
               recorded.value_or(0), " bytes, those of this run ", own);
  return log;
}

}  // namespace limpid::train
