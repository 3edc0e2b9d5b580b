// The folder of one run: run.json (settings, seed, versions, machine), steps.jsonl, ledger.jsonl, trace*.bin and ckpt/.
// LineFile is a log that can be cut back to an offset, so that a resumed run continues exactly where its checkpoint
// was. Not here: what a checkpoint holds (checkpoint.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <limpid/train/settings.h>

namespace limpid::train {

// Appends whole lines. A line that could not be written whole (disk full) is taken back before the IoError.
class LineFile {
 public:
  // Opens or creates, and cuts the file to `keep` bytes; DataError when it has fewer.
  LineFile(std::string path, std::uint64_t keep);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void write_line(std::string_view line);
  void sync();
  std::uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Sizes of the logs, by file name.
using LogOffsets = std::map<std::string, std::uint64_t>;

class RunFolder {
 public:
  // A new run. ArgumentError when the folder holds a run already, or cannot be made or written.
  static std::unique_ptr<RunFolder> create(const std::string& path, const TrainSettings& settings);
  // A run that goes on: its logs are cut to `offsets` (absent = empty).
  static std::unique_ptr<RunFolder> resume(const std::string& path, const LogOffsets& offsets);
  static bool holds_run(const std::string& path);
  // The settings of an existing run; DataError when run.json is absent or broken.
  static TrainSettings settings_of(const std::string& path);
  // Removes what a run has written there (run.json, logs, ckpt/) and nothing else.
  static void remove_run(const std::string& path);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/ckpt"; }
  // The memory trace (memory/trace_file.h) of the process that begins at this step: trace.bin, or trace.STEP.bin when a
  // run goes on.
  std::string trace(std::int64_t first_step) const;
  LineFile& steps() { return steps_; }
  LineFile& ledger() { return ledger_; }
  LogOffsets offsets() const;
  void sync();

 private:
  RunFolder(std::string path, const LogOffsets& offsets);
  std::string path_;
  LineFile steps_;
  LineFile ledger_;
};

}  // namespace limpid::train
