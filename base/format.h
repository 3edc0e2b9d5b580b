// Numbers for people. Bytes use powers of two and are always labelled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace limpid {

// 1536 -> "1.50 KiB", 512 -> "512 B".
std::string format_bytes(std::uint64_t bytes);
// 1234567 -> "1,234,567".
std::string format_count(std::int64_t count);
// True for well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
bool is_utf8(std::string_view text);
// For a terminal: control characters (of ASCII, DEL, and U+0080 to U+009F) and bytes that are no UTF-8 become \xNN, so
// that a text from a file cannot move the cursor, change colours or begin a line of its own.
std::string printable(std::string_view text);
// The same, but line ends stay.
std::string printable_lines(std::string_view text);
// "8GiB", "512MiB", "64KiB", "1024" or "1024B" -> bytes. Throws ArgumentError naming `what` and the text.
std::uint64_t parse_bytes(const std::string& text, const std::string& what);

}  // namespace limpid
