// Files, whole or not at all. A writer fills a temporary neighbour, syncs it and renames it over the target, so that a
// crash, a full disk or a kill leaves the old file intact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace limpid {

// Opens a regular file: an IoError for a folder, a device and a pipe (which is never waited for). `flags` are those of
// open(2), with O_CREAT the file is made. The caller closes the descriptor.
int open_regular_file(const std::string& path, int flags);

// A regular file that is read from its start.
class InputFile {
 public:
  explicit InputFile(std::string path);  // IoError as open_regular_file()
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::uint64_t size() const { return size_; }   // when it was opened
  void read(void* data, std::size_t bytes);      // all of them; IoError when the file has fewer left

 private:
  std::string path_;
  int descriptor_;
  std::uint64_t size_ = 0, done_ = 0;
};

// The bytes of a file. Throws IoError (cannot open, not a regular file, larger than max_bytes).
std::vector<std::uint8_t> read_file(const std::string& path, std::uint64_t max_bytes = UINT64_MAX);

// Writes through "PATH.tmp-<pid>" + fsync + rename. Not committed = the temporary is removed by the destructor.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);  // IoError when the temporary cannot be created
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, std::size_t bytes);  // IoError with the path and the reason (disk full, ...)
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

void write_file_atomically(const std::string& path, std::string_view contents);
// fsync of a directory: makes a rename inside it durable.
void sync_directory(const std::string& path);

}  // namespace limpid
