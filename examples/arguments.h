// The little that the examples need to read "--name value" from their command line.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

// The integer after `name`, or `fallback`.
inline std::int64_t argument(int argc, char** argv, std::string_view name, std::int64_t fallback) {
  for (int i = 1; i + 1 < argc; i++) {
    if (argv[i] == name) return std::strtoll(argv[i + 1], nullptr, 10);
  }
  return fallback;
}
