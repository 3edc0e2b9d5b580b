#include <limpid/base/error.h>

#include <charconv>

namespace limpid::detail {

std::string piece(double v) {
  char buffer[64];
  auto result = std::to_chars(buffer, buffer + sizeof buffer, v);
  return std::string(buffer, result.ptr);
}

}  // namespace limpid::detail
