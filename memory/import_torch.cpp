#include <limpid/memory/trace_import.h>

#include <algorithm>

#include <limpid/base/error.h>
#include <limpid/memory/pickle_reader.h>

namespace limpid::memory {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;

PickleValue require(const PickleValue& dict, const char* key, const char* what) {
  const auto value = dict.find(key);
  LIMPID_CHECK(value, DataError, "[snapshot] ", what, " has no '", key, "'");
  return *value;
}

std::uint64_t unsigned_of(const PickleValue& dict, const char* key, const char* what) {
  const std::int64_t value = require(dict, key, what).integer();
  LIMPID_CHECK(value >= 0, DataError, "[snapshot] ", what, ": ", key, " is ", value);
  return static_cast<std::uint64_t>(value);
}

std::uint64_t size_of(const PickleValue& dict, const char* key, const char* what) {
  const std::uint64_t bytes = unsigned_of(dict, key, what);
  LIMPID_CHECK(bytes <= kMaxBytes, DataError, "[snapshot] ", what, ": ", key, " is ", bytes, " bytes");
  return bytes;
}

std::int64_t integer_or(const PickleValue& dict, const char* key, std::int64_t otherwise) {
  const auto value = dict.find(key);
  return value && value->is(PickleType::integer) ? value->integer() : otherwise;
}

std::string_view text_or_empty(const PickleValue& dict, const char* key) {
  const auto value = dict.find(key);
  return value && value->is(PickleType::text) ? value->text() : std::string_view();
}

// Frames of the interpreter and of the dispatcher, which PyTorch's viewer hides too.
bool is_noise(std::string_view function, std::string_view file) {
  for (std::string_view part :
       {"_start", "PyEval_", "PyObject_", "PyFunction_", "unwind::", "CapturedTraceback", "gather_with_cpp"}) {
    if (function.find(part) != std::string_view::npos) return true;
  }
  for (std::string_view part : {"core/boxing", "/Register", "/Redispatch", "ceval.c"}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return false;
}

class SnapshotReader {
 public:
  SnapshotReader(std::string_view bytes, int device) : document_(bytes), device_(device), names_(log_.names) {}

  TraceLog read() {
    const PickleValue root = document_.root();
    log_.info.source = "pytorch";
    if (root.is(PickleType::list)) {
      log_.notes.push_back("a list of segments without a trace: only what was live");
      if (device_ < 0) device_ = first_device(root);
      final_state(root);
    } else {
      const PickleValue segments = require(root, "segments", "the snapshot");
      const auto traces = root.find("device_traces");
      choose_device(traces, segments);
      if (traces && static_cast<std::size_t>(device_) < traces->size()) {
        events((*traces)[static_cast<std::size_t>(device_)]);
      }
      final_state(segments);
      if (const auto settings = root.find("allocator_settings"); settings && settings->is(PickleType::dict)) {
        log_.info.settings = std::string(text_or_empty(*settings, "PYTORCH_CUDA_ALLOC_CONF"));
      }
    }
    log_.info.device = concat("cuda:", device_);
    finish();
    return std::move(log_);
  }

 private:
  static int first_device(const PickleValue& segments) {
    return segments.size() == 0 ? 0 : static_cast<int>(integer_or(segments[0], "device", 0));
  }

  void choose_device(const std::optional<PickleValue>& traces, const PickleValue& segments) {
    if (device_ >= 0) return;
    device_ = first_device(segments);
    if (!traces) return;
    std::size_t most = 0, with_events = 0;
    for (std::size_t d = 0; d < traces->size(); d++) {
      const std::size_t n = (*traces)[d].size();
      with_events += n > 0 ? 1 : 0;
      if (n <= most) continue;
      most = n;
      device_ = static_cast<int>(d);
    }
    if (with_events > 1) {
      log_.notes.push_back(concat("events of ", with_events, " devices; taken is device ", device_));
    }
  }

  void events(const PickleValue& trace) {
    std::uint64_t unknown = 0;
    for (std::size_t i = 0; i < trace.size(); i++) {
      const PickleValue e = trace[i];
      const std::string_view action = require(e, "action", "an event").text();
      if (action == "alloc") {
        alloc(e);
      } else if (action == "free_requested") {
        const bool at_once = i + 1 < trace.size() && completes(trace[i + 1], unsigned_of(e, "addr", "a free"));
        free(e, at_once);
      } else if (action == "segment_alloc") {
        segment(e, TraceKind::segment_alloc);
      } else if (action == "segment_free") {
        segment(e, TraceKind::segment_free);
      } else if (action == "segment_map") {
        segment(e, TraceKind::segment_map);
      } else if (action == "segment_unmap") {
        segment(e, TraceKind::segment_unmap);
      } else if (action == "oom") {
        TraceRecord r{};
        r.kind = TraceKind::oom;
        r.bytes = std::max<std::uint64_t>(size_of(e, "size", "an oom"), 1);
        r.role = Role::other;
        r.name = label(e);
        log_.records.push_back(r);
      } else if (action != "free_completed" && action != "snapshot" && action != "annotate") {
        unknown++;
      }
    }
    if (unknown > 0) log_.notes.push_back(concat(unknown, " events of unknown kinds are left out"));
  }

  static bool completes(const PickleValue& e, std::uint64_t address) {
    return require(e, "action", "an event").text() == "free_completed" && unsigned_of(e, "addr", "a free") == address;
  }

  void alloc(const PickleValue& e) {
    const std::uint64_t address = unsigned_of(e, "addr", "an alloc");
    if (auto it = live_.find(address); it != live_.end()) {
      push_free(it->second);  // its free is lost
      lost_frees_++;
      live_.erase(it);
    }
    TraceRecord r = block_record(e, size_of(e, "size", "an alloc"));
    if (r.bytes == 0) {
      empty_allocs_++;
      return;
    }
    r.stream = static_cast<StreamId>(integer_or(e, "stream", 0));
    live_[address] = r;
    log_.records.push_back(r);
  }

  void free(const PickleValue& e, bool at_once) {
    const std::uint64_t address = unsigned_of(e, "addr", "a free");
    auto it = live_.find(address);
    if (it == live_.end()) {
      const std::uint64_t bytes = size_of(e, "size", "a free");
      if (bytes == 0) return;
      TraceRecord r = block_record(e, bytes);
      r.stream = static_cast<StreamId>(integer_or(e, "stream", 0));
      preexisting_.push_back(r);
      it = live_.emplace(address, r).first;
    }
    if (!at_once) {
      TraceRecord use = it->second;
      use.kind = TraceKind::record_stream;
      use.stream = kOtherStream;
      log_.records.push_back(use);
      waited_++;
    }
    push_free(it->second);
    live_.erase(it);
  }

  void push_free(TraceRecord r) {
    r.kind = TraceKind::free;
    log_.records.push_back(r);
  }

  void segment(const PickleValue& e, TraceKind kind) {
    TraceRecord r{};
    r.kind = kind;
    r.id = unsigned_of(e, "addr", "a segment");
    r.bytes = size_of(e, "size", "a segment");
    r.role = Role::other;
    r.stream = static_cast<StreamId>(integer_or(e, "stream", 0));
    if (r.bytes > 0) log_.records.push_back(r);
  }

  TraceRecord block_record(const PickleValue& e, std::uint64_t bytes) {
    TraceRecord r{};
    r.kind = TraceKind::alloc;
    r.id = next_id_++;
    r.bytes = bytes;
    r.role = role(text_or_empty(e, "category"));
    r.name = label(e);
    return r;
  }

  static Role role(std::string_view category) {
    for (int i = 0; i < kRoleCount; i++) {
      if (category == to_string(static_cast<Role>(i))) return static_cast<Role>(i);
    }
    if (category == "parameter") return Role::param;
    if (category == "gradient") return Role::grad;
    if (category == "optimizer_state") return Role::optimizer;
    if (category == "temporary") return Role::temp;
    if (category == "input") return Role::io;
    return Role::other;
  }

  // The first frame that says something: "relu (functional.py:1500)".
  NameId label(const PickleValue& e) {
    std::optional<PickleValue> frames = e.find("frames");
    if (!frames) {
      const auto history = e.find("history");
      if (history && history->size() > 0) frames = (*history)[0].find("frames");
    }
    if (!frames || !frames->is(PickleType::list)) return 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(frames->size(), 64); i++) {
      const PickleValue frame = (*frames)[i];
      if (!frame.is(PickleType::dict)) continue;
      const std::string_view function = text_or_empty(frame, "name");
      std::string_view file = text_or_empty(frame, "filename");
      if (is_noise(function, file)) continue;
      file.remove_prefix(std::min(file.rfind('/') + 1, file.size()));  // npos + 1 = 0
      std::string text(function.substr(0, 200));
      if (!file.empty()) text += concat(" (", file.substr(0, 200), ":", integer_or(frame, "line", 0), ")");
      return names_.add(text);
    }
    return 0;
  }

  void final_state(const PickleValue& segments) {
    for (std::size_t s = 0; s < segments.size(); s++) {
      const PickleValue segment = segments[s];
      if (integer_or(segment, "device", 0) != device_) continue;
      std::uint64_t address = unsigned_of(segment, "address", "a segment");
      const PickleValue blocks = require(segment, "blocks", "a segment");
      for (std::size_t b = 0; b < blocks.size(); b++) {
        const PickleValue block = blocks[b];
        const std::uint64_t size = size_of(block, "size", "a block");
        if (require(block, "state", "a block").text() == "active_allocated" && !live_.contains(address)) {
          TraceRecord r = block_record(block, requested_size(block, size));
          r.stream = static_cast<StreamId>(integer_or(segment, "stream", 0));
          if (r.bytes > 0) preexisting_.push_back(r);
        }
        address += size;
      }
    }
  }

  static std::uint64_t requested_size(const PickleValue& block, std::uint64_t size) {
    if (block.find("requested_size")) return size_of(block, "requested_size", "a block");
    const auto history = block.find("history");
    if (history && history->size() > 0) return size_of((*history)[0], "real_size", "a block's history");
    return size;
  }

  void finish() {
    log_.info.preexisting = preexisting_.size();
    log_.records.insert(log_.records.begin(), preexisting_.begin(), preexisting_.end());
    auto note = [this](std::uint64_t n, const char* text) {
      if (n > 0) log_.notes.push_back(concat(n, text));
    };
    note(preexisting_.size(),
         " blocks were live before the first event: recording began late, or its ring had wrapped");
    note(lost_frees_, " blocks were allocated again without a free: those frees are assumed just before");
    note(waited_, " frees waited for other streams, which the snapshot does not name");
    note(empty_allocs_, " allocations of 0 bytes are left out");
  }

  PickleDocument document_;
  int device_;
  TraceLog log_;
  NameTable names_;
  std::unordered_map<std::uint64_t, TraceRecord> live_;  // by address
  std::vector<TraceRecord> preexisting_;
  std::uint64_t next_id_ = 1, lost_frees_ = 0, waited_ = 0, empty_allocs_ = 0;
};

}  // namespace

TraceLog parse_torch_snapshot(std::string_view bytes, int device) { return SnapshotReader(bytes, device).read(); }

}  // namespace limpid::memory
