// Pair: height and width of a kernel, stride, padding or size; one number stands for both. Not a shape.
#pragma once

#include <cstdint>
#include <string>

namespace limpid {

struct Pair {
  std::int64_t h = 0;
  std::int64_t w = 0;
  Pair() = default;
  Pair(std::int64_t both) : h(both), w(both) {}
  Pair(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  bool operator==(const Pair&) const = default;
};

inline std::string to_string(Pair pair) { return "(" + std::to_string(pair.h) + ", " + std::to_string(pair.w) + ")"; }

}  // namespace limpid
