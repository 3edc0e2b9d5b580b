#include <limpid/memory/trace_file.h>
#include <limpid/memory/trace_file_private.h>

#include <array>
#include <cstring>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kMaxLine = std::size_t{64} << 10;
constexpr const char* kFormat = "limpid-trace/1";

template <class Enum, std::size_t N, class Name>
Enum enum_from(const std::string& text, const char* what, Name&& name) {
  for (std::size_t i = 0; i < N; i++) {
    if (text == name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  LIMPID_THROW(DataError, "unknown ", what, " '", text.substr(0, 40), "'");
}

std::string json_text(const Json& json, const char* key) {
  auto it = json.find(key);
  if (it == json.end()) return "";
  LIMPID_CHECK(it->is_string(), DataError, key, " is not a text");
  return it->get<std::string>();
}

std::uint32_t json_count32(const Json& json, const char* key) {
  const std::uint64_t value = json_count(json, key, "a record");
  LIMPID_CHECK(value <= UINT32_MAX, DataError, key, " is ", value, ", more than 32 bits");
  return static_cast<std::uint32_t>(value);
}

TraceRecord record_from(const Json& json, const std::string& kind, NameTable& names, std::size_t name_count) {
  TraceRecord r{};
  r.kind = enum_from<TraceKind, kTraceKindCount>(kind, "event", [](TraceKind k) { return to_string(k); });
  r.id = json_count(json, "id", "a record");
  r.bytes = json_count(json, "bytes", "a record");
  r.stream = json_count(json, "stream", "a record");
  const std::string role = json_text(json, "role"), phase = json_text(json, "phase");
  r.role = role.empty() ? Role::other : enum_from<Role, kRoleCount>(role, "role", [](Role x) { return to_string(x); });
  if (!phase.empty()) r.phase = enum_from<Phase, 6>(phase, "phase", [](Phase p) { return limpid::to_string(p); });
  r.name = names.add(json_text(json, "name"));
  r.op = names.add(json_text(json, "op"));
  r.module = names.add(json_text(json, "layer"));
  r.step = json_count32(json, "step");
  r.micro_batch = json_count32(json, "micro_batch");
  const std::string problem = problem_of(r, name_count + 3);
  LIMPID_CHECK(problem.empty(), DataError, problem);
  return r;
}

}  // namespace

nlohmann::ordered_json info_to_json(const TraceInfo& info) {
  return {{"source", info.source},     {"device", info.device},     {"policy", info.policy},
          {"settings", info.settings}, {"capacity", info.capacity}, {"preexisting", info.preexisting}};
}

void info_from_json(const Json& json, TraceInfo& info) {
  auto take = [&json](const char* key, std::string& to) {
    if (json.contains(key)) to = json_text(json, key);
  };
  take("source", info.source);
  take("device", info.device);
  take("policy", info.policy);
  take("settings", info.settings);
  if (json.contains("capacity")) info.capacity = json_count(json, "capacity", "a trace's info");
  if (json.contains("preexisting")) info.preexisting = json_count(json, "preexisting", "a trace's info");
}

Json parse_json_object(std::string_view text, const char* what) {
  LIMPID_CHECK(text.size() <= kMaxLine, DataError, "[trace] ", what, " has ", text.size(), " bytes, more than ",
               kMaxLine);
  // Objects hold plain values only, so that depth is no question.
  auto flat = [](int depth, Json::parse_event_t, const Json&) { return depth <= 1; };
  Json json = Json::parse(text.begin(), text.end(), flat, false);
  LIMPID_CHECK(json.is_object(), DataError, "[trace] ", what, " is not a JSON object");
  return json;
}

std::uint64_t json_count(const Json& json, const char* key, const char* what) {
  auto it = json.find(key);
  if (it == json.end()) return 0;
  LIMPID_CHECK(it->is_number_unsigned(), DataError, "[trace] ", what, ": ", key, " is not a whole number >= 0");
  return it->get<std::uint64_t>();
}

TraceLog parse_trace_jsonl(std::string_view text) {
  TraceLog log;
  NameTable names(log.names);
  std::uint64_t line = 0;
  bool ended = false;
  while (!text.empty() && !ended) {
    line++;
    const std::size_t end = text.find('\n');
    const std::string_view one = text.substr(0, end);
    const bool last = end == std::string_view::npos;
    text.remove_prefix(last ? text.size() : end + 1);
    if (one.empty()) continue;
    try {
      const Json json = parse_json_object(one, "a line");
      if (line == 1) {
        LIMPID_CHECK(json_text(json, "format") == kFormat, DataError, "not a ", kFormat, " file");
        info_from_json(json, log.info);
        continue;
      }
      const std::string kind = json_text(json, "e");
      if (kind == "end") {
        const std::uint64_t written = json_count(json, "records", "the end");
        LIMPID_CHECK(written == log.records.size(), DataError, "the end counts ", written, " records, there are ",
                     log.records.size());
        log.info.not_recorded = json_count(json, "not_recorded", "the end");
        ended = true;
      } else {
        log.records.push_back(record_from(json, kind, names, log.names.size()));
      }
    } catch (DataError& error) {
      // A last line without its newline is one that was being written.
      if (!last || line == 1) {
        error.add_context(concat("[trace] line ", line, ": "));
        throw;
      }
      log.notes.push_back(concat("line ", line, " is incomplete"));
    }
  }
  LIMPID_CHECK(line > 0, DataError, "[trace] an empty file");
  if (!ended) {
    log.cut = true;
    log.notes.push_back(concat("cut after line ", line, ": the end line is missing; ", log.records.size(),
                               " records stand before that"));
  }
  return log;
}

void print_trace_jsonl(const TraceLog& log, const ByteSink& out) {
  nlohmann::ordered_json head = {{"format", kFormat}};
  head.update(info_to_json(log.info));
  auto text = [](const auto& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::string buffer = text(head) + "\n";
  std::vector<std::string> quoted;
  quoted.reserve(log.names.size());
  for (const std::string& name : log.names) quoted.push_back(text(Json(name)));
  auto number = [&buffer](const char* key, std::uint64_t value) {
    if (value != 0) buffer += std::string(",\"") + key + "\":" + std::to_string(value);
  };
  auto named = [&](const char* key, NameId id) {
    if (id != 0) buffer += std::string(",\"") + key + "\":" + quoted[id];
  };
  for (const TraceRecord& r : log.records) {
    buffer += std::string("{\"e\":\"") + to_string(r.kind) + '"';
    number("id", r.id);
    number("bytes", r.bytes);
    buffer += std::string(",\"role\":\"") + to_string(r.role) + '"';
    named("name", r.name);
    named("op", r.op);
    named("layer", r.module);
    if (r.phase != Phase::none) buffer += std::string(",\"phase\":\"") + limpid::to_string(r.phase) + '"';
    number("step", r.step);
    number("micro_batch", r.micro_batch);
    number("stream", r.stream);
    buffer += "}\n";
    if (buffer.size() > kMaxLine) {
      out(buffer);
      buffer.clear();
    }
  }
  buffer += text(nlohmann::ordered_json{
                {"e", "end"}, {"records", log.records.size()}, {"not_recorded", log.info.not_recorded}}) +
            "\n";
  out(buffer);
}

}  // namespace limpid::memory
