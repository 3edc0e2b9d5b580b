#include <limpid/memory/trace_file.h>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/trace_file_private.h>

namespace limpid::memory {
namespace {

constexpr std::string_view kMagic("limpid-trace/1\n\0", 16);
constexpr std::size_t kMaxPayload = std::size_t{4} << 20;
constexpr std::size_t kRecordsAChunk = 8192;
constexpr std::size_t kMaxName = 4096;
constexpr std::size_t kChunkHead = 9;

// The flags of a record, in the order of the values.
enum Flag : unsigned { kId, kBytes, kStream, kName, kOp, kModule, kStep, kMicroBatch, kRole, kPhase };
constexpr unsigned flag(Flag f) { return 1U << (4 + f); }

std::uint32_t crc(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift & 0xff);
}

void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put_chunk(std::string& out, char kind, std::string_view payload) {
  out += kind;
  put_u32(out, static_cast<std::uint32_t>(payload.size()));
  put_u32(out, crc(payload));
  out += payload;
}

constexpr std::size_t kMaxRecord = 2 + 8 * 10 + 2;

char* put_varint(char* out, std::uint64_t value) {
  while (value >= 0x80) {
    *out++ = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<char>(value);
  return out;
}

// At most kMaxRecord bytes; returns the place behind them. This runs inside a training step.
char* put_record(char* out, const TraceRecord& r, const TraceRecord& before) {
  unsigned head = static_cast<unsigned>(r.kind);
  char* const head_at = out;
  out += 2;
  if (r.id != before.id) {
    head |= flag(kId);
    const std::uint64_t difference = r.id - before.id;
    out = put_varint(out, difference << 1 ^ (difference >> 63 ? UINT64_MAX : 0));
  }
  auto field = [&](Flag f, std::uint64_t value, std::uint64_t former) {
    if (value == former) return;
    head |= flag(f);
    out = put_varint(out, value);
  };
  field(kBytes, r.bytes, before.bytes);
  field(kStream, r.stream, before.stream);
  field(kName, r.name, before.name);
  field(kOp, r.op, before.op);
  field(kModule, r.module, before.module);
  field(kStep, r.step, before.step);
  field(kMicroBatch, r.micro_batch, before.micro_batch);
  if (r.role != before.role) {
    head |= flag(kRole);
    *out++ = static_cast<char>(r.role);
  }
  if (r.phase != before.phase) {
    head |= flag(kPhase);
    *out++ = static_cast<char>(r.phase);
  }
  head_at[0] = static_cast<char>(head);
  head_at[1] = static_cast<char>(head >> 8);
  return out;
}

// Reads one payload; running past its end or an overlong number is a DataError.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}
  bool at_end() const { return at_ == bytes_.size(); }
  std::size_t left() const { return bytes_.size() - at_; }
  std::uint8_t byte() {
    LIMPID_CHECK(at_ < bytes_.size(), DataError, "[trace] a chunk ends inside a record");
    return static_cast<std::uint8_t>(bytes_[at_++]);
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t b = byte();
      LIMPID_CHECK(shift < 63 || b <= 1, DataError, "[trace] a number has more than 64 bits");
      value |= static_cast<std::uint64_t>(b & 0x7f) << shift;
      if (b < 0x80) return value;
    }
    LIMPID_THROW(DataError, "[trace] a number has more than 64 bits");
  }
  std::uint32_t varint32() {
    const std::uint64_t value = varint();
    LIMPID_CHECK(value <= UINT32_MAX, DataError, "[trace] ", value, " does not fit in 32 bits");
    return static_cast<std::uint32_t>(value);
  }
  std::string_view text(std::uint64_t length) {
    LIMPID_CHECK(length <= left(), DataError, "[trace] a name of ", length, " bytes in a chunk with ", left(), " left");
    at_ += static_cast<std::size_t>(length);
    return bytes_.substr(at_ - static_cast<std::size_t>(length), static_cast<std::size_t>(length));
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

class BinaryReader {
 public:
  TraceLog read(std::string_view bytes) {
    LIMPID_CHECK(bytes.size() >= kMagic.size() && bytes.substr(0, kMagic.size()) == kMagic, DataError,
                 "[trace] not a binary limpid-trace/1 file");
    std::size_t at = kMagic.size();
    bool ended = false;
    while (at < bytes.size() && !ended) {
      if (bytes.size() - at < kChunkHead) return cut(at, "the file ends inside a chunk");
      const char kind = bytes[at];
      const std::uint64_t length = u32(bytes, at + 1), sum = u32(bytes, at + 5);
      if (length > kMaxPayload) return cut(at, "a chunk of " + std::to_string(length) + " bytes, more than 4 MiB");
      if (length > bytes.size() - at - kChunkHead) return cut(at, "the file ends inside a chunk");
      const std::string_view payload = bytes.substr(at + kChunkHead, static_cast<std::size_t>(length));
      if (crc(payload) != sum) return cut(at, "a chunk is damaged (its CRC differs)");
      switch (kind) {
        case 'I':
          info_from_json(parse_json_object(payload, "a trace's info"), log_.info);
          break;
        case 'N':
          names(Cursor(payload));
          break;
        case 'R':
          records(Cursor(payload));
          break;
        case 'E':
          ended = end(payload);
          break;
        default:
          LIMPID_THROW(DataError, "[trace] unknown chunk kind ", static_cast<int>(kind), " at byte ", at);
      }
      at += kChunkHead + static_cast<std::size_t>(length);
    }
    if (!ended) return cut(at, "the writer did not close the file");
    if (at < bytes.size()) log_.notes.push_back(concat(bytes.size() - at, " bytes after the end are ignored"));
    return std::move(log_);
  }

 private:
  static std::uint32_t u32(std::string_view bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; i++) {
      value |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(bytes[at + i])) << (8 * i);
    }
    return value;
  }
  TraceLog cut(std::size_t at, const std::string& why) {
    log_.cut = true;
    log_.notes.push_back(
        concat("cut at byte ", at, ": ", why, "; ", log_.records.size(), " records stand before that"));
    return std::move(log_);
  }
  void names(Cursor in) {
    while (!in.at_end()) {
      const std::uint32_t id = in.varint32();
      const std::uint64_t length = in.varint();
      LIMPID_CHECK(id != 0 && length <= kMaxName, DataError, "[trace] name ", id, " of ", length,
                   " bytes; ids start at 1 and a name has at most ", kMaxName, " bytes");
      const bool is_new = places_.emplace(id, static_cast<NameId>(log_.names.size())).second;
      LIMPID_CHECK(is_new, DataError, "[trace] name ", id, " is defined twice");
      log_.names.emplace_back(in.text(length));
    }
  }
  NameId place(std::uint32_t id) const {
    if (id == 0) return 0;
    auto it = places_.find(id);
    LIMPID_CHECK(it != places_.end(), DataError, "[trace] record ", log_.records.size(), ": name ", id,
                 " is not defined");
    return it->second;
  }
  void records(Cursor in) {
    const std::uint64_t count = in.varint();
    LIMPID_CHECK(count <= in.left() / 2, DataError, "[trace] a chunk claims ", count, " records in ", in.left(),
                 " bytes");
    TraceRecord r{};
    for (std::uint64_t i = 0; i < count; i++) {
      const unsigned low = in.byte();
      const unsigned head = low | static_cast<unsigned>(in.byte()) << 8;
      r.kind = static_cast<TraceKind>(head & 15);
      if (head & flag(kId)) {
        const std::uint64_t z = in.varint();
        r.id += z >> 1 ^ (z & 1 ? UINT64_MAX : 0);
      }
      if (head & flag(kBytes)) r.bytes = in.varint();
      if (head & flag(kStream)) r.stream = in.varint();
      if (head & flag(kName)) r.name = place(in.varint32());
      if (head & flag(kOp)) r.op = place(in.varint32());
      if (head & flag(kModule)) r.module = place(in.varint32());
      if (head & flag(kStep)) r.step = in.varint32();
      if (head & flag(kMicroBatch)) r.micro_batch = in.varint32();
      if (head & flag(kRole)) r.role = static_cast<Role>(in.byte());
      if (head & flag(kPhase)) r.phase = static_cast<Phase>(in.byte());
      const std::string problem = head >> 14 ? "unknown flags" : problem_of(r, log_.names.size());
      LIMPID_CHECK(problem.empty(), DataError, "[trace] record ", log_.records.size(), ": ", problem);
      log_.records.push_back(r);
    }
    LIMPID_CHECK(in.at_end(), DataError, "[trace] ", in.left(), " bytes after the last record of a chunk");
  }
  bool end(std::string_view payload) {
    const nlohmann::json json = parse_json_object(payload, "a trace's end");
    const std::uint64_t written = json_count(json, "records", "a trace's end");
    LIMPID_CHECK(written == log_.records.size(), DataError, "[trace] the end counts ", written, " records, there are ",
                 log_.records.size());
    log_.info.not_recorded = json_count(json, "not_recorded", "a trace's end");
    return true;
  }

  TraceLog log_;
  std::unordered_map<std::uint32_t, NameId> places_;
};

}  // namespace

TraceLog parse_trace_binary(std::string_view bytes) { return BinaryReader().read(bytes); }

// --- writing

std::string TraceEncoder::header() { return std::string(kMagic); }

std::string TraceEncoder::info(const TraceInfo& info) {
  std::string out;
  put_chunk(out, 'I', info_to_json(info).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return out;
}

std::string TraceEncoder::end(std::uint64_t records, std::uint64_t not_recorded) {
  std::string out;
  put_chunk(out, 'E', nlohmann::ordered_json{{"records", records}, {"not_recorded", not_recorded}}.dump());
  return out;
}

void TraceEncoder::define(NameId id) {
  if (id == 0 || (id < known_.size() && known_[id])) return;
  if (id >= known_.size()) known_.resize(std::max<std::size_t>(id + 1, 2 * known_.size()));
  known_[id] = true;
  const std::string_view text = std::string_view(name_of_(id)).substr(0, kMaxName);
  put_varint(names_, id);
  put_varint(names_, text.size());
  names_ += text;
  if (names_.size() <= kMaxPayload - 2 * kMaxName) return;
  put_chunk(out_, 'N', names_);
  names_.clear();
}

std::string_view TraceEncoder::records(const TraceRecord* records, std::size_t count) {
  out_.clear();
  for (std::size_t done = 0; done < count;) {
    const std::size_t part = std::min(kRecordsAChunk, count - done);
    names_.clear();
    if (payload_.size() < 10 + part * kMaxRecord) payload_.resize(10 + part * kMaxRecord);
    char* at = put_varint(payload_.data(), part);
    TraceRecord before{};
    for (std::size_t i = 0; i < part; i++) {
      const TraceRecord& r = records[done + i];
      if (r.name != before.name) define(r.name);
      if (r.op != before.op) define(r.op);
      if (r.module != before.module) define(r.module);
      at = put_record(at, r, before);
      before = r;
    }
    if (!names_.empty()) put_chunk(out_, 'N', names_);
    put_chunk(out_, 'R', {payload_.data(), static_cast<std::size_t>(at - payload_.data())});
    done += part;
  }
  return out_;
}

void print_trace_binary(const TraceLog& log, const ByteSink& out) {
  TraceEncoder encoder([&log](NameId id) -> const std::string& { return log.name(id); });
  out(TraceEncoder::header());
  out(TraceEncoder::info(log.info));
  for (std::size_t done = 0; done < log.records.size(); done += kRecordsAChunk) {
    out(encoder.records(log.records.data() + done, std::min(kRecordsAChunk, log.records.size() - done)));
  }
  out(TraceEncoder::end(log.records.size(), log.info.not_recorded));
}

void write_trace(const std::string& path, const TraceLog& log) {
  AtomicFile file(path);
  const ByteSink out = [&file](std::string_view bytes) { file.write(bytes); };
  path.ends_with(".jsonl") ? print_trace_jsonl(log, out) : print_trace_binary(log, out);
  file.commit();
}

// --- while a program runs

TraceWriter::TraceWriter(std::string path, const TraceInfo& info, std::uint64_t limit_bytes)
    : path_(std::move(path)),
      limit_(limit_bytes),
      encoder_([](NameId id) -> const std::string& { return name_of(id); }) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  LIMPID_CHECK(descriptor_ >= 0, IoError, "cannot write ", path_, ": ", std::strerror(errno));
  put(TraceEncoder::header());
  put(TraceEncoder::info(info));
}

TraceWriter::~TraceWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// After a failure the file is cut where its last whole chunk ends, and nothing more is written.
void TraceWriter::put(std::string_view bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size() && problem_.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      problem_ = std::strerror(errno);
      if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) problem_ += ", and it cannot be cut back";
    } else {
      done += static_cast<std::size_t>(n);
    }
  }
  if (problem_.empty()) size_ += bytes.size();
}

void TraceWriter::append(const TraceRecord* records, std::size_t count) noexcept {
  if (full_ || !problem_.empty() || descriptor_ < 0) {
    not_recorded_ += count;
    return;
  }
  try {
    const std::string_view bytes = encoder_.records(records, count);
    if (bytes.size() > limit_ - std::min(size_, limit_)) {
      full_ = true;
    } else {
      put(bytes);
    }
  } catch (const std::exception& error) {  // no memory for the encoder's buffers
    problem_ = error.what();
  }
  (full_ || !problem_.empty() ? not_recorded_ : records_) += count;
}

void TraceWriter::update(const TraceInfo& info) noexcept {
  try {
    put(TraceEncoder::info(info));
  } catch (const std::exception& error) {
    problem_ = error.what();
  }
}

void TraceWriter::close() {
  if (descriptor_ < 0) return;
  put(TraceEncoder::end(records_, not_recorded_));
  if (::close(descriptor_) != 0 && problem_.empty()) problem_ = std::strerror(errno);
  descriptor_ = -1;
  LIMPID_CHECK(problem_.empty(), IoError, "cannot write ", path_, ": ", problem_);
}

TraceRecording::TraceRecording(Allocator& allocator, const std::string& path, std::uint64_t limit_bytes)
    : allocator_(allocator) {
  TraceInfo info;
  info.device = allocator.device_name();
  info.policy = allocator.policy_name();
  info.settings = to_string(allocator.settings());
  info.capacity = allocator.device().mem_info().total;
  writer_ = std::make_unique<TraceWriter>(path, info, limit_bytes);
  TraceWriter* writer = writer_.get();
  info.preexisting =
      allocator.record_to([writer](const TraceRecord* records, std::size_t count) { writer->append(records, count); });
  if (info.preexisting > 0) writer_->update(info);
}

TraceRecording::~TraceRecording() {
  try {
    close();
  } catch (const Error&) {  // nobody is left to tell
  }
}

void TraceRecording::flush() {
  if (open_) allocator_.trace().flush();
}

void TraceRecording::close() {
  if (!open_) return;
  open_ = false;
  allocator_.trace().set_sink({});
  writer_->close();
}

}  // namespace limpid::memory
