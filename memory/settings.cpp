#include <limpid/memory/settings.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cctype>
#include <cmath>
#include <vector>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMaxMiB = std::size_t{1} << 40;

std::size_t parse_integer(std::string_view key, std::string_view text) {
  std::size_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool ok = error == std::errc() && end == text.data() + text.size() && value <= kMaxMiB;
  LIMPID_CHECK(ok, ArgumentError, "[allocator settings] ", key, " expects a whole number, got '", text, "'");
  return value;
}

double parse_real(std::string_view key, std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool ok = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  LIMPID_CHECK(ok, ArgumentError, "[allocator settings] ", key, " expects a number, got '", text, "'");
  return value;
}

// "64:8,256:4,>:1": keys are MiB and powers of two; the first value also holds below its key, ">" above the last key.
void parse_divisions(std::string_view list, std::array<std::size_t, 16>& out) {
  static constexpr std::string_view kKey = "roundup_power2_divisions";
  bool first = true;
  std::size_t after_last = 1;
  while (!list.empty()) {
    std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    std::size_t colon = item.find(':');
    LIMPID_CHECK(colon != std::string_view::npos, ArgumentError, "[allocator settings] ", kKey,
                 " expects a list of MiB:divisions, got '", item, "'");
    std::size_t divisions = parse_integer(kKey, item.substr(colon + 1));
    if (item.substr(0, colon) == ">") {
      std::fill(out.begin() + static_cast<std::ptrdiff_t>(after_last), out.end(), divisions);
      continue;
    }
    std::size_t mib = parse_integer(kKey, item.substr(0, colon));
    LIMPID_CHECK(std::has_single_bit(mib), ArgumentError, "[allocator settings] ", kKey,
                 " expects powers of two as sizes in MiB, got ", mib);
    std::size_t index = std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(mib)), out.size() - 1);
    if (first) std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(index), divisions);
    first = false;
    out[index] = divisions;
    after_last = index + 1;
  }
}

Role role_named(std::string_view name) {
  std::string known;
  for (int r = 0; r < kRoleCount; r++) {
    const char* text = to_string(static_cast<Role>(r));
    if (name == text) return static_cast<Role>(r);
    known += std::string(r == 0 ? "" : ", ") + text;
  }
  LIMPID_THROW(ArgumentError, "[allocator settings] role_pools: unknown role '", name, "'; known are ", known);
}

// "param+optimizer,grad": a pool for each item.
void parse_role_pools(std::string_view list, std::array<std::uint8_t, kRoleCount>& out) {
  std::uint8_t pool = 0;
  for (bool more = true; more;) {
    std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    more = comma < list.size();
    list.remove_prefix(std::min(comma + 1, list.size()));
    pool++;
    for (bool again = true; again;) {
      std::size_t plus = std::min(item.find('+'), item.size());
      std::uint8_t& at = out[static_cast<std::size_t>(role_named(item.substr(0, plus)))];
      LIMPID_CHECK(at == 0, ArgumentError, "[allocator settings] role_pools names the role ", item.substr(0, plus),
                   " twice");
      at = pool;
      again = plus < item.size();
      item.remove_prefix(std::min(plus + 1, item.size()));
    }
  }
}

}  // namespace

std::size_t AllocatorSettings::pool_count() const {
  return std::size_t{1} + *std::max_element(role_pools.begin(), role_pools.end());
}

std::string AllocatorSettings::pool_name(std::size_t pool) const {
  if (pool == 0) return "others";
  std::string out;
  for (std::size_t r = 0; r < role_pools.size(); r++) {
    if (role_pools[r] == pool) out += (out.empty() ? "" : "+") + std::string(to_string(static_cast<Role>(r)));
  }
  return out;
}

std::size_t AllocatorSettings::divisions_for(std::size_t bytes) const {
  int log = bytes == 0 ? 0 : static_cast<int>(std::bit_width(bytes)) - 1;
  int index = std::clamp(log - 20, 0, 15);
  return roundup_power2_divisions[static_cast<std::size_t>(index)];
}

void AllocatorSettings::validate() const {
  LIMPID_CHECK(large_segment_size > 10 * kMiB && large_segment_size % kMiB == 0, ArgumentError,
               "[allocator settings] large_segment_size must be whole MiB and above 10 MiB, got ", large_segment_size,
               " bytes");
  LIMPID_CHECK(max_split_size >= large_segment_size, ArgumentError,
               "[allocator settings] max_split_size must be at least large_segment_size, ", large_segment_size,
               " bytes, got ", max_split_size);
  LIMPID_CHECK(max_non_split_rounding >= large_segment_size, ArgumentError,
               "[allocator settings] max_non_split_rounding must be at least large_segment_size, ", large_segment_size,
               " bytes, got ", max_non_split_rounding);
  LIMPID_CHECK(garbage_collection_threshold >= 0 && garbage_collection_threshold < 1, ArgumentError,
               "[allocator settings] garbage_collection_threshold must be in [0, 1), 0 for off, got ",
               garbage_collection_threshold);
  LIMPID_CHECK(per_process_memory_fraction >= 0 && per_process_memory_fraction <= 1, ArgumentError,
               "[allocator settings] per_process_memory_fraction must be in [0, 1], got ", per_process_memory_fraction);
  LIMPID_CHECK(retain == kRetainAll || retain % kMiB == 0, ArgumentError,
               "[allocator settings] retain must be whole MiB, got ", retain, " bytes");
  for (std::size_t pool = 1; pool < pool_count(); pool++) {
    LIMPID_CHECK(!pool_name(pool).empty(), ArgumentError, "[allocator settings] role_pools: pool ", pool, " of ",
                 pool_count() - 1, " has no role");
  }
  for (std::size_t divisions : roundup_power2_divisions) {
    LIMPID_CHECK(divisions == 0 || std::has_single_bit(divisions), ArgumentError,
                 "[allocator settings] roundup_power2_divisions must be powers of two, got ", divisions);
  }
}

AllocatorSettings parse_allocator_settings(std::string_view raw) {
  std::string text;
  for (char c : raw) {
    if (!std::isspace(static_cast<unsigned char>(c))) text += c;
  }
  AllocatorSettings settings;
  std::vector<std::string_view> keys;
  std::string_view rest = text;
  while (!rest.empty()) {
    std::size_t colon = rest.find(':');
    LIMPID_CHECK(colon != std::string_view::npos && colon > 0, ArgumentError,
                 "[allocator settings] expected key:value, got '", rest, "'");
    std::string_view key = rest.substr(0, colon);
    rest.remove_prefix(colon + 1);
    std::string_view value;
    bool list = !rest.empty() && rest.front() == '[';
    if (list) {
      std::size_t close = rest.find(']');
      LIMPID_CHECK(close != std::string_view::npos, ArgumentError, "[allocator settings] ", key, " lacks a closing ]");
      value = rest.substr(1, close - 1);
      rest.remove_prefix(close + 1);
    } else {
      std::size_t comma = std::min(rest.find(','), rest.size());
      value = rest.substr(0, comma);
      rest.remove_prefix(comma);
    }
    LIMPID_CHECK(rest.empty() || (rest.front() == ',' && rest.size() > 1), ArgumentError,
                 "[allocator settings] expected a comma and a key after ", key, ", got '", rest, "'");
    if (!rest.empty()) rest.remove_prefix(1);
    const bool takes_list = key == "roundup_power2_divisions" || key == "role_pools";
    LIMPID_CHECK(!value.empty(), ArgumentError, "[allocator settings] ", key, " has no value");
    LIMPID_CHECK(!list || takes_list, ArgumentError, "[allocator settings] ", key, " does not take a list");
    LIMPID_CHECK(std::find(keys.begin(), keys.end(), key) == keys.end(), ArgumentError, "[allocator settings] ", key,
                 " is given twice, the second time as '", value, "'");
    keys.push_back(key);
    if (key == "max_split_size_mb") {
      settings.max_split_size = parse_integer(key, value) * kMiB;
    } else if (key == "max_non_split_rounding_mb") {
      settings.max_non_split_rounding = parse_integer(key, value) * kMiB;
    } else if (key == "large_segment_size_mb") {
      settings.large_segment_size = parse_integer(key, value) * kMiB;
    } else if (key == "stitch_limit_mb") {
      settings.stitch_limit = parse_integer(key, value) * kMiB;
    } else if (key == "retain_mb") {
      settings.retain = parse_integer(key, value) * kMiB;
    } else if (key == "role_pools") {
      settings.role_pools = {};
      parse_role_pools(value, settings.role_pools);
    } else if (key == "garbage_collection_threshold") {
      settings.garbage_collection_threshold = parse_real(key, value);
    } else if (key == "per_process_memory_fraction") {
      settings.per_process_memory_fraction = parse_real(key, value);
    } else if (key == "roundup_power2_divisions") {
      if (list) {
        parse_divisions(value, settings.roundup_power2_divisions);
      } else {
        settings.roundup_power2_divisions.fill(parse_integer(key, value));
      }
    } else if (key == "backend") {
      LIMPID_CHECK(value == "native", ArgumentError, "[allocator settings] backend must be native, got '", value, "'");
    } else if (key == "expandable_segments") {
      LIMPID_CHECK(value == "True" || value == "False", ArgumentError,
                   "[allocator settings] expandable_segments expects True or False, got '", value, "'");
      settings.expandable_segments = value == "True";
    } else {
      LIMPID_THROW(ArgumentError, "[allocator settings] unknown key '", key, "'");
    }
  }
  const bool has_rounding = std::find(keys.begin(), keys.end(), "max_non_split_rounding_mb") != keys.end();
  if (!has_rounding) settings.max_non_split_rounding = settings.large_segment_size;
  settings.validate();
  return settings;
}

std::string to_string(const AllocatorSettings& s) {
  const AllocatorSettings defaults;
  std::string out;
  auto put = [&out](const char* key, const std::string& value) {
    out += std::string(out.empty() ? "" : ",") + key + ":" + value;
  };
  auto put_size = [&put](const char* key, std::size_t bytes, std::size_t usual) {
    if (bytes != usual) put(key, std::to_string(bytes / kMiB));
  };
  put_size("max_split_size_mb", s.max_split_size, defaults.max_split_size);
  put_size("large_segment_size_mb", s.large_segment_size, defaults.large_segment_size);
  put_size("max_non_split_rounding_mb", s.max_non_split_rounding, s.large_segment_size);
  if (s.garbage_collection_threshold != 0) {
    put("garbage_collection_threshold", concat(s.garbage_collection_threshold));
  }
  if (s.per_process_memory_fraction != 1) put("per_process_memory_fraction", concat(s.per_process_memory_fraction));
  if (s.expandable_segments) put("expandable_segments", "True");
  put_size("stitch_limit_mb", s.stitch_limit, defaults.stitch_limit);
  put_size("retain_mb", s.retain, defaults.retain);
  std::string pools;
  for (std::size_t pool = 1; pool < s.pool_count(); pool++) pools += (pool == 1 ? "" : ",") + s.pool_name(pool);
  if (!pools.empty()) put("role_pools", "[" + pools + "]");
  const auto& divisions = s.roundup_power2_divisions;
  if (std::all_of(divisions.begin(), divisions.end(), [&](std::size_t d) { return d == divisions[0]; })) {
    if (divisions[0] != 0) put("roundup_power2_divisions", std::to_string(divisions[0]));
    return out;
  }
  std::string list;
  for (std::size_t k = 0; k < divisions.size(); k++) {
    const bool is_last = k + 1 == divisions.size();
    list += (list.empty() ? "" : ",") + (is_last ? std::string(">") : std::to_string(std::size_t{1} << k)) + ":" +
            std::to_string(divisions[k]);
  }
  put("roundup_power2_divisions", "[" + list + "]");
  return out;
}

}  // namespace limpid::memory
