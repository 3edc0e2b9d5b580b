// TraceLog: a whole trace in memory, whatever it came from: a trace file, an allocator's ring, a PyTorch snapshot, an
// RMM or MiniMalloc file. Records carry ids of the log's own names, not of this process, so that reading a file leaves
// nothing behind. Not here: the file formats (trace_file.h, trace_import.h) and running it (replay.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <limpid/memory/trace.h>

namespace limpid::memory {

class Allocator;

struct TraceInfo {
  std::string source = "limpid";   // limpid, pytorch, rmm, minimalloc
  std::string device;              // of the recorded allocator
  std::string policy = "native";   // that made the segment records
  std::string settings;            // as for parse_allocator_settings(); empty = defaults
  std::uint64_t capacity = 0;      // bytes of the device; 0 = not known
  std::uint64_t preexisting = 0;   // leading alloc records that stand for blocks from before the recording
  std::uint64_t not_recorded = 0;  // events after the end, left out because the file had reached its limit
};

struct TraceLog {
  TraceInfo info;
  std::vector<TraceRecord> records;  // name, op, module: places in `names`
  std::vector<std::string> names = {""};
  bool cut = false;                // the file ends early or is damaged; `records` is what stands before that
  std::vector<std::string> notes;  // what a reader should know: where it is cut, what could not be imported

  const std::string& name(NameId id) const { return names[id]; }
  // A short label of an allocation: its tensor, else its layer, else its operation, else its role.
  std::string label(const TraceRecord& record) const;
};

// Gives texts their place in a log's names.
class NameTable {
 public:
  explicit NameTable(std::vector<std::string>& names) : names_(names) {}
  NameId add(std::string_view text);

 private:
  std::vector<std::string>& names_;
  std::unordered_map<std::string, NameId> ids_;
};

// What the allocator's ring still holds. When the ring has dropped records, the log has a note, and frees whose
// allocation is lost are skipped by a replay.
TraceLog capture_trace(Allocator& allocator);

// Sanity of one record, whatever the source: "" or what is wrong with it. Sizes are 1 byte to 2^60.
std::string problem_of(const TraceRecord& record, std::size_t names);

}  // namespace limpid::memory
