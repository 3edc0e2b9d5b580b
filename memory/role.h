// What a block of memory is for: the rows of the ledger.
#pragma once

#include <cstdint>

namespace limpid::memory {

enum class Role : std::uint8_t { param, grad, optimizer, activation, saved, workspace, io, temp, external, other };
inline constexpr int kRoleCount = 10;
const char* to_string(Role role);

}  // namespace limpid::memory
