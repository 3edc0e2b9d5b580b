// The logs of a run read back together: whole, unfinished, cut, changed, of another run.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <limpid/base/error.h>
#include <limpid/train/run_log.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using limpid_test::TempFolder;
using limpid_test::text_of;

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; }

// Without its last `count` lines.
std::string without_last(std::string text, int count) {
  for (; count > 0; count--) {
    text.pop_back();
    text.resize(text.rfind('\n') + 1);
  }
  return text;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  REQUIRE_MESSAGE(at != std::string::npos, what);
  return text.replace(at, what.size(), with);
}

TrainSettings small_run(const std::string& out) {
  TrainSettings s;
  s.data = "synthetic";
  s.input = {3, 8, 8};
  s.classes = 4;
  s.limit = 50;
  s.val_fraction = 0.2;
  s.model = "seed";
  s.epochs = 2;
  s.batch = 16;
  s.workers = 0;
  s.threads = 1;
  s.monitor_every = 2;
  s.trace = 0;
  s.out = out;
  return s;
}

void train_run(const TrainSettings& s, TrainObserver* observer = nullptr) {
  TrainParts parts = make_parts(s, {});
  parts.test = nullptr;
  Trainer(s, std::move(parts), Start::fresh, observer).run();
}

std::string error_of(const std::string& folder) {
  try {
    read_run(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a run is read back as it was told") {
  TempFolder folder;
  const TrainSettings s = small_run(folder / "run");
  struct Recorder : TrainObserver {
    void on_step(const StepRecord& r) override { steps.push_back(r); }
    void on_monitor(const MonitorRecord& r) override { monitor.push_back(r); }
    void on_epoch(const EpochRecord& r) override { epochs.push_back(r); }
    std::vector<StepRecord> steps;
    std::vector<MonitorRecord> monitor;
    std::vector<EpochRecord> epochs;
  } told;
  train_run(s, &told);
  const RunLog log = read_run(s.out);
  CHECK(log.notes.empty());
  CHECK(log.settings.batch == 16);
  CHECK(contains(log.run_json, "\"machine\""));
  REQUIRE(log.steps.size() == 6);
  REQUIRE(told.steps.size() == 6);
  for (std::size_t i = 0; i < 6; i++) {
    CHECK(log.steps[i].step == told.steps[i].step);
    CHECK(log.steps[i].epoch == told.steps[i].epoch);
    CHECK(log.steps[i].samples == told.steps[i].samples);
    CHECK(log.steps[i].loss == told.steps[i].loss);
    CHECK(log.steps[i].accuracy == told.steps[i].accuracy);
    CHECK(log.steps[i].lr == told.steps[i].lr);
    CHECK(log.steps[i].reserved_bytes == told.steps[i].reserved_bytes);
  }
  REQUIRE(log.monitor.size() == told.monitor.size());
  CHECK(log.monitor.back().step == 5);
  CHECK(log.ledger.steps.size() == 6);
  REQUIRE(log.ledger.epochs.size() == 2);
  for (std::size_t i = 0; i < 2; i++) {
    CHECK(log.ledger.epochs[i].train_loss == told.epochs[i].train_loss);
    CHECK(log.ledger.epochs[i].validation_loss == told.epochs[i].validation->loss);
    CHECK(log.ledger.epochs[i].validation_accuracy == told.epochs[i].validation->accuracy);
  }
}

TEST_CASE("without the monitor; with a loss that is no number") {
  TempFolder folder;
  TrainSettings s = small_run(folder / "run");
  s.monitor_every = 0;
  s.val_fraction = 0;
  s.optimizer = "sgd";
  s.lr = 1e30;
  train_run(s);
  const RunLog log = read_run(s.out);
  CHECK(log.monitor.empty());
  REQUIRE(log.notes.size() == 1);
  CHECK(contains(log.notes[0], "no records of the monitor"));
  CHECK(std::isnan(log.steps.back().loss));
  CHECK(!log.ledger.epochs.at(0).validation_loss);
  std::filesystem::remove(s.out + "/monitor.jsonl");
  CHECK(read_run(s.out).monitor.empty());
}

TEST_CASE("a run that was killed is read as far as it came") {
  TempFolder folder;
  const TrainSettings s = small_run(folder / "run");
  train_run(s);
  const std::string steps = s.out + "/steps.jsonl", ledger = s.out + "/ledger.jsonl", monitor = s.out + "/monitor.jsonl";
  const std::string all_steps = text_of(steps), all_ledger = text_of(ledger), all_monitor = text_of(monitor);
  // Between the records of step 5: the ledger has it, the other logs have not. The epoch's own record was not made.
  write(ledger, without_last(all_ledger, 1));
  write(steps, without_last(all_steps, 1));
  write(monitor, without_last(all_monitor, 1));
  RunLog log = read_run(s.out);
  CHECK(log.steps.size() == 5);
  CHECK(log.ledger.steps.size() == 5);
  CHECK(log.ledger.epochs.size() == 1);
  REQUIRE(log.notes.size() == 1);
  CHECK(contains(log.notes[0], "between two records of step 5"));
  // A process that is at it: its logs may be at any step, and it is named.
  write(steps, without_last(all_steps, 3));
  write(monitor, "");
  CHECK(contains(error_of(s.out), "steps.jsonl has 3 steps, ledger.jsonl beside it 6: one of them was cut"));
  {
    const auto lock = RunFolder::lock(s.out);
    log = read_run(s.out);
  }
  CHECK(log.steps.size() == 3);
  CHECK(log.ledger.epochs.size() == 1);
  CHECK(contains(log.notes.at(0), "going on when this was read: it was at step 3"));
}

TEST_CASE("what is cut, changed or of another version is named") {
  TempFolder folder;
  const TrainSettings s = small_run(folder / "run");
  train_run(s);
  const std::string run = s.out;
  auto damaged = [&](const std::string& name, const std::string& text) {
    const std::string path = run + "/" + name, whole = text_of(path);
    write(path, text);
    const std::string error = error_of(run);
    write(path, whole);
    CHECK_MESSAGE(contains(error, name), error);
    return error;
  };
  const std::string steps = text_of(run + "/steps.jsonl"), ledger = text_of(run + "/ledger.jsonl"),
                    monitor = text_of(run + "/monitor.jsonl"), settings = text_of(run + "/run.json");
  CHECK(contains(damaged("steps.jsonl", steps.substr(0, steps.size() - 9)), "line 6: the last line has no end: the file was cut"));
  CHECK(contains(damaged("steps.jsonl", without_last(steps, 2)), "has 4 steps, ledger.jsonl beside it 6"));
  CHECK(contains(damaged("steps.jsonl", steps + steps), "line 7: step 0 stands where step 6 belongs"));
  CHECK(contains(damaged("steps.jsonl", replaced(steps, "\"samples\":16", "\"samples\":15")),
                 "step 0 has the number of samples 15, ledger.jsonl beside it 16: they are of two runs, or one was changed"));
  CHECK(contains(damaged("steps.jsonl", replaced(steps, "\"loss\":", "\"loss\":1")), "step 0 has the loss 1"));
  CHECK(contains(damaged("steps.jsonl", replaced(steps, "\"lr\":0.001", "\"lr\":0.002")), "step 0 has the learning rate 0.002"));
  CHECK(contains(damaged("steps.jsonl", replaced(steps, "\"applied\":true", "\"applied\":1")), "line 1: "));
  CHECK(contains(damaged("ledger.jsonl", ledger.substr(0, ledger.size() - 9)), "cut"));
  CHECK(contains(damaged("ledger.jsonl", replaced(ledger, "\"samples\":16", "\"samples\":15")), "CRC"));
  CHECK(contains(damaged("ledger.jsonl", ""), "ledger.jsonl"));
  CHECK(contains(damaged("monitor.jsonl", monitor.substr(0, monitor.size() - 9)), "the last line has no end"));
  CHECK(contains(damaged("run.json", replaced(settings, "\"format\": 1", "\"format\": 2")), "format is 2, this program reads 1"));
  CHECK(contains(damaged("run.json", "{}"), "run.json"));
  // The monitor is of a longer run.
  write(run + "/steps.jsonl", without_last(steps, 1));
  write(run + "/ledger.jsonl", without_last(ledger, 1));
  CHECK(contains(error_of(run), "steps.jsonl has 5 steps, monitor.jsonl beside it ends with step 5: the first was cut"));
  write(run + "/steps.jsonl", steps);
  write(run + "/ledger.jsonl", ledger);
  CHECK(error_of(run) == "");
  CHECK(contains(error_of(folder / "none"), "holds no run"));
}
