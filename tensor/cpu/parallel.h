// The CPU thread pool: one fixed set of workers, started on first use and never destroyed (static tensors may outlive
// everything else). Work is split by the caller into tasks that depend on the shape only; which thread runs a task is
// left open, so results never depend on the thread count.
// Not a general scheduler: a nested call, or a call while another thread uses the pool, runs serially on the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace limpid::cpu {

// Upper bound of concurrent tasks that own scratch memory (parallel_slots). Workspaces are sized with it, so their
// bytes do not depend on the number of threads.
inline constexpr std::int64_t kMaxSlots = 8;

// Threads that take part, the caller included. Default: hardware concurrency. n >= 1, else ArgumentError.
void set_num_threads(int n);
int num_threads();

namespace detail {
using TaskFn = void (*)(void* context, std::int64_t task);
void run_tasks(std::int64_t n_tasks, TaskFn fn, void* context);
}  // namespace detail

// Calls fn(task) once for each task in [0, n_tasks). The first exception is rethrown on the caller when all have ended.
template <class Fn>
void parallel_for(std::int64_t n_tasks, Fn&& fn) {
  if (n_tasks <= 0) return;
  if (n_tasks == 1) {
    fn(std::int64_t{0});
    return;
  }
  using F = std::remove_reference_t<Fn>;
  detail::run_tasks(
      n_tasks, [](void* context, std::int64_t task) { (*static_cast<F*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
}

// Calls fn(begin, end) on consecutive ranges of `grain` elements (the last may be shorter).
template <class Fn>
void parallel_chunks(std::int64_t n, std::int64_t grain, Fn&& fn) {
  const std::int64_t step = grain > 0 ? grain : 1;
  parallel_for((n + step - 1) / step, [&](std::int64_t task) {
    const std::int64_t begin = task * step;
    fn(begin, begin + step < n ? begin + step : n);
  });
}

// Calls fn(slot, task) once for each task; no two tasks run at the same time in one slot, and slot < min(n_tasks,
// max_slots). Use it when a task needs scratch memory: scratch + slot * size.
template <class Fn>
void parallel_slots(std::int64_t n_tasks, Fn&& fn, std::int64_t max_slots = kMaxSlots) {
  const std::int64_t slots = n_tasks < max_slots ? n_tasks : max_slots;
  if (slots <= 1 || num_threads() == 1) {
    for (std::int64_t task = 0; task < n_tasks; ++task) fn(std::int64_t{0}, task);
    return;
  }
  std::atomic<std::int64_t> next{0};
  parallel_for(slots, [&](std::int64_t slot) {
    for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) fn(slot, task);
  });
}

}  // namespace limpid::cpu
