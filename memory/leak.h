// Leak proof: between two optimizer steps of a sound training loop the same blocks are alive, however long it runs. From
// the second step boundary on, a site that has more live blocks at each of two boundaries in a row than at the one
// before is reported: `total_loss += loss`, which keeps every step's graph, is caught after step 3. A site is role, name,
// layer, operation and phase, and for nodes of the recorded graph their operation; sizes do not count, so batches of different size give no alarm, nor does something that
// is made once, later. Not a search for unreachable memory: what is reported is still held by somebody.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <limpid/memory/allocator.h>

namespace limpid::memory {

// What a recorded graph holds besides tensors. autograd fills it in (live_graph() in autograd/node.h): this room does not
// know graphs.
struct LiveGraph {
  std::function<std::uint64_t()> bytes;                                  // of all node objects
  std::function<std::vector<std::pair<NameId, std::uint64_t>>()> nodes;  // live ones by operation
};

struct LeakSite {
  bool graph = false;  // nodes of the graph of `op`, not tensors: host memory outside the allocator
  Role role = Role::other;
  std::string name, layer, op;  // empty: none
  Phase phase = Phase::none;
  std::uint64_t blocks = 0;           // that the last step added
  std::uint64_t bytes_per_step = 0;   // requested, of those; 0 for nodes: the report has their sum
  std::uint64_t first_id = 0;         // the oldest block that is kept from the last step; its id in the trace
};

struct LeakReport {
  std::int64_t step = 0;               // steps done
  std::uint64_t bytes_per_step = 0;        // of tensors, all sites
  std::uint64_t graph_bytes_per_step = 0;  // of node objects, on the host heap
  std::vector<LeakSite> sites;         // most bytes first
};

// One allocator's live set, step by step. Call step_done() after each optimizer step, at the same place of the loop.
class LeakCheck {
 public:
  explicit LeakCheck(const Allocator& allocator, LiveGraph graph = {})
      : allocator_(allocator), graph_(std::move(graph)) {}
  // The report when something grows; each site is reported once. Costs a look at a counter while nothing grows.
  std::optional<LeakReport> step_done();
  std::int64_t steps() const { return steps_; }

 private:
  using Site = std::tuple<Role, NameId, NameId, NameId, Phase>;  // role, name, module, op, phase
  void look_at_graph(LeakReport& report, std::uint64_t grown_bytes);
  struct Count {
    std::uint64_t blocks = 0;
    int grown = 0;  // boundaries in a row with more blocks than at the one before
    bool reported = false;
  };

  const Allocator& allocator_;
  LiveGraph graph_;
  std::uint64_t last_graph_bytes_ = 0;
  std::map<NameId, Count> graph_counts_;
  std::int64_t steps_ = 0;
  std::uint64_t last_blocks_ = 0;  // live blocks at the last boundary
  std::uint64_t last_id_ = 0;      // newest allocation at the last look
  bool growing_ = false;           // some site grew at the last look
  std::map<Site, Count> counts_;
};

std::string to_string(const LeakReport& report);
std::string to_json(const LeakReport& report);

}  // namespace limpid::memory
