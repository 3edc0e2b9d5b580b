// JSON forms of the records of a run, and their strict reading: every entry must be there, of its type and in its range;
// a DataError names file and entry. Files are written by us, but edited and damaged by others. Internal: only .cpp files
// of train/ include it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/memory/role.h>
#include <limpid/train/checkpoint.h>

namespace limpid::train::detail {

using Json = nlohmann::ordered_json;

Json to_json(const ModelCard& card);
Json to_json(const RunState& state);
ModelCard card_from_json(const Json& json);  // validated: what it says can be built
RunState state_from_json(const Json& json);
TrainSettings settings_from_file(const Json& json);  // validated by check()
// JSON has no NaN and no infinity: they are written as text.
Json number(double value);
using RoleBytes = std::array<std::uint64_t, memory::kRoleCount>;
Json roles_json(const RoleBytes& roles);
RoleBytes roles_from_json(const Json& json);

const Json& entry(const Json& object, const char* key);
void check_format(const Json& json, int format);  // its entry "format"

// A value of exactly this kind: 16.7 is no integer, -1 is not unsigned. `name` stands in the error.
void read_value(const Json& json, const std::string& name, bool& out);
void read_value(const Json& json, const std::string& name, std::int64_t& out);
void read_value(const Json& json, const std::string& name, std::uint64_t& out);
void read_value(const Json& json, const std::string& name, double& out);  // number()'s texts too
void read_value(const Json& json, const std::string& name, std::string& out);
template <class T>
void read_value(const Json& json, const std::string& name, std::vector<T>& out) {
  LIMPID_CHECK(json.is_array(), DataError, name, " is ", json.dump(), ", expected a list");
  out.clear();
  for (std::size_t i = 0; i < json.size(); i++) read_value(json[i], concat(name, "[", i, "]"), out.emplace_back());
}
template <class T>
T read(const Json& object, const char* key) {
  T out{};
  read_value(entry(object, key), key, out);
  return out;
}

// One JSON object; DataError for anything else.
Json parse_object(const std::string& text);
Json parse_object_file(const std::string& path, std::uint64_t max_bytes);

// Calls one(line, number from 1) for each line of a log; what it finds wrong gets the number in front.
void for_each_line(const std::string& text, const std::function<void(const std::string& line, std::int64_t number)>& one);
std::string read_text(const std::string& path);  // a log: up to 4 GiB

// Runs `action` and puts the file's name in front of what it finds wrong with the contents.
template <class Action>
auto with_file(const std::string& path, Action&& action) {
  try {
    return action();
  } catch (const Json::exception&) {
    LIMPID_THROW(DataError, path, ": an entry has the wrong type");
  } catch (DataError& error) {
    error.add_context(path + ": ");
    throw;
  } catch (const ArgumentError& error) {
    LIMPID_THROW(DataError, path, ": ", error.message());
  }
}

}  // namespace limpid::train::detail
