// JSON forms of the records of a checkpoint. Internal: only .cpp files of train/ include it.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <limpid/train/checkpoint.h>

namespace limpid::train::detail {

using Json = nlohmann::ordered_json;

Json to_json(const ModelCard& card);
Json to_json(const RunState& state);
// Json::exception when an entry is missing or has the wrong type.
ModelCard card_from_json(const Json& json);
RunState state_from_json(const Json& json);
// JSON has no NaN and no infinity: they are written as text.
Json number(double value);
double number(const Json& json);

}  // namespace limpid::train::detail
