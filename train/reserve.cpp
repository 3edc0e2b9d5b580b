#include <limpid/train/reserve.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <limpid/memory/policies.h>
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
  return log;
}

}  // namespace limpid::train
