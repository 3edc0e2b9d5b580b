// Interned names: a string becomes a 32-bit id once, and records carry the id. Ids are never freed. Thread safe.
// Id 0 is the empty name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace limpid {

using NameId = std::uint32_t;

NameId intern(std::string_view name);
// The text of an id; the reference stays valid for the life of the process. An unknown id gives "?".
const std::string& name_of(NameId id);

}  // namespace limpid
