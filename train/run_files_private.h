// Which files in a run folder are limpid's own, by name, and their removal: a user's file is never touched. Internal:
// only .cpp files of train/ include it.
#pragma once

#include <string>
#include <vector>

namespace limpid::train::detail {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kUnfinished = ".unfinished-";  // in front of the name while a checkpoint is written

// Finished checkpoints in RUN/ckpt ("00001338", the same step again "00001338-2"), oldest first by name; links are not.
std::vector<std::string> checkpoints_in(const std::string& ckpt);
// What writers that were killed have left in RUN/ckpt.
void remove_unfinished(const std::string& ckpt);
// The three files of a checkpoint, then its folder when nothing else lies in it. What cannot be removed stays, and what is
// behind a link is left alone.
void remove_checkpoint(const std::string& folder);
// A whole run: run.json, logs, traces, event files, report, pointers, checkpoints. IoError for a file that cannot be removed.
void remove_run_files(const std::string& run);
// What a run needs to be read or to go on; everything in its ckpt folder.
std::vector<std::string> files_of_run(const std::string& run);
// True when a run may begin in the folder: it holds nothing but a lock file or what a killed writer has left.
bool is_vacant(const std::string& run);

}  // namespace limpid::train::detail
