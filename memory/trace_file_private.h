// JSON of trace files, shared by the binary and the JSONL form. Not installed.
#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include <limpid/memory/trace_log.h>

namespace limpid::memory {

nlohmann::ordered_json info_to_json(const TraceInfo& info);
// DataError for a wrong type; keys that are absent keep their values, unknown keys are ignored.
void info_from_json(const nlohmann::json& json, TraceInfo& info);
// DataError naming `what` when the text is no JSON object.
nlohmann::json parse_json_object(std::string_view text, const char* what);
// A whole number >= 0; an absent key is 0.
std::uint64_t json_count(const nlohmann::json& json, const char* key, const char* what);

}  // namespace limpid::memory
