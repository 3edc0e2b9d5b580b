// Every policy by name, for command lines, replays and live runs. A policy that needs more than settings (`offline`
// follows a plan) is not in the list: its own header makes its factory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <limpid/memory/policy.h>

namespace limpid::memory {

struct PolicyEntry {
  const char* name;
  const char* summary;  // one line for people
  PolicyFactory make;
};

const std::vector<PolicyEntry>& policies();  // `native` first
// ArgumentError for an unknown name; the message lists the known ones.
PolicyFactory policy_named(std::string_view name);
// "native,nosplit" -> {"native", "nosplit"}; "all": every one. ArgumentError as above.
std::vector<std::string> parse_policy_list(std::string_view text);

}  // namespace limpid::memory
