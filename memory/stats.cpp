#include <limpid/memory/stats.h>

#include <cstdio>

namespace limpid::memory {
namespace {

constexpr int kWidth = 75;

// Shortened step by step while the row group's first value is 768 Ki and more: 786,432 bytes print as 768 KiB.
std::string size_cell(std::int64_t value, std::int64_t group) {
  static constexpr const char* kUnits[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  for (double g = static_cast<double>(group); unit < 5 && g >= 768.0 * 1024; g /= 1024) {
    value /= 1024;
    unit++;
  }
  char cell[48];
  std::snprintf(cell, sizeof cell, "%6lld %s", static_cast<long long>(value), kUnits[unit]);
  return cell;
}

std::string count_cell(std::int64_t value, std::int64_t group) {
  static constexpr const char* kUnits[] = {" ", "K", "M"};
  int unit = 0;
  for (double g = static_cast<double>(group); unit < 2 && g >= 750.0 * 1000; g /= 1000) {
    value /= 1000;
    unit++;
  }
  char cell[48];
  std::snprintf(cell, sizeof cell, "%7lld %s ", static_cast<long long>(value), kUnits[unit]);
  return cell;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

void line(std::string& out, const std::string& text) { out += "|" + text + "|\n"; }

using Cell = std::string (*)(std::int64_t, std::int64_t);
void row(std::string& out, const char* name, const Stat& stat, const Stat& group, Cell cell) {
  line(out, " " + padded(name, 21) + " | " + cell(stat.current, group.current) + " | " + cell(stat.peak, group.peak) +
                " | " + cell(stat.allocated, group.allocated) + " | " + cell(stat.freed, group.freed) + " ");
}

void put(std::map<std::string, std::int64_t>& out, const std::string& prefix, const Stat& stat) {
  out[prefix + ".current"] = stat.current;
  out[prefix + ".peak"] = stat.peak;
  out[prefix + ".allocated"] = stat.allocated;
  out[prefix + ".freed"] = stat.freed;
}

}  // namespace

const char* to_string(Metric metric) {
  static constexpr const char* kNames[kMetricCount] = {
      "allocation",      "segment",        "active",       "inactive_split",
      "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes",
      "requested_bytes"};
  return kNames[static_cast<int>(metric)];
}

std::map<std::string, std::int64_t> memory_stats(const Stats& stats) {
  static constexpr const char* kScopes[] = {"all", "small_pool", "large_pool"};
  std::map<std::string, std::int64_t> out;
  for (int m = 0; m < kMetricCount; m++) {
    for (std::size_t s = 0; s < 3; s++) {
      put(out, std::string(to_string(static_cast<Metric>(m))) + "." + kScopes[s],
          stats.metrics[static_cast<std::size_t>(m)][s]);
    }
  }
  put(out, "oversize_allocations", stats.oversize_allocations);
  put(out, "oversize_segments", stats.oversize_segments);
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["num_sync_all_streams"] = stats.num_sync_all_streams;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  out["num_oom_rejections"] = 0;  // the native policy here never refuses before asking the device
  out["max_split_size"] = stats.max_split_size;
  return out;
}

std::string memory_summary(const Stats& stats, const std::string& device, bool abbreviated) {
  struct Row {
    Metric metric;
    const char* name;
    Cell cell;
  };
  static constexpr Row kRows[] = {
      {Metric::allocated_bytes, "Allocated memory", size_cell},
      {Metric::active_bytes, "Active memory", size_cell},
      {Metric::requested_bytes, "Requested memory", size_cell},
      {Metric::reserved_bytes, "Reserved memory", size_cell},
      {Metric::inactive_split_bytes, "Non-releasable memory", size_cell},
      {Metric::allocation, "Allocations", count_cell},
      {Metric::active, "Active allocs", count_cell},
      {Metric::segment, "Reserved segments", count_cell},
      {Metric::inactive_split, "Non-releasable allocs", count_cell},
  };
  const std::string rule(kWidth, '-'), double_rule(kWidth, '=');
  std::string out;
  line(out, double_rule);
  line(out, padded("                  limpid memory summary, device " + device, kWidth));
  line(out, rule);
  char counts[128];
  std::snprintf(counts, sizeof counts, "                 OOMs: %-12lld |            device retries: %-8lld  ",
                static_cast<long long>(stats.num_ooms), static_cast<long long>(stats.num_alloc_retries));
  line(out, counts);
  line(out, double_rule);
  line(out, "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ");
  for (const Row& r : kRows) {
    line(out, rule);
    const Stat& group = stats.get(r.metric);
    row(out, r.name, group, group, r.cell);
    if (abbreviated) continue;
    row(out, "      from large pool", stats.get(r.metric, Stats::large_pool), group, r.cell);
    row(out, "      from small pool", stats.get(r.metric, Stats::small_pool), group, r.cell);
  }
  line(out, rule);
  row(out, "Oversize allocations", stats.oversize_allocations, stats.oversize_allocations, count_cell);
  line(out, rule);
  row(out, "Oversize segments", stats.oversize_segments, stats.oversize_segments, count_cell);
  line(out, double_rule);
  return out;
}

}  // namespace limpid::memory
