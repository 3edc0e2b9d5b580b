#include <limpid/memory/trace_export.h>

#include <algorithm>
#include <unordered_map>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

// Writes the few opcodes that every reader of snapshots knows; texts that come again are stored once.
class PickleWriter {
 public:
  explicit PickleWriter(const ByteSink& out) : out_(out) { buffer_ = "\x80\x02"; }
  void end() {
    op('.');
    out_(buffer_);
    buffer_.clear();
  }
  void empty_dict() { op('}'); }
  void empty_list() { op(']'); }
  void mark() { op('('); }
  void set_items() { op('u'); }
  void appends() { op('e'); }
  void pair() { op('\x86'); }
  void none() { op('N'); }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }
  void integer(std::uint64_t value) {
    if (value < 256) {
      op('K'), bytes(value, 1);
    } else if (value < 65536) {
      op('M'), bytes(value, 2);
    } else if (value < std::uint64_t{1} << 31) {
      op('J'), bytes(value, 4);
    } else {
      op('\x8a'), op(9), bytes(value, 8), op(0);  // two's complement, so a positive number needs a clear top bit
    }
  }
  void text(const std::string& value) {
    auto [it, is_new] = memo_.try_emplace(value, static_cast<std::uint32_t>(memo_.size()));
    const std::uint32_t n = it->second;
    if (is_new) {
      op('X'), bytes(value.size(), 4);
      buffer_ += value;
      n < 256 ? (op('q'), bytes(n, 1)) : (op('r'), bytes(n, 4));
    } else {
      n < 256 ? (op('h'), bytes(n, 1)) : (op('j'), bytes(n, 4));
    }
  }
  // An item of a dict between mark() and set_items().
  void item(const char* key, std::uint64_t value) { text(key), integer(value); }
  void item(const char* key, const std::string& value) { text(key), text(value); }
  void key(const char* key) { text(key); }
  void flush_if_large() {
    if (buffer_.size() < std::size_t{1} << 16) return;
    out_(buffer_);
    buffer_.clear();
  }

 private:
  void op(char c) { buffer_ += c; }
  void bytes(std::uint64_t value, int count) {
    for (int i = 0; i < count; i++) buffer_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  const ByteSink& out_;
  std::string buffer_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

// Names that PyTorch's viewers would hide as frames of the interpreter.
std::string visible(std::string text) {
  for (const char* hidden : {"_start", "PyEval_", "PyObject_", "PyFunction_", "unwind::unwind", "CapturedTraceback",
                             "gather_with_cpp", "core/boxing", "/Register", "/Redispatch", "ceval"}) {
    for (std::size_t at; (at = text.find(hidden)) != std::string::npos;) text.insert(at + 1, " ");
  }
  // The format is UTF-8; anything else would not open.
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    bool ok = length > 0 && c != 0xc0 && c != 0xc1 && !(c >= 0x80 && c < 0xc2) && i + length <= text.size();
    for (std::size_t k = 1; ok && k < length; k++) ok = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    if (ok && length == 3) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      ok = !(c == 0xe0 && next < 0xa0) && !(c == 0xed && next >= 0xa0);  // overlong forms and surrogates
    }
    if (ok && length == 4) {
      const auto next = static_cast<unsigned char>(text[i + 1]);
      ok = !(c == 0xf0 && next < 0x90) && !(c == 0xf4 && next >= 0x90);
    }
    if (ok) {
      out.append(text, i, length);
      i += length;
    } else {
      out += '?';
      i++;
    }
  }
  return out;
}

class SnapshotWriter final : public ReplayObserver {
 public:
  SnapshotWriter(const TraceLog& log, std::uint32_t slots, const ByteSink& out)
      : log_(log), alloc_record_(slots), pickle_(out) {}

  void on_start(Allocator& allocator) override {
    allocator_ = &allocator;
    pickle_.empty_dict();
    pickle_.mark();
    pickle_.key("device_traces");
    pickle_.empty_list();
    pickle_.mark();
    pickle_.empty_list();  // device 0
  }

  void on_device(DeviceEvent event, std::uint64_t address, std::uint64_t bytes) override {
    complete_waiting();
    static constexpr const char* kActions[] = {"segment_alloc", "segment_free", "segment_map", "segment_unmap"};
    begin_event(kActions[static_cast<int>(event)], "addr", address, bytes, 0);
    // The viewer wants this category to exist when any does.
    pickle_.item("category", "unknown");
    pickle_.key("frames");
    pickle_.empty_list();
    end_event();
  }
  void on_alloc(const ReplayOp& op, const Block& block) override {
    complete_waiting();
    alloc_record_[op.slot] = op.record;
    block_event("alloc", Freed{address(block), op.bytes, block.stream, op.record});
  }
  void on_free(const ReplayOp& op, const Block& block, bool waits) override {
    complete_waiting();
    const Freed freed{address(block), block.requested, block.stream, alloc_record_[op.slot]};
    block_event("free_requested", freed);
    if (waits) {
      waiting_.push_back(freed);
    } else {
      block_event("free_completed", freed);
    }
  }
  void on_oom(const ReplayOp& op, const OutOfMemoryInfo& info) override {
    complete_waiting();
    begin_event("oom", "device_free", info.device_free, info.rounded, op.stream);
    pickle_.item("category", "unknown");
    frames(op.record);
    end_event();
  }
  void on_end(Allocator& allocator) override {
    complete_waiting();
    end_batch();
    pickle_.appends();
    segments(allocator.snapshot());
    pickle_.key("external_annotations");
    pickle_.empty_list();
    pickle_.key("allocator_settings");
    pickle_.empty_dict();
    pickle_.mark();
    pickle_.item("PYTORCH_CUDA_ALLOC_CONF", visible(to_string(allocator.settings())));
    pickle_.key("expandable_segments");
    pickle_.boolean(std::string(allocator.policy_name()) == "expandable");
    pickle_.item("limpid_policy", allocator.policy_name());
    pickle_.set_items();
    pickle_.set_items();
    pickle_.end();
  }

 private:
  struct Freed {
    std::uint64_t address, bytes;
    StreamId stream;
    std::uint32_t record;
  };
  static std::uint64_t address(const Block& block) { return reinterpret_cast<std::uintptr_t>(block.ptr); }

  // Events go into the list in batches: the viewer spreads each over a call's arguments.
  void begin_event(const char* action, const char* address_key, std::uint64_t at, std::uint64_t bytes,
                   StreamId stream) {
    if (in_batch_ == 0) pickle_.mark();
    pickle_.empty_dict();
    pickle_.mark();
    pickle_.item("action", action);
    pickle_.item(address_key, at);
    pickle_.item("size", bytes);
    pickle_.item("stream", stream);
    pickle_.item("time_us", events_++);
  }
  void end_event() {
    pickle_.set_items();
    if (++in_batch_ == 1000) end_batch();
    pickle_.flush_if_large();
  }
  void end_batch() {
    if (in_batch_ > 0) pickle_.appends();
    in_batch_ = 0;
  }
  void block_event(const char* action, const Freed& f) {
    begin_event(action, "addr", f.address, f.bytes, f.stream);
    const Role role = log_.records[f.record].role;
    pickle_.item("category", role == Role::other ? "unknown" : to_string(role));
    frames(f.record);
    end_event();
  }
  void frames(std::uint32_t record) {
    const TraceRecord& r = log_.records[record];
    pickle_.key("frames");
    pickle_.empty_list();
    pickle_.mark();
    pickle_.empty_dict();
    pickle_.mark();
    pickle_.item("name", visible(log_.label(r)));
    pickle_.item("filename",
                 visible(concat(r.module ? log_.name(r.module) : "trace", " ", limpid::to_string(r.phase))));
    pickle_.item("line", r.step);
    pickle_.set_items();
    pickle_.appends();
  }
  // Events of the device complete at once here, so that nothing is left pending after the next allocation.
  void complete_waiting() {
    if (waiting_.empty() || allocator_->books().rows.pending_free > 0) return;
    for (const Freed& f : waiting_) block_event("free_completed", f);
    waiting_.clear();
  }
  void segments(const std::vector<SegmentInfo>& all) {
    std::unordered_map<std::uint64_t, std::uint32_t> records;  // of blocks, by the id that the allocator gave
    pickle_.key("segments");
    pickle_.empty_list();
    for (std::size_t s = 0; s < all.size(); s++) {
      if (s % 1000 == 0) pickle_.mark();
      segment(all[s]);
      if (s % 1000 == 999 || s + 1 == all.size()) pickle_.appends();
      pickle_.flush_if_large();
    }
  }
  void segment(const SegmentInfo& info) {
    std::uint64_t allocated = 0, active = 0, requested = 0;
    for (const BlockInfo& b : info.blocks) {
      if (b.state == BlockState::allocated) allocated += b.size;
      if (b.state != BlockState::free) active += b.size, requested += b.requested;
    }
    pickle_.empty_dict();
    pickle_.mark();
    pickle_.item("device", std::uint64_t{0});
    pickle_.item("address", info.address);
    pickle_.item("total_size", info.size);
    pickle_.item("allocated_size", allocated);
    pickle_.item("active_size", active);
    pickle_.item("requested_size", requested);
    pickle_.item("stream", info.stream);
    pickle_.item("segment_type", info.pool == PoolKind::small ? "small" : "large");
    pickle_.key("segment_pool_id");
    pickle_.integer(0), pickle_.integer(0), pickle_.pair();
    pickle_.key("is_expandable");
    pickle_.boolean(info.expandable);
    pickle_.key("frames");
    pickle_.empty_list();
    pickle_.key("blocks");
    pickle_.empty_list();
    for (std::size_t b = 0; b < info.blocks.size(); b++) {
      if (b % 1000 == 0) pickle_.mark();
      block(info.blocks[b]);
      if (b % 1000 == 999 || b + 1 == info.blocks.size()) pickle_.appends();
    }
    pickle_.set_items();
  }
  void block(const BlockInfo& b) {
    static constexpr const char* kStates[] = {"inactive", "active_allocated", "active_pending_free"};
    pickle_.empty_dict();
    pickle_.mark();
    pickle_.item("address", b.address);
    pickle_.item("size", b.size);
    pickle_.item("requested_size", b.requested);
    pickle_.item("state", kStates[static_cast<int>(b.state)]);
    pickle_.key("frames");
    pickle_.empty_list();
    pickle_.set_items();
  }

  const TraceLog& log_;
  std::vector<std::uint32_t> alloc_record_;  // by slot
  PickleWriter pickle_;
  Allocator* allocator_ = nullptr;
  std::vector<Freed> waiting_;
  std::uint64_t events_ = 0;
  int in_batch_ = 0;
};

}  // namespace

ReplayResult print_torch_snapshot(const TraceLog& log, const ReplayOptions& options, const ByteSink& out) {
  const ReplayScript script(log);
  ReplayOptions run = options;
  run.layouts = false;
  run.events_pending = false;
  SnapshotWriter writer(log, script.slots, out);
  return replay(script, run, &writer);
}

}  // namespace limpid::memory
