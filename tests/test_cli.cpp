// The limpid command from outside: exit codes, JSON, signals, full disks, kills.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include <limpid/base/file.h>
#include <limpid/data/idx.h>
#include <limpid/data/registry.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/safetensors.h>

#include "command.h"
#include "data_test.h"

using namespace limpid_test;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A run of 18 steps an epoch that takes a moment.
Words small_train(const Words& more = {}) {
  Words words = {"train", "--data",    "synthetic", "--input",   "3x8x8", "--classes", "4",    "--limit",
                 "300",   "--model",   "seed",      "--batch",   "16",    "--lr",      "0.01", "--seed",
                 "5",     "--threads", "2",         "--workers", "1",     "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<Json> step_log(const std::string& run) {
  std::vector<Json> lines;
  std::ifstream file(run + "/steps.jsonl");
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line, nullptr, false);
    for (const char* key : {"seconds", "allocated_bytes", "reserved_bytes"}) json.erase(key);
    lines.push_back(json);
  }
  return lines;
}

std::size_t line_count(const std::string& path) {
  std::ifstream file(path);
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

// Waits until the run has logged `lines` steps; false when it ended before.
bool wait_for_steps(Command& command, const std::string& run, std::size_t lines) {
  while (line_count(run + "/steps.jsonl") < lines) {
    if (!command.running()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return command.running();
}

std::vector<std::uint8_t> checkpoint_file(const std::string& run, const char* name) {
  const auto bytes = limpid::read_file(run + "/ckpt/last");
  const Json pointer = Json::parse(bytes.begin(), bytes.end());
  return limpid::read_file(run + "/ckpt/" + pointer["checkpoint"].get<std::string>() + "/" + name);
}

void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace

TEST_CASE("help and version end with 0, bad arguments with 2") {
  CHECK(limpid_command({"--help"}).code == 0);
  CHECK(contains(limpid_command({"--version"}).out, "limpid "));
  for (const char* sub : {"train", "eval", "predict", "info", "summary"}) {
    CAPTURE(sub);
    const CommandResult help = limpid_command({sub, "--help"});
    CHECK(help.code == 0);
    CHECK(contains(help.out, "--"));
    CHECK(limpid_command({sub, "--no-such-option"}).code == 2);
  }
  CHECK(limpid_command({}).code == 2);
  CHECK(limpid_command({"dance"}).code == 2);
  for (const Words& bad : std::vector<Words>{{"--epochs", "0"},
                                             {"--epochs", "three"},
                                             {"--batch", "-4"},
                                             {"--lr", "fast"},
                                             {"--optimizer", "magic"},
                                             {"--schedule", "magic"},
                                             {"--model", "magic"},
                                             {"--data", "magic"},
                                             {"--device", "cuda"},
                                             {"--device", "toaster"},
                                             {"--memory-cap", "much"},
                                             {"--input", "3x"},
                                             {"--input", "3x4"},
                                             {"--val-fraction", "1.5"},
                                             {"--warmup", "100000"},
                                             {"--threads", "-1"},
                                             {"--resume"},
                                             {"--seed", "-1"}}) {
    Words words = {"train", "--data", "synthetic", "--limit", "64", "--quiet"};
    if (bad[0] == "--data") words.erase(words.begin() + 1, words.begin() + 3);
    words.insert(words.end(), bad.begin(), bad.end());
    const CommandResult r = limpid_command(words);
    CHECK_MESSAGE(r.code == 2, bad[0], " ", bad.back(), ": ", r.err);
    CHECK_FALSE(r.err.empty());
  }
  CHECK(limpid_command({"eval"}).code == 2);
  CHECK(limpid_command({"predict", "--checkpoint", "x"}).code == 2);
  CHECK(limpid_command({"summary", "--batch", "0"}).code == 2);
  CHECK(limpid_command({"summary", "--model", "lenet", "--input", "1x2x2"}).code == 2);
}

TEST_CASE("summary of the seed model has the known figures") {
  for (const Words& words :
       {Words{"summary", "--model", "seed", "--batch", "16", "--json"},
        Words{"summary", "--model", "seed", "--batch", "16", "--input", "3x224x224", "--classes", "10", "--json"}}) {
    const CommandResult r = limpid_command(words);
    REQUIRE(r.code == 0);
    const Json json = r.json();
    CHECK(json["params"] == 2442);
    CHECK(json["batch"] == 16);
    CHECK(json["input_bytes_per_sample"] == 602112);
    int seen = 0;
    for (const Json& layer : json["layers"]) {
      if (layer["type"] != "Conv2d" && layer["type"] != "ReLU") continue;
      CHECK(layer["output_bytes_per_sample"] == 12616704);
      CHECK(layer["output_shape"] == Json({64, 222, 222}));
      seen++;
    }
    CHECK(seen == 2);
  }
  CHECK(contains(limpid_command({"summary", "--model", "lenet"}).out, "Conv2d"));
}

TEST_CASE("info names the build, the machine and the data sets") {
  TempFolder folder;
  const CommandResult r = limpid_command({"info", "--json"});
  REQUIRE(r.code == 0);
  const Json json = r.json();
  for (const char* key : {"version", "build", "compiler", "cpu", "isa", "threads", "cuda_toolkit", "gpus", "datasets"})
    CHECK_MESSAGE(json.contains(key), key);
  CHECK(json["threads"] >= 1);
  const std::string gpus = limpid_command({"info"}).out;  // what there is, or why there is none
  CHECK((contains(gpus, "no CUDA device (") || contains(gpus, "driver for CUDA")));

  // The environment comes before the system's folders, --data-dir before both. Finding reads no contents.
  for (const char* place : {"env/mnist", "given/mnist"}) {
    fs::create_directories(folder / place);
    for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"})
      put_text((folder / place) + "/" + name, "");
  }
  CHECK(limpid_command({"info", "--json"}, {.data_path = folder.path() + "/none:" + folder.path() + "/env"})
            .json()["datasets"]["mnist"] == folder / "env/mnist");
  CHECK(limpid_command({"info", "--json", "--data-dir", folder / "given"}, {.data_path = folder / "env"})
            .json()["datasets"]["mnist"] == folder / "given/mnist");
}

TEST_CASE("train prints one JSON object with the promised fields, and eval agrees with it") {
  TempFolder folder;
  const std::string run = folder / "run";
  const CommandResult r = limpid_command(small_train({"--epochs", "2", "--out", run}));
  REQUIRE_MESSAGE(r.code == 0, r.err);
  const Json json = r.json();
  for (const char* key : {"test_accuracy", "train_seconds", "samples_per_second", "steps", "peak_allocated_bytes",
                          "peak_reserved_bytes", "memory_at_peak", "parameters", "checkpoint"})
    CHECK_MESSAGE(json.contains(key), key);
  CHECK(json["steps"] == 36);
  CHECK(json["samples"] == 2 * 285);
  std::uint64_t sum = json["rounding_at_peak_bytes"];
  for (const auto& [role, bytes] : json["memory_at_peak"].items()) sum += bytes.get<std::uint64_t>();
  CHECK(json["peak_allocated_bytes"] == sum);
  CHECK(json["stopped"] == false);
  CHECK(contains(r.err, "epoch 2"));
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  CHECK(step_log(run).size() == 36);
  CHECK(fs::exists(run + "/run.json"));
  CHECK(line_count(run + "/ledger.jsonl") == 1 + line_count(run + "/steps.jsonl") + 2);  // plan, steps, epochs

  const std::string checkpoint = json["checkpoint"];
  for (const Words& source :
       {Words{run}, Words{checkpoint}, Words{checkpoint + "/model.safetensors"}, Words{run + "/ckpt/last"}}) {
    const CommandResult e = limpid_command({"eval", "--checkpoint", source[0], "--data", "synthetic", "--json"});
    REQUIRE_MESSAGE(e.code == 0, e.err);
    CHECK(e.json()["accuracy"] == json["test_accuracy"]);
    CHECK(e.json()["loss"].get<double>() == doctest::Approx(json["test_loss"].get<double>()).epsilon(1e-6));
    CHECK(e.json()["samples"] == 2000);
    CHECK(e.json()["confusion"].size() == 4);
    CHECK(e.json()["class_accuracy"].size() == 4);
  }
  const CommandResult text = limpid_command({"eval", "--checkpoint", run + "/ckpt/best"});
  CHECK(text.code == 0);
  CHECK(contains(text.out, "confusion"));
  CHECK(limpid_command({"eval", "--checkpoint", run, "--model", "lenet"}).code == 2);

  // The folder is not written over by accident.
  CHECK(limpid_command(small_train({"--epochs", "1", "--out", run})).code == 2);
  CHECK(limpid_command(small_train({"--epochs", "2", "--out", run, "--resume", "--batch", "8"})).code == 2);
  const CommandResult again = limpid_command({"train", "--resume", "--out", run, "--json"});
  REQUIRE_MESSAGE(again.code == 0, again.err);
  CHECK(again.json()["test_accuracy"] == json["test_accuracy"]);
  CHECK(limpid_command(small_train({"--epochs", "1", "--out", run, "--overwrite"})).json()["steps"] == 18);

  // Damage is bad data.
  const std::string weights =
      limpid_command({"eval", "--checkpoint", run, "--json"}).json()["checkpoint"].get<std::string>() +
      "/model.safetensors";
  const auto bytes = limpid::read_file(weights);
  put_text(weights, std::string(bytes.begin(), bytes.end() - 1) + "?");
  const CommandResult damaged = limpid_command({"eval", "--checkpoint", run});
  CHECK(damaged.code == 4);
  CHECK(contains(damaged.err, "model.safetensors"));
  CHECK(limpid_command({"train", "--resume", "--out", run}).code == 4);
}

TEST_CASE("weights of another program start a run and are evaluated with a named model") {
  TempFolder folder;
  // As torch's nn.Sequential names them; without limpid's metadata.
  std::map<std::string, limpid::Tensor> weights = {{"0.weight", limpid::full({64, 3, 3, 3}, 0.01)},
                                                   {"0.bias", limpid::zeros({64})},
                                                   {"4.weight", limpid::full({10, 64}, 0.01)},
                                                   {"4.bias", limpid::zeros({10})}};
  const std::string file = folder / "w.safetensors";
  limpid::save_safetensors(file, weights);
  const Words train = {"train", "--data",   "synthetic", "--limit", "64", "--model",
                       "seed",  "--epochs", "1",         "--init",  file, "--json"};
  CHECK(limpid_command(train).code == 0);
  CHECK(limpid_command({"eval", "--checkpoint", file, "--data", "synthetic"}).code == 2);  // which model?
  const CommandResult named =
      limpid_command({"eval", "--checkpoint", file, "--data", "synthetic", "--model", "seed", "--json"});
  REQUIRE_MESSAGE(named.code == 0, named.err);
  CHECK(named.json()["samples"] == 2000);
  CHECK(named.json()["loss"].get<double>() == doctest::Approx(std::log(10.0)).epsilon(0.01));  // all logits are equal

  weights.erase("4.bias");
  weights["fc.bias"] = limpid::zeros({10});
  limpid::save_safetensors(file, weights);
  const CommandResult r = limpid_command(train);
  CHECK(r.code == 4);
  CHECK(contains(r.err, "missing: 4.bias"));
  CHECK(contains(r.err, "unexpected: fc.bias"));
  CHECK(limpid_command(small_train({"--init", folder / "none"})).code == 4);
}

TEST_CASE("predict reads images and reports those it cannot read") {
  TempFolder folder;
  const std::string run = folder / "run";
  REQUIRE(limpid_command(small_train({"--epochs", "1", "--out", run})).code == 0);
  put_text(folder / "broken.jpg", "not an image");
  const CommandResult broken = limpid_command({"predict", "--checkpoint", run, folder / "broken.jpg"});
  CHECK(broken.code == 4);
  CHECK(contains(broken.err, "broken.jpg"));
  CHECK(limpid_command({"predict", "--checkpoint", run, folder / "none.png"}).code == 4);
  CHECK(limpid_command({"predict", "--checkpoint", folder / "none", folder / "broken.jpg"}).code == 4);
}

TEST_CASE("a folder of JPEG files made from real photographs trains, and its files are predicted") {
  const auto place =
      limpid::data::find_dataset("fashion-mnist", "", {"/usr/local/share/datasets", "/usr/share/datasets"});
  if (!place) {
    MESSAGE("not run: the Fashion-MNIST files are not installed");
    return;
  }
  // Trousers, bags and ankle boots, as gray JPEG files.
  TempFolder folder;
  const std::map<int, std::string> kinds = {{1, "trouser"}, {8, "bag"}, {9, "boot"}};
  std::string sample;
  for (const bool train : {true, false}) {
    const auto images = limpid::data::fashion_mnist(*place, train);
    std::map<int, int> made;
    for (std::int64_t i = 0; i < 900; i++) {
      const int label = images->labels()[static_cast<std::size_t>(i)];
      const auto kind = kinds.find(label);
      if (kind == kinds.end() || made[label] == 40) continue;
      made[label]++;
      const std::string dir = (folder / "photos/") + (train ? "train/" : "test/") + kind->second;
      fs::create_directories(dir);
      const std::uint8_t* pixels = images->images().data<std::uint8_t>() + i * 784;
      sample = dir + "/" + std::to_string(i) + ".jpg";
      const auto jpeg = data_test::encode_jpeg(data_test::Bytes(pixels, pixels + 784), 28, 28, 1);
      put_text(sample, std::string(jpeg.begin(), jpeg.end()));
    }
  }
  const std::string run = folder / "run";
  const Words train = {"train",   "--data", "folder",  "--data-dir", folder / "photos", "--input", "1x28x28",
                       "--model", "lenet",  "--batch", "16",         "--epochs",        "4",       "--seed",
                       "1",       "--out",  run,       "--json"};
  const CommandResult r = limpid_command(train);
  REQUIRE_MESSAGE(r.code == 0, r.err);
  CHECK(r.json()["test_accuracy"].get<double>() > 0.8);
  const CommandResult e = limpid_command({"eval", "--checkpoint", run, "--json"});
  REQUIRE_MESSAGE(e.code == 0, e.err);
  CHECK(e.json()["accuracy"] == r.json()["test_accuracy"]);
  CHECK(e.json()["class_names"] == Json({"bag", "boot", "trouser"}));
  const CommandResult p = limpid_command({"predict", "--checkpoint", run, "--json", sample});
  REQUIRE_MESSAGE(p.code == 0, p.err);
  const Json prediction = p.json()["predictions"][0];
  CHECK(prediction["path"] == sample);
  CHECK(prediction["top"].size() == 3);
  CHECK(prediction["probability"] == prediction["top"][0]["probability"]);

  // A broken file is named; it is left out only when asked.
  put_text(folder / "photos/train/bag/broken.jpg", "not an image");
  Words again = train;
  again.push_back("--overwrite");
  const CommandResult broken = limpid_command(again);
  CHECK(broken.code == 4);
  CHECK(contains(broken.err, "broken.jpg"));
  again.push_back("--skip-broken");
  const CommandResult skipped = limpid_command(again);
  CHECK(skipped.code == 0);
  CHECK(contains(skipped.err, "skipped"));
  CHECK(contains(skipped.err, "broken.jpg"));
}

TEST_CASE("a memory cap ends with 3, missing data with 4, an unwritable folder with 4") {
  TempFolder folder;
  const CommandResult oom = limpid_command({"train", "--data", "synthetic", "--model", "seed", "--limit", "600",
                                            "--batch", "512", "--memory-cap", "32MiB", "--workers", "0"});
  CHECK(oom.code == 3);
  CHECK(contains(oom.err, "memory"));
  CHECK(limpid_command({"train", "--data", "cifar10", "--data-dir", folder.path()}).code == 4);
  CHECK(limpid_command({"train", "--data", "folder", "--data-dir", folder / "none"}).code == 4);
  put_text(folder / "file", "");
  const CommandResult unwritable = limpid_command(small_train({"--epochs", "1", "--out", folder / "file/run"}));
  CHECK(unwritable.code == 4);
  CHECK(contains(unwritable.err, "file/run"));
}

TEST_CASE("a full disk is a clear error, and what was written before stays valid") {
  TempFolder folder;
  const std::string run = folder / "run";
  const CommandResult full = limpid_command(small_train({"--epochs", "1", "--out", run}), {.file_limit = 2000});
  CHECK(full.code == 4);
  CHECK(contains(full.err, run));
  // The log got full, so the run goes on from the start when there is room again.
  const CommandResult r = limpid_command({"train", "--resume", "--out", run, "--json"});
  REQUIRE_MESSAGE(r.code == 0, r.err);
  CHECK(r.json()["steps"] == 18);
  CHECK(step_log(run).size() == 18);
}

TEST_CASE("Ctrl-C stops with a checkpoint, and the resumed run is the same") {
  TempFolder folder;
  const std::string whole = folder / "whole", stopped = folder / "stopped";
  const Words more = {"--epochs", "6", "--out"};
  Words words = small_train(more);
  words.push_back(whole);
  const CommandResult expected = limpid_command(words);
  REQUIRE_MESSAGE(expected.code == 0, expected.err);
  words.back() = stopped;
  Command command(words);
  REQUIRE(wait_for_steps(command, stopped, 7));
  command.send(SIGINT);
  const CommandResult r = command.wait();
  CHECK(r.code == 130);
  CHECK(r.json()["stopped"] == true);
  CHECK(r.json()["test_accuracy"].is_null());
  CHECK(contains(r.err, "--resume"));
  const CommandResult rest = limpid_command({"train", "--resume", "--out", stopped, "--json"});
  REQUIRE_MESSAGE(rest.code == 0, rest.err);
  CHECK(step_log(stopped) == step_log(whole));
  CHECK(rest.json()["test_loss"] == expected.json()["test_loss"]);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    CHECK(checkpoint_file(stopped, name) == checkpoint_file(whole, name));
}

TEST_CASE("killed at ten random points and resumed, a run is the uninterrupted one to the bit") {
  TempFolder folder;
  const std::string whole = folder / "whole", killed = folder / "killed";
  const Words more = {"--epochs", "10",       "--augment",          "--schedule", "cosine",
                      "--model",  "lenet-bn", "--checkpoint-every", "3"};
  Words words = {"train", "--data", "synthetic", "--input", "3x8x8", "--classes", "4", "--limit",   "300", "--batch",
                 "16",    "--lr",   "0.01",      "--seed",  "5",     "--threads", "2", "--workers", "1",   "--json"};
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), {"--out", whole});
  const CommandResult expected = limpid_command(words);
  REQUIRE_MESSAGE(expected.code == 0, expected.err);
  const std::vector<Json> log = step_log(whole);
  REQUIRE(log.size() == 180);

  words.back() = killed;
  std::mt19937 random(20);
  int kills = 0;
  for (int i = 0; i < 10; i++) {
    // Somewhere in the next tenth of the run, at any instant of a step or of a checkpoint.
    const std::size_t target = static_cast<std::size_t>(i) * 16 + 1 + random() % 14;
    Command command(words);
    if (wait_for_steps(command, killed, target)) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
      command.send(SIGKILL);
    }
    const CommandResult r = command.wait();
    REQUIRE_MESSAGE((r.signal == SIGKILL || r.code == 0), r.err);
    kills += r.signal == SIGKILL;
    if (i == 0) words.push_back("--resume");
    // Other workers and threads do not matter.
    *(std::find(words.begin(), words.end(), "--workers") + 1) = std::to_string(i % 4);
    *(std::find(words.begin(), words.end(), "--threads") + 1) = std::to_string(1 + i % 3);
  }
  CHECK(kills == 10);
  const CommandResult rest = limpid_command({"train", "--resume", "--out", killed, "--json"});
  REQUIRE_MESSAGE(rest.code == 0, rest.err);
  CHECK(step_log(killed) == log);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    CHECK(checkpoint_file(killed, name) == checkpoint_file(whole, name));
  for (const char* key :
       {"test_loss", "test_accuracy", "train_loss", "validation_loss", "best_epoch", "steps", "samples"})
    CHECK_MESSAGE(rest.json()[key] == expected.json()[key], key);
}
