#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <limpid/base/error.h>
#include <limpid/train/run_files_private.h>

namespace limpid::train::detail {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code problem;
  for (fs::directory_iterator it(folder, problem), end; !problem && it != end; it.increment(problem))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

bool is_checkpoint_name(std::string_view name) {
  const std::size_t dash = name.find('-');
  return name.size() >= 8 && all_digits(name.substr(0, dash)) &&
         (dash == std::string_view::npos || all_digits(name.substr(dash + 1)));
}

// The file, or the temporary of a writer that was killed (base/file.h).
bool is_file(std::string_view name, std::string_view wanted) {
  if (!name.starts_with(wanted)) return false;
  name.remove_prefix(wanted.size());
  constexpr std::string_view kTemporary = ".tmp-";
  return name.empty() || (name.starts_with(kTemporary) && all_digits(name.substr(kTemporary.size())));
}

// BEGIN + digits + END
bool is_numbered(std::string_view name, std::string_view begin, std::string_view end) {
  return name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end) &&
         all_digits(name.substr(begin.size(), name.size() - begin.size() - end.size()));
}

// What a run writes besides run.json and its checkpoints.
bool is_run_file(std::string_view name) {
  for (const char* wanted : {"steps.jsonl", "ledger.jsonl", "monitor.jsonl", "oom.json", "report.html", "trace.bin"}) {
    if (is_file(name, wanted)) return true;
  }
  return is_numbered(name, "trace.", ".bin") || is_numbered(name, "events.out.tfevents.", ".limpid");
}

// A folder itself: what a link points to may be another run's, and is neither listed nor removed.
bool is_own_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(path, ignored));
}

void remove_file(const std::string& path) {
  std::error_code problem;
  if (is_own_folder(path)) return;  // not ours, whatever its name
  fs::remove(path, problem);
  LIMPID_CHECK(!problem, IoError, "cannot remove ", path, ": ", problem.message());
}

}  // namespace

std::vector<std::string> checkpoints_in(const std::string& ckpt) {
  std::vector<std::string> names = names_in(ckpt);
  std::erase_if(names, [&](const std::string& name) {
    return !is_checkpoint_name(name) || !is_own_folder(ckpt + "/" + name);
  });
  return names;
}

void remove_checkpoint(const std::string& folder) {
  if (!is_own_folder(folder)) return;
  std::error_code problem;
  for (const std::string& name : names_in(folder)) {
    for (const char* file : {kModelFile, kOptimizerFile, kStateFile}) {
      if (is_file(name, file)) fs::remove(folder + "/" + name, problem);
    }
  }
  fs::remove(folder, problem);  // fails when something is left in it
}

void remove_unfinished(const std::string& ckpt) {
  const std::string_view prefix = kUnfinished;
  for (const std::string& name : names_in(ckpt)) {
    if (name.starts_with(prefix) && is_checkpoint_name(std::string_view(name).substr(prefix.size())))
      remove_checkpoint(ckpt + "/" + name);
  }
}

void remove_run_files(const std::string& run) {
  const std::string ckpt = run + "/ckpt";
  for (const std::string& name : names_in(ckpt)) {
    if (is_file(name, "last") || is_file(name, "best")) remove_file(ckpt + "/" + name);
  }
  for (const std::string& name : checkpoints_in(ckpt)) remove_checkpoint(ckpt + "/" + name);
  remove_unfinished(ckpt);
  std::error_code ignored;
  fs::remove(ckpt, ignored);
  // run.json last: while it is there, the folder is a run that can be removed.
  for (const std::string& name : names_in(run)) {
    if (is_run_file(name)) remove_file(run + "/" + name);
  }
  for (const std::string& name : names_in(run)) {
    if (is_file(name, "run.json")) remove_file(run + "/" + name);
  }
}

std::vector<std::string> files_of_run(const std::string& run) {
  std::vector<std::string> files;
  for (const std::string& name : names_in(run)) {
    if (name == ".lock" || name == "run.json" || (is_run_file(name) && !is_file(name, "report.html")))
      files.push_back(run + "/" + name);
  }
  std::error_code problem;
  for (fs::recursive_directory_iterator it(run + "/ckpt", problem), end; !problem && it != end; it.increment(problem)) {
    std::error_code ignored;
    if (!it->is_directory(ignored)) files.push_back(it->path().string());
  }
  return files;
}

bool is_vacant(const std::string& run) {
  const std::vector<std::string> names = names_in(run);
  return std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name == ".lock" || (name != "run.json" && is_file(name, "run.json"));
  });
}

}  // namespace limpid::train::detail
