// The effective-batch ledger: what a right run proves, what wrong loops show, what a damaged file is told.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>

#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/sgd.h>
#include <limpid/tensor/creation.h>
#include <limpid/train/ledger.h>
#include <limpid/train/run_diff.h>
#include <limpid/train/run_log.h>
#include <limpid/train/trainer.h>

#include "temp_folder.h"

using namespace limpid;
using namespace limpid::train;
using limpid_test::TempFolder;
using limpid_test::text_of;
using Ids = std::vector<std::int64_t>;

namespace {

// A small run with a ledger; 80 samples in steps of 24, cut into 3 parts.
TrainSettings small_run(const std::string& out) {
  TrainSettings s;
  s.data = "synthetic";
  s.input = {3, 8, 8};
  s.classes = 4;
  s.limit = 100;
  s.val_fraction = 0.2;
  s.model = "seed";
  s.epochs = 2;
  s.batch = 24;
  s.micro_batch = 8;
  s.seed = 5;
  s.workers = 1;
  s.ledger_ids = true;
  s.out = out;
  return s;
}

void run_once(const TrainSettings& s) { Trainer(s, make_parts(s, {})).run(); }

std::string written(const Ledger& ledger) {
  std::string text = ledger_line(ledger.plan) + "\n";
  std::size_t next = 0;
  for (const LedgerEpoch& e : ledger.epochs) {
    for (; next < ledger.steps.size() && ledger.steps[next].epoch <= e.epoch; next++)
      text += ledger_line(ledger.steps[next]) + "\n";
    text += ledger_line(e) + "\n";
  }
  return text;
}

bool has_rule(const LedgerCheck& check, const std::string& rule) {
  for (const Violation& v : check.violations)
    if (v.rule == rule) return true;
  return false;
}

}  // namespace

TEST_CASE("a run's ledger proves that every sample was used once an epoch with the weight 1/N") {
  TempFolder folder;
  run_once(small_run(folder / "run"));
  const Ledger ledger = read_ledger(folder / "run/ledger.jsonl");
  CHECK(ledger.plan.samples == 80);
  REQUIRE(ledger.steps.size() == 8);
  CHECK(ledger.steps[0].micro_batches.size() == 3);
  CHECK(ledger.steps[3].samples == 8);
  CHECK(ledger.steps[3].micro_batches[0].weight_min == doctest::Approx(1.0 / 8));
  CHECK(ledger.steps[0].ids.size() == 24);
  const LedgerCheck check = check_ledger(ledger);
  CHECK(check.violations.empty());
  CHECK(check.samples == 160);
  CHECK(check.whole_epochs == 2);
  CHECK(check.largest_weight_error < 2e-7);
  CHECK(to_string(check).find("ok: every sample was used once an epoch") != std::string::npos);
  // Records come back as they were written, and the hashes alone prove the order.
  CHECK(ledger_line(parse_ledger(written(ledger)).steps[5]) == ledger_line(ledger.steps[5]));
  Ledger unlisted = ledger;
  for (LedgerStep& s : unlisted.steps) s.ids.clear();
  CHECK(check_ledger(unlisted).violations.empty());
  unlisted.steps[2].ids_hash++;
  CHECK(has_rule(check_ledger(unlisted), "order"));
}

TEST_CASE("every field that makes a run wrong is noticed") {
  TempFolder folder;
  run_once(small_run(folder / "run"));
  const Ledger right = read_ledger(folder / "run/ledger.jsonl");
  struct Wrong {
    const char* rule;
    std::function<void(Ledger&)> change;
  };
  const std::vector<Wrong> wrongs = {
      {"weight", [](Ledger& l) { l.steps[1].micro_batches[2].weight_max *= 1.00001; }},
      {"weight", [](Ledger& l) { l.steps[1].micro_batches[0].weight_min = NAN; }},
      {"weight", [](Ledger& l) { l.steps[7].micro_batches[0].weight_min = 1.0 / 24; }},
      {"count", [](Ledger& l) { l.steps[4].micro_batches.pop_back(); }},
      {"count", [](Ledger& l) { l.steps[4].ids.pop_back(); }},
      {"sample", [](Ledger& l) { std::swap(l.steps[0].ids[0], l.steps[0].ids[1]); }},
      {"sample", [](Ledger& l) { l.steps[0].ids[0] = l.steps[1].ids[0], l.steps[0].ids_hash = hash_of(l.steps[0].ids); }},
      {"order", [](Ledger& l) { std::swap(l.steps[0].ids_hash, l.steps[1].ids_hash); }},
      {"sample", [](Ledger& l) { l.steps.pop_back(); }},
      {"step", [](Ledger& l) { l.steps.erase(l.steps.begin() + 2); }},
      {"schedule", [](Ledger& l) { l.steps[6].schedule_position = 12; }},
      {"sample", [](Ledger& l) { l.epochs[0].dropped = {3}; }},
  };
  for (std::size_t i = 0; i < wrongs.size(); i++) {
    CAPTURE(i);
    Ledger ledger = right;
    wrongs[i].change(ledger);
    CHECK(has_rule(check_ledger(ledger), wrongs[i].rule));
  }
  // A skipped step moves no schedule, and is noted.
  Ledger skipped = right;
  skipped.steps[3].applied = false;
  skipped.steps[3].skipped = "inf in conv1, micro-batch 0";
  for (std::size_t i = 4; i < skipped.steps.size(); i++) skipped.steps[i].schedule_position--;
  const LedgerCheck check = check_ledger(skipped);
  CHECK(check.violations.empty());
  REQUIRE(check.notes.size() == 1);
  CHECK(check.notes[0] == "step 3 was skipped: inf in conv1, micro-batch 0; 8 samples had no effect");
}

TEST_CASE("the quantum stands in the plan: pieces of another size are noticed, and an older ledger does not tell") {
  TempFolder folder;
  TrainSettings settings = small_run(folder / "run");
  settings.quantum = 4;
  run_once(settings);
  const std::string path = folder / "run/ledger.jsonl";
  Ledger ledger = read_ledger(path);
  CHECK(ledger.plan.quantum == 4);
  CHECK(check_ledger(ledger).violations.empty());
  REQUIRE(ledger.steps[0].micro_batches.size() == 6);
  // 5 and 3 instead of 4 and 4: as many samples, other bits.
  ledger.steps[0].micro_batches[0].samples = 5;
  ledger.steps[0].micro_batches[1].samples = 3;
  const LedgerCheck check = check_ledger(ledger);
  REQUIRE(check.violations.size() == 2);
  CHECK(check.violations[0].rule == "count");
  CHECK(check.violations[0].text.find("piece 0 has 5 samples, the quantum is 4") != std::string::npos);
  CHECK(check.violations[1].found == 3);
  CHECK_THROWS_WITH_AS(parse_ledger(ledger_line(LedgerPlan{.samples = 80, .effective_batch = 24, .micro_batch = 8, .quantum = 25}) + "\n"),
                       doctest::Contains("quantum is 25, expected 0 to the effective_batch 24"), DataError);

  // From before it was recorded: nothing is concluded, and read_run() takes it from run.json.
  ledger.plan.quantum.reset();
  const std::string old = written(ledger);
  CHECK(old.find("quantum") == std::string::npos);
  CHECK_FALSE(parse_ledger(old).plan.quantum.has_value());
  CHECK(check_ledger(parse_ledger(old)).violations.empty());
  std::ofstream(path, std::ios::binary) << old;
  CHECK(read_run(folder / "run").ledger.plan.quantum == 4);
}

TEST_CASE("a file that was cut, edited or is of another version is refused with its line") {
  TempFolder folder;
  run_once(small_run(folder / "run"));
  const std::string text = text_of(folder / "run/ledger.jsonl");
  CHECK_THROWS_WITH_AS(parse_ledger(text.substr(0, text.size() - 20)), doctest::Contains("the file was cut"), DataError);
  CHECK_THROWS_WITH_AS(parse_ledger(""), doctest::Contains("empty"), DataError);
  CHECK_THROWS_WITH_AS(parse_ledger("{}\n"), doctest::Contains("line 1: the line does not end in its CRC"), DataError);
  std::string edited = text;
  edited.replace(edited.find("\"lr\":0.001"), 10, "\"lr\":0.002");
  CHECK_THROWS_WITH_AS(parse_ledger(edited), doctest::Contains("line 2: the line was changed: its CRC is"), DataError);
  const std::string second = text.substr(text.find('\n') + 1);
  CHECK_THROWS_WITH_AS(parse_ledger(second), doctest::Contains("the first one must be the \"plan\""), DataError);
  CHECK_THROWS_WITH_AS(parse_ledger(text + text), doctest::Contains("in the middle of the file"), DataError);
  CHECK_THROWS_WITH_AS(read_ledger(folder / "nowhere"), doctest::Contains("nowhere"), IoError);
  // Each byte changed in turn is an error, never a crash and never accepted.
  const std::string two = text.substr(0, text.find('\n', text.find('\n') + 1) + 1);
  for (std::size_t i = 0; i < two.size(); i++) {
    std::string bad = two;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    CHECK_THROWS_AS(parse_ledger(bad), DataError);
    if (i + 1 < two.size() && two[i] != '\n') CHECK_THROWS_AS(parse_ledger(two.substr(0, i + 1)), DataError);
  }
  // With a right CRC around it: another version, and numbers out of all reason.
  Ledger ledger = read_ledger(folder / "run/ledger.jsonl");
  ledger.plan.samples = std::int64_t{1} << 40;
  CHECK_THROWS_WITH_AS(parse_ledger(written(ledger)), doctest::Contains("samples is 1099511627776"), DataError);
}

TEST_CASE("numbers at the ends of their range overflow nothing") {
  TempFolder folder;
  run_once(small_run(folder / "run"));
  Ledger ledger = read_ledger(folder / "run/ledger.jsonl");
  ledger.steps[0].step = ledger.steps[0].samples = INT64_MAX;
  ledger.steps[0].micro_batches[0].samples = ledger.steps[0].micro_batches[1].samples = INT64_MAX;
  ledger.steps[1].samples = ledger.steps[1].micro_batches[0].samples = INT64_MIN;
  ledger.steps[1].epoch = ledger.epochs[1].epoch = INT64_MAX;
  const LedgerCheck check = check_ledger(ledger);
  CHECK(check.damaged);
  CHECK(has_rule(check, "record"));
  CHECK_THROWS_WITH_AS(parse_ledger(written(ledger)), doctest::Contains("step 9223372036854775807, epoch 0"),
                       DataError);
}

// ---- loops as they are found in the wild, re-created and measured

namespace {

struct Loop {
  Tensor x, y;
  std::shared_ptr<nn::Module> model = nn::make_model("mlp", {.input = Shape{1, 4, 4}, .classes = 4, .seed = 1});
  optim::SGD optimizer{model->parameters(), {.lr = 0.01}};

  explicit Loop(std::int64_t samples) {
    manual_seed(1);
    x = randn({samples, 1, 4, 4});
    std::vector<std::int64_t> labels;
    for (std::int64_t i = 0; i < samples; i++) labels.push_back(i % 4);
    y = from_vector(labels, {samples});
  }
  // loss of samples [first, first + size)
  Tensor loss(std::int64_t first, std::int64_t size) {
    return cross_entropy((*model)(narrow(x, 0, first, size)), narrow(y, 0, first, size));
  }
  static Ids ids(std::int64_t first, std::int64_t size) {
    Ids out(static_cast<std::size_t>(size));
    std::iota(out.begin(), out.end(), first);
    return out;
  }
};

LedgerPlan own_plan(std::int64_t samples, std::int64_t effective, std::int64_t micro) {
  return {.samples = samples, .effective_batch = effective, .micro_batch = micro, .shuffled = false};
}

}  // namespace

TEST_CASE("a loop that does not divide by the number of micro-batches weighs every sample four times") {
  Loop loop(64);
  LedgerRecorder recorder(own_plan(64, 16, 4));
  std::int64_t step = 0;
  for (std::int64_t i = 0; i < 16; i++) {
    recorder.samples(Loop::ids(i * 4, 4));
    loop.loss(i * 4, 4).backward();
    if (i % 4 != 3) continue;
    recorder.step(loop.optimizer.lr(), step++);
    loop.optimizer.step();
    loop.optimizer.zero_grad();
    recorder.zero_grad();
  }
  recorder.end_epoch();
  const LedgerCheck check = check_ledger(recorder.ledger());
  REQUIRE(check.violations.size() == 16);
  CHECK(check.violations[0].rule == "weight");
  CHECK(check.violations[0].found / check.violations[0].expected == doctest::Approx(4));
  CHECK(check.violations[0].text.find("4 times too much") != std::string::npos);
  CHECK(check.largest_weight_error == doctest::Approx(3));
}

TEST_CASE("a window that is thrown away at each epoch uses 22 of 28 micro-batches, and a step of one weighs a quarter") {
  // 7 micro-batches an epoch, steps when 4 have come or more since the last one, gradients dropped when an epoch starts;
  // the loss is divided by the 4 that were meant.
  const std::int64_t kMicro = 3, kBatches = 7, kEpochs = 4, k = 4;
  Loop loop(kMicro * kBatches);
  LedgerRecorder recorder(own_plan(kMicro * kBatches, kMicro * k, kMicro));
  std::int64_t step = 0, last = -1, used = 0;
  Ids micro_batches_a_step;
  for (std::int64_t epoch = 0; epoch < kEpochs; epoch++) {
    loop.optimizer.zero_grad();
    recorder.zero_grad();
    std::int64_t open = 0;
    for (std::int64_t i = 0; i < kBatches; i++) {
      const std::int64_t ni = epoch * kBatches + i;
      recorder.samples(Loop::ids(i * kMicro, kMicro));
      mul(loop.loss(i * kMicro, kMicro), 1.0 / k).backward();
      open++;
      if (ni - last < k) continue;
      last = ni;
      recorder.step(loop.optimizer.lr(), step++);
      loop.optimizer.step();
      loop.optimizer.zero_grad();
      recorder.zero_grad();
      micro_batches_a_step.push_back(open);
      used += open;
      open = 0;
    }
    recorder.end_epoch();
  }
  CHECK(used == 22);
  CHECK(micro_batches_a_step == Ids{4, 1, 4, 2, 4, 3, 4});
  const LedgerCheck check = check_ledger(recorder.ledger());
  std::int64_t missing = 0;
  double least = 1;
  for (const Violation& v : check.violations) {
    if (v.rule == "sample") missing += static_cast<std::int64_t>(v.expected - v.found);
    if (v.rule == "weight") least = std::min(least, v.found / v.expected);
  }
  CHECK(missing == (28 - 22) * kMicro);
  CHECK(least == doctest::Approx(0.25));  // the step of one micro-batch
}

TEST_CASE("a last window of two micro-batches that is divided by four weighs half") {
  Loop loop(60);  // 15 micro-batches of 4: windows of 4, 4, 4 and 3; with 14 of them the last has 2
  LedgerRecorder recorder(own_plan(56, 16, 4));
  std::int64_t step = 0;
  for (std::int64_t i = 0; i < 14; i++) {
    recorder.samples(Loop::ids(i * 4, 4));
    div(loop.loss(i * 4, 4), 4.0).backward();
    if (i % 4 != 3 && i != 13) continue;
    recorder.step(loop.optimizer.lr(), step++);
    loop.optimizer.step();
    loop.optimizer.zero_grad();
    recorder.zero_grad();
  }
  recorder.end_epoch();
  const LedgerCheck check = check_ledger(recorder.ledger());
  REQUIRE(check.violations.size() == 2);
  for (const Violation& v : check.violations) {
    CHECK(v.step == 3);
    CHECK(v.found / v.expected == doctest::Approx(0.5));
  }
}

TEST_CASE("ranks of 32 and 8 samples that are averaged, a padded sampler, and a schedule that runs N times as fast") {
  {
    Loop loop(40);  // mean of the two ranks' means: 1/(2*32) and 1/(2*8) instead of 1/40
    LedgerRecorder recorder(own_plan(40, 40, 32));
    for (const auto& [first, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 32}, {32, 8}}) {
      recorder.samples(Loop::ids(first, size));
      mul(loop.loss(first, size), 0.5).backward();
    }
    recorder.step(0.01, 0);
    recorder.end_epoch();
    const LedgerCheck check = check_ledger(recorder.ledger());
    REQUIRE(check.violations.size() == 2);
    CHECK(check.violations[0].found / check.violations[0].expected == doctest::Approx(40.0 / 64));
    CHECK(check.violations[1].found / check.violations[1].expected == doctest::Approx(40.0 / 16));
  }
  {
    Loop loop(10);  // 10 samples for 4 ranks: two are repeated so that all have 3
    LedgerRecorder recorder(own_plan(10, 12, 12));
    Ids ids = Loop::ids(0, 10);
    ids.insert(ids.end(), {0, 1});
    recorder.samples(ids);
    loop.loss(0, 10).backward();
    recorder.step(0.01, 0);
    recorder.end_epoch();
    const LedgerCheck check = check_ledger(recorder.ledger());
    REQUIRE(has_rule(check, "sample"));
    CHECK(to_string(check).find("2 samples were used more than once, first 0 (2 times)") != std::string::npos);
  }
  {
    Loop loop(32);
    LedgerRecorder recorder(own_plan(32, 8, 8));
    for (std::int64_t i = 0; i < 4; i++) {
      recorder.samples(Loop::ids(i * 8, 8));
      loop.loss(i * 8, 8).backward();
      recorder.step(0.01, i * 2);  // two processes, each steps the schedule
      loop.optimizer.zero_grad();
      recorder.zero_grad();
    }
    recorder.end_epoch();
    const LedgerCheck check = check_ledger(recorder.ledger());
    REQUIRE(check.violations.size() == 3);
    CHECK(check.violations[2].rule == "schedule");
    CHECK(check.violations[2].text.find("the schedule runs 2 times as fast") != std::string::npos);
  }
}

TEST_CASE("the plain loop is right when it divides, and shows what a forgotten zero_grad does") {
  Loop loop(32);
  LedgerRecorder recorder(own_plan(32, 16, 8));
  std::int64_t step = 0;
  for (std::int64_t i = 0; i < 4; i++) {
    recorder.samples(Loop::ids(i * 8, 8));
    div(loop.loss(i * 8, 8), 2.0).backward();
    if (i % 2 != 1) continue;
    recorder.step(0.01, step++);
    loop.optimizer.step();
    loop.optimizer.zero_grad();
    recorder.zero_grad();
  }
  recorder.end_epoch();
  CHECK(check_ledger(recorder.ledger()).violations.empty());
  LedgerRecorder forgetful(own_plan(32, 16, 16));
  for (std::int64_t i = 0; i < 2; i++) {
    forgetful.samples(Loop::ids(i * 16, 16));
    loop.loss(i * 16, 16).backward();
    forgetful.step(0.01, i);
  }
  forgetful.end_epoch();
  const LedgerCheck check = check_ledger(forgetful.ledger());
  CHECK(has_rule(check, "sample"));  // the first 16 are in both steps
  CHECK(has_rule(check, "weight"));
}

// ---- where two runs part

TEST_CASE("a run differs from itself in nothing, and a change of one field is found at its step") {
  TempFolder folder;
  run_once(small_run(folder / "a"));
  run_once(small_run(folder / "b"));
  // What the memory looks like depends on what the process did before; everything else is equal.
  for (const Difference& d : diff_runs(folder / "a", folder / "b").differences) {
    CHECK(d.record == "epoch");
    CHECK_MESSAGE(d.field.find("loss") == std::string::npos, d.field);
  }
  const Ledger right = read_ledger(folder / "a/ledger.jsonl");
  const std::string text = written(right);
  CHECK(diff_ledgers(text, text).equal());
  const std::string equal = to_string(diff_ledgers(text, text));
  CHECK(equal.starts_with(
      "the ledgers are equal: 8 steps and 2 ends of epochs, the same bits in every field that they record:\n"));
  CHECK(equal.find("not compared: the weights themselves, times, memory") != std::string::npos);
  struct Change {
    const char* field;
    std::int64_t step;
    std::function<void(Ledger&)> change;
  };
  const std::vector<Change> changes = {
      {"ids[3]", 2, [](Ledger& l) { l.steps[2].ids[3]++; }},
      {"ids_hash", 1, [](Ledger& l) { l.steps[1].ids_hash++; }},
      {"micro_batches[1].weight[0]", 4, [](Ledger& l) { l.steps[4].micro_batches[1].weight_min *= 1.5; }},
      {"micro_batches[0].samples", 0, [](Ledger& l) { l.steps[0].micro_batches[0].samples++; }},
      {"lr", 3, [](Ledger& l) { l.steps[3].lr *= 2; }},
      {"schedule_position", 5, [](Ledger& l) { l.steps[5].schedule_position++; }},
      {"rng.step", 6, [](Ledger& l) { l.steps[6].rng_step++; }},
      {"bn_updates", 7, [](Ledger& l) { l.steps[7].bn_updates++; }},
      {"precision", 2, [](Ledger& l) { l.steps[2].precision = "bf16"; }},
      {"scale", 2, [](Ledger& l) { l.steps[2].scale = 65536; }},
      {"clip_coefficient", 1, [](Ledger& l) { l.steps[1].clip_coefficient = 0.5; }},
      {"weight_decay_factor", 1, [](Ledger& l) { l.steps[1].weight_decay_factor = 0.999; }},
      {"found_inf", 4, [](Ledger& l) { l.steps[4].found_inf = "conv1"; }},
      {"count", 4, [](Ledger& l) { l.steps[4].count = 4; }},
      {"loss_sum", 0, [](Ledger& l) { l.steps[0].loss_sum = std::nextafter(l.steps[0].loss_sum, 1e9); }},
      {"trust_ratios.fc", 3, [](Ledger& l) { l.steps[3].trust_ratios = {{"fc", 0.5}}; }},
      {"quantum", 0, [](Ledger& l) { l.plan.quantum = 8; }},
      {"kernels", 0, [](Ledger& l) { l.plan.kernels = "other"; }},
      {"record", 7, [](Ledger& l) { l.steps.pop_back(); }},
  };
  for (const Change& c : changes) {
    CAPTURE(c.field);
    Ledger other = right;
    c.change(other);
    const RunDiff diff = diff_ledgers(text, written(other));
    REQUIRE_FALSE(diff.equal());
    CHECK(diff.differences.size() == 1);
    CHECK(diff.differences[0].field == c.field);
    CHECK(diff.differences[0].number == c.step);
    CHECK(diff.differences[0].times == 1);
  }
}
