#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include <limpid/base/file.h>
#include <limpid/data/split.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/safetensors.h>
#include <limpid/train/trainer.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using limpid_test::TempFolder;
using Json = nlohmann::json;

namespace {

TrainSettings small_settings() {
  TrainSettings s;
  s.data = "synthetic";
  s.input = {3, 8, 8};
  s.classes = 4;
  s.limit = 100;
  s.val_fraction = 0.2;
  s.model = "seed";
  s.epochs = 2;
  s.batch = 16;
  s.seed = 5;
  s.lr = 0.01;
  s.workers = 1;
  s.threads = 2;
  return s;
}

// The parts by settings, with few test samples.
TrainParts small_parts(const TrainSettings& s) {
  TrainParts parts = make_parts(s, {});
  parts.test = data::limit(parts.test, 50, 1);
  return parts;
}

struct Recorder : TrainObserver {
  void on_start(std::int64_t first, std::int64_t total, std::int64_t) override {
    first_step = first, total_steps = total;
  }
  void on_step(const StepRecord& r) override {
    steps.push_back(r);
    if (stop && r.step + 1 == stop_after) stop->store(true);
  }
  void on_epoch(const EpochRecord& r) override { epochs.push_back(r); }
  void on_checkpoint(const std::string& folder) override { checkpoints.push_back(folder); }
  std::int64_t first_step = -1, total_steps = -1, stop_after = -1;
  std::atomic<bool>* stop = nullptr;
  std::vector<StepRecord> steps;
  std::vector<EpochRecord> epochs;
  std::vector<std::string> checkpoints;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         (x.nbytes() == 0 || std::memcmp(x.raw_data(), y.raw_data(), x.nbytes()) == 0);
}

nn::StateDict copy_of(const nn::StateDict& state) {
  nn::StateDict out;
  for (const auto& [name, tensor] : state) out[name] = tensor.detach().clone();
  return out;
}

void check_same(const nn::StateDict& a, const nn::StateDict& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) CHECK_MESSAGE(same_bits(tensor, b.at(name)), name);
}

// The log without what differs between two equal runs: times and memory.
std::vector<Json> step_log(const std::string& run) {
  std::vector<Json> lines;
  std::ifstream file(run + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line);
    json.erase("seconds");
    json.erase("allocated_bytes");
    json.erase("reserved_bytes");
    lines.push_back(json);
  }
  return lines;
}

struct Outcome {
  nn::StateDict model, optimizer;
  std::vector<double> losses;
  TrainResult result;
};

Outcome train_once(const TrainSettings& s) {
  Recorder recorder;
  Trainer trainer(s, small_parts(s), Start::fresh, &recorder);
  Outcome out;
  out.result = trainer.run();
  out.model = copy_of(trainer.model().state_dict());
  out.optimizer = copy_of(trainer.optimizer().state_dict().tensors);
  for (const StepRecord& r : recorder.steps) out.losses.push_back(r.loss);
  return out;
}

}  // namespace

TEST_CASE("a run learns, validates each epoch and reports memory that balances") {
  TrainSettings s = small_settings();
  s.epochs = 8;
  Recorder recorder;
  Trainer trainer(s, small_parts(s), Start::fresh, &recorder);
  const TrainResult r = trainer.run();
  CHECK_FALSE(r.stopped);
  CHECK(recorder.first_step == 0);
  CHECK(recorder.total_steps == 40);  // 80 training samples, batch 16, 8 epochs
  CHECK(r.steps == 40);
  CHECK(r.samples == 640);
  CHECK(r.epochs == 8);
  REQUIRE(recorder.epochs.size() == 8);
  CHECK(recorder.epochs.back().train_loss < recorder.epochs.front().train_loss);
  std::int64_t best = -1;
  double lowest = 0;
  for (const EpochRecord& e : recorder.epochs) {
    REQUIRE(e.validation.has_value());
    CHECK(e.validation->samples == 20);
    if (best < 0 || e.validation->loss < lowest) best = e.epoch, lowest = e.validation->loss;
  }
  CHECK(r.best_epoch == best);
  CHECK(r.best_validation_loss == lowest);
  REQUIRE(r.test.has_value());
  CHECK(r.test->samples == 50);
  CHECK(r.parameters == 3 * 64 * 9 + 64 + 64 * 4 + 4);
  CHECK(r.checkpoint.empty());

  std::uint64_t sum = r.memory.rounding;
  for (std::uint64_t bytes : r.memory.roles) sum += bytes;
  CHECK(sum == r.memory.allocated);
  CHECK(r.memory.reserved >= r.memory.allocated);
  CHECK(r.memory.role(memory::Role::param) == static_cast<std::uint64_t>(r.parameters) * 4);
  CHECK(r.memory.role(memory::Role::optimizer) >= static_cast<std::uint64_t>(r.parameters) * 8);
  CHECK(r.memory.role(memory::Role::io) > 0);
  CHECK(Json::parse(to_json(r.memory))["roles"]["param"] == r.memory.role(memory::Role::param));
  CHECK(to_string(r.memory).find("optimizer") != std::string::npos);
}

TEST_CASE("samples: the last batch is short, or dropped when asked") {
  TrainSettings s = small_settings();
  s.limit = 90;
  s.epochs = 1;
  Recorder recorder;
  Trainer(s, small_parts(s), Start::fresh, &recorder).run();  // 72 samples
  REQUIRE(recorder.steps.size() == 5);
  CHECK(recorder.steps.back().samples == 8);
  s.drop_last = true;
  Recorder dropping;
  Trainer(s, small_parts(s), Start::fresh, &dropping).run();
  CHECK(dropping.steps.size() == 4);
}

TEST_CASE("the same bits for every number of workers and threads") {
  TrainSettings s = small_settings();
  s.augment = true;
  s.workers = 0;
  s.threads = 1;
  const Outcome expected = train_once(s);
  for (auto [workers, threads] : {std::pair{1, 2}, {3, 3}, {0, 3}, {3, 1}}) {
    CAPTURE(workers);
    CAPTURE(threads);
    s.workers = workers;
    s.threads = threads;
    const Outcome other = train_once(s);
    CHECK(other.losses == expected.losses);
    check_same(expected.model, other.model);
    check_same(expected.optimizer, other.optimizer);
    CHECK(other.result.test->loss == expected.result.test->loss);
  }
  s.seed++;
  CHECK(train_once(s).losses != expected.losses);
}

TEST_CASE("stopped anywhere and resumed, a run ends in the same bits") {
  for (const char* optimizer : {"adam", "sgd"}) {
    CAPTURE(optimizer);
    TempFolder folder;
    TrainSettings s = small_settings();
    s.model = "lenet-bn";
    s.optimizer = optimizer;
    if (s.optimizer == "sgd") s.momentum = 0.9;
    s.schedule = "cosine";
    s.warmup = 2;
    s.clip = 1;
    s.label_smoothing = 0.1;
    s.augment = true;
    s.out = folder / "whole";
    Recorder whole;
    Trainer reference(s, small_parts(s), Start::fresh, &whole);
    const TrainResult expected = reference.run();
    CHECK(expected.steps == 10);
    const std::vector<Json> log = step_log(s.out);
    REQUIRE(log.size() == 10);

    // After the last step of an epoch (5) its validation is stopped, and made when the run goes on.
    for (std::int64_t k : {1, 4, 5, 6, 9}) {
      CAPTURE(k);
      s.out = folder / ("stopped" + std::to_string(k));
      std::atomic<bool> stop{false};
      Recorder first;
      first.stop = &stop;
      first.stop_after = k;
      {
        Trainer trainer(s, small_parts(s), Start::fresh, &first);
        const TrainResult r = trainer.run(&stop);
        CHECK(r.stopped);
        CHECK(r.steps == k);
        CHECK_FALSE(r.test.has_value());
        CHECK_FALSE(r.checkpoint.empty());
      }
      // What a killed run would have logged after its checkpoint.
      std::ofstream(s.out + "/steps.jsonl", std::ios::app) << "{\"torn";
      s.threads = 1;
      s.workers = 0;
      Recorder second;
      Trainer trainer(s, small_parts(s), Start::resume, &second);
      const TrainResult r = trainer.run();
      CHECK(second.first_step == k);
      CHECK(second.steps.size() == static_cast<std::size_t>(10 - k));
      CHECK(step_log(s.out) == log);
      check_same(reference.model().state_dict(), trainer.model().state_dict());
      check_same(reference.optimizer().state_dict().tensors, trainer.optimizer().state_dict().tensors);
      CHECK(r.test->loss == expected.test->loss);
      CHECK(r.train_loss == expected.train_loss);
      CHECK(r.best_epoch == expected.best_epoch);
      CHECK(r.best_validation_loss == expected.best_validation_loss);
      CHECK(r.samples == expected.samples);
    }
  }
}

TEST_CASE("a finished run resumes to its result, and may grow") {
  TempFolder folder;
  TrainSettings s = small_settings();
  s.epochs = 3;
  s.out = folder / "whole";
  Trainer whole(s, small_parts(s));
  const TrainResult expected = whole.run();

  s.epochs = 2;
  s.out = folder / "short";
  Trainer(s, small_parts(s)).run();
  const TrainResult same = Trainer(s, small_parts(s), Start::resume).run();
  CHECK(same.steps == 10);
  CHECK(same.test.has_value());
  s.epochs = 3;
  Trainer longer(s, small_parts(s), Start::resume);
  const TrainResult r = longer.run();
  CHECK(r.steps == expected.steps);
  check_same(whole.model().state_dict(), longer.model().state_dict());
  s.batch = 8;
  CHECK(RunFolder::settings_of(s.out).epochs == 3);
  CHECK_THROWS_AS(Trainer(s, small_parts(s), Start::resume), ArgumentError);  // in use
}

TEST_CASE("a run killed before its first checkpoint starts anew") {
  TempFolder folder;
  TrainSettings s = small_settings();
  s.out = folder / "run";
  RunFolder::create(s.out, s)->steps().write_line("{\"step\": 0}");
  Trainer trainer(s, small_parts(s), Start::resume);
  const TrainResult r = trainer.run();
  CHECK(r.steps == 10);
  CHECK(step_log(s.out).size() == 10);
}

TEST_CASE("a checkpoint inside an epoch is written as often as asked") {
  TempFolder folder;
  TrainSettings s = small_settings();
  s.out = folder / "run";
  s.checkpoint_every = 2;
  Recorder recorder;
  Trainer(s, small_parts(s), Start::fresh, &recorder).run();
  std::vector<std::string> names;
  for (const std::string& path : recorder.checkpoints) names.push_back(std::filesystem::path(path).filename().string());
  CHECK(names == std::vector<std::string>{"00000002", "00000004", "00000005", "00000006", "00000008", "00000010"});
  std::ifstream ledger(s.out + "/ledger.jsonl");
  int lines = 0;
  for (std::string line; std::getline(ledger, line);) {
    const Json json = Json::parse(line);
    if (json["kind"] != "epoch") continue;
    lines++;
    std::uint64_t sum = 0;
    for (const auto& [role, bytes] : json["roles"].items()) sum += role == "external" ? 0 : bytes.get<std::uint64_t>();
    CHECK(json["reserved"] == sum + json["rounding"].get<std::uint64_t>() + json["slack"].get<std::uint64_t>() +
                                  json["pending_free"].get<std::uint64_t>() +
                                  json["free_in_used"].get<std::uint64_t>() + json["free_whole"].get<std::uint64_t>());
  }
  CHECK(lines == 2);
}

TEST_CASE("weights to start from are loaded") {
  TempFolder folder;
  TrainSettings s = small_settings();
  TrainParts parts = small_parts(s);
  nn::StateDict weights;
  for (const auto& [name, tensor] : parts.model->state_dict()) weights[name] = full(tensor.shape(), 0.25);
  save_safetensors(folder / "w.safetensors", weights);
  s.init = folder / "w.safetensors";
  check_same(weights, make_parts(s, {}).model->state_dict());
  s.model = "mlp";
  CHECK_THROWS_AS(make_parts(s, {}), DataError);
  s.init = folder / "none";
  CHECK_THROWS_AS(make_parts(s, {}), Error);
}

TEST_CASE("a memory cap that is too small is a typed error, and nothing stays behind") {
  TrainSettings s = small_settings();
  s.input = {3, 32, 32};
  s.memory_cap = 8 << 20;
  s.batch = 80;
  {
    Trainer trainer(s, small_parts(s));
    CHECK_THROWS_AS(trainer.run(), memory::OutOfMemoryError);
  }
  s.memory_cap = 1;
  CHECK_THROWS_AS(Trainer(s, small_parts(s)), Error);
  s.memory_cap = std::uint64_t{1} << 30;
  Trainer trainer(s, small_parts(s));
  const TrainResult r = trainer.run();
  CHECK(r.memory.reserved <= s.memory_cap);
  memory::host_allocator().set_capacity(0);
}

TEST_CASE("what the data does not have is refused") {
  TrainSettings s = small_settings();
  s.data = "nothing";
  CHECK_THROWS_AS(make_parts(s, {}), ArgumentError);
  s = small_settings();
  s.data = "mnist";
  s.data_dir = "/nonexistent";
  CHECK_THROWS_AS(make_parts(s, {}), DataError);
  s = small_settings();
  s.model = "nothing";
  CHECK_THROWS_AS(make_parts(s, {}), ArgumentError);
  s = small_settings();
  s.limit = 10;
  s.drop_last = true;
  CHECK_THROWS_AS(make_parts(s, {}), ArgumentError);
  s = small_settings();
  s.val_fraction = 0;
  TrainParts parts = small_parts(s);
  CHECK(parts.validation == nullptr);
  Trainer trainer(s, parts);
  const TrainResult r = trainer.run();
  CHECK_FALSE(r.validation.has_value());
  CHECK(r.best_epoch == -1);
  s.warmup = 1000;
  CHECK_THROWS_AS(Trainer(s, parts), ArgumentError);
}

TEST_CASE("evaluation counts every sample and leaves the model as it was") {
  // Logits are the input itself: the prediction is the largest pixel.
  struct Echo : nn::Module {
    Tensor forward(const Tensor& x) override { return flatten(x, 1); }
  };
  Echo model;
  Tensor x = from_vector<float>({5, 0, 0, 0, 5, 0, 0, 5, 0, 9, 0, 0}, {4, 1, 1, 3});
  Tensor y = from_vector<std::int64_t>({0, 1, 2, 0}, {4});
  data::TensorDataset dataset(x, y);
  data::DataLoader loader(dataset, {.batch_size = 3});
  const Evaluation e = evaluate(model, loader, 3);
  CHECK(e.samples == 4);
  CHECK(e.correct == 3);
  CHECK(e.accuracy == doctest::Approx(0.75));
  CHECK(e.count(0, 0) == 2);
  CHECK(e.count(1, 1) == 1);
  CHECK(e.count(2, 1) == 1);
  CHECK(e.class_accuracy() == std::vector<double>{1, 1, 0});
  // -log softmax: three times the winner's, once that of a class 5 below it.
  const double win5 = std::log(1 + 2 * std::exp(-5.0)), win9 = std::log(1 + 2 * std::exp(-9.0));
  CHECK(e.loss == doctest::Approx((2 * win5 + win9 + win5 + 5) / 4).epsilon(1e-6));
  CHECK(model.training());
  CHECK(to_string(e, {"a", "b", "c"}).find("confusion") != std::string::npos);
  // A flag ends it behind a batch; behind the last one there is nothing to end.
  std::atomic<bool> stop{true};
  const Evaluation half = evaluate(model, loader, 3, {}, 0, &stop);
  CHECK(half.stopped);
  CHECK(half.samples == 3);
  stop = false;
  const Evaluation all = evaluate(
      model, loader, 3, [&](std::int64_t done, std::int64_t total) { stop = done == total; }, 0, &stop);
  CHECK_FALSE(all.stopped);
  CHECK(all.samples == 4);
  CHECK_THROWS_AS(evaluate(model, loader, 4), ShapeError);
  CHECK_THROWS_AS(evaluate(model, loader, 0), ArgumentError);
}

TEST_CASE("stopped in the validation or the test and resumed, a run ends in the same bits") {
  struct Stopper : Recorder {
    void on_evaluation(const char* what, std::int64_t, std::int64_t) override {
      if (what == where) stop->store(true);
    }
    std::string where;
  };
  TempFolder folder;
  TrainSettings s = small_settings();
  s.out = folder / "whole";
  Trainer reference(s, small_parts(s));
  const TrainResult expected = reference.run();
  for (const char* where : {"validation", "test"}) {
    CAPTURE(where);
    s.out = folder / where;
    std::atomic<bool> stop{false};
    Stopper stopper;
    stopper.where = where;
    stopper.stop = &stop;
    const TrainResult first = Trainer(s, small_parts(s), Start::fresh, &stopper).run(&stop);
    CHECK(first.stopped);
    CHECK(first.epochs == (stopper.where == "test" ? 2 : 0));
    CHECK(first.steps == (stopper.where == "test" ? 10 : 5));
    CHECK_FALSE(first.test.has_value());
    Recorder second;
    Trainer trainer(s, small_parts(s), Start::resume, &second);
    const TrainResult r = trainer.run();
    CHECK_FALSE(r.stopped);
    CHECK(second.epochs.size() == (stopper.where == "test" ? 0 : 2));
    CHECK(step_log(s.out) == step_log(folder / "whole"));
    check_same(reference.model().state_dict(), trainer.model().state_dict());
    CHECK(r.test->loss == expected.test->loss);
    CHECK(r.best_epoch == expected.best_epoch);
    CHECK(r.best_validation_loss == expected.best_validation_loss);
  }
}

TEST_CASE("a batch larger than the training set: told by the plan, refused where a rule would scale by it") {
  TrainSettings s = small_settings();
  s.batch = 200;
  s.epochs = 1;
  struct Plan : TrainObserver {
    void on_plan(const EpochPlan& p) override { text = batch_warning(p); }
    std::string text;
  } plan;
  Trainer(s, small_parts(s), Start::fresh, &plan).run();
  CHECK(plan.text ==
        "the effective batch is 200, the training set has 80 samples: every step has these 80, and lr stays as it is");
  EpochPlan whole;
  whole.samples = whole.effective_batch = 80;
  CHECK(batch_warning(whole).empty());
  s.lr_policy = "linear";
  s.reference_batch = 16;
  CHECK_THROWS_WITH_AS(
      Trainer(s, small_parts(s)),
      "[train] lr-policy linear would scale lr for a batch of 200, but the training set has 80 samples, "
      "and no step more: give a batch of at most 80",
      ArgumentError);
  s.batch = 80;
  CHECK(Trainer(s, small_parts(s)).optimizer().lr() == doctest::Approx(0.05));
}
