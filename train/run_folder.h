// The folder of one run: run.json (settings, seed, versions, machine), the logs steps.jsonl, ledger.jsonl and
// monitor.jsonl, trace*.bin, events.out.tfevents.* and ckpt/. LineFile is a log that can be cut back to an offset, so that a resumed run continues exactly where its checkpoint
// was. Not here: what a checkpoint holds (checkpoint.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <limpid/train/settings.h>

namespace limpid::train {

// Appends whole lines. What could not be written whole (disk full) is taken back before the IoError.
class LineFile {
 public:
  // Opens, creates when `keep` is 0, and cuts the file to `keep` bytes.
  LineFile(std::string path, std::uint64_t keep);
  // DataError when the file has fewer than `keep` bytes or is missing with keep > 0; changes nothing.
  static void check(const std::string& path, std::uint64_t keep);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void write_line(std::string_view line);
  void write(std::string_view bytes);  // as they are
  void sync();
  std::uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Sizes of the logs, by file name.
using LogOffsets = std::map<std::string, std::uint64_t>;

// One process at a time writes into a run folder: an flock on FOLDER/.lock, which the kernel drops when the process
// ends, however it ends.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);  // ArgumentError names the process that has it
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_;
};

class RunFolder {
 public:
  // Whether create() would work, before anything is loaded; nothing is changed. ArgumentError for a folder that holds a
  // run (unless it is to be overwritten) or anything else, IoError for one that cannot be made or written.
  static void check_new(const std::string& path, bool overwrite);
  // A new run, in a folder that is new or empty. `overwrite` removes an earlier run first: the files that limpid has
  // written there, and nothing else.
  static std::unique_ptr<RunFolder> create(const std::string& path, const TrainSettings& settings,
                                           bool overwrite = false);
  // A run that goes on: its logs are cut to `offsets` (absent = empty) and run.json gets the present settings.
  // `lock`: as lock() gave it; null = it is taken here.
  static std::unique_ptr<RunFolder> resume(const std::string& path, const LogOffsets& offsets,
                                           const TrainSettings& settings, std::unique_ptr<RunLock> lock = nullptr);
  // Of an existing run, to be taken before its checkpoint is read. ArgumentError when there is none, or it is in use.
  static std::unique_ptr<RunLock> lock(const std::string& path);
  static bool holds_run(const std::string& path);  // run.json is there and limpid's
  // What a run is made of, as far as it is there: run.json, the lock, logs, traces, event files and all of ckpt/. Not
  // the page, which can be made again.
  static std::vector<std::string> files_of(const std::string& path);
  // The settings of an existing run; DataError when run.json is absent or broken.
  static TrainSettings settings_of(const std::string& path);

  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/ckpt"; }
  // The memory trace (memory/trace_file.h) of the process that begins at this step: trace.bin, or trace.STEP.bin when a
  // run goes on.
  std::string trace(std::int64_t first_step) const;
  // Its event file for TensorBoard (tensorboard.h).
  std::string events(std::int64_t first_step) const;
  LineFile& steps() { return steps_; }
  LineFile& ledger() { return ledger_; }
  LineFile& monitor() { return monitor_; }
  LogOffsets offsets() const;
  void sync();

 private:
  RunFolder(std::string path, std::unique_ptr<RunLock> lock, const LogOffsets& offsets);
  std::string path_;
  std::unique_ptr<RunLock> lock_;
  LineFile steps_;
  LineFile ledger_;
  LineFile monitor_;
};

}  // namespace limpid::train
