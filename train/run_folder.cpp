#include <limpid/train/run_folder.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/train/machine.h>
#include <limpid/version.h>

namespace limpid::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "steps.jsonl";
constexpr const char* kLedger = "ledger.jsonl";

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

LineFile::LineFile(std::string path, std::uint64_t keep) : path_(std::move(path)), size_(keep) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  LIMPID_CHECK(descriptor_ >= 0, IoError, "cannot write ", path_, ": ", std::strerror(errno));
  struct stat info {};
  std::string problem;
  if (::fstat(descriptor_, &info) != 0) {
    problem = std::strerror(errno);
  } else if (static_cast<std::uint64_t>(info.st_size) < keep) {
    ::close(descriptor_);
    LIMPID_THROW(DataError, "[resume] ", path_, " has ", static_cast<std::uint64_t>(info.st_size),
                 " bytes, the checkpoint was written when it had ", keep);
  } else if (::ftruncate(descriptor_, static_cast<off_t>(keep)) != 0 ||
             ::lseek(descriptor_, static_cast<off_t>(keep), SEEK_SET) < 0) {
    problem = std::strerror(errno);
  }
  if (!problem.empty()) {
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
  std::size_t done = 0;
  while (done < whole.size()) {
    ssize_t n = ::write(descriptor_, whole.data() + done, whole.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      std::string reason = n < 0 ? std::strerror(errno) : "nothing was written";
      bool cut = ::ftruncate(descriptor_, static_cast<off_t>(size_)) == 0 &&
                 ::lseek(descriptor_, static_cast<off_t>(size_), SEEK_SET) >= 0;
      LIMPID_THROW(IoError, "cannot write ", path_, ": ", reason,
                   cut ? "" : " (and the incomplete line could not be removed)");
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += whole.size();
}

void LineFile::sync() {
  LIMPID_CHECK(::fsync(descriptor_) == 0 || errno == EINVAL, IoError, "cannot sync ", path_, ": ",
               std::strerror(errno));
}

RunFolder::RunFolder(std::string path, const LogOffsets& offsets)
    : path_(std::move(path)),
      steps_(path_ + "/" + kSteps, offset_of(offsets, kSteps)),
      ledger_(path_ + "/" + kLedger, offset_of(offsets, kLedger)) {}

std::unique_ptr<RunFolder> RunFolder::create(const std::string& path, const TrainSettings& settings) {
  LIMPID_CHECK(!holds_run(path), ArgumentError, "[run] ", path,
               " already holds a run: resume it, or give another folder");
  std::error_code problem;
  fs::create_directories(path + "/ckpt", problem);
  LIMPID_CHECK(!problem, ArgumentError, "[run] cannot make the folder ", path, ": ", problem.message());
  LIMPID_CHECK(::access(path.c_str(), W_OK | X_OK) == 0, ArgumentError, "[run] cannot write into ", path, ": ",
               std::strerror(errno));
  const MachineInfo machine = machine_info();
  nlohmann::ordered_json json;
  json["format"] = 1;
  json["limpid"] = LIMPID_VERSION;
  json["created"] = now_utc();
  json["seed"] = settings.seed;
  json["settings"] = nlohmann::ordered_json::parse(to_json(settings));
  json["machine"] = {{"cpu", machine.cpu},
                     {"cores", machine.cores},
                     {"isa", machine.isa},
                     {"system", machine.system},
                     {"compiler", machine.compiler},
                     {"build", machine.build},
                     {"memory_bytes", machine.memory_bytes}};
  // The logs first: run.json is what makes the folder a run.
  std::unique_ptr<RunFolder> folder(new RunFolder(path, {}));
  write_file_atomically(path + "/run.json", json.dump(2) + "\n");
  return folder;
}

std::unique_ptr<RunFolder> RunFolder::resume(const std::string& path, const LogOffsets& offsets) {
  LIMPID_CHECK(holds_run(path), ArgumentError, "[run] ", path, " holds no run: there is no run.json");
  std::error_code problem;
  fs::create_directories(path + "/ckpt", problem);
  LIMPID_CHECK(!problem, IoError, "cannot make the folder ", path, "/ckpt: ", problem.message());
  return std::unique_ptr<RunFolder>(new RunFolder(path, offsets));
}

bool RunFolder::holds_run(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path + "/run.json", ignored);
}

TrainSettings RunFolder::settings_of(const std::string& path) {
  const std::string file = path + "/run.json";
  LIMPID_CHECK(holds_run(path), DataError, "[run] ", path, " holds no run: there is no run.json");
  std::vector<std::uint8_t> bytes = read_file(file, std::uint64_t{1} << 20);
  auto json = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
  LIMPID_CHECK(json.is_object() && json.contains("settings"), DataError, "[run] ", file,
               " is not valid JSON with an entry \"settings\"");
  return settings_from_json(json["settings"].dump());
}

void RunFolder::remove_run(const std::string& path) {
  for (const char* name : {"run.json", kSteps, kLedger, "ckpt"}) {
    std::error_code problem;
    fs::remove_all(path + "/" + name, problem);
    LIMPID_CHECK(!problem, IoError, "cannot remove ", path, "/", name, ": ", problem.message());
  }
  std::error_code problem;
  std::vector<fs::path> traces;
  for (fs::directory_iterator it(path, problem), end; !problem && it != end; it.increment(problem)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("trace.") && name.ends_with("bin")) traces.push_back(it->path());
  }
  for (const fs::path& trace : traces) {
    fs::remove(trace, problem);
    LIMPID_CHECK(!problem, IoError, "cannot remove ", trace.string(), ": ", problem.message());
  }
}

std::string RunFolder::trace(std::int64_t first_step) const {
  return path_ + (first_step == 0 ? std::string("/trace.bin") : concat("/trace.", first_step, ".bin"));
}

LogOffsets RunFolder::offsets() const { return {{kSteps, steps_.size()}, {kLedger, ledger_.size()}}; }

void RunFolder::sync() {
  steps_.sync();
  ledger_.sync();
}

}  // namespace limpid::train
