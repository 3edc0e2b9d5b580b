// Tuning one thing at a time: the batch, then loader threads, then pinned memory, then mixed precision. Each row is the
// one above with a single change, and its gain over it is measured: all rows in turn, several rounds, medians of steps.
// What has no effect on this machine is said to have none, and not given a number that is noise.
// Exit code 0 when the rows differ in what they should (same samples; the same losses with loader threads, other ones
// with another batch or precision; fewer bytes in 16 bits), 1 when not. Which change pays is measured, not checked.
//
//   tuning_steps [--samples 1536] [--rounds 3]
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

struct Row {
  const char* change;
  std::int64_t batch, workers;
  const char* precision;
  bool measured = true;
  const char* why = "";
  // What was measured.
  std::vector<double> sample_seconds = {},
                      losses = {};  // of each step but a run's first; of each step of the first round
  double wait = 0, seconds = 0;     // for data, of all
  std::uint64_t peak = 0;           // bytes, data and loader included
  std::int64_t samples = 0;
};

train::TrainSettings settings_of(const Row& row, std::int64_t samples) {
  train::TrainSettings s;
  s.data = "synthetic";
  s.input = {1, 28, 28};
  s.limit = samples;
  s.val_fraction = 0;
  s.augment = true;
  s.model = "lenet";
  s.optimizer = "adam";
  s.lr = 1e-3;
  s.epochs = 1;
  s.seed = 1;
  s.batch = row.batch;
  s.workers = row.workers;
  s.amp = row.precision;
  s.monitor_every = 1 << 20;  // one record a run
  return s;
}

class Watch : public train::TrainObserver {
 public:
  explicit Watch(Row& row) : row_(row), first_round_(row.losses.empty()) {}
  void on_step(const train::StepRecord& r) override {
    if (first_round_) row_.losses.push_back(r.loss), row_.samples += r.samples;
    if (r.step > 0) row_.sample_seconds.push_back(r.seconds / static_cast<double>(r.samples));
  }
  void on_monitor(const train::MonitorRecord& r) override { row_.wait += r.data_wait, row_.seconds += r.seconds; }

 private:
  Row& row_;
  bool first_round_;
};

void run(Row& row, std::int64_t samples) {
  const train::TrainSettings s = settings_of(row, samples);
  train::TrainParts parts = train::make_parts(s, {});
  parts.test = nullptr;
  Watch watch(row);
  train::Trainer trainer(s, std::move(parts), train::Start::fresh, &watch);
  row.peak = trainer.run().memory.allocated;
}

double percent(double ratio) { return 100 * (ratio - 1); }

// By the middle halves of both rows' steps.
const char* verdict(const train::Spread& now, const train::Spread& former) {
  return now.high < former.low ? "faster" : now.low > former.high ? "slower" : "not told apart";
}

}  // namespace

static int example(const Arguments& arguments) {
  const std::int64_t samples = arguments["--samples"], rounds = arguments["--rounds"];
  std::vector<Row> rows = {
      {"start: batch 4, no loader threads, fp32", 4, 0, "fp32"},
      {"batch 64", 64, 0, "fp32"},
      {"2 loader threads", 64, 2, "fp32"},
      {"pinned memory", 64, 2, "fp32", false, "no effect on a CPU: nothing is copied to a device; not measured"},
      {"bf16", 64, 2, "bf16"},
  };
  for (std::int64_t round = 0; round < rounds; round++)
    for (Row& row : rows)
      if (row.measured) run(row, samples);

  std::printf("lenet on %lld generated images of 1x28x28, moved; %d compute threads; %lld rounds\n\n",
              static_cast<long long>(samples), cpu::num_threads(), static_cast<long long>(rounds));
  std::printf("%-40s %9s %6s %9s  %-14s %8s %8s %10s\n", "change", "samples/s", "+- %", "gain", "", "in all", "waiting",
              "peak");
  std::optional<train::Spread> former, start;  // seconds a sample
  for (const Row& row : rows) {
    if (!row.measured) {
      std::printf("%-40s %s\n", row.change, row.why);
      continue;
    }
    const train::Spread now = train::spread_of(row.sample_seconds);
    std::printf("%-40s %9.0f %6.1f ", row.change, 1 / now.median, 50 * now.iqr());
    if (former) {
      std::printf("%+7.1f %%  %-14s %+6.1f %%", percent(former->median / now.median), verdict(now, *former),
                  percent(start->median / now.median));
    } else {
      std::printf("%9s  %-14s %8s", "", "", "");
      start = now;
    }
    std::printf(" %6.1f %% %10s\n", 100 * row.wait / row.seconds, format_bytes(row.peak).c_str());
    former = now;
  }
  std::printf(
      "\ngain: over the row above, of the median step; faster, slower: the middle halves of the two rows' steps do not "
      "meet;\n"
      "+-: half the distance of the quartiles; waiting: for data, share of the time\n");

  const Row &first = rows[0], &large = rows[1], &threads = rows[2], &half = rows[4];
  bool ok = true;
  for (const Row& row : rows) ok &= row.measured ? row.samples == samples && row.peak > 0 : row.sample_seconds.empty();
  ok &= threads.losses == large.losses && half.losses != threads.losses && first.losses != large.losses;
  ok &= half.peak < threads.peak && first.peak < large.peak;
  return ok ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "Tuning one thing at a time: the batch, loader threads, pinned memory, mixed precision; "
                               "what each one gains.",
                      .options = {{"--samples", 1536, "Training images", 128}, {"--rounds", 3, "Runs of each row"}},
                      .small_run = "--samples 384 --rounds 1"},
                     example);
}
