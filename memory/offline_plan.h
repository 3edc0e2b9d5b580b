// Static planning of memory: buffers with a known size and life get fixed offsets in one slab (dynamic storage
// allocation, which is NP-complete). Greedy orders for any number of buffers, and an exact search with a budget for
// some tens. Nothing here knows traces or devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace limpid::memory {

// Live in [start, end), in any unit of time. Two buffers whose lives meet in no instant may share memory.
struct PlanBuffer {
  std::size_t size = 0;
  std::uint64_t start = 0, end = 0;
};

struct Plan {
  std::vector<std::size_t> offsets;  // of each buffer, in the order given
  std::size_t height = 0;            // bytes of the slab
  const char* method = "";           // the order that won, or "exact"
  bool optimal = false;              // no plan is lower: proven
};

enum class PlanOrder { size, lifetime, area };  // the largest first; area = size * lifetime
const char* to_string(PlanOrder order);

// The most bytes live at one instant. No plan is lower.
std::size_t peak_live(const std::vector<PlanBuffer>& buffers);

// Each buffer in its turn goes into the tightest gap among placed buffers that live at the same time, or on top.
Plan plan_greedy(const std::vector<PlanBuffer>& buffers, PlanOrder order);
// The lowest of the three orders.
Plan plan_best_of(const std::vector<PlanBuffer>& buffers);
// Branch and bound over placements that rest on the floor or on another buffer. Starts from plan_best_of(), so that its
// plan is never higher; `optimal` says whether the search ended before `nodes` placements were tried. Meant for up to
// 60 buffers.
Plan plan_exact(const std::vector<PlanBuffer>& buffers, std::uint64_t nodes = 2'000'000);

// ArgumentError when two buffers that live at the same time overlap, or one ends above the height.
void check_plan(const std::vector<PlanBuffer>& buffers, const Plan& plan);

}  // namespace limpid::memory
