#include <limpid/base/format.h>

#include <algorithm>
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

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4) return false;
    std::uint32_t code = lead & (0x3Fu >> more);
    for (int k = 0; k < more; k++, i++) {
      if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return false;
      code = (code << 6) | (static_cast<unsigned char>(text[i]) & 0x3Fu);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) || (more == 2 && code < 0x800) ||
        (more == 3 && code < 0x10000))
      return false;
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string out;
  auto escape = [&](unsigned char byte) {
    char code[8];
    std::snprintf(code, sizeof code, "\\x%02x", byte);
    out += code;
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::string_view character = text.substr(i, length);
    const bool control = lead < 0x20 || lead == 0x7F ||
                         (lead == 0xC2 && character.size() == 2 && static_cast<unsigned char>(character[1]) < 0xA0);
    if (character.size() == length && is_utf8(character) && !control) {
      out += character;
      i += length;
    } else if (control && lead == 0xC2) {
      for (char byte : character) escape(static_cast<unsigned char>(byte));
      i += length;
    } else {
      escape(lead);
      i++;
    }
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += printable(text.substr(at, end - at));
    if (end == text.size()) return out;
    out += '\n';
    at = end + 1;
  }
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
  const double bytes = value * factor;
  LIMPID_CHECK(parsed.ec == std::errc() && factor > 0 && std::isfinite(value) && value > 0, ArgumentError, what,
               " must be a positive size such as 8GiB, 512MiB or 1048576, got '", text, "'");
  LIMPID_CHECK(bytes < 9.0e18, ArgumentError, what, " is more than can be counted in bytes: ", text);
  LIMPID_CHECK(factor > 1 || bytes == std::floor(bytes), ArgumentError, what, " is no whole number of bytes: ", text);
  return static_cast<std::uint64_t>(std::llround(bytes));
}

}  // namespace limpid
