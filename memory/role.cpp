#include <limpid/memory/role.h>

namespace limpid::memory {

const char* to_string(Role role) {
  static constexpr const char* kNames[kRoleCount] = {"param",     "grad", "optimizer", "activation", "saved",
                                                     "workspace", "io",   "temp",      "external",   "other"};
  int index = static_cast<int>(role);
  return index >= 0 && index < kRoleCount ? kNames[index] : "?";
}

}  // namespace limpid::memory
