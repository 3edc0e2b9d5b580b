// What the texts of the sweeps share. Internal: only .cpp files of train/ include it.
#pragma once

#include <cstdio>
#include <string>

#include <limpid/train/state_json_private.h>

namespace limpid::train::detail {

template <class... Args>
std::string format(const char* form, Args... args) {
  char text[1024];
  std::snprintf(text, sizeof text, form, args...);
  return text;
}

}  // namespace limpid::train::detail
