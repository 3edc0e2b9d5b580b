// A policy that follows a plan made from a trace: every allocation of the trace has its fixed place in one slab. It
// needs the same requests and frees in the same order; at the first difference it remembers which event it was, and
// everything from there on is served by the native policy, while what lies in the slab stays until it is freed. It
// mimics torch.cuda's proposed memory plan and STAlloc's planned part (arXiv 2507.16274).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <limpid/memory/native_policy.h>
#include <limpid/memory/offline_plan.h>
#include <limpid/memory/trace.h>

namespace limpid::memory {

struct TracePlan {
  struct Event {
    bool is_alloc = false;
    std::size_t bytes = 0;  // requested
    StreamId stream = 0;
    std::size_t buffer = 0;  // index into `buffers` and the plan's offsets
  };
  std::vector<Event> events;
  std::vector<PlanBuffer> buffers;  // time is the index of the event
  Plan plan;
  std::size_t lower_bound = 0;  // peak of rounded live bytes
};

// Plans the allocations and frees of a trace; other records are skipped, frees of what the trace never allocated too.
// Buffers of different streams share no memory, and one that another stream uses (record_stream) is never reused,
// because a plan knows no events. Up to `exact_up_to` buffers the exact search runs, with `nodes` as its budget.
TracePlan plan_trace(const std::vector<TraceRecord>& records, std::size_t exact_up_to = 60,
                     std::uint64_t nodes = 200'000);

// What became of a plan.
struct OfflineReport {
  std::uint64_t followed = 0;  // events that went as planned
  bool mismatch = false;
  std::uint64_t event = 0;  // the first one that differed
  std::string expected, got;
};
std::string to_string(const OfflineReport& report);

class OfflinePolicy final : public NativePolicy {
 public:
  OfflinePolicy(const PolicyContext& context, std::shared_ptr<const TracePlan> plan,
                std::shared_ptr<OfflineReport> report);
  Block* allocate(std::size_t bytes, StreamId stream) override;
  void free(Block* block) noexcept override;
  void check() const override;

 protected:
  void take_back(Block* block) override;
  void remove_free(Block* block) override;
  void release_free() override;
  void give_back(Block* block, std::size_t most) override;

 private:
  bool in_slab(const Block* block) const { return slab_ && block->segment == slab_; }
  Block* place(const TracePlan::Event& event);
  void differ(std::string got);
  void insert_gap(Block* block);

  std::shared_ptr<const TracePlan> plan_;
  std::shared_ptr<OfflineReport> report_;
  Segment* slab_ = nullptr;
  std::map<std::size_t, Block*> gaps_;             // free blocks of the slab, by offset
  std::map<const Block*, std::size_t> buffer_of_;  // blocks handed out in the slab
};

// The report, when one is given, is kept up to date by the policy; read it while the allocator is at rest.
PolicyFactory make_offline_policy(std::shared_ptr<const TracePlan> plan,
                                  std::shared_ptr<OfflineReport> report = nullptr);

}  // namespace limpid::memory
