#include <limpid/memory/trace_export.h>

#include <algorithm>
#include <cstdio>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

constexpr std::size_t kFlush = std::size_t{1} << 16;

class RmmWriter final : public ReplayObserver {
 public:
  explicit RmmWriter(const ByteSink& out) : out_(out) { buffer_ = "Thread,Time,Action,Pointer,Size,Stream\n"; }
  void on_alloc(const ReplayOp& op, const Block& block) override { line("allocate", &block, op.bytes, op.stream); }
  void on_free(const ReplayOp&, const Block& block, bool) override {
    line("free", &block, block.requested, block.stream);
  }
  void on_oom(const ReplayOp& op, const OutOfMemoryInfo&) override {
    line("allocate failure", nullptr, op.bytes, op.stream);
  }
  void on_end(Allocator&) override { out_(buffer_); }

 private:
  void line(const char* action, const Block* block, std::uint64_t bytes, StreamId stream) {
    char pointer[32] = "(nil)";
    if (block) {
      std::snprintf(pointer, sizeof pointer, "0x%llx",
                    static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(block->ptr)));
    }
    char text[160];
    const std::uint64_t us = events_++;
    std::snprintf(text, sizeof text, "1,%02llu:%02llu:%02llu.%06llu,%s,%s,%llu,%llu\n",
                  static_cast<unsigned long long>(us / 3'600'000'000 % 24),
                  static_cast<unsigned long long>(us / 60'000'000 % 60),
                  static_cast<unsigned long long>(us / 1'000'000 % 60), static_cast<unsigned long long>(us % 1'000'000),
                  action, pointer, static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(stream));
    buffer_ += text;
    if (buffer_.size() < kFlush) return;
    out_(buffer_);
    buffer_.clear();
  }
  const ByteSink& out_;
  std::string buffer_;
  std::uint64_t events_ = 0;
};

// A name that may stand in a CSV field, or nothing.
std::string plain_name(const std::string& name) {
  const bool ok = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c != ',' && c != '"'; });
  return ok ? name : "";
}

}  // namespace

ReplayResult print_rmm_csv(const TraceLog& log, const ReplayOptions& options, const ByteSink& out) {
  ReplayOptions run = options;
  run.layouts = false;
  run.events_pending = false;
  RmmWriter writer(out);
  return replay(ReplayScript(log), run, &writer);
}

void print_minimalloc_csv(const TraceLog& log, const ByteSink& out) {
  const ReplayScript script(log);
  struct Buffer {
    std::uint64_t lower, upper, bytes;
    std::uint32_t record;
  };
  std::vector<Buffer> buffers;
  std::vector<std::size_t> of_slot(script.slots);
  std::uint64_t time = 0;
  bool freeing = true;  // whether the present time has seen frees only
  for (const ReplayOp& op : script.ops) {
    if (op.kind == TraceKind::alloc) {
      freeing = false;
      of_slot[op.slot] = buffers.size();
      buffers.push_back({time, UINT64_MAX, op.bytes, op.record});
    } else if (op.kind == TraceKind::free) {
      if (!freeing) time++;
      freeing = true;
      buffers[of_slot[op.slot]].upper = time;
    }
  }
  std::string buffer = "id,lower,upper,size\n";
  for (std::size_t i = 0; i < buffers.size(); i++) {
    const Buffer& b = buffers[i];
    std::string id;
    // A list that came from MiniMalloc keeps its ids.
    if (log.info.source == "minimalloc") id = plain_name(log.name(log.records[b.record].name));
    if (id.empty()) id = std::to_string(i);
    buffer += concat(id, ",", b.lower, ",", std::min(b.upper, time + 1), ",", b.bytes, "\n");
    if (buffer.size() < kFlush) continue;
    out(buffer);
    buffer.clear();
  }
  out(buffer);
}

}  // namespace limpid::memory
