// Replays the scripts of tests/golden/allocator and gives one Event a line, in the form of the reference logs.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/simulated_memory.h>

namespace limpid::memory {

struct Event {
  std::string error;
  // seg, off, alloc, res, active, segs, inactive_split, retries, device allocations and frees, pages mapped and
  // unmapped
  std::array<std::int64_t, 12> values{};
  bool operator==(const Event&) const = default;
};

inline std::string to_string(const Event& e) {
  static constexpr const char* kNames[] = {"seg",      "off",     "alloc",   "res",   "active", "segs",
                                           "inactive", "retries", "mallocs", "frees", "maps",   "unmaps"};
  std::string out = e.error;
  for (std::size_t i = 0; i < e.values.size(); i++)
    out += std::string(" ") + kNames[i] + " " + std::to_string(e.values[i]);
  return out;
}

// Runs one script over an allocator on a simulated device.
class ScriptPlayer {
 public:
  ScriptPlayer(std::uint64_t capacity, const std::string& settings)
      : device(std::make_shared<SimulatedMemory>(capacity)), allocator(device, parse_allocator_settings(settings)) {}

  Event play(const std::string& line) {
    std::istringstream in(line);
    std::string op;
    std::int64_t id = 0;
    in >> op;
    Event event;
    Block* fresh = nullptr;
    if (op == "a") {
      std::size_t bytes = 0;
      StreamId stream = 0;
      in >> id >> bytes >> stream;
      try {
        fresh = allocator.allocate(bytes, Role::activation, 0, stream);
        blocks[id] = fresh;
      } catch (const OutOfMemoryError&) {
        event.error = "OOM";
      }
    } else if (op == "f") {
      in >> id;
      auto it = blocks.find(id);
      if (it != blocks.end()) {
        allocator.free(it->second);
        blocks.erase(it);
      }
    } else if (op == "r") {
      StreamId stream = 0;
      in >> id >> stream;
      auto it = blocks.find(id);
      if (it != blocks.end()) allocator.record_stream(it->second, stream);
    } else if (op == "e") {
      allocator.empty_cache();
    } else if (op == "m") {
      double fraction = 0;
      in >> fraction;
      allocator.set_memory_fraction(fraction);
    } else if (op == "p") {
      in >> id;
      device->set_events_pending(id == 0);
    } else {
      LIMPID_THROW(InternalError, "unknown script line '", line, "'");
    }
    event.values[0] = event.values[1] = -1;
    if (fresh) {
      std::vector<SegmentInfo> segments = allocator.snapshot();
      auto at = reinterpret_cast<std::uintptr_t>(fresh->ptr);
      for (std::size_t i = 0; i < segments.size(); i++) {
        if (at < segments[i].address || at >= segments[i].address + segments[i].size) continue;
        event.values[0] = static_cast<std::int64_t>(i);
        event.values[1] = static_cast<std::int64_t>(at - segments[i].address);
      }
    }
    Stats stats = allocator.stats();
    event.values[2] = stats.get(Metric::allocated_bytes).current;
    event.values[3] = stats.get(Metric::reserved_bytes).current;
    event.values[4] = stats.get(Metric::active_bytes).current;
    event.values[5] = stats.get(Metric::segment).current;
    event.values[6] = stats.get(Metric::inactive_split_bytes).current;
    event.values[7] = stats.num_alloc_retries;
    event.values[8] = device->calls().reserve;
    event.values[9] = device->calls().release;
    if (allocator.settings().expandable_segments) {
      const Stat& small = stats.get(Metric::reserved_bytes, Stats::small_pool);
      const Stat& large = stats.get(Metric::reserved_bytes, Stats::large_pool);
      auto page = static_cast<std::int64_t>(allocator.settings().large_segment_size);
      event.values[10] = small.allocated / (2 << 20) + large.allocated / page;
      event.values[11] = small.freed / (2 << 20) + large.freed / page;
    }
    return event;
  }

  std::shared_ptr<SimulatedMemory> device;
  Allocator allocator;
  std::map<std::int64_t, Block*> blocks;
};

struct Step {
  std::string command;
  Event event;
};

// Reads the packed form (see tests/golden/allocator/pack.py).
inline std::vector<Step> read_packed_log(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  LIMPID_CHECK(file, IoError, "cannot open ", path);
  std::string text;
  char buffer[1 << 16];
  for (int n; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  std::vector<Step> steps;
  std::istringstream in(text);
  std::array<std::int64_t, 10> sums{};
  for (std::string line; std::getline(in, line);) {
    Step step;
    std::size_t tab = line.find('\t');
    step.command = line.substr(0, tab);
    std::string rest = line.substr(tab + 1) + " ";
    std::vector<std::string> words;
    for (std::size_t at = 0, space; (space = rest.find(' ', at)) != std::string::npos; at = space + 1) {
      words.push_back(rest.substr(at, space - at));
    }
    LIMPID_CHECK(words.size() == 11 || words.size() == 13, DataError, "bad line in ", path, ": ", line);
    step.event.error = words[0];
    for (std::size_t i = 0; i + 1 < words.size(); i++) {
      std::int64_t value = words[i + 1].empty() ? 0 : std::stoll(words[i + 1]);
      step.event.values[i] = i < 2 ? value : sums[i - 2] += value;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace limpid::memory
