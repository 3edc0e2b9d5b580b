// Static plans: no overlap, lower bound <= exact <= heuristic, the same optimum for reversed time, and brute force.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/memory/offline_plan.h>

using namespace limpid;
using namespace limpid::memory;

namespace {

using Buffers = std::vector<PlanBuffer>;

bool meet(const PlanBuffer& a, const PlanBuffer& b) { return a.start < b.end && b.start < a.end; }

// Plainly: can buffers i, i+1, ... be given whole offsets below the height?
bool fits(const Buffers& b, std::vector<std::size_t>& offsets, std::size_t i, std::size_t height) {
  if (i == b.size()) return true;
  for (std::size_t at = 0; at + b[i].size <= height; at++) {
    bool free = true;
    for (std::size_t j = 0; j < i && free; j++) {
      free = !meet(b[i], b[j]) || at + b[i].size <= offsets[j] || offsets[j] + b[j].size <= at;
    }
    offsets[i] = at;
    if (free && fits(b, offsets, i + 1, height)) return true;
  }
  return false;
}
std::size_t brute_force(const Buffers& buffers) {
  std::vector<std::size_t> offsets(buffers.size());
  std::size_t height = peak_live(buffers);
  while (!fits(buffers, offsets, 0, height)) height++;
  return height;
}

Buffers reversed(const Buffers& buffers) {
  std::uint64_t last = 0;
  for (const PlanBuffer& b : buffers) last = std::max(last, b.end);
  Buffers out;
  for (const PlanBuffer& b : buffers) out.push_back({b.size, last - b.end, last - b.start});
  return out;
}

Buffers random_buffers(std::mt19937_64& random, std::size_t count, std::size_t sizes, std::uint64_t times) {
  Buffers out;
  for (std::size_t i = 0; i < count; i++) {
    std::uint64_t start = random() % times;
    out.push_back({1 + random() % sizes, start, start + 1 + random() % times});
  }
  return out;
}

// Checks one instance; returns the exact plan.
Plan check_all(const Buffers& buffers, std::uint64_t nodes = 200000) {
  std::size_t bound = peak_live(buffers);
  std::size_t least = SIZE_MAX;
  for (PlanOrder order : {PlanOrder::size, PlanOrder::lifetime, PlanOrder::area}) {
    Plan plan = plan_greedy(buffers, order);
    check_plan(buffers, plan);
    REQUIRE(plan.height >= bound);
    REQUIRE(std::string(plan.method) == to_string(order));
    least = std::min(least, plan.height);
  }
  Plan best = plan_best_of(buffers);
  check_plan(buffers, best);
  REQUIRE(best.height == least);
  Plan exact = plan_exact(buffers, nodes);
  check_plan(buffers, exact);
  REQUIRE(bound <= exact.height);
  REQUIRE(exact.height <= best.height);
  return exact;
}

// Every order of starts and ends of n buffers (buffer i starts i-th), each as [start, end) in events.
void for_each_trace(std::size_t n, Buffers& buffers, std::vector<std::size_t>& live, std::uint64_t time,
                    const std::function<void()>& visit) {
  if (buffers.size() == n && live.empty()) return visit();
  if (buffers.size() < n) {
    buffers.push_back({0, time, 0});
    live.push_back(buffers.size() - 1);
    for_each_trace(n, buffers, live, time + 1, visit);
    live.pop_back();
    buffers.pop_back();
  }
  for (std::size_t k = 0; k < live.size(); k++) {
    std::size_t i = live[k];
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(k));
    buffers[i].end = time;
    for_each_trace(n, buffers, live, time + 1, visit);
    live.insert(live.begin() + static_cast<std::ptrdiff_t>(k), i);
  }
}

// All traces of n buffers, with every size of 1..sizes; or `draws` random ones each when draws > 0.
int compare_with_brute_force(std::size_t n, std::size_t sizes, int draws) {
  int count = 0;
  std::mt19937_64 random(n);
  Buffers buffers;
  std::vector<std::size_t> live;
  for_each_trace(n, buffers, live, 0, [&] {
    std::size_t all = 1;
    for (std::size_t i = 0; i < n; i++) all *= sizes;
    for (std::size_t k = 0; k < (draws > 0 ? static_cast<std::size_t>(draws) : all); k++) {
      std::size_t code = draws > 0 ? random() % all : k;
      for (PlanBuffer& b : buffers) {
        b.size = 1 + code % sizes;
        code /= sizes;
      }
      Plan plan = plan_exact(buffers);
      check_plan(buffers, plan);
      REQUIRE(plan.optimal);
      REQUIRE(plan.height == brute_force(buffers));
      count++;
    }
  });
  return count;
}

}  // namespace

TEST_CASE("plans of nothing, of one buffer, of empty ones") {
  CHECK(plan_exact({}).height == 0);
  CHECK(plan_exact({}).optimal);
  CHECK(plan_best_of({{100, 0, 1}}).height == 100);
  Plan plan = check_all({{0, 0, 5}, {7, 1, 2}, {0, 1, 2}, {5, 2, 3}});
  CHECK(plan.height == 7);
  CHECK_THROWS_AS(plan_best_of({{1, 4, 4}}), ArgumentError);
  CHECK_THROWS_AS(peak_live({{1, 4, 3}}), ArgumentError);
}

TEST_CASE("a plan that is wrong is found") {
  Buffers buffers = {{4, 0, 2}, {4, 1, 3}, {4, 2, 4}};
  Plan plan = plan_exact(buffers);
  CHECK(plan.height == 8);
  check_plan(buffers, plan);
  Plan overlap = plan;
  overlap.offsets[1] = overlap.offsets[0] + 3;
  overlap.height = 20;
  CHECK_THROWS_WITH_AS(check_plan(buffers, overlap), "[plan] buffers 0 and 1 overlap at offset 3", ArgumentError);
  plan.height = 7;
  CHECK_THROWS_AS(check_plan(buffers, plan), ArgumentError);
  plan.offsets.pop_back();
  CHECK_THROWS_AS(check_plan(buffers, plan), ArgumentError);
}

TEST_CASE("an instance that no order solves and the search does") {
  std::mt19937_64 random(5);
  int better = 0;
  for (int i = 0; i < 300; i++) {
    Buffers buffers = random_buffers(random, 12, 9, 12);
    Plan exact = check_all(buffers);
    REQUIRE(exact.optimal);
    better += exact.height < plan_best_of(buffers).height ? 1 : 0;
  }
  CHECK(better > 5);
}

TEST_CASE("reversed time has the same optimum") {
  std::mt19937_64 random(6);
  for (int i = 0; i < 200; i++) {
    Buffers buffers = random_buffers(random, 2 + random() % 14, 50, 20);
    Plan forward = check_all(buffers), backward = check_all(reversed(buffers));
    REQUIRE(forward.optimal);
    REQUIRE(backward.optimal);
    REQUIRE(forward.height == backward.height);
  }
}

TEST_CASE("brute force agrees on all traces of few buffers") {
  CHECK(compare_with_brute_force(1, 3, 0) == 3);
  CHECK(compare_with_brute_force(2, 3, 0) == 3 * 9);
  CHECK(compare_with_brute_force(3, 3, 0) == 15 * 27);
  CHECK(compare_with_brute_force(4, 3, 0) == 105 * 81);
  CHECK(compare_with_brute_force(5, 3, 8) == 945 * 8);
  CHECK(compare_with_brute_force(6, 4, 1) == 10395);
}

TEST_CASE("an optimum above the lower bound") {
  const Buffers buffers = {{4, 0, 2}, {4, 0, 1}, {1, 1, 2}, {1, 1, 2}, {2, 1, 2}, {4, 2, 3}, {3, 2, 4},
                           {1, 2, 3}, {3, 3, 5}, {2, 3, 6}, {2, 4, 5}, {1, 4, 6}, {4, 5, 7}, {1, 5, 7},
                           {3, 6, 7}, {2, 7, 8}, {1, 7, 8}, {1, 7, 8}, {4, 7, 8}};
  CHECK(peak_live(buffers) == 8);
  Plan plan = check_all(buffers);
  CHECK(plan.optimal);
  CHECK(plan.height == 9);
  CHECK(brute_force(buffers) == 9);
  CHECK(check_all(reversed(buffers)).height == 9);
}

TEST_CASE("long: brute force agrees on all traces of up to 7 buffers") {
  CHECK(compare_with_brute_force(5, 3, 0) == 945 * 243);
  CHECK(compare_with_brute_force(6, 2, 0) == 10395 * 64);
  CHECK(compare_with_brute_force(7, 4, 4) == 135135 * 4);
}

TEST_CASE("60 buffers: a budget, and the truth about it") {
  std::mt19937_64 random(7);
  int proven = 0;
  for (int i = 0; i < 8; i++) {
    Plan plan = check_all(random_buffers(random, 60, 1000, 100), 20000);
    proven += plan.optimal ? 1 : 0;
  }
  CHECK(proven > 0);
  Buffers hard = random_buffers(random, 60, 1000, 100);
  Plan none = plan_exact(hard, 0);
  CHECK(none.height == plan_best_of(hard).height);
  CHECK(none.optimal == (none.height == peak_live(hard)));
}

TEST_CASE("thousands of buffers are planned greedily") {
  std::mt19937_64 random(8);
  Buffers buffers;
  for (std::uint64_t i = 0; i < 20000; i++) buffers.push_back({1 + random() % 5000, i, i + 1 + random() % 200});
  for (int i = 0; i < 50; i++) buffers.push_back({100000, 0, 21000});
  Plan plan = plan_best_of(buffers);
  check_plan(buffers, plan);
  CHECK(static_cast<double>(plan.height) < 1.2 * static_cast<double>(peak_live(buffers)));
}
