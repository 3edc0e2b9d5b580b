#include <limpid/tensor/cpu/parallel.h>

#include <pthread.h>
#include <time.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <limpid/base/error.h>
#include <limpid/tensor/cpu/cpu_time.h>

namespace limpid::cpu {
namespace {

// Iterations that a worker spins for the next job before it sleeps: about 20 us, so that the forks of one operator
// after another find the workers awake.
constexpr int kSpin = 2000;
constexpr int kHelperBits = 16;  // low bits of the job word

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

thread_local bool inside_pool = false;

class Pool {
 public:
  static Pool& instance() {
    static Pool* pool = new Pool();  // never destroyed: static tensors may still run kernels
    return *pool;
  }

  int threads() const { return threads_.load(std::memory_order_relaxed); }

  void set_threads(int n) {
    std::lock_guard<std::mutex> busy(busy_);
    start_workers(n - 1);
    threads_.store(n, std::memory_order_relaxed);
  }

  double cpu_seconds() {
    std::lock_guard<std::mutex> busy(busy_);
    double sum = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    for (std::thread& worker : workers_) {
      clockid_t clock{};
      if (::pthread_getcpuclockid(worker.native_handle(), &clock) == 0) sum += seconds_of(clock);
    }
    return sum;
  }

  void run(std::int64_t n_tasks, detail::TaskFn fn, void* context) {
    if (inside_pool || threads() == 1 || !busy_.try_lock()) {
      for (std::int64_t task = 0; task < n_tasks; ++task) fn(context, task);
      return;
    }
    std::lock_guard<std::mutex> busy(busy_, std::adopt_lock);
    const int helpers = threads() - 1;
    start_workers(helpers);
    fn_ = fn;
    context_ = context;
    n_tasks_ = n_tasks;
    next_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    error_ = nullptr;
    const std::uint64_t job = ((job_.load(std::memory_order_relaxed) >> kHelperBits) + 1) << kHelperBits |
                              static_cast<std::uint64_t>(helpers);
    pending_.store(helpers, std::memory_order_relaxed);
    // The job word publishes all of the above. Sequential consistency pairs it with sleepers_: either the worker sees
    // the new job before it sleeps, or we see it asleep and wake it.
    job_.store(job, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> lock(sleep_); }
      wake_.notify_all();
    }
    work();
    for (int spin = 0; pending_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < kSpin) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  Pool() {
    const unsigned n = std::thread::hardware_concurrency();
    threads_.store(n > 0 ? static_cast<int>(n) : 1, std::memory_order_relaxed);
  }

  // Workers beyond the current thread count stay parked: the job word says how many of them take part.
  void start_workers(int n) {
    while (static_cast<int>(workers_.size()) < n) {
      const int index = static_cast<int>(workers_.size());
      const std::uint64_t seen = job_.load(std::memory_order_relaxed);
      workers_.emplace_back([this, index, seen] { loop(index, seen); });
    }
  }

  void work() {
    inside_pool = true;
    for (std::int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < n_tasks_;) {
      try {
        if (!failed_.load(std::memory_order_relaxed)) fn_(context_, task);
      } catch (...) {
        std::lock_guard<std::mutex> lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
      }
    }
    inside_pool = false;
  }

  [[noreturn]] void loop(int index, std::uint64_t seen) {
    for (;;) {
      std::uint64_t job = job_.load(std::memory_order_acquire);
      for (int spin = 0; job == seen && spin < kSpin; ++spin) {
        pause();
        job = job_.load(std::memory_order_acquire);
      }
      if (job == seen) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return (job = job_.load(std::memory_order_seq_cst)) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
      }
      seen = job;
      if (static_cast<std::uint64_t>(index) < (job & ((std::uint64_t{1} << kHelperBits) - 1))) {
        work();
        pending_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  std::atomic<int> threads_{1};
  std::mutex busy_;  // held by the one caller that uses the workers
  std::vector<std::thread> workers_;

  detail::TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  std::int64_t n_tasks_ = 0;
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<int> pending_{0};
  alignas(64) std::atomic<std::uint64_t> job_{0};
  std::atomic<int> sleepers_{0};
  std::mutex sleep_;
  std::condition_variable wake_;
};

}  // namespace

void set_num_threads(int n) {
  LIMPID_CHECK(n >= 1 && n <= 1024, ArgumentError, "[set_num_threads] wants 1 to 1024 threads, got ", n);
  Pool::instance().set_threads(n);
}

int num_threads() { return Pool::instance().threads(); }

double compute_cpu_seconds() { return Pool::instance().cpu_seconds(); }

void detail::run_tasks(std::int64_t n_tasks, TaskFn fn, void* context) { Pool::instance().run(n_tasks, fn, context); }

}  // namespace limpid::cpu
