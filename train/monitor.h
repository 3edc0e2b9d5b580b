// Monitor: what the steps of a run cost, measured over windows of k steps: samples a second, where the time went, how busy
// the compute threads were, memory by role, rate and loss scale. One record a window, in RUN/monitor.jsonl. diagnose()
// says in one sentence what the time was spent on. It reads clocks and counters only; it changes no number of the run.
// Not here: what a step was made of (ledger.h), every single block of memory (the memory trace).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <limpid/data/loader.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/role.h>

namespace limpid::train {

// Both pools (compute and io) between two steps, and at the instant of the highest use so far.
struct MonitorMemory {
  std::array<std::uint64_t, memory::kRoleCount> roles{};  // requested bytes of live blocks
  std::uint64_t rounding = 0;
  std::uint64_t allocated = 0;  // sum of the above
  std::uint64_t reserved = 0;
  std::array<std::uint64_t, memory::kRoleCount> peak_roles{};
  std::uint64_t peak_allocated = 0;  // peak_roles and the rounding of that instant
};
MonitorMemory monitor_memory(const memory::Allocator& compute = memory::host_allocator());

// A window of steps. seconds = data_wait + compute + rest; evaluations and checkpoints are in none of them.
struct MonitorRecord {
  std::int64_t step = 0;   // the last one of the window
  std::int64_t epoch = 0;  // of it
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double seconds = 0;    // wall time
  double data_wait = 0;  // for batches: DataLoader::wait_seconds(); without workers, preparing them
  double compute = 0;    // forward, backward, clipping, update; attempts that ran out of memory too
  double rest = 0;       // schedule, ledger, logs, checks of the memory
  // Copies to a device, the device's time without a kernel, waiting for it. Absent on the CPU, which has none of them.
  std::optional<double> host_to_device = {}, launch_gap = {}, sync = {};
  double cpu_seconds = 0;  // CPU time of the compute threads, the calling thread included
  std::int64_t threads = 1;
  double lr = 0;     // of the last step
  double scale = 1;  // of the loss
  MonitorMemory memory = {};

  double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  // CPU time over wall time x threads, in [0, 1] but for the clocks' grain. A thread of the pool that spins for work
  // (tensor/cpu/cpu_time.h) counts as busy. While the run waits for data the threads sleep.
  double busy() const;
};

// One line of monitor.jsonl, without the newline, and back (DataError).
std::string to_json(const MonitorRecord& record);
MonitorRecord monitor_record(const std::string& line);
// DataError, with the line's number, for a file that is cut or damaged.
std::vector<MonitorRecord> read_monitor(const std::string& path);

// Sums over windows.
struct MonitorTotals {
  std::int64_t steps = 0, samples = 0;
  double seconds = 0, data_wait = 0, compute = 0, rest = 0;
  double cpu_seconds = 0, thread_seconds = 0;  // wall time x threads
  void add(const MonitorRecord& record);
};

struct Diagnosis {
  // What is slow: "loader" (data wait >= 15 % of the time), "records" (rest >= 15 %), "threads" (busy < 70 % while
  // computing is the most), "computing".
  std::string what;
  double data_wait = 0, compute = 0, rest = 0;  // shares of the time, in [0, 1]
  double busy = 0;
  double samples_per_second = 0;
  double without_wait = 0;  // samples/s if no step had to wait for its data: an upper bound
  std::string text;  // a sentence with the numbers
};
// Empty when no window was measured. `workers`, `threads`: of the run.
std::optional<Diagnosis> diagnose(const MonitorTotals& totals, std::int64_t workers, std::int64_t threads);
std::string to_json(const Diagnosis& diagnosis);

// Where the monitor reads.
struct MonitorSources {
  std::function<double()> now;          // seconds, from any beginning; never backwards
  std::function<double()> cpu_seconds;  // of all compute threads
  std::function<double()> data_wait;    // seconds so far
  std::function<std::int64_t()> threads;
  std::function<MonitorMemory()> memory;
};
MonitorSources monitor_sources(const data::DataLoader& loader,
                               const memory::Allocator& compute = memory::host_allocator());  // of this process; the loader must outlive them

// What the monitor is told of a step.
struct MonitoredStep {
  std::int64_t step = 0;  // from 0
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
  double lr = 0;
  double scale = 1;
};

class Monitor {
 public:
  // A record every `every` steps; 0 = off.
  Monitor(std::int64_t every, MonitorSources sources) : every_(every), sources_(std::move(sources)) {}

  void go_on();  // training begins, or goes on after pause()
  void pause();  // what follows is no training: a checkpoint, an evaluation
  // In scope while a step computes.
  class Computing {
   public:
    explicit Computing(Monitor& monitor) : monitor_(monitor), start_(monitor.sources_.now()) {}
    ~Computing() { monitor_.window_.compute += monitor_.sources_.now() - start_; }
    Computing(const Computing&) = delete;
    Computing& operator=(const Computing&) = delete;

   private:
    Monitor& monitor_;
    double start_;
  };
  // After each step. A window ends with the steps k-1, 2k-1, ... of the run, or where `close` says so (an epoch's end).
  std::optional<MonitorRecord> step_done(const MonitoredStep& step, bool close);
  const MonitorTotals& totals() const { return totals_; }

 private:
  void collect();
  std::int64_t every_;
  MonitorSources sources_;
  double now_ = 0, cpu_ = 0, wait_ = 0;  // read last
  MonitorRecord window_;
  MonitorTotals totals_;
};

}  // namespace limpid::train
