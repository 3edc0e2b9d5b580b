// The logs of a run folder, read back together: settings, steps, monitor and ledger, which must fit each other. For
// reports; a run that goes on reads its checkpoint instead (checkpoint.h).
#pragma once

#include <string>
#include <vector>

#include <limpid/train/ledger.h>
#include <limpid/train/monitor.h>
#include <limpid/train/run_folder.h>
#include <limpid/train/trainer.h>

namespace limpid::train {

struct RunLog {
  std::string run_json;  // the text of run.json, an object: settings, seed, version, machine
  TrainSettings settings;
  std::vector<StepRecord> steps;       // 0, 1, 2, ...; a loss that is no finite number is NaN
  std::vector<MonitorRecord> monitor;  // empty without a monitor
  Ledger ledger;                       // as many steps
  std::vector<std::string> notes;      // sentences: the run is going on, ...
};

// Whether a process trains in this run folder.
bool is_going_on(const std::string& folder);

// DataError names the file that is cut, damaged or does not belong to the others. A run that goes on, or was killed
// between two records of a step, is read up to the last step that all logs have, with a note.
RunLog read_run(const std::string& folder);

// Before a run goes on: the logs are what they were when its checkpoint was written, up to `offsets`, and end with the
// step before `step`. DataError names the log and what is wrong; nothing is changed.
void check_logs(const std::string& folder, const LogOffsets& offsets, std::int64_t step);

}  // namespace limpid::train
