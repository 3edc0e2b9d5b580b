// Trace files: `limpid-trace/1` in two forms that hold the same. A binary file can be written while training runs and
// is readable up to where it was cut; JSONL is for people and scripts.
//
// Binary, all numbers little-endian, varint = LEB128 of at most 10 bytes:
//   16 bytes   "limpid-trace/1\n" and a zero
//   chunks     kind u8, payload bytes u32 (at most 4 MiB), CRC-32 of the payload u32 (zlib's), payload
//     'I'  JSON object of TraceInfo; may come again, later values win
//     'N'  names, each { id varint, length varint, bytes }; an id is defined once, before the first use; 0 is ""
//     'R'  count varint, then count records. A record is a u16 of kind (4 low bits) and 10 flags, then for every flag
//          that is set, in this order, a value: id (zigzag varint of the difference), bytes, stream, name, op, module,
//          step, micro_batch (varints), role, phase (u8). A field without a flag is that of the record before; before
//          the first record of a chunk all fields are 0.
//     'E'  JSON object {"records": n, "not_recorded": m}: the writer closed the file
// A file without 'E', or with a chunk that is short or fails its CRC, is cut there: TraceLog::cut and a note say so.
// JSONL: a line {"format": "limpid-trace/1", ...TraceInfo}, one line a record, and {"e": "end", "records": n, ...}.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <limpid/memory/trace_log.h>

namespace limpid::memory {

// Bytes in, log out. DataError when the bytes are no such file or break its rules; memory grows with the input only (a
// record takes at least 2 bytes in the file and 48 in memory).
TraceLog parse_trace_binary(std::string_view bytes);
TraceLog parse_trace_jsonl(std::string_view text);

using ByteSink = std::function<void(std::string_view)>;
void print_trace_binary(const TraceLog& log, const ByteSink& out);
void print_trace_jsonl(const TraceLog& log, const ByteSink& out);

// Builds the chunks of a binary file from records whose names `name_of` knows.
class TraceEncoder {
 public:
  using NameOf = std::function<const std::string&(NameId)>;
  explicit TraceEncoder(NameOf name_of) : name_of_(std::move(name_of)) {}
  static std::string header();
  static std::string info(const TraceInfo& info);
  // Names that are new, and the records. The text is valid until the next call.
  std::string_view records(const TraceRecord* records, std::size_t count);
  static std::string end(std::uint64_t records, std::uint64_t not_recorded);

 private:
  void define(NameId id);
  NameOf name_of_;
  std::vector<bool> known_;
  std::string names_, payload_, out_;
};

// A file that grows while a program runs. Errors of the disk do not disturb the program: writing stops, and close()
// reports. At the limit the file ends where a later replay can begin from the start; the rest is only counted.
class TraceWriter {
 public:
  TraceWriter(std::string path, const TraceInfo& info, std::uint64_t limit_bytes);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  void append(const TraceRecord* records, std::size_t count) noexcept;  // names: ids of this process
  void update(const TraceInfo& info) noexcept;
  void close();  // IoError: the first failure since the file was opened

  std::uint64_t records() const { return records_; }
  std::uint64_t not_recorded() const { return not_recorded_; }
  std::uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  void put(std::string_view bytes) noexcept;
  std::string path_, problem_;
  int descriptor_ = -1;
  std::uint64_t limit_, size_ = 0, records_ = 0, not_recorded_ = 0;
  bool full_ = false;
  TraceEncoder encoder_;
};

// The trace of an allocator into a file, from its first event when the ring still has it, until close(). One recording
// an allocator at a time.
class TraceRecording {
 public:
  TraceRecording(Allocator& allocator, const std::string& path, std::uint64_t limit_bytes = UINT64_MAX);
  ~TraceRecording();  // closes, without a word
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;
  void flush();  // what the ring holds goes to the file
  void close();  // IoError
  const TraceWriter& writer() const { return *writer_; }

 private:
  Allocator& allocator_;
  std::unique_ptr<TraceWriter> writer_;
  bool open_ = true;
};

// A log as a file, whole or not at all: JSONL when the path ends in ".jsonl", else binary.
void write_trace(const std::string& path, const TraceLog& log);

}  // namespace limpid::memory
