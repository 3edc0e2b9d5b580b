#include <limpid/train/run_folder.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/train/machine.h>
#include <limpid/train/run_files_private.h>
#include <limpid/train/state_json_private.h>
#include <limpid/version.h>

namespace limpid::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "steps.jsonl";
constexpr const char* kLedger = "ledger.jsonl";
constexpr const char* kMonitor = "monitor.jsonl";

using detail::Json;

constexpr int kFormat = 1;  // of run.json

// run.json; DataError when it is absent, broken or of another program.
Json read_run_json(const std::string& folder) {
  const std::string path = folder + "/run.json";
  std::error_code ignored;
  LIMPID_CHECK(fs::exists(path, ignored), DataError, "[run] ", folder, " holds no run: there is no run.json");
  return detail::with_file(path, [&] {
    Json json = detail::parse_object_file(path, std::uint64_t{1} << 20);
    detail::check_format(json, kFormat);
    LIMPID_CHECK(json.contains("limpid") && json.contains("settings"), DataError, "not written by limpid");
    return json;
  });
}

std::uint64_t offset_of(const LogOffsets& offsets, const char* name) {
  auto found = offsets.find(name);
  return found == offsets.end() ? 0 : found->second;
}

std::string now_utc() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

void LineFile::check(const std::string& path, std::uint64_t keep) {
  std::error_code problem;
  if (keep == 0 && !fs::exists(fs::symlink_status(path, problem))) return;
  LIMPID_CHECK(fs::exists(path, problem), DataError, "[resume] ", path, " is missing; the checkpoint was written when ",
               "it had ", keep, " bytes. Without its log a run cannot go on; --init starts a new one from its weights");
  const std::uint64_t size = InputFile(path).size();
  LIMPID_CHECK(size >= keep, DataError, "[resume] ", path, " has ", size,
               " bytes, the checkpoint was written when it had ", keep);
}

LineFile::LineFile(std::string path, std::uint64_t keep) : path_(std::move(path)), size_(keep) {
  check(path_, keep);
  descriptor_ = open_regular_file(path_, O_WRONLY | O_CREAT);
  if (::ftruncate(descriptor_, static_cast<off_t>(keep)) != 0 ||
      ::lseek(descriptor_, static_cast<off_t>(keep), SEEK_SET) < 0) {
    const std::string problem = std::strerror(errno);
    ::close(descriptor_);
    LIMPID_THROW(IoError, "cannot write ", path_, ": ", problem);
  }
}

LineFile::~LineFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void LineFile::write_line(std::string_view line) {
  std::string whole(line);
  whole += '\n';
  write(whole);
}

void LineFile::write(std::string_view whole) {
  std::size_t done = 0;
  while (done < whole.size()) {
    ssize_t n = ::write(descriptor_, whole.data() + done, whole.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      std::string reason = n < 0 ? std::strerror(errno) : "nothing was written";
      bool cut = ::ftruncate(descriptor_, static_cast<off_t>(size_)) == 0 &&
                 ::lseek(descriptor_, static_cast<off_t>(size_), SEEK_SET) >= 0;
      LIMPID_THROW(IoError, "cannot write ", path_, ": ", reason,
                   cut ? "" : " (and what was written of it could not be removed)");
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += whole.size();
}

void LineFile::sync() {
  LIMPID_CHECK(::fsync(descriptor_) == 0 || errno == EINVAL, IoError, "cannot sync ", path_, ": ",
               std::strerror(errno));
}

RunLock::RunLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  descriptor_ = open_regular_file(path, O_RDWR | O_CREAT);
  // A file system without locks (ENOLCK, ENOTSUP) must not keep anybody from training.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    char owner[32] = {};
    const ssize_t n = ::pread(descriptor_, owner, sizeof owner - 1, 0);
    ::close(descriptor_);
    LIMPID_THROW(ArgumentError, "[run] ", folder, " is in use by ", n > 0 ? concat("process ", owner) : "another process");
  }
  const std::string own = std::to_string(::getpid());
  // The number is for people only.
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, own.data(), own.size(), 0) < 0) errno = 0;
}

RunLock::~RunLock() { ::close(descriptor_); }

RunFolder::RunFolder(std::string path, std::unique_ptr<RunLock> lock, const LogOffsets& offsets)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      steps_(path_ + "/" + kSteps, offset_of(offsets, kSteps)),
      ledger_(path_ + "/" + kLedger, offset_of(offsets, kLedger)),
      monitor_(path_ + "/" + kMonitor, offset_of(offsets, kMonitor)) {}

void RunFolder::check_new(const std::string& path, bool overwrite) {
  std::error_code problem;
  if (fs::exists(fs::symlink_status(path, problem))) {
    LIMPID_CHECK(fs::is_directory(path, problem), IoError, "[run] ", path, " is not a folder");
    LIMPID_CHECK(overwrite || !holds_run(path), ArgumentError, "[run] ", path,
                 " already holds a run: --resume goes on with it, --overwrite removes it");
    LIMPID_CHECK(holds_run(path) || detail::is_vacant(path), ArgumentError, "[run] ", path,
                 " is not empty and holds no run of limpid: give a new or an empty folder");
  } else {
    // Made and removed again: the only sure way to know.
    std::vector<fs::path> made;
    for (fs::path p = fs::absolute(path, problem).lexically_normal(); !fs::exists(p, problem) && p.has_relative_path();
         p = p.parent_path())
      made.push_back(p);
    fs::create_directories(path, problem);
    std::error_code ignored;
    for (const fs::path& p : made) fs::remove(p, ignored);
    LIMPID_CHECK(!problem, IoError, "[run] cannot make the folder ", path, ": ", problem.message());
    return;
  }
  LIMPID_CHECK(::access(path.c_str(), W_OK | X_OK) == 0, IoError, "[run] cannot write into ", path, ": ",
               std::strerror(errno));
}

std::unique_ptr<RunFolder> RunFolder::create(const std::string& path, const TrainSettings& settings, bool overwrite) {
  check_new(path, overwrite);
  std::error_code problem;
  fs::create_directories(path, problem);
  LIMPID_CHECK(!problem, IoError, "[run] cannot make the folder ", path, ": ", problem.message());
  auto lock = std::make_unique<RunLock>(path);
  check_new(path, overwrite);  // another process may have been faster
  detail::remove_run_files(path);
  const MachineInfo machine = machine_info();
  Json json;
  json["format"] = kFormat;
  json["limpid"] = LIMPID_VERSION;
  json["created"] = now_utc();
  json["seed"] = settings.seed;
  json["settings"] = Json::parse(to_json(settings));
  json["machine"] = {{"cpu", machine.cpu},
                     {"cores", machine.cores},
                     {"isa", machine.isa},
                     {"system", machine.system},
                     {"compiler", machine.compiler},
                     {"build", machine.build},
                     {"memory_bytes", machine.memory_bytes}};
  // First of all files: it makes the folder a run, which can be resumed or overwritten.
  write_file_atomically(path + "/run.json", json.dump(2) + "\n");
  fs::create_directories(path + "/ckpt", problem);
  LIMPID_CHECK(!problem, IoError, "[run] cannot make the folder ", path, "/ckpt: ", problem.message());
  return std::unique_ptr<RunFolder>(new RunFolder(path, std::move(lock), {}));
}

std::unique_ptr<RunFolder> RunFolder::resume(const std::string& path, const LogOffsets& offsets,
                                             const TrainSettings& settings, std::unique_ptr<RunLock> lock) {
  if (!lock) lock = RunFolder::lock(path);
  // All logs are looked at before one is cut.
  for (const char* log : {kSteps, kLedger, kMonitor}) LineFile::check(path + "/" + log, offset_of(offsets, log));
  std::error_code problem;
  fs::create_directories(path + "/ckpt", problem);
  LIMPID_CHECK(!problem, IoError, "cannot make the folder ", path, "/ckpt: ", problem.message());
  std::unique_ptr<RunFolder> folder(new RunFolder(path, std::move(lock), offsets));
  Json json = read_run_json(path);
  Json now = Json::parse(to_json(settings));
  if (json["settings"] != now) {
    json["settings"] = std::move(now);
    write_file_atomically(path + "/run.json", json.dump(2) + "\n");
  }
  return folder;
}

std::unique_ptr<RunLock> RunFolder::lock(const std::string& path) {
  LIMPID_CHECK(holds_run(path), ArgumentError, "[run] ", path, " holds no run: there is no run.json of limpid");
  return std::make_unique<RunLock>(path);
}

bool RunFolder::holds_run(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path + "/run.json", ignored)) return false;
  try {
    read_run_json(path);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

std::vector<std::string> RunFolder::files_of(const std::string& path) { return detail::files_of_run(path); }

TrainSettings RunFolder::settings_of(const std::string& path) {
  const Json json = read_run_json(path);
  return detail::with_file(path + "/run.json", [&] { return detail::settings_from_file(json.at("settings")); });
}

std::string RunFolder::trace(std::int64_t first_step) const {
  return path_ + (first_step == 0 ? std::string("/trace.bin") : concat("/trace.", first_step, ".bin"));
}

std::string RunFolder::events(std::int64_t first_step) const {
  char name[64];
  std::snprintf(name, sizeof name, "events.out.tfevents.%08lld.limpid", static_cast<long long>(first_step));
  return path_ + "/" + name;
}

LogOffsets RunFolder::offsets() const {
  return {{kSteps, steps_.size()}, {kLedger, ledger_.size()}, {kMonitor, monitor_.size()}};
}

void RunFolder::sync() {
  steps_.sync();
  ledger_.sync();
  monitor_.sync();
}

}  // namespace limpid::train
