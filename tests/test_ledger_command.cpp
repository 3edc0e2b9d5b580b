// Run folders whose records were cut or forged, from outside: `limpid check ledger`, `limpid diff`, `limpid train
// --resume`, and commands whose output would overwrite a run. The forged lines have right CRCs.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include <limpid/train/checkpoint.h>
#include <limpid/train/ledger.h>

#include "command.h"

using namespace limpid_test;
using limpid::train::Ledger;
using limpid::train::LedgerEpoch;
using limpid::train::LedgerStep;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

Words train(const Words& more) {
  Words words = {"train", "--data",  "synthetic", "--limit",   "80", "--input",   "1x8x8", "--classes", "3", "--model",
                 "mlp",   "--batch", "16",        "--threads", "1",  "--workers", "0",     "--quiet"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// 2 epochs of 5 steps of 16.
std::string finished_run(const TempFolder& folder) {
  const std::string run = folder / "run";
  const CommandResult r = limpid_command(train({"--epochs", "2", "--val-fraction", "0", "--out", run}));
  REQUIRE_MESSAGE(r.code == 0, r.err);
  return run;
}

std::string written(const Ledger& ledger) {
  std::string text = limpid::train::ledger_line(ledger.plan) + "\n";
  std::size_t next = 0;
  auto steps_to = [&](std::int64_t epoch) {
    for (; next < ledger.steps.size() && ledger.steps[next].epoch <= epoch; next++)
      text += limpid::train::ledger_line(ledger.steps[next]) + "\n";
  };
  for (const LedgerEpoch& e : ledger.epochs) {
    steps_to(e.epoch);
    text += limpid::train::ledger_line(e) + "\n";
  }
  steps_to(INT64_MAX);
  return text;
}

std::string without_last_line(std::string text) {
  text.pop_back();
  return text.substr(0, text.rfind('\n') + 1);
}

// Name and contents of every file of a run but its lock.
std::map<std::string, std::string> files_of(const std::string& run) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    if (entry.is_regular_file() && entry.path().filename() != ".lock")
      out[entry.path().string()] = text_of(entry.path().string());
  }
  return out;
}

// The last checkpoint's state.json, changed, and vouched for by the pointer.
void edit_state(const std::string& run, const std::function<void(Json&)>& change) {
  Json pointer = Json::parse(text_of(run + "/ckpt/last"));
  const std::string path = run + "/ckpt/" + pointer["checkpoint"].get<std::string>() + "/state.json";
  Json state = Json::parse(text_of(path));
  change(state);
  write(path, state.dump(2));
  const limpid::train::FileDigest digest = limpid::train::digest_file(path);
  pointer["files"]["state.json"] = {{"bytes", digest.bytes}, {"crc32", digest.crc32}};
  for (const char* name : {"last", "best"})
    if (fs::exists(run + "/ckpt/" + name)) write(run + "/ckpt/" + name, pointer.dump());
}

CommandResult resume(const std::string& run) {
  return limpid_command({"train", "--resume", "--out", run, "--epochs", "3", "--quiet"});
}

}  // namespace

TEST_CASE("check ledger: a ledger that lost or repeats records, or that no run writes, ends with code 4") {
  TempFolder folder;
  const std::string run = finished_run(folder), path = run + "/ledger.jsonl", text = text_of(path);
  const Ledger right = limpid::train::read_ledger(path);
  REQUIRE(right.steps.size() == 10);
  auto check_of = [&](const std::string& contents) {
    write(path, contents);
    return limpid_command({"check", "ledger", run});
  };
  CHECK(check_of(text).code == 0);
  CHECK(limpid_command({"check", "ledger", path}).code == 0);
  CHECK(check_of("").code == 4);
  const std::string plan_only = text.substr(0, text.find('\n') + 1);
  CommandResult r = check_of(plan_only);
  CHECK(r.code == 4);
  CHECK(contains(r.out, "the ledger has a plan and 0 steps"));
  CHECK(contains(r.out, "the ledger has 0 steps, steps.jsonl beside it 10: its end is missing"));
  // Whole lines are missing at the end.
  r = check_of(without_last_line(text));
  CHECK(r.code == 4);
  CHECK_MESSAGE(contains(r.out, "10 steps; the checkpoint of step 10 was written when it had "), r.out);
  CHECK(contains(r.out, "its end is missing"));
  CHECK(limpid_command({"check", "ledger", path}).code == 4);
  r = check_of(without_last_line(without_last_line(text)));
  CHECK(r.code == 4);
  CHECK(contains(r.out, "the ledger has 9 steps, steps.jsonl beside it 10"));

  struct Case {
    const char* text;
    std::function<void(Ledger&)> change;
  };
  const std::vector<Case> cases = {
      {"epoch 0 has no record of its end, and epoch 1 follows", [](Ledger& l) { l.epochs.erase(l.epochs.begin()); }},
      {"epoch 1 has 2 records of its end, expected 1", [](Ledger& l) { l.epochs.push_back(l.epochs[1]); }},
      {"epoch 1 ended after 7 steps by its record, the ledger has 10 up to there",
       [](Ledger& l) { l.epochs[1].steps = 7; }},
      {"all 10 steps were skipped: 160 samples had no effect",
       [](Ledger& l) {
         for (LedgerStep& s : l.steps) s.applied = false, s.schedule_position = 0;
       }},
      {"micro-batch 1 has -4 samples, expected 1 or more",
       [](Ledger& l) {
         l.steps[1].micro_batches[0].samples = 20;
         l.steps[1].micro_batches.push_back(l.steps[1].micro_batches[0]);
         l.steps[1].micro_batches[1].samples = -4;
       }},
      {"the micro-batches have 15 samples, the step 16", [](Ledger& l) { l.steps[1].micro_batches[0].samples = 15; }},
      {"divided by 32, the step has 16 samples", [](Ledger& l) { l.steps[2].count = 32; }},
      {"the learning rate is -0.1", [](Ledger& l) { l.steps[2].lr = -0.1; }},
      {"the learning rate is inf", [](Ledger& l) { l.steps[2].lr = INFINITY; }},
      {"the learning rate is 5, the plan has at most 0.001", [](Ledger& l) { l.steps[2].lr = 5; }},
      {"clipped by -1, expected 0 to 1", [](Ledger& l) { l.steps[2].clip_coefficient = -1; }},
      {"clipped by nan, expected 0 to 1", [](Ledger& l) { l.steps[2].clip_coefficient = NAN; }},
      {"clipped by 0.5, and their norm is not recorded", [](Ledger& l) { l.steps[2].clip_coefficient = 0.5; }},
      {"the ledger has 15 steps, run.json plans 10 (2 epochs of 5)",
       [](Ledger& l) {
         for (int i = 0; i < 5; i++) {
           l.steps.push_back(l.steps[static_cast<std::size_t>(i)]);
           l.steps.back().step = l.steps.back().schedule_position = 10 + i;
           l.steps.back().epoch = 2;
         }
       }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    Ledger ledger = right;
    c.change(ledger);
    r = check_of(written(ledger));
    CHECK(r.code == 4);
    CHECK_MESSAGE(contains(r.out, c.text), r.out);
  }
  // Most steps skipped is allowed, and not silent.
  Ledger mostly = right;
  for (std::size_t i = 0; i < 10; i++) mostly.steps[i].applied = i == 0, mostly.steps[i].schedule_position = i > 0;
  fs::remove(run + "/ckpt/last");  // the forged ledger is shorter than the one that the checkpoint knows
  r = check_of(written(mostly));
  CHECK_MESSAGE(r.code == 0, r.out);
  CHECK(contains(r.out, "warning: 9 of 10 steps were skipped: 144 samples had no effect"));
  CHECK(contains(r.out, "with the weight 1/N; 9 of 10 steps were skipped"));
}

TEST_CASE("check ledger: a run that was killed is judged as far as it came") {
  TempFolder folder;
  const std::string run = folder / "run";
  Command command(train({"--epochs", "100000", "--val-fraction", "0", "--out", run}));
  const std::string steps = run + "/steps.jsonl";
  while (command.running() && (!fs::exists(steps) || fs::file_size(steps) == 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  command.send(SIGKILL);
  CHECK(command.wait().signal == SIGKILL);
  const CommandResult r = limpid_command({"check", "ledger", run});
  CHECK_MESSAGE(r.code == 0, r.out);
  CHECK_MESSAGE(contains(r.out, " of 500000 steps, "), r.out);
  CHECK(contains(r.out, "the run did not finish: "));
}

TEST_CASE("sizes that the ledger's own lines cannot back are refused before anything is allocated") {
  TempFolder folder;
  const std::string run = finished_run(folder), path = run + "/ledger.jsonl";
  Ledger ledger = limpid::train::read_ledger(path);
  ledger.plan.samples = ledger.plan.effective_batch = std::int64_t{1} << 31;
  ledger.steps.resize(1);
  ledger.steps[0].samples = ledger.plan.samples;
  ledger.steps[0].micro_batches[0].samples = ledger.plan.samples;
  ledger.epochs.clear();
  const std::string forged = folder / "forged.jsonl";
  write(forged, written(ledger));
  const CommandResult r = limpid_command({"check", "ledger", forged}, {.address_limit = std::uint64_t{1} << 30});
  CHECK(r.code == 4);
  CHECK_MESSAGE(contains(r.err, "the plan has 2147483648 samples, the 1 steps of the ledger show 65536 at most"),
                r.err);
}

TEST_CASE("--resume refuses damaged logs and offsets inside a line, and changes nothing") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  auto refused = [&](const std::string& part) {
    const auto before = files_of(run);
    const CommandResult r = resume(run);
    CHECK(r.code == 4);
    CHECK_MESSAGE(contains(r.err, part), r.err);
    CHECK(files_of(run) == before);
  };
  for (const char* log : {"ledger.jsonl", "steps.jsonl"}) {
    CAPTURE(log);
    const std::string path = run + "/" + log, whole = text_of(path);
    std::string text = whole;
    text[text.find('\n', text.find('\n') + 1) + 8] ^= 1;
    write(path, text);
    refused(std::string(log) + ": line 3: ");
    // As long as before, with other lines: two steps are gone.
    text = whole;
    const std::size_t third = text.find('\n', text.find('\n') + 1) + 1;
    text.erase(third, text.find('\n', third) + 1 - third);
    text += whole.substr(0, whole.size() - text.size());
    write(path, text);
    refused(log);
    write(path, whole);
    // The last step is that of a longer run.
    write(path, whole + whole);
    const std::uint64_t size = whole.size();
    edit_state(run, [&](Json& json) { json["state"]["log_offsets"][log] = size - 5; });
    refused(std::string(log) + ": the checkpoint of step 10 was written when it had " + std::to_string(size - 5) +
            " bytes, and there is no end of a line there");
    edit_state(run, [&](Json& json) {
      json["state"]["log_offsets"][log] = without_last_line(without_last_line(whole)).size();
    });
    refused(std::string("its first ") + std::to_string(without_last_line(without_last_line(whole)).size()) +
            " bytes have ");
    edit_state(run, [&](Json& json) { json["state"]["log_offsets"][log] = size; });
    write(path, whole);
  }
  CHECK(resume(run).code == 0);
}

TEST_CASE("scaler and scheduler values of a checkpoint that no run writes are refused with a sentence") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  struct Case {
    const char *part, *key, *text;
    Json value;
  };
  const std::vector<Case> cases = {
      {"scaler", "scale", "scale", -1.0},
      {"scaler", "scale", "scale", "nan"},
      {"scaler", "growth_interval", "the growth interval must be positive, got 0", 0},
      {"scaler", "growth_factor", "the growth factor must be > 1, got 0.5", 0.5},
      {"scaler", "backoff_factor", "the backoff factor must be between 0 and 1, got inf", "inf"},
      {"scaler", "_growth_tracker", "_growth_tracker", -3},
      {"scheduler", "count", "scheduler.count is 11, expected a whole number up to the step 10", 11},
      {"scheduler", "count", "scheduler.count is 1.5", 1.5},
      {"scheduler", "base_lr.0", "scheduler.base_lr.0 is -0.1, expected a finite number >= 0", -0.1},
      {"scheduler", "base_lr.0", "has the scheduler's base_lr.0 7, the settings give 0.001", 7},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    Json before;
    edit_state(run, [&](Json& json) {
      before = json;
      if (std::string(c.part) == "scaler") {
        json["state"]["scaler"] = {{"scale", 65536.0},
                                   {"growth_factor", 2.0},
                                   {"backoff_factor", 0.5},
                                   {"growth_interval", 2000.0},
                                   {"_growth_tracker", 3.0}};
      }
      json["state"][c.part][c.key] = c.value;
    });
    const auto files = files_of(run);
    const CommandResult r = resume(run);
    CHECK(r.code == 4);
    CHECK_MESSAGE(contains(r.err, c.text), r.err);
    CHECK(files_of(run) == files);
    edit_state(run, [&](Json& json) { json = before; });
  }
  CHECK(resume(run).code == 0);
}

TEST_CASE("control characters of a ledger, a model card or run.json never reach the terminal") {
  TempFolder folder;
  const std::string run = finished_run(folder), path = run + "/ledger.jsonl", text = text_of(path);
  auto plain = [](const CommandResult& r) {
    return !contains(r.out + r.err, "\x1b") && !contains(r.out + r.err, "\xc2\x9b");
  };
  Ledger ledger = limpid::train::read_ledger(path);
  const std::string right = folder / "right.jsonl";
  write(right, written(ledger));
  LedgerStep& last = ledger.steps.back();
  last.applied = false;
  last.skipped =
      "\x1b[2J\nok: forged \xc2\x9b"
      "31m";
  last.retries = {{.micro_batch = 8, .next_micro_batch = 4, .requested = 1, .where = "\x1b]0;title\x07"}};
  last.trust_ratios = {{"\x1b[31m\nfc", 0.5}};
  const std::string forged = folder / "forged.jsonl";
  write(forged, written(ledger));
  CommandResult r = limpid_command({"check", "ledger", forged});
  CHECK_MESSAGE(plain(r), r.out);
  CHECK_MESSAGE(contains(r.out, "was skipped: \\x1b[2J\\x0aok: forged \\xc2\\x9b31m;"), r.out);
  r = limpid_command({"diff", right, forged});
  CHECK(r.code == 1);
  CHECK_MESSAGE(plain(r), r.out);
  CHECK(contains(r.out, "trust_ratios.\\x1b[31m\\x0afc"));
  edit_state(run, [](Json& json) { json["card"]["class_names"] = {"\x1b[31mred", "b", "c"}; });
  r = limpid_command({"eval", "--checkpoint", run});
  CHECK_MESSAGE(plain(r), r.out);
  CHECK_MESSAGE(contains(r.out, "\\x1b[31mred"), r.out, r.err);
  Json json = Json::parse(text_of(run + "/run.json"));
  json["settings"]["model"] = "\x1b[31mred";
  write(run + "/run.json", json.dump());
  r = limpid_command({"report", run});
  CHECK_MESSAGE(plain(r), r.err);
  r = resume(run);
  CHECK(r.code != 0);
  CHECK_MESSAGE(plain(r), r.err);
}

TEST_CASE("an output over a file of the run or over the input is refused, with both names") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  const std::string step = Json::parse(text_of(run + "/ckpt/last"))["checkpoint"];
  const auto before = files_of(run);
  auto refused = [&](const Words& words, const std::string& out, const std::string& file) {
    const CommandResult r = limpid_command(words);
    CAPTURE(out);
    CHECK(r.code == 2);
    CHECK_MESSAGE(contains(r.err, out + " would overwrite "), r.err);
    CHECK_MESSAGE(contains(r.err, file), r.err);
    CHECK(files_of(run) == before);
  };
  for (const std::string& name : {std::string("ledger.jsonl"), std::string("steps.jsonl"), std::string("run.json"),
                                  std::string(".lock"), std::string("trace.bin"), std::string("ckpt/last"),
                                  "ckpt/" + step + "/model.safetensors", "ckpt/" + step + "/state.json"}) {
    const std::string file = run + "/" + name;
    refused({"report", run, "-o", file}, file, "/" + name);
    refused({"mem", "view", run, "-o", file}, file, "/" + name);
    refused({"mem", "export", run, "-o", file, "--to", "jsonl"}, file, "/" + name);
  }
  // Other spellings and other names of the same file.
  refused({"report", run, "-o", run + "/ckpt/../ledger.jsonl"}, "/ckpt/../ledger.jsonl", "/run/ledger.jsonl");
  fs::create_hard_link(run + "/ledger.jsonl", folder / "hard.html");
  fs::create_symlink(run + "/ckpt/" + step + "/model.safetensors", folder / "soft.html");
  refused({"report", run, "-o", folder / "hard.html"}, folder / "hard.html", "/run/ledger.jsonl");
  refused({"report", run, "-o", folder / "soft.html"}, folder / "soft.html", "/model.safetensors");
  // Of another run, and the command's own input.
  const std::string trace = folder / "a.jsonl";
  REQUIRE(limpid_command({"mem", "export", run, "-o", trace}).code == 0);
  refused({"mem", "view", trace, "-o", run + "/steps.jsonl"}, run + "/steps.jsonl", "/run/steps.jsonl");
  refused({"mem", "export", trace, "-o", trace}, trace, "the input " + trace);
  refused({"mem", "view", trace, "-o", trace}, trace, "the input " + trace);
  refused({"mem", "import", trace, "-o", trace}, trace, "the input " + trace);
  // What is no part of the run may be written again.
  for (int i = 0; i < 2; i++) {
    CHECK(limpid_command({"report", run}).code == 0);
    CHECK(limpid_command({"mem", "view", run, "-o", run + "/view.html"}).code == 0);
  }
}
