#include <limpid/base/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <limpid/base/error.h>

namespace limpid {
namespace {

std::string directory_of(const std::string& path) {
  auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

int open_regular_file(const std::string& path, int flags) {
  // O_NONBLOCK: a pipe without a partner must not be waited for. It changes nothing for a regular file.
  const int fd = ::open(path.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
  const bool no_partner = fd < 0 && errno == ENXIO;
  LIMPID_CHECK(fd >= 0 || no_partner, IoError, (flags & O_ACCMODE) == O_RDONLY ? "cannot open " : "cannot write ", path,
               ": ", std::strerror(errno));
  struct stat info {};
  const bool regular = fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular && fd >= 0) ::close(fd);
  LIMPID_CHECK(regular, IoError, path, " is not a regular file");
  return fd;
}

InputFile::InputFile(std::string path) : path_(std::move(path)), descriptor_(open_regular_file(path_, O_RDONLY)) {
  struct stat info {};
  if (::fstat(descriptor_, &info) == 0) size_ = static_cast<std::uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(void* data, std::size_t bytes) {
  char* p = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t n = ::read(descriptor_, p, std::min(bytes, std::size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    LIMPID_CHECK(n >= 0, IoError, "cannot read ", path_, ": ", std::strerror(errno));
    LIMPID_CHECK(n > 0, IoError, path_, " became shorter while it was read: ", done_, " of ", size_, " bytes");
    p += n;
    bytes -= static_cast<std::size_t>(n);
    done_ += static_cast<std::uint64_t>(n);
  }
}

std::vector<std::uint8_t> read_file(const std::string& path, std::uint64_t max_bytes) {
  InputFile file(path);
  LIMPID_CHECK(file.size() <= max_bytes, IoError, path, " has ", file.size(), " bytes, more than the accepted ",
               max_bytes);
  std::vector<std::uint8_t> bytes(file.size());
  file.read(bytes.data(), bytes.size());
  return bytes;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // A rename replaces what it names: a link's target is what is meant, and a device or a pipe must not become a file.
  std::error_code ignored;
  if (std::filesystem::is_symlink(path_, ignored)) {
    const std::filesystem::path target = std::filesystem::weakly_canonical(path_, ignored);
    if (!ignored) path_ = target.string();
  }
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  LIMPID_CHECK(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status), IoError, "cannot write ",
               path_, ": it is not a regular file");
  temporary_ = path_ + ".tmp-" + std::to_string(::getpid());
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  LIMPID_CHECK(descriptor_ >= 0, IoError, "cannot write ", path_, ": ", std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::write(descriptor_, p, std::min(bytes, std::size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    LIMPID_CHECK(n >= 0, IoError, "cannot write ", path_, ": ", std::strerror(errno));
    p += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  LIMPID_CHECK(::fsync(descriptor_) == 0, IoError, "cannot sync ", path_, ": ", std::strerror(errno));
  int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    std::string reason = std::strerror(errno);
    ::unlink(temporary_.c_str());
    LIMPID_THROW(IoError, "cannot write ", path_, ": ", reason);
  }
  sync_directory(directory_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

void sync_directory(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  LIMPID_CHECK(fd >= 0, IoError, "cannot open directory ", path, ": ", std::strerror(errno));
  int result = ::fsync(fd);
  int reason = errno;
  ::close(fd);
  // Some file systems refuse to sync a directory; that is not a failure of the write.
  LIMPID_CHECK(result == 0 || reason == EINVAL || reason == EROFS, IoError, "cannot sync directory ", path, ": ",
               std::strerror(reason));
}

}  // namespace limpid
