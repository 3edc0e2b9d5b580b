#include <limpid/memory/trace_import.h>

#include <algorithm>
#include <charconv>
#include <cctype>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/memory/trace_file.h>

namespace limpid::memory {
namespace {

constexpr std::string_view kRmmHeader = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::size_t kMaxFields = 64;

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// Lines of comma-separated fields, without quotes: neither format has any.
class CsvReader {
 public:
  CsvReader(std::string_view text, const char* format) : text_(text), format_(format) {}
  // The next line that is not empty; false at the end.
  bool next() {
    while (!text_.empty()) {
      const std::size_t end = std::min(text_.find('\n'), text_.size());
      const std::string_view line = trim(text_.substr(0, end));
      text_.remove_prefix(std::min(end + 1, text_.size()));
      line_++;
      if (line.empty()) continue;
      fields_.clear();
      for (std::size_t from = 0; from <= line.size();) {
        const std::size_t comma = std::min(line.find(',', from), line.size());
        LIMPID_CHECK(fields_.size() < kMaxFields, DataError, where(), "more than ", kMaxFields, " fields");
        fields_.push_back(trim(line.substr(from, comma - from)));
        from = comma + 1;
      }
      return true;
    }
    return false;
  }
  const std::vector<std::string_view>& fields() const { return fields_; }
  std::string_view field(std::size_t i) const {
    LIMPID_CHECK(i < fields_.size(), DataError, where(), "has ", fields_.size(), " fields, expected more than ", i);
    return fields_[i];
  }
  std::uint64_t number(std::size_t i, const char* what) const {
    std::string_view text = field(i);
    int base = 10;
    if (text.starts_with("0x") || text.starts_with("0X")) {
      text.remove_prefix(2);
      base = 16;
    }
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    LIMPID_CHECK(error == std::errc() && end == text.data() + text.size(), DataError, where(), what,
                 " is not a number: '", field(i).substr(0, 40), "'");
    return value;
  }
  std::string where() const { return concat("[", format_, "] line ", line_, ": "); }

 private:
  std::string_view text_;
  const char* format_;
  std::uint64_t line_ = 0;
  std::vector<std::string_view> fields_;
};

std::uint64_t checked_size(std::uint64_t bytes, const CsvReader& csv) {
  LIMPID_CHECK(bytes <= std::uint64_t{1} << 60, DataError, csv.where(), "a size of ", bytes, " bytes");
  return bytes;
}

}  // namespace

TraceLog parse_rmm_csv(std::string_view text) {
  TraceLog log;
  log.info.source = "rmm";
  CsvReader csv(text, "rmm log");
  LIMPID_CHECK(csv.next() && csv.fields().size() == 6 && csv.field(0) == "Thread" && csv.field(3) == "Pointer",
               DataError, "[rmm log] the first line is not ", kRmmHeader);
  std::unordered_map<std::uint64_t, TraceRecord> live;
  std::vector<TraceRecord> preexisting;
  std::uint64_t next_id = 1, failures = 0, lost = 0;
  auto pointer = [&csv]() -> std::uint64_t {
    const std::string_view p = csv.field(3);
    if (p == "(nil)" || p.empty()) return 0;
    return csv.number(3, "the pointer");
  };
  auto stream = [&csv]() -> StreamId {
    const std::string_view s = csv.field(5);
    if (s == "(nil)" || s == "default" || s == "legacy" || s == "per_thread_default") return 0;
    return csv.number(5, "the stream");
  };
  auto block = [&](std::uint64_t bytes) {
    TraceRecord r{};
    r.id = next_id++;
    r.bytes = bytes;
    r.stream = stream();
    r.kind = TraceKind::alloc;
    r.role = Role::other;
    return r;
  };
  auto push_free = [&log](TraceRecord r) {
    r.kind = TraceKind::free;
    log.records.push_back(r);
  };
  while (csv.next()) {
    LIMPID_CHECK(csv.fields().size() == 6, DataError, csv.where(), "has ", csv.fields().size(), " fields, expected 6");
    const std::string_view action = csv.field(2);
    const std::uint64_t bytes = checked_size(csv.number(4, "the size"), csv);
    if (action == "allocate") {
      if (bytes == 0) continue;
      const std::uint64_t p = pointer();
      if (auto it = live.find(p); it != live.end()) {
        push_free(it->second);
        live.erase(it);
        lost++;
      }
      const TraceRecord r = block(bytes);
      live.emplace(p, r);
      log.records.push_back(r);
    } else if (action == "free" || action == "deallocate") {
      if (bytes == 0) continue;
      const std::uint64_t p = pointer();
      auto it = live.find(p);
      if (it == live.end()) {
        const TraceRecord r = block(bytes);
        preexisting.push_back(r);
        push_free(r);
        continue;
      }
      push_free(it->second);
      live.erase(it);
    } else if (action == "allocate failure") {
      failures++;
      if (bytes == 0) continue;
      TraceRecord r = block(bytes);
      r.kind = TraceKind::oom;
      r.id = 0;
      log.records.push_back(r);
    } else {
      LIMPID_THROW(DataError, csv.where(), "unknown action '", action.substr(0, 40), "'");
    }
  }
  log.info.preexisting = preexisting.size();
  log.records.insert(log.records.begin(), preexisting.begin(), preexisting.end());
  if (!preexisting.empty()) {
    log.notes.push_back(concat(preexisting.size(), " blocks were live before the first line"));
  }
  if (failures > 0) log.notes.push_back(concat(failures, " allocations failed when the log was made"));
  if (lost > 0) {
    log.notes.push_back(concat(lost, " pointers were allocated again without a free: freed just before"));
  }
  return log;
}

TraceLog parse_minimalloc_csv(std::string_view text) {
  TraceLog log;
  log.info.source = "minimalloc";
  NameTable names(log.names);
  CsvReader csv(text, "minimalloc");
  LIMPID_CHECK(csv.next(), DataError, "[minimalloc] an empty file");
  auto column = [&csv](std::string_view name) {
    const auto& fields = csv.fields();
    const auto it = std::find(fields.begin(), fields.end(), name);
    LIMPID_CHECK(it != fields.end(), DataError, "[minimalloc] the first line has no column '", name, "'");
    return static_cast<std::size_t>(it - fields.begin());
  };
  const std::size_t id = column("id"), lower = column("lower"), upper = column("upper"), size = column("size");
  struct Event {
    std::uint64_t time;
    bool is_alloc;  // frees first
    TraceRecord record;
  };
  std::vector<Event> events;
  while (csv.next()) {
    TraceRecord r{};
    r.id = events.size() / 2 + 1;
    r.bytes = checked_size(csv.number(size, "size"), csv);
    r.role = Role::other;
    r.name = names.add(csv.field(id).substr(0, 256));
    const std::uint64_t from = csv.number(lower, "lower"), to = csv.number(upper, "upper");
    LIMPID_CHECK(r.bytes > 0 && from < to, DataError, csv.where(), "a buffer of ", r.bytes, " bytes in [", from, ", ",
                 to, ") lives nowhere");
    r.kind = TraceKind::alloc;
    events.push_back({from, true, r});
    r.kind = TraceKind::free;
    events.push_back({to, false, r});
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.is_alloc < b.is_alloc;
  });
  log.records.reserve(events.size());
  for (const Event& e : events) log.records.push_back(e.record);
  return log;
}

const char* to_string(TraceFormat format) {
  static constexpr const char* kNames[] = {"limpid binary", "limpid JSONL", "PyTorch snapshot", "RMM log",
                                           "MiniMalloc"};
  return kNames[static_cast<int>(format)];
}

TraceFormat format_of(std::string_view bytes) {
  if (bytes.starts_with("limpid-trace/")) return TraceFormat::binary;
  if (bytes.starts_with("\x80")) return TraceFormat::pytorch;
  const std::string_view first = trim(bytes.substr(0, std::min<std::size_t>(bytes.find('\n'), 4096)));
  if (first.starts_with("{")) return TraceFormat::jsonl;
  if (first.starts_with("Thread,Time,Action")) return TraceFormat::rmm;
  if (first.find("lower") != std::string_view::npos && first.find("upper") != std::string_view::npos) {
    return TraceFormat::minimalloc;
  }
  LIMPID_THROW(DataError,
               "[trace] not a trace: neither limpid-trace/1, nor a PyTorch snapshot (pickle), an RMM log or "
               "a MiniMalloc list");
}

TraceLog parse_trace(std::string_view bytes) {
  switch (format_of(bytes)) {
    case TraceFormat::binary:
      return parse_trace_binary(bytes);
    case TraceFormat::jsonl:
      return parse_trace_jsonl(bytes);
    case TraceFormat::pytorch:
      return parse_torch_snapshot(bytes);
    case TraceFormat::rmm:
      return parse_rmm_csv(bytes);
    case TraceFormat::minimalloc:
      return parse_minimalloc_csv(bytes);
  }
  LIMPID_THROW(InternalError, "[trace] unknown format");
}

TraceLog read_trace(const std::string& path, std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  try {
    return parse_trace({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (Error& error) {
    error.add_context(path + ": ");
    throw;
  }
}

}  // namespace limpid::memory
