// Runs a program on the CPU and dry, and compares what the two allocators recorded: every trace record field by field,
// and every statistic. Then replays the live run's trace under the same policy, and compares again.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <limpid/base/scope.h>
#include <limpid/memory/host_memory.h>
#include <limpid/memory/replay.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/storage.h>

namespace limpid_test {

struct Recorded {
  std::vector<limpid::memory::TraceRecord> trace;
  limpid::memory::Stats stats;
  limpid::memory::Ledger peak, reserved_peak;
};

// A program gets the pool of its tensors and the pool of its loaders.
using Program = std::function<void(limpid::memory::Allocator& pool, limpid::memory::Allocator& io_pool)>;

inline Recorded record(limpid::memory::Allocator& pool, limpid::memory::Allocator& io_pool, const Program& program) {
  Recorded out;
  limpid::ScopeGuard scope{limpid::Scope{}};  // both start from the same record
  pool.trace().set_sink([&](const limpid::memory::TraceRecord* records, std::size_t count) {
    out.trace.insert(out.trace.end(), records, records + count);
  });
  program(pool, io_pool);
  pool.trace().flush();
  pool.trace().set_sink({});
  out.stats = pool.stats();
  out.peak = pool.ledger_at_peak();
  out.reserved_peak = pool.ledger_at_reserved_peak();
  return out;
}

inline Recorded run_live(const Program& program, const limpid::dry::Options& options = {}) {
  const std::uint64_t capacity = options.capacity == limpid::dry::kUnlimited ? 0 : options.capacity;
  limpid::memory::Allocator pool(std::make_shared<limpid::memory::HostMemory>("cpu", capacity), options.settings,
                                 options.policy);
  limpid::PoolScope scope(pool);
  limpid::memory::Allocator& io_pool = limpid::memory::io_allocator();
  io_pool.empty_cache();
  REQUIRE(io_pool.ledger().reserved == 0);  // as fresh as a dry run's
  return record(pool, io_pool, program);
}

inline Recorded run_dry(const Program& program, const limpid::dry::Options& options = {}) {
  limpid::dry::Run run(options);
  limpid::dry::Placeholder anything(0);
  return record(run.pool(), run.io_pool(), program);
}

inline std::string text_of(const limpid::memory::TraceRecord& r) {
  return limpid::concat(limpid::memory::to_string(r.kind), " ", r.id, " ", r.bytes, " B ",
                        limpid::memory::to_string(r.role), " stream ", r.stream, " ", limpid::to_string(r.phase), " ",
                        limpid::name_of(r.op), " in ", limpid::name_of(r.module), " '", limpid::name_of(r.name),
                        "' step ", r.step, ".", r.micro_batch);
}

inline void check_same(const Recorded& live, const Recorded& dry) {
  REQUIRE(live.trace.size() == dry.trace.size());
  REQUIRE(!live.trace.empty());
  std::size_t different = live.trace.size();
  for (std::size_t i = 0; i < live.trace.size() && different == live.trace.size(); i++)
    if (std::memcmp(&live.trace[i], &dry.trace[i], sizeof live.trace[i]) != 0) different = i;
  if (different < live.trace.size()) {
    const auto &a = live.trace[different], &b = dry.trace[different];
    FAIL_CHECK("event ", different, ": live ", text_of(a), ", dry ", text_of(b));
  }
  for (int m = 0; m < limpid::memory::kMetricCount; m++) {
    for (int scope = 0; scope < 3; scope++) {
      const auto &a = live.stats.metrics[m][scope], &b = dry.stats.metrics[m][scope];
      CHECK_MESSAGE((a.current == b.current && a.peak == b.peak && a.allocated == b.allocated && a.freed == b.freed),
                    limpid::memory::to_string(static_cast<limpid::memory::Metric>(m)), " ", scope, ": ", a.peak,
                    " and ", b.peak);
    }
  }
  CHECK(live.stats.num_alloc_retries == dry.stats.num_alloc_retries);
  CHECK(live.stats.num_ooms == dry.stats.num_ooms);
  CHECK(live.stats.num_device_alloc == dry.stats.num_device_alloc);
  CHECK(live.stats.num_device_free == dry.stats.num_device_free);
  for (int role = 0; role < limpid::memory::kRoleCount; role++) {
    CHECK(live.peak.live[role] == dry.peak.live[role]);
    CHECK(live.reserved_peak.live[role] == dry.reserved_peak.live[role]);
  }
  CHECK(live.peak.reserved == dry.peak.reserved);
  CHECK(live.peak.allocated() == dry.peak.allocated());
}

// What a replay's own allocator records. A rehearsal reads its peaks from the first empty_cache on, so that is where
// the replay forgets its own too.
class ReplayedTrace final : public limpid::memory::ReplayObserver {
 public:
  std::vector<limpid::memory::TraceRecord> trace;
  limpid::memory::Ledger peak, reserved_peak;
  void on_start(limpid::memory::Allocator& allocator) override {
    allocator_ = &allocator;
    allocator.trace().set_sink([this](const limpid::memory::TraceRecord* records, std::size_t count) {
      trace.insert(trace.end(), records, records + count);
    });
  }
  void on_step(const limpid::memory::ReplayOp& op, const limpid::memory::LedgerRows&) override {
    if (op.kind != limpid::memory::TraceKind::empty_cache || !allocator_) return;
    allocator_->reset_peak_stats();
    allocator_ = nullptr;
  }
  void on_end(limpid::memory::Allocator& allocator) override {
    allocator.trace().flush();
    allocator.trace().set_sink({});
    peak = allocator.ledger_at_peak();
    reserved_peak = allocator.ledger_at_reserved_peak();
  }

 private:
  limpid::memory::Allocator* allocator_ = nullptr;
};

// Every request and every call of the device comes out again, in its order, and so do all statistics and peaks.
// `capacity` is what was left to the pool, 0 = no limit.
inline void check_replayed(const Recorded& live, const limpid::dry::Options& options, std::uint64_t capacity = 0) {
  using limpid::memory::TraceKind;
  limpid::memory::TraceLog log;
  log.records = live.trace;
  limpid::memory::ReplayOptions replay_options;
  replay_options.policy = options.policy;
  replay_options.settings = options.settings;
  replay_options.layouts = false;
  if (capacity) replay_options.capacity = capacity;
  ReplayedTrace replayed;
  const limpid::memory::ReplayResult result =
      limpid::memory::replay(limpid::memory::ReplayScript(log), replay_options, &replayed);
  REQUIRE(result.completed);
  std::size_t at = 0, different = 0;
  for (const auto& r : live.trace) {
    if (r.kind == TraceKind::name) continue;
    if (at >= replayed.trace.size()) break;
    const auto& s = replayed.trace[at++];
    different += r.kind != s.kind || r.id != s.id || r.bytes != s.bytes || r.stream != s.stream || r.role != s.role;
    if (different == 1) {
      FAIL_CHECK("event ", at - 1, ": live ", limpid::memory::to_string(r.kind), " ", r.id, " ", r.bytes,
                 " B, replayed ", limpid::memory::to_string(s.kind), " ", s.id, " ", s.bytes, " B");
      break;
    }
  }
  if (different == 0) {
    std::size_t names = 0;
    for (const auto& r : live.trace) names += r.kind == TraceKind::name;
    CHECK(replayed.trace.size() == live.trace.size() - names);
  }
  for (int m = 0; m < limpid::memory::kMetricCount; m++) {
    for (int scope = 0; scope < 3; scope++) {
      const auto &a = live.stats.metrics[m][scope], &b = result.stats.metrics[m][scope];
      CHECK_MESSAGE((a.current == b.current && a.peak == b.peak && a.allocated == b.allocated && a.freed == b.freed),
                    limpid::memory::to_string(static_cast<limpid::memory::Metric>(m)), " ", scope, ": live ", a.peak,
                    ", replayed ", b.peak);
    }
  }
  CHECK(live.stats.num_alloc_retries == result.stats.num_alloc_retries);
  CHECK(live.stats.num_ooms == result.stats.num_ooms);
  CHECK(live.stats.num_device_alloc == result.stats.num_device_alloc);
  CHECK(live.stats.num_device_free == result.stats.num_device_free);
  CHECK(live.peak.live_total == replayed.peak.live_total);
  CHECK(live.reserved_peak.reserved == replayed.reserved_peak.reserved);
  for (int role = 0; role < limpid::memory::kRoleCount; role++) {
    CHECK(live.peak.live[role] == replayed.peak.live[role]);
    CHECK(live.reserved_peak.live[role] == replayed.reserved_peak.live[role]);
  }
}

// The program runs twice: it must start from nothing each time. What the live run recorded.
inline Recorded same_on_both(const Program& program, const limpid::dry::Options& options = {}) {
  const limpid::Generator generator = limpid::default_generator();
  Recorded live = run_live(program, options);
  limpid::default_generator() = generator;
  const Recorded dry = run_dry(program, options);
  check_same(live, dry);
  return live;
}

}  // namespace limpid_test
