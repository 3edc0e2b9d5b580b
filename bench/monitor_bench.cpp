// What the monitor costs: runs with and without it, alternated in one process, and one record alone. By the clock, and
// in processor time of the compute threads, which other programs on the machine move less.
//   monitor_bench [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <limpid/tensor/cpu/cpu_time.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/trainer.h>

using namespace limpid;
using namespace limpid::train;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// From the end of the first step to that of the last: logs and monitor between them, no checkpoint.
struct StepTimes : TrainObserver {
  void on_step(const StepRecord&) override {
    last = Clock::now();
    processor_last = cpu::compute_cpu_seconds();
    if (steps++ == 0) first = last, processor_first = processor_last;
  }
  double a_step() const { return seconds_between(first, last) / static_cast<double>(steps - 1); }
  double processor_a_step() const { return (processor_last - processor_first) / static_cast<double>(steps - 1); }
  std::int64_t steps = 0;
  Clock::time_point first, last;
  double processor_first = 0, processor_last = 0;
};

StepTimes step_times(TrainSettings settings, std::int64_t every) {
  settings.monitor_every = every;
  StepTimes times;
  TrainParts parts = make_parts(settings, {});
  parts.test = nullptr;
  Trainer(settings, std::move(parts), Start::overwrite, &times).run();
  return times;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void compare(const TrainSettings& settings, std::int64_t every, int rounds) {
  std::vector<double> ratios, processor_ratios, plain;
  for (int round = 0; round < rounds; round++) {
    double seconds[2] = {}, processor[2] = {};           // without and with
    for (bool monitored : {true, false, false, true}) {  // a drift of the machine counts for neither
      const StepTimes times = step_times(settings, monitored ? every : 0);
      seconds[monitored] += times.a_step();
      processor[monitored] += times.processor_a_step();
    }
    ratios.push_back(seconds[1] / seconds[0]);
    processor_ratios.push_back(processor[1] / processor[0]);
    plain.push_back(seconds[0] / 2);
  }
  std::printf("%-9s batch %3lld, a record every %2lld steps, of %5.0f us: ", settings.model.c_str(),
              static_cast<long long>(settings.batch), static_cast<long long>(every), 1e6 * quantile(plain, 0.5));
  auto show = [](const char* what, const std::vector<double>& values) {
    std::printf("%s %.4f (quartiles %.4f to %.4f)", what, quantile(values, 0.5), quantile(values, 0.25),
                quantile(values, 0.75));
  };
  show("time ratio", ratios);
  show("; of processor time", processor_ratios);
  std::printf("\n");
}

// A window of one step: clocks, counters of both pools, the line and its write.
void one_record(const std::string& folder) {
  MonitorSources sources{.now = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); },
                         .cpu_seconds = cpu::compute_cpu_seconds,
                         .data_wait = [] { return 0.0; },
                         .threads = [] { return std::int64_t{cpu::num_threads()}; },
                         .memory = monitor_memory};
  constexpr int kRecords = 2000;
  for (std::int64_t every : {std::int64_t{1}, std::int64_t{1} << 40}) {
    Monitor monitor(every, sources);
    LineFile file(folder + "/lines", 0);
    std::vector<double> times, processor;
    for (int repeat = 0; repeat < 21; repeat++) {
      monitor.go_on();
      const Clock::time_point start = Clock::now();
      const double processor_start = cpu::compute_cpu_seconds();
      for (std::int64_t step = 0; step < kRecords; step++) {
        { Monitor::Computing computing(monitor); }
        if (const auto record = monitor.step_done({.step = step, .samples = 32}, false))
          file.write_line(to_json(*record));
      }
      times.push_back(1e6 * seconds_between(start, Clock::now()) / kRecords);
      processor.push_back(1e6 * (cpu::compute_cpu_seconds() - processor_start) / kRecords);
    }
    std::printf("%s: %.2f us (%.2f to %.2f), processor time %.2f us (%.2f to %.2f)\n",
                every == 1 ? "a record, written" : "a step without a record", quantile(times, 0.5), quantile(times, 0),
                quantile(times, 1), quantile(processor, 0.5), quantile(processor, 0), quantile(processor, 1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 40;
  const std::string folder = (std::filesystem::temp_directory_path() / "limpid-monitor-bench").string();
  std::filesystem::create_directories(folder);
  one_record(folder);
  TrainSettings s;
  s.data = "synthetic";
  s.input = {1, 28, 28};
  s.classes = 10;
  s.val_fraction = 0;
  s.epochs = 1;
  s.workers = 1;
  s.trace = 0;
  s.out = folder + "/run";
  s.model = "mlp";
  s.batch = 32;
  s.limit = 32 * 200;
  for (std::int64_t every : {1, 10}) compare(s, every, rounds);
  s.model = "lenet";
  s.batch = 64;
  s.limit = 64 * 20;
  for (std::int64_t every : {1, 10}) compare(s, every, rounds);
  std::filesystem::remove_all(folder);
  return 0;
}
