#include <limpid/memory/policies.h>

#include <algorithm>

#include <limpid/base/error.h>
#include <limpid/memory/native_policy.h>

namespace limpid::memory {
namespace {

const PolicyEntry& entry_named(std::string_view name) {
  std::string known;
  for (const PolicyEntry& entry : policies()) {
    if (name == entry.name) return entry;
    known += std::string(known.empty() ? "" : ", ") + entry.name;
  }
  LIMPID_THROW(ArgumentError, "[policy] unknown policy '", name, "'; known are ", known);
}

}  // namespace

const std::vector<PolicyEntry>& policies() {
  static const std::vector<PolicyEntry> entries = {
      {"native", "PyTorch's caching allocator: two pools, best fit, splits and merges", make_native_policy},
      {"nosplit", "native without splitting: a segment serves one request at a time", make_nosplit_policy},
  };
  return entries;
}

PolicyFactory policy_named(std::string_view name) { return entry_named(name).make; }

std::vector<std::string> parse_policy_list(std::string_view text) {
  std::vector<std::string> names;
  if (text == "all") {
    for (const PolicyEntry& entry : policies()) names.emplace_back(entry.name);
    return names;
  }
  for (bool more = true; more;) {
    std::size_t comma = std::min(text.find(','), text.size());
    names.emplace_back(entry_named(text.substr(0, comma)).name);
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

}  // namespace limpid::memory
