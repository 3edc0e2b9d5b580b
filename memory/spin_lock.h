// A lock for critical sections of some tens of nanoseconds: one atomic exchange when nobody waits, and a yield to the
// scheduler after a short spin, so that a holder inside a system call does not burn the other core. Not recursive.
#pragma once

#include <atomic>
#include <thread>

#include <limpid/base/macros.h>

namespace limpid::memory {

class SpinLock {
 public:
  void lock() noexcept {
    if (LIMPID_LIKELY(!held_.exchange(true, std::memory_order_acquire))) return;
    wait();
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  LIMPID_NOINLINE void wait() noexcept {
    for (int spins = 0;; spins++) {
      if (!held_.load(std::memory_order_relaxed) && !held_.exchange(true, std::memory_order_acquire)) return;
      if (spins >= 64) std::this_thread::yield();
    }
  }
  std::atomic<bool> held_{false};
};

}  // namespace limpid::memory
