// Runs a program on the CPU and dry, and compares what the two allocators recorded: every trace record field by field,
// and every statistic.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <vector>

#include <limpid/base/scope.h>
#include <limpid/memory/host_memory.h>
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

inline void check_same(const Recorded& live, const Recorded& dry) {
  REQUIRE(live.trace.size() == dry.trace.size());
  REQUIRE(!live.trace.empty());
  std::size_t different = live.trace.size();
  for (std::size_t i = 0; i < live.trace.size() && different == live.trace.size(); i++)
    if (std::memcmp(&live.trace[i], &dry.trace[i], sizeof live.trace[i]) != 0) different = i;
  if (different < live.trace.size()) {
    const auto &a = live.trace[different], &b = dry.trace[different];
    auto text = [](const limpid::memory::TraceRecord& r) {
      return limpid::concat(limpid::memory::to_string(r.kind), " ", r.id, " ", r.bytes, " B ",
                            limpid::memory::to_string(r.role), " ", limpid::to_string(r.phase), " ",
                            limpid::name_of(r.op), " in ", limpid::name_of(r.module), " '", limpid::name_of(r.name),
                            "' step ", r.step, ".", r.micro_batch);
    };
    FAIL_CHECK("event ", different, ": live ", text(a), ", dry ", text(b));
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

// The program runs twice: it must start from nothing each time.
inline void same_on_both(const Program& program, const limpid::dry::Options& options = {}) {
  const limpid::Generator generator = limpid::default_generator();
  const Recorded live = run_live(program, options);
  limpid::default_generator() = generator;
  const Recorded dry = run_dry(program, options);
  check_same(live, dry);
}

}  // namespace limpid_test
