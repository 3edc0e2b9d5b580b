// The limpid command under bad circumstances: folders that are not runs, two runs in one folder, damaged run folders,
// outputs that cannot be written, signals, options out of range, edited settings. Ordinary use is in test_cli.cpp.
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <doctest/doctest.h>

#include "command.h"
#include "temp_folder.h"

using namespace limpid_test;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::string get_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}
Words words(Words first, const Words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}
// 19 steps an epoch, milliseconds each.
Words train(const Words& more = {}) {
  return words({"train", "--data", "synthetic", "--limit", "320", "--input", "1x8x8", "--classes", "3", "--model",
                "mlp", "--batch", "16", "--threads", "1", "--workers", "0"},
               more);
}
bool wait_for(Command& command, const std::string& path) {
  while (!fs::exists(path) || fs::file_size(path) == 0) {
    if (!command.running()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return command.running();
}
// A finished run of two epochs in `folder`/run.
std::string finished_run(const TempFolder& folder) {
  const std::string run = folder / "run";
  const CommandResult r = limpid_command(train({"--epochs", "2", "--out", run}));
  REQUIRE_MESSAGE(r.code == 0, r.err);
  return run;
}
std::string last_step(const std::string& run) { return Json::parse(get_text(run + "/ckpt/last"))["checkpoint"]; }

}  // namespace

TEST_CASE("a folder that holds something else is refused, with --overwrite too") {
  TempFolder folder;
  const std::string mine = folder / "mine";
  fs::create_directories(mine + "/ckpt/00000004");
  put_text(mine + "/ckpt/00000004/thesis", "precious");
  put_text(mine + "/steps.jsonl", "mine\n");
  for (const Words& more : {Words{}, Words{"--overwrite"}}) {
    const CommandResult r = limpid_command(train(words({"--out", mine}, more)));
    CHECK(r.code == 2);
    CHECK(contains(r.err, "holds no run"));
  }
  CHECK(get_text(mine + "/ckpt/00000004/thesis") == "precious");
  CHECK(get_text(mine + "/steps.jsonl") == "mine\n");
}

TEST_CASE("--overwrite removes what limpid wrote, and only once everything else is accepted") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  const std::string log = get_text(run + "/steps.jsonl");
  put_text(run + "/thesis.txt", "precious");
  put_text(run + "/ckpt/mine.txt", "mine");
  CHECK(limpid_command({"train", "--out", run, "--overwrite", "--data", "nosuch"}).code == 2);
  CHECK(
      limpid_command({"train", "--out", run, "--overwrite", "--data", "folder", "--data-dir", folder / "none"}).code ==
      4);
  CHECK(get_text(run + "/steps.jsonl") == log);
  CHECK(fs::exists(run + "/ckpt/last"));
  const CommandResult r = limpid_command(train({"--epochs", "1", "--out", run, "--overwrite"}));
  REQUIRE_MESSAGE(r.code == 0, r.err);
  CHECK(get_text(run + "/steps.jsonl").size() < log.size());
  CHECK(get_text(run + "/thesis.txt") == "precious");
  CHECK(get_text(run + "/ckpt/mine.txt") == "mine");
}

TEST_CASE("a folder in use is refused, and the run in it goes on") {
  TempFolder folder;
  const std::string run = folder / "run";
  Command first(train({"--epochs", "100000", "--out", run}));
  REQUIRE(wait_for(first, run + "/steps.jsonl"));
  CHECK(limpid_command(train({"--out", run})).code == 2);
  const CommandResult r = limpid_command({"train", "--resume", "--out", run});
  CHECK(r.code == 2);
  CHECK(contains(r.err, "in use by process"));
  CHECK(first.running());
  first.send(SIGINT);
  CHECK(first.wait().code == 130);
}

TEST_CASE("signals: one saves and says so by the exit code, a second at once does no harm") {
  TempFolder folder;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string run = folder / std::to_string(signal);
    Command command(train({"--epochs", "100000", "--out", run, "--json"}));
    REQUIRE(wait_for(command, run + "/steps.jsonl"));
    command.send(signal);
    command.send(signal);
    const CommandResult r = command.wait();
    CHECK(r.code == 128 + signal);
    CHECK(r.json()["stopped"] == true);
    CHECK(fs::exists(run + "/ckpt/" + last_step(run) + "/model.safetensors"));
  }
}

TEST_CASE("a lost or odd ckpt/last is an error, never a new start") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  const std::string log = get_text(run + "/steps.jsonl");
  fs::remove(run + "/ckpt/last");
  const CommandResult lost = limpid_command({"train", "--resume", "--out", run});
  CHECK(lost.code == 4);
  CHECK(contains(lost.err, "ckpt/last is missing"));
  REQUIRE(::mkfifo((run + "/ckpt/last").c_str(), 0600) == 0);
  const CommandResult fifo = limpid_command({"train", "--resume", "--out", run});
  CHECK(fifo.code == 4);
  CHECK(contains(fifo.err, "not a regular file"));
  CHECK(get_text(run + "/steps.jsonl") == log);
}

TEST_CASE("a damaged last checkpoint is named as what it is, the best one too or not") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  const std::string last = last_step(run), whole = get_text(run + "/ckpt/best");
  auto damage = [&](const std::string& path) {
    std::string text = get_text(path);
    text[text.size() / 2] ^= 1;
    put_text(path, text);
  };
  put_text(run + "/ckpt/best", get_text(run + "/ckpt/last"));
  damage(run + "/ckpt/" + last + "/model.safetensors");
  const CommandResult both = limpid_command({"train", "--resume", "--out", run});
  CHECK(both.code == 4);
  CHECK(
      contains(both.err, "the last checkpoint " + run + "/ckpt/" + last + " is damaged, and it is the best one too: "));
  CHECK_FALSE(contains(both.err, "go on without it"));
  // Another best one is a way out.
  const std::string other = Json::parse(whole)["checkpoint"];
  if (other == last) return;
  put_text(run + "/ckpt/best", whole);
  const CommandResult one = limpid_command({"train", "--resume", "--out", run});
  CHECK(one.code == 4);
  CHECK(contains(one.err, "the best one is whole: to go on from it: cp " + run + "/ckpt/best " + run + "/ckpt/last"));
}

TEST_CASE("pipes and devices in place of files end in an error") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  const std::string fifo = folder / "pipe.png";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  for (const Words& w : {Words{"predict", "--checkpoint", run, fifo}, Words{"predict", "--checkpoint", fifo, "a.png"},
                         Words{"eval", "--checkpoint", "/dev/zero"}, train({"--init", fifo})}) {
    const CommandResult r = limpid_command(w);
    CHECK(r.code == 4);
    CHECK(contains(r.err, "not a regular file"));
  }
}

TEST_CASE("edited run and checkpoint files are named, with the field") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  const std::string settings = run + "/run.json", state = run + "/ckpt/" + last_step(run) + "/state.json";
  const std::string good_settings = get_text(settings), good_pointer = get_text(run + "/ckpt/last");
  auto edit = [&](const char* field, const Json& value) {
    Json json = Json::parse(good_settings);
    json["settings"][field] = value;
    put_text(settings, json.dump());
    const CommandResult r = limpid_command({"train", "--resume", "--epochs", "3", "--out", run});
    CHECK_MESSAGE(r.code == 4, field);
    CHECK(contains(r.err, "run.json"));
    CHECK(contains(r.err, field));
    put_text(settings, good_settings);
  };
  edit("batch", 16.7);
  edit("epochs", 1e300);
  edit("seed", -1);
  edit("limit", "many");
  for (const char* name : {"../../run.json", "/etc/passwd", "", "x/y"}) {
    Json json = Json::parse(good_pointer);
    json["checkpoint"] = name;
    put_text(run + "/ckpt/last", json.dump());
    const CommandResult r = limpid_command({"train", "--resume", "--epochs", "3", "--out", run});
    CHECK_MESSAGE(r.code == 4, name);
  }
  put_text(run + "/ckpt/last", good_pointer);
  const std::string good_state = get_text(state);
  put_text(state, good_state + " ");
  const CommandResult r = limpid_command({"eval", "--checkpoint", run});
  CHECK(r.code == 4);
  CHECK(contains(r.err, "state.json"));
  put_text(state, good_state);
  CHECK(limpid_command({"train", "--resume", "--epochs", "3", "--out", run}).code == 0);
}

TEST_CASE("results that cannot be written are an error") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  for (const Words& w : {Words{"info"}, Words{"info", "--json"}, Words{"--help"}, Words{"--version"},
                         Words{"summary", "--model", "seed", "--batch", "2"}, Words{"eval", "--checkpoint", run},
                         train({"--epochs", "1", "--json"})}) {
    for (const char* out : {"/dev/full", ""}) {
      const CommandResult r = limpid_command(w, {.out = out});
      CHECK(r.code == 4);
      CHECK(contains(r.err, "standard output"));
    }
  }
}

TEST_CASE("a closed stderr leaves the run's files alone") {
  TempFolder folder;
  const std::string run = folder / "run";
  CHECK(limpid_command(train({"--epochs", "2", "--out", run}), {.close_err = true}).code == 0);
  std::ifstream log(run + "/steps.jsonl");
  for (std::string line; std::getline(log, line);) CHECK(!Json::parse(line, nullptr, false).is_discarded());
}

TEST_CASE("options out of range are refused with the option and the value") {
  const std::string huge = "99999999999999999999";
  for (const char* option :
       {"--limit", "--batch", "--epochs", "--checkpoint-every", "--keep-checkpoints", "--seed", "--threads"}) {
    const CommandResult r = limpid_command(train({option, huge}));
    CHECK(r.code == 2);
    CHECK(contains(r.err, option));
    CHECK(contains(r.err, huge));
  }
  CHECK(limpid_command(train({"--epochs", "9223372036854775807"})).code == 2);
  CHECK(limpid_command(train({"--memory-cap", "9223372036854775807"})).code == 2);
  CHECK(limpid_command(train({"--memory-cap", "1.5"})).code == 2);
  CHECK(limpid_command(train({"--data-dir", "/nonexistent"})).code == 2);
  CHECK(limpid_command({"train", "--data", "fashion-mnist", "--data-dir", "/nonexistent"}).code == 4);
  const CommandResult unknown = limpid_command({"foo"});
  CHECK(unknown.code == 2);
  CHECK(contains(unknown.err, "no subcommand foo"));
  CHECK(limpid_command({"summary", "--model", "seed", "--input", "3x100000x100000"}).code == 3);
}

TEST_CASE("a run that was lengthened is resumed by the command that limpid prints") {
  TempFolder folder;
  const std::string run = finished_run(folder);
  Command longer({"train", "--resume", "--out", run, "--epochs", "100000", "--json"});
  const std::size_t before = fs::file_size(run + "/steps.jsonl");
  while (longer.running() && fs::file_size(run + "/steps.jsonl") == before)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  longer.send(SIGINT);
  const CommandResult stopped = longer.wait();
  REQUIRE(stopped.code == 130);
  CHECK(contains(stopped.err, "limpid train --resume --out " + run));
  Command again({"train", "--resume", "--out", run, "--json"});
  const std::size_t then = fs::file_size(run + "/steps.jsonl");
  while (again.running() && fs::file_size(run + "/steps.jsonl") <= then)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(again.running());
  again.send(SIGINT);
  CHECK(again.wait().code == 130);
}

TEST_CASE("a diverged run says so and has no best epoch") {
  TempFolder folder;
  const CommandResult r =
      limpid_command(train({"--epochs", "2", "--lr", "1e30", "--optimizer", "sgd", "--json", "--out", folder / "run"}));
  CHECK(r.code == 0);
  CHECK(contains(r.err, "diverged"));
  CHECK(!contains(r.err, "(best)"));
  CHECK(!contains(r.err, "-nan"));
  CHECK(r.json()["best_epoch"].is_null());
  CHECK(r.json()["train_loss"].is_null());
}

TEST_CASE("a loss far above the first one is told once, and such an epoch is not called the best") {
  const CommandResult r = limpid_command(train({"--epochs", "3", "--lr", "1e6", "--optimizer", "sgd"}));
  CHECK(r.code == 0);
  const std::size_t at = r.err.find("times that of the first step");
  CHECK(at != std::string::npos);
  CHECK(r.err.find("has diverged") != std::string::npos);
  CHECK(r.err.find("has diverged", r.err.find("has diverged") + 1) == std::string::npos);
  CHECK_FALSE(contains(r.err, "(best)"));
  const CommandResult fine = limpid_command(train({"--epochs", "1"}));
  CHECK_FALSE(contains(fine.err, "diverged"));
  CHECK(contains(fine.err, "(best)"));
}

TEST_CASE("the test shows its progress in a pipe, and a signal ends it behind a batch") {
  TempFolder folder;
  const std::string run = folder / "run";
  // 2,000 test samples through a large network, one at a time: minutes.
  Command command({"train",   "--data",    "synthetic", "--limit",   "2",      "--val-fraction", "0",   "--input",
                   "3x32x32", "--model",   "resnet50",  "--batch",   "1",      "--epochs",       "1",   "--threads",
                   "1",       "--workers", "0",         "--bn-mode", "frozen", "--trace",        "off", "--out",
                   run,       "--json"});
  while (command.running() && !contains(command.err(), "test: "))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  REQUIRE_MESSAGE(command.running(), command.err());
  CHECK(contains(command.err(), " of 2000 samples"));
  command.send(SIGTERM);
  const CommandResult r = command.wait();
  CHECK(r.code == 143);
  CHECK(r.json()["stopped"] == true);
  CHECK(r.json()["test_accuracy"].is_null());
  CHECK(contains(r.err, "limpid train --resume --out " + run));
}

TEST_CASE("an empty value is refused, and named") {
  for (const Words& w : {Words{"plan", "--capacity", ""},
                         {"plan", "--card", ""},
                         {"plan", "--policy", ""},
                         {"plan", "--alloc-conf", ""},
                         {"plan", "--workspace-cap", ""},
                         {"train", "--memory-cap", ""},
                         {"train", "--out", ""},
                         {"train", "--trace", ""},
                         {"train", "--retain", ""},
                         {"mem", "replay", "x", "--policy", ""}}) {
    const CommandResult r = limpid_command(w);
    CHECK_MESSAGE(r.code == 2, w[w.size() - 2], ": ", r.err);
    CHECK_MESSAGE(contains(r.err, w[w.size() - 2] + ": the value is empty"), r.err);
  }
}
