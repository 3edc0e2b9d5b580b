#include <limpid/memory/offline_plan.h>

#include <algorithm>
#include <numeric>

#include <limpid/base/error.h>

namespace limpid::memory {
namespace {

void check_buffers(const std::vector<PlanBuffer>& buffers) {
  for (std::size_t i = 0; i < buffers.size(); i++) {
    LIMPID_CHECK(buffers[i].start < buffers[i].end, ArgumentError, "[plan] buffer ", i, " lives from ",
                 buffers[i].start, " to ", buffers[i].end, ": its life must not be empty");
  }
}

// Finds every buffer that lives at the same time as a given one: a balanced tree over the buffers by start, where each
// inner node knows the latest end below it.
class TimeIndex {
 public:
  explicit TimeIndex(const std::vector<PlanBuffer>& buffers)
      : buffers_(buffers), by_start_(buffers.size()), latest_(buffers.size()) {
    std::iota(by_start_.begin(), by_start_.end(), std::size_t{0});
    std::sort(by_start_.begin(), by_start_.end(), [&](std::size_t a, std::size_t b) {
      return buffers[a].start != buffers[b].start ? buffers[a].start < buffers[b].start : a < b;
    });
    build(0, by_start_.size());
  }
  template <class F>
  void for_each_meeting(const PlanBuffer& b, F&& f) const {
    visit(0, by_start_.size(), b, f);
  }

 private:
  std::uint64_t build(std::size_t low, std::size_t high) {
    if (low == high) return 0;
    std::size_t middle = (low + high) / 2;
    std::uint64_t below = std::max(build(low, middle), build(middle + 1, high));
    return latest_[middle] = std::max(buffers_[by_start_[middle]].end, below);
  }
  template <class F>
  void visit(std::size_t low, std::size_t high, const PlanBuffer& b, F& f) const {
    if (low == high) return;
    std::size_t middle = (low + high) / 2;
    if (latest_[middle] <= b.start) return;
    visit(low, middle, b, f);
    const PlanBuffer& here = buffers_[by_start_[middle]];
    if (here.start >= b.end) return;
    if (here.end > b.start) f(by_start_[middle]);
    visit(middle + 1, high, b, f);
  }

  const std::vector<PlanBuffer>& buffers_;
  std::vector<std::size_t> by_start_;
  std::vector<std::uint64_t> latest_;
};

Plan greedy(const std::vector<PlanBuffer>& buffers, PlanOrder key, const TimeIndex& index) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto weight = [&](const PlanBuffer& b) {
    double life = static_cast<double>(b.end - b.start), size = static_cast<double>(b.size);
    return key == PlanOrder::size ? size : key == PlanOrder::lifetime ? life : size * life;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    double x = weight(buffers[a]), y = weight(buffers[b]);
    return x != y ? x > y : buffers[a].size > buffers[b].size;
  });
  Plan plan;
  plan.method = to_string(key);
  plan.offsets.assign(buffers.size(), 0);
  std::vector<char> placed(buffers.size(), 0);
  std::vector<std::pair<std::size_t, std::size_t>> taken;  // [offset, top) of placed buffers that live at the same time
  for (std::size_t i : order) {
    taken.clear();
    index.for_each_meeting(buffers[i], [&](std::size_t j) {
      if (placed[j] && buffers[j].size > 0) taken.emplace_back(plan.offsets[j], plan.offsets[j] + buffers[j].size);
    });
    std::sort(taken.begin(), taken.end());
    std::size_t top = 0, best = 0, best_gap = SIZE_MAX;
    for (auto [from, to] : taken) {
      if (from > top && from - top >= buffers[i].size && from - top < best_gap) {
        best = top;
        best_gap = from - top;
      }
      top = std::max(top, to);
    }
    plan.offsets[i] = best_gap == SIZE_MAX ? top : best;
    plan.height = std::max(plan.height, plan.offsets[i] + buffers[i].size);
    placed[i] = 1;
  }
  return plan;
}

// Branch and bound for buffers of one group. A plan in which no buffer can sink is reached by placing buffers in order
// of offset, each on the highest top among those placed before it that live at the same time.
class Search {
 public:
  Search(std::vector<PlanBuffer> buffers, std::size_t best, std::size_t lower_bound, std::uint64_t& nodes)
      : buffers_(std::move(buffers)), best_(best), lower_bound_(lower_bound), nodes_(nodes) {
    std::vector<std::uint64_t> times;
    for (const PlanBuffer& b : buffers_) times.insert(times.end(), {b.start, b.end});
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    auto section = [&](std::uint64_t t) {
      return static_cast<std::size_t>(std::lower_bound(times.begin(), times.end(), t) - times.begin());
    };
    for (const PlanBuffer& b : buffers_) life_.emplace_back(section(b.start), section(b.end));
    skyline_.assign(times.size(), 0);
    waiting_.assign(times.size(), 0);
    for (std::size_t i = 0; i < buffers_.size(); i++) {
      for (std::size_t t = life_[i].first; t < life_[i].second; t++) waiting_[t] += buffers_[i].size;
    }
    offsets_.assign(buffers_.size(), 0);
    placed_.assign(buffers_.size(), 0);
  }

  // Whether the search came to its end.
  bool run() {
    place(0, 0, 0);
    return finished_;
  }
  bool improved() const { return !best_offsets_.empty(); }
  std::size_t height() const { return best_; }
  const std::vector<std::size_t>& offsets() const { return best_offsets_; }

 private:
  // `last`, `last_index`: the buffer placed before; offsets never go down, and equal ones go by index.
  void place(std::size_t count, std::size_t last, std::size_t last_index) {
    if (best_ <= lower_bound_ || !finished_) return;
    if (nodes_ == 0) {
      finished_ = false;
      return;
    }
    nodes_--;
    if (count == buffers_.size()) {
      std::size_t height = 0;
      for (std::size_t i = 0; i < buffers_.size(); i++) height = std::max(height, offsets_[i] + buffers_[i].size);
      if (height < best_) {
        best_ = height;
        best_offsets_ = offsets_;
      }
      return;
    }
    // Where each buffer would rest now, and from where on those that still live at an instant must be stacked.
    struct Candidate {
      std::size_t offset, index;
    };
    std::vector<Candidate> candidates;
    std::vector<std::size_t> lowest(skyline_.size(), SIZE_MAX);
    for (std::size_t i = 0; i < buffers_.size(); i++) {
      if (placed_[i]) continue;
      std::size_t rest = 0;
      for (std::size_t t = life_[i].first; t < life_[i].second; t++) rest = std::max(rest, skyline_[t]);
      std::size_t from = std::max(rest, last);
      if (from + buffers_[i].size >= best_) return;
      for (std::size_t t = life_[i].first; t < life_[i].second; t++) lowest[t] = std::min(lowest[t], from);
      if (rest < last || (rest == last && count > 0 && i < last_index)) continue;
      candidates.push_back({rest, i});
    }
    for (std::size_t t = 0; t < lowest.size(); t++) {
      if (lowest[t] != SIZE_MAX && lowest[t] + waiting_[t] >= best_) return;
    }
    std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
      if (a.offset != b.offset) return a.offset < b.offset;
      return buffers_[a.index].size != buffers_[b.index].size ? buffers_[a.index].size > buffers_[b.index].size
                                                              : a.index < b.index;
    });
    for (const Candidate& c : candidates) {
      auto [from, to] = life_[c.index];
      std::size_t size = buffers_[c.index].size;
      std::vector<std::size_t> former(skyline_.begin() + static_cast<std::ptrdiff_t>(from),
                                      skyline_.begin() + static_cast<std::ptrdiff_t>(to));
      for (std::size_t t = from; t < to; t++) {
        skyline_[t] = c.offset + size;
        waiting_[t] -= size;
      }
      placed_[c.index] = 1;
      offsets_[c.index] = c.offset;
      place(count + 1, c.offset, c.index);
      placed_[c.index] = 0;
      std::copy(former.begin(), former.end(), skyline_.begin() + static_cast<std::ptrdiff_t>(from));
      for (std::size_t t = from; t < to; t++) waiting_[t] += size;
    }
  }

  std::vector<PlanBuffer> buffers_;
  std::size_t best_;
  std::size_t lower_bound_;
  std::uint64_t& nodes_;
  std::vector<std::pair<std::size_t, std::size_t>> life_;  // in sections between neighbouring instants
  std::vector<std::size_t> skyline_;                       // highest top in each section
  std::vector<std::size_t> waiting_;                       // bytes to be placed in each section
  std::vector<std::size_t> offsets_, best_offsets_;
  std::vector<char> placed_;
  bool finished_ = true;
};

// Groups of buffers with an instant between them when nobody lives: they cannot disturb each other.
std::vector<std::vector<std::size_t>> groups_of(const std::vector<PlanBuffer>& buffers) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < buffers.size(); i++) {
    if (buffers[i].size > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].start != buffers[b].start ? buffers[a].start < buffers[b].start : a < b;
  });
  std::vector<std::vector<std::size_t>> groups;
  std::uint64_t end = 0;
  for (std::size_t i : order) {
    if (groups.empty() || buffers[i].start >= end) groups.emplace_back();
    groups.back().push_back(i);
    end = std::max(end, buffers[i].end);
  }
  return groups;
}

}  // namespace

const char* to_string(PlanOrder order) {
  switch (order) {
    case PlanOrder::size:
      return "size";
    case PlanOrder::lifetime:
      return "lifetime";
    case PlanOrder::area:
      return "area";
  }
  return "?";
}

std::size_t peak_live(const std::vector<PlanBuffer>& buffers) {
  check_buffers(buffers);
  std::vector<std::pair<std::uint64_t, std::int64_t>> changes;
  for (const PlanBuffer& b : buffers) {
    changes.emplace_back(b.start, static_cast<std::int64_t>(b.size));
    changes.emplace_back(b.end, -static_cast<std::int64_t>(b.size));
  }
  std::sort(changes.begin(), changes.end());  // at one instant ends come before starts: the negative sizes
  std::int64_t live = 0, peak = 0;
  for (auto [time, change] : changes) peak = std::max(peak, live += change);
  return static_cast<std::size_t>(peak);
}

Plan plan_greedy(const std::vector<PlanBuffer>& buffers, PlanOrder order) {
  std::size_t bound = peak_live(buffers);
  Plan plan = greedy(buffers, order, TimeIndex(buffers));
  plan.optimal = plan.height == bound;
  return plan;
}

Plan plan_best_of(const std::vector<PlanBuffer>& buffers) {
  std::size_t bound = peak_live(buffers);
  TimeIndex index(buffers);
  Plan best;
  for (PlanOrder order : {PlanOrder::size, PlanOrder::lifetime, PlanOrder::area}) {
    Plan plan = greedy(buffers, order, index);
    if (order == PlanOrder::size || plan.height < best.height) best = std::move(plan);
  }
  best.optimal = best.height == bound;
  return best;
}

Plan plan_exact(const std::vector<PlanBuffer>& buffers, std::uint64_t nodes) {
  Plan plan = plan_best_of(buffers);
  if (plan.optimal) return plan;
  // The height is that of the highest group; a group below the highest bound need not be searched.
  const std::size_t bound = peak_live(buffers);
  bool finished = true;
  std::size_t height = 0;
  for (const std::vector<std::size_t>& group : groups_of(buffers)) {
    std::vector<PlanBuffer> members;
    std::size_t now = 0;
    for (std::size_t i : group) {
      members.push_back(buffers[i]);
      now = std::max(now, plan.offsets[i] + buffers[i].size);
    }
    Search search(members, now, std::max(bound, height), nodes);
    finished = search.run() && finished;
    if (search.improved()) {
      for (std::size_t i = 0; i < group.size(); i++) plan.offsets[group[i]] = search.offsets()[i];
      plan.method = "exact";
    }
    height = std::max(height, search.height());
  }
  plan.height = height;
  plan.optimal = finished || height == bound;
  return plan;
}

void check_plan(const std::vector<PlanBuffer>& buffers, const Plan& plan) {
  LIMPID_CHECK(plan.offsets.size() == buffers.size(), ArgumentError, "[plan] ", plan.offsets.size(), " offsets for ",
               buffers.size(), " buffers");
  check_buffers(buffers);
  TimeIndex index(buffers);
  for (std::size_t i = 0; i < buffers.size(); i++) {
    std::size_t from = plan.offsets[i], to = from + buffers[i].size;
    LIMPID_CHECK(to <= plan.height, ArgumentError, "[plan] buffer ", i, " ends at ", to, ", above the height ",
                 plan.height);
    index.for_each_meeting(buffers[i], [&](std::size_t j) {
      bool apart = j == i || to <= plan.offsets[j] || plan.offsets[j] + buffers[j].size <= from;
      LIMPID_CHECK(apart || buffers[i].size == 0 || buffers[j].size == 0, ArgumentError, "[plan] buffers ", i, " and ",
                   j, " overlap at offset ", std::max(from, plan.offsets[j]));
    });
  }
}

}  // namespace limpid::memory
