// Small helpers for tests of traces: a log from a short script, random runs of an allocator, text from sinks.
#pragma once

#include <cctype>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/simulated_memory.h>
#include <limpid/memory/trace_file.h>
#include <limpid/memory/trace_log.h>

namespace limpid_test {

using namespace limpid;
using namespace limpid::memory;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// "+1:12M +2:512 -1 e": allocates id 1 with 12 MiB and id 2 with 512 bytes, frees id 1, empties the cache.
inline TraceLog log_of(const std::string& script) {
  TraceLog log;
  std::istringstream in(script);
  for (std::string word; in >> word;) {
    TraceRecord r{};
    r.role = Role::other;
    if (word[0] == '+' || word[0] == '!') {
      r.kind = word[0] == '+' ? TraceKind::alloc : TraceKind::oom;
      const std::size_t colon = word.find(':');
      r.id = std::stoull(word.substr(1));
      r.bytes = std::stoull(word.substr(colon + 1));
      if (word.back() == 'M') r.bytes *= kMiB;
    } else if (word[0] == '-') {
      r.kind = TraceKind::free;
      r.id = std::stoull(word.substr(1));
      r.bytes = 1;
    } else {
      r.kind = TraceKind::empty_cache;
    }
    log.records.push_back(r);
  }
  return log;
}

inline bool same_records(const TraceLog& a, const TraceLog& b) {
  if (a.records.size() != b.records.size()) return false;
  for (std::size_t i = 0; i < a.records.size(); i++) {
    const TraceRecord &x = a.records[i], &y = b.records[i];
    if (x.id != y.id || x.bytes != y.bytes || x.stream != y.stream || x.step != y.step || x.kind != y.kind ||
        x.micro_batch != y.micro_batch || x.role != y.role || x.phase != y.phase || a.name(x.name) != b.name(y.name) ||
        a.name(x.op) != b.name(y.op) || a.name(x.module) != b.name(y.module)) {
      return false;
    }
  }
  return true;
}

inline std::string binary_of(const TraceLog& log) {
  std::string out;
  print_trace_binary(log, [&out](std::string_view bytes) { out += bytes; });
  return out;
}

inline std::string jsonl_of(const TraceLog& log) {
  std::string out;
  print_trace_jsonl(log, [&out](std::string_view bytes) { out += bytes; });
  return out;
}

// Allocates, frees, renames, shares with streams, empties the cache and runs out of memory, at random.
class RandomRun {
 public:
  RandomRun(Allocator& allocator, unsigned seed) : allocator_(allocator), random_(seed) {}
  void steps(int n) {
    for (int i = 0; i < n; i++) step();
  }
  void free_all() {
    for (Block* block : live_) allocator_.free(block);
    live_.clear();
  }

 private:
  void step() {
    Scope scope;
    scope.step = steps_++ / 50;
    scope.micro_batch = steps_ % 2;
    scope.phase = static_cast<Phase>(random_() % 6);
    scope.op = intern("op" + std::to_string(random_() % 5));
    scope.module = random_() % 2 ? intern("layer" + std::to_string(random_() % 7)) : 0;
    ScopeGuard guard(scope);
    const unsigned kind = random_() % 100;
    if (kind < 50 || live_.empty()) {
      static constexpr std::uint64_t kScales[] = {2000, 200000, 3 * kMiB, 30 * kMiB};
      const std::uint64_t bytes = 1 + random_() % kScales[random_() % 4];
      try {
        live_.push_back(allocator_.allocate(bytes, static_cast<Role>(random_() % kRoleCount),
                                            intern("t" + std::to_string(random_() % 9)), random_() % 3));
      } catch (const OutOfMemoryError&) {
      }
      return;
    }
    std::swap(live_[random_() % live_.size()], live_.back());
    if (kind < 55) {
      allocator_.set_role(live_.back(), static_cast<Role>(random_() % kRoleCount));
    } else if (kind < 58) {
      allocator_.set_name(live_.back(), intern("renamed" + std::to_string(random_() % 9)));
    } else if (kind < 64) {
      allocator_.record_stream(live_.back(), random_() % 4);
    } else if (kind < 65) {
      allocator_.empty_cache();
    } else {
      allocator_.free(live_.back());
      live_.pop_back();
    }
  }
  Allocator& allocator_;
  std::mt19937 random_;
  std::vector<Block*> live_;
  std::uint32_t steps_ = 0;
};

// The message of the error that `action` throws; "" when it throws nothing.
template <class E, class F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.message();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace limpid_test
