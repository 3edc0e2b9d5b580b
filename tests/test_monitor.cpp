#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include <limpid/base/error.h>
#include <limpid/data/loader.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/cpu/cpu_time.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/monitor.h>
#include <limpid/train/trainer.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using doctest::Approx;
using limpid_test::TempFolder;

namespace {

// Clocks that stand until they are moved.
struct FakeClocks {
  double now = 100, cpu = 7, wait = 3;
  std::int64_t threads = 2;
  MonitorSources sources() {
    return {[this] { return now; }, [this] { return cpu; }, [this] { return wait; }, [this] { return threads; },
            [] { return MonitorMemory{.allocated = 5, .reserved = 8, .peak_allocated = 6}; }};
  }
  // A step: waits, computes with all threads busy, then does other things on one thread.
  void step(Monitor& monitor, double wait_for, double compute, double rest) {
    wait += wait_for, now += wait_for;
    {
      Monitor::Computing computing(monitor);
      now += compute, cpu += compute * static_cast<double>(threads);
    }
    now += rest, cpu += rest;
  }
};

template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a window's time is waiting, computing and the rest; pauses are none of it") {
  FakeClocks clocks;
  Monitor monitor(4, clocks.sources());
  monitor.go_on();
  std::optional<MonitorRecord> record;
  for (std::int64_t step = 0; step < 4; step++) {
    REQUIRE(!record);
    clocks.step(monitor, 0.5, 1.25, 0.25);
    if (step == 1) {  // a checkpoint
      monitor.pause();
      clocks.now += 1000, clocks.cpu += 500;
      monitor.go_on();
    }
    record = monitor.step_done({step, 0, 32, 0.1, 1024}, false);
  }
  REQUIRE(record);
  CHECK(record->step == 3);
  CHECK(record->steps == 4);
  CHECK(record->samples == 128);
  CHECK(record->seconds == Approx(8));
  CHECK(record->data_wait == Approx(2));
  CHECK(record->compute == Approx(5));
  CHECK(record->rest == Approx(1));
  CHECK(record->cpu_seconds == Approx(11));
  CHECK(record->busy() == Approx(11.0 / 16));
  CHECK(record->samples_per_second() == Approx(16));
  CHECK(record->lr == 0.1);
  CHECK(record->scale == 1024);
  CHECK(record->memory.allocated == 5);
  CHECK(!record->host_to_device);
  CHECK(!record->launch_gap);
  CHECK(!record->sync);

  // The end of an epoch closes a window early, and the next one ends with step 7 nevertheless.
  clocks.step(monitor, 0, 1, 0);
  record = monitor.step_done({4, 0, 20, 0.1, 1024}, true);
  REQUIRE(record);
  CHECK(record->steps == 1);
  CHECK(record->data_wait == 0);
  CHECK(record->busy() == Approx(1));
  for (std::int64_t step = 5; step < 8; step++) {
    clocks.step(monitor, 0, 1, 0);
    record = monitor.step_done({step, 1, 32, 0.05, 1024}, false);
    CHECK(record.has_value() == (step == 7));
  }
  CHECK(record->steps == 3);
  const MonitorTotals& t = monitor.totals();
  CHECK(t.steps == 8);
  CHECK(t.samples == 128 + 20 + 96);
  CHECK(t.seconds == Approx(12));
  CHECK(t.thread_seconds == Approx(24));
  CHECK(t.data_wait + t.compute + t.rest == Approx(t.seconds));
}

TEST_CASE("0 turns the monitor off") {
  FakeClocks clocks;
  Monitor monitor(0, clocks.sources());
  monitor.go_on();
  clocks.step(monitor, 1, 1, 1);
  CHECK(!monitor.step_done({9, 0, 1, 0.1, 1024}, true));
  CHECK(!diagnose(monitor.totals(), 2, 2));
}

TEST_CASE("the diagnosis names what the time was spent on, with the numbers") {
  auto diagnosis = [](double wait, double compute, double rest, double busy, std::int64_t workers, std::int64_t threads) {
    MonitorTotals t;
    t.add({.steps = 10, .samples = 500, .seconds = 10, .data_wait = 10 * wait, .compute = 10 * compute, .rest = 10 * rest,
           .cpu_seconds = 10 * busy * static_cast<double>(threads), .threads = threads});
    return *diagnose(t, workers, threads);
  };
  Diagnosis d = diagnosis(0.42, 0.55, 0.03, 0.55, 2, 2);
  CHECK(d.what == "loader");
  CHECK(d.text == "the loader is the limit: 42 % of the time was waiting for data; without it 86 samples/s at most, instead of 50; "
                  "more --workers (now 2) may help");
  CHECK(d.samples_per_second == Approx(50));
  d = diagnosis(0.42, 0.55, 0.03, 0.9, 0, 2);
  CHECK(d.text == "the loader is the limit: 42 % of the time was preparing data in the training thread; without it 86 samples/s "
                  "at most, instead of 50; --workers prepare data meanwhile");
  CHECK(d.without_wait == Approx(500 / 5.8));
  d = diagnosis(0.01, 0.69, 0.3, 0.9, 2, 2);
  CHECK(d.what == "records");
  CHECK(d.text.find("30 %") != std::string::npos);
  d = diagnosis(0.01, 0.97, 0.02, 0.4, 2, 8);
  CHECK(d.what == "threads");
  CHECK(d.text.find("8 threads were busy 40 %") != std::string::npos);
  d = diagnosis(0.01, 0.97, 0.02, 0.96, 2, 1);
  CHECK(d.what == "computing");
  CHECK(d.text == "computing is the limit: 97 % of the time, 1 thread was busy 96 %, 1 % was waiting for data; more or faster cores "
                  "would help");
  CHECK(to_json(d).find("\"what\":\"computing\"") != std::string::npos);
}

TEST_CASE("a record survives its line; damaged lines are named") {
  MonitorRecord r{.step = 19, .epoch = 1, .steps = 10, .samples = 320, .seconds = 1.5, .data_wait = 0.25, .compute = 1,
                  .rest = 0.25, .cpu_seconds = 2.5, .threads = 2, .lr = 0.01};
  r.memory = monitor_memory();
  const std::string line = to_json(r);
  CHECK(line.find("\"host_to_device_seconds\":null") != std::string::npos);
  CHECK(to_json(monitor_record(line)) == line);
  TempFolder folder;
  const std::string path = folder / "monitor.jsonl";
  auto read = [&](const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    return error_of([&] { read_monitor(path); });
  };
  CHECK(read("") == "");
  CHECK(read(line + "\n") == "");
  CHECK(read(line + "\n" + line.substr(0, 40)).find("line 2: the last line has no end") != std::string::npos);
  CHECK(read(line + "\n" + line + "\n").find("ends with step 19 after one that ends with step 19") != std::string::npos);
  CHECK(read("{\"step\":3}\n").find("line 1: the entry \"epoch\" is missing") != std::string::npos);
}

TEST_CASE("CPU time of the pool counts what its threads do") {
  const int former = cpu::num_threads();
  cpu::set_num_threads(3);
  const double before = cpu::compute_cpu_seconds();
  std::atomic<std::int64_t> sink{0};
  cpu::parallel_for(64, [&](std::int64_t task) {
    auto x = static_cast<std::uint64_t>(task);  // wraps
    for (int i = 0; i < 300000; i++) x = x * 6364136223846793005 + 1442695040888963407;
    sink += static_cast<std::int64_t>(x & 1);
  });
  const double used = cpu::compute_cpu_seconds() - before;
  CHECK(used > 0.002);  // 19 million dependent multiplications, 3 cycles each: 57 million cycles, on whichever thread
  cpu::set_num_threads(former);
}

namespace {

// Each sample takes a while to come.
class SlowData : public data::Dataset {
 public:
  std::int64_t size() const override { return 24; }
  data::Example get(std::int64_t index) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    return {full({3, 8, 8}, 0.1 * static_cast<double>(index)), index % 4};
  }
};

}  // namespace

TEST_CASE("a slow loader is measured and named, in records, observer and result") {
  TempFolder folder;
  TrainSettings s;
  s.data = "synthetic";
  s.input = {3, 8, 8};
  s.classes = 4;
  s.limit = 24;
  s.val_fraction = 0;
  s.model = "seed";
  s.epochs = 2;
  s.batch = 4;
  s.workers = 1;
  s.threads = 1;
  s.monitor_every = 4;
  s.out = folder / "run";
  struct Recorder : TrainObserver {
    void on_monitor(const MonitorRecord& r) override { records.push_back(r); }
    std::vector<MonitorRecord> records;
  } recorder;
  TrainParts parts = make_parts(s, {});
  parts.training = std::make_shared<SlowData>();
  parts.test = nullptr;
  TrainResult result;
  {
    Trainer trainer(s, std::move(parts), Start::fresh, &recorder);
    result = trainer.run();
  }
  // 6 steps an epoch: windows end with the steps 3, 5 (the epoch's end), 7, 11.
  REQUIRE(recorder.records.size() == 4);
  CHECK(recorder.records[1].step == 5);
  CHECK(recorder.records[1].steps == 2);
  CHECK(recorder.records[2].steps == 2);
  CHECK(recorder.records[3].steps == 4);
  for (const MonitorRecord& r : recorder.records) {
    CHECK(r.samples == 4 * r.steps);
    CHECK(r.data_wait + r.compute + r.rest == Approx(r.seconds));
    CHECK(r.data_wait >= 0);
    CHECK(r.compute > 0);
    CHECK(r.memory.roles[static_cast<std::size_t>(memory::Role::param)] > 0);
    std::uint64_t sum = r.memory.rounding;
    for (std::uint64_t bytes : r.memory.roles) sum += bytes;
    CHECK(sum == r.memory.allocated);
    CHECK(r.memory.peak_allocated >= r.memory.allocated);
    CHECK(r.memory.reserved >= r.memory.allocated);
  }
  // 16 ms of sleep a batch, against a model of a few microseconds.
  REQUIRE(result.diagnosis);
  CHECK(result.diagnosis->what == "loader");
  CHECK(result.diagnosis->data_wait > 0.3);
  CHECK(result.diagnosis->data_wait + result.diagnosis->compute + result.diagnosis->rest == Approx(1));
  const std::vector<MonitorRecord> written = read_monitor(s.out + "/monitor.jsonl");
  REQUIRE(written.size() == recorder.records.size());
  for (std::size_t i = 0; i < written.size(); i++) CHECK(to_json(written[i]) == to_json(recorder.records[i]));
}
