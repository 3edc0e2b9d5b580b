#include <limpid/base/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>

#include <limpid/base/error.h>

namespace limpid {

std::string format_bytes(std::uint64_t bytes) {
  static const char* const kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024.0;
  int unit = 0;
  while (value >= 1024.0 && unit < 3) {
    value /= 1024.0;
    unit++;
  }
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.2f %s", value, kUnits[unit]);
  return buffer;
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  int first = digits[0] == '-' ? 1 : 0;
  for (int i = static_cast<int>(digits.size()) - 3; i > first; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::uint64_t parse_bytes(const std::string& text, const std::string& what) {
  double value = 0;
  const char* end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, value);
  std::string unit(parsed.ptr, end);
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "KiB" || unit == "K") factor = 1024.0;
  if (unit == "MiB" || unit == "M") factor = 1024.0 * 1024;
  if (unit == "GiB" || unit == "G") factor = 1024.0 * 1024 * 1024;
  if (unit == "TiB" || unit == "T") factor = 1024.0 * 1024 * 1024 * 1024;
  bool ok = parsed.ec == std::errc() && factor > 0 && std::isfinite(value) && value > 0 && value * factor < 9.0e18;
  LIMPID_CHECK(ok, ArgumentError, what, " must be a positive size such as 8GiB, 512MiB or 1048576, got '", text, "'");
  return static_cast<std::uint64_t>(std::llround(value * factor));
}

}  // namespace limpid
