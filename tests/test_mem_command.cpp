// `limpid mem` from outside, on the trace of a real run and on files of others.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "command.h"

using namespace limpid_test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// One small run, with its trace, for all cases.
struct Run {
  TempFolder folder;
  std::string path = folder / "run";
  CommandResult result;
  Run() {
    result =
        limpid_command({"train", "--data",    "synthetic", "--input", "3x16x16", "--classes", "4",      "--limit",
                        "64",    "--model",   "lenet",     "--batch", "16",      "--epochs",  "1",      "--workers",
                        "1",     "--threads", "1",         "--out",   path,      "--json",    "--quiet"});
  }
};
const Run& trained() {
  static const Run run;
  return run;
}

}  // namespace

TEST_CASE("a run folder has a trace, and its summary is the run's own report") {
  const Run& run = trained();
  REQUIRE(run.result.code == 0);
  CHECK(run.result.json()["trace"] == run.path + "/trace.bin");
  const CommandResult r = limpid_command({"mem", "summary", run.path, "--json"});
  CHECK(r.code == 0);
  const Json json = r.json();
  CHECK(json["cut"] == false);
  CHECK(json["preexisting"] == 0);
  CHECK(json["steps"] == 4);
  CHECK(json["policy"] == "native");
  CHECK(contains(r.err, "largest holders at the peak"));
  // The trainer's peak is that of the training; validation and test are in the trace too.
  const Json memory = run.result.json()["memory_at_peak"];
  CHECK(json["roles_at_peak"]["param"] == memory["param"]);
  CHECK(json["roles_at_peak"]["saved"] == memory["saved"]);
  CHECK(json["roles_at_peak"]["optimizer"] == memory["optimizer"]);
}

TEST_CASE("replay: table and JSON, capacity, several policies") {
  const Run& run = trained();
  const CommandResult text = limpid_command({"mem", "replay", run.path, "--policy", "native,nosplit"});
  CHECK(text.code == 0);
  for (const char* row : {"peak live", "peak reserved", "C*: smallest that runs", "BFC fragmentation", "retries"}) {
    CAPTURE(row);
    CHECK(contains(text.out, row));
  }
  const CommandResult r = limpid_command({"mem", "replay", run.path, "--policy", "native", "--json"});
  const Json json = r.json();
  REQUIRE(json["policies"].size() == 1);
  const Json& native = json["policies"][0];
  CHECK(native["completed"] == true);
  CHECK(native["peak_live"] == json["lower_bound"]);
  // The trace is of the compute pool; the run's figure has the loader's pool, too.
  CHECK(native["peak_reserved"] <= run.result.json()["peak_reserved_bytes"]);
  CHECK(native["scan"]["exact"] == true);
  const std::uint64_t smallest = native["scan"]["smallest"];
  CHECK(smallest >= json["lower_bound"].get<std::uint64_t>());
  auto at = [&](std::uint64_t capacity) {
    return limpid_command({"mem", "replay", run.path, "--policy", "native", "--capacity", std::to_string(capacity),
                           "--no-scan", "--json"});
  };
  CHECK(at(smallest).code == 0);
  const CommandResult failed = at(smallest - (2 << 20));
  CHECK(failed.code == 3);
  CHECK(failed.json()["policies"][0]["out_of_memory"]["requested"] > 0);
  CHECK(contains(failed.err, "ran out of memory at event"));
  CHECK(limpid_command({"mem", "replay", run.path, "--policy", "magic"}).code == 2);
  CHECK(limpid_command({"mem", "replay", run.path, "--capacity", "lots"}).code == 2);
  CHECK(limpid_command({"mem", "replay", run.path, "--settings", "x:1"}).code == 2);
  CHECK(limpid_command({"mem", "replay", run.path, "--granularity", "3MiB"}).code == 2);
  CHECK(limpid_command({"mem", "replay", run.folder / "absent"}).code == 4);
}

TEST_CASE("export and import meet") {
  const Run& run = trained();
  TempFolder folder;
  auto peak = [](const std::string& file) {
    return limpid_command({"mem", "summary", file, "--json"}).json()["peak_live"];
  };
  const Json expected = peak(run.path);
  const std::pair<const char*, const char*> formats[] = {
      {"s.pickle", ""}, {"t.jsonl", ""}, {"t.bin", ""}, {"rmm.csv", "rmm"}, {"mini.csv", "minimalloc"}};
  for (const auto& [name, to] : formats) {
    CAPTURE(name);
    std::vector<std::string> words = {"mem", "export", run.path, "-o", folder / name, "--json"};
    if (*to) words.insert(words.end(), {"--to", to});
    const CommandResult written = limpid_command(words);
    CHECK(written.code == 0);
    CHECK(written.json()["bytes"] == fs::file_size(folder / name));
    CHECK(peak(folder / name) == expected);
    const CommandResult read = limpid_command({"mem", "import", folder / name, "-o", folder / "back.bin", "--json"});
    CHECK(read.code == 0);
    CHECK(peak(folder / "back.bin") == expected);
  }
  CHECK(limpid_command({"mem", "import", folder / "s.pickle", "-o", folder / "b.jsonl", "--device", "0"}).code == 0);
  CHECK(limpid_command({"mem", "import", folder / "rmm.csv", "-o", folder / "b.bin", "--device", "0"}).code == 2);
  CHECK(limpid_command({"mem", "import", folder / "rmm.csv", "-o", folder / "b.txt"}).code == 2);
  CHECK(limpid_command({"mem", "export", run.path, "-o", folder / "x.csv"}).code == 2);
  CHECK(limpid_command({"mem", "export", run.path, "-o", folder / "x.csv", "--to", "xml"}).code == 2);
}

TEST_CASE("hostile and damaged files end with code 4") {
  TempFolder folder;
  const std::string evil = std::string(LIMPID_TEST_DATA) + "/snapshots/evil_p4.pickle";
  for (const char* sub : {"summary", "replay", "strip"}) {
    const CommandResult r = limpid_command({"mem", sub, evil});
    CHECK(r.code == 4);
    CHECK(contains(r.err, "STACK_GLOBAL, which imports code"));
  }
  std::ofstream(folder / "noise") << "\x80\x04garbage";
  CHECK(limpid_command({"mem", "summary", folder / "noise"}).code == 4);
  std::ofstream(folder / "empty");
  CHECK(limpid_command({"mem", "summary", folder / "empty"}).code == 4);
  // A cut trace is used as far as it goes, and says so.
  fs::copy_file(trained().path + "/trace.bin", folder / "cut.bin");
  fs::resize_file(folder / "cut.bin", fs::file_size(folder / "cut.bin") - 1000);
  const CommandResult r = limpid_command({"mem", "summary", folder / "cut.bin", "--json"});
  CHECK(r.code == 0);
  CHECK(r.json()["cut"] == true);
  CHECK(contains(r.err, "note: cut at byte"));
}

TEST_CASE("strip draws the map") {
  const CommandResult r = limpid_command({"mem", "strip", trained().path, "--ascii", "--width", "60", "--height", "8"});
  CHECK(r.code == 0);
  CHECK(contains(r.out, "a row is"));
  CHECK(contains(r.out, "#"));
  CHECK(contains(r.out, "step"));
  const Json json = limpid_command({"mem", "strip", trained().path, "--height", "8", "--json"}).json();
  CHECK(json["rows"].size() == 8);
  CHECK(limpid_command({"mem", "strip", trained().path, "--width", "2"}).code == 2);
}

TEST_CASE("a capacity that does not suffice is said, with exit code 3, by all that replay") {
  const Run& run = trained();
  TempFolder folder;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"replay", run.path, "--no-scan"},
           {"strip", run.path},
           {"view", run.path, "-o", folder / "v.html"},
           {"export", run.path, "-o", folder / "s.pickle"},
           {"export", run.path, "-o", folder / "r.csv", "--to", "rmm"}}) {
    CAPTURE(words[0]);
    auto with = [&](const char* capacity) {
      std::vector<std::string> all = {"mem"};
      all.insert(all.end(), words.begin(), words.end());
      all.insert(all.end(), {"--capacity", capacity});
      return limpid_command(all);
    };
    const CommandResult failed = with("4MiB");
    CHECK(failed.code == 3);
    CHECK_MESSAGE(contains(failed.out, "native ran out of memory at event"), failed.out);
    CHECK(with("1GiB").code == 0);
  }
}

TEST_CASE("one number for an event: view, replay, explain and summary agree") {
  const Run& run = trained();
  TempFolder folder;
  auto json = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "mem");
    words.push_back("--json");
    return limpid_command(words).json();
  };
  const Json view = json({"view", run.path, "-o", folder / "v.html"})["runs"][0];
  const Json replay = json({"replay", run.path, "--no-scan"});
  const std::uint64_t peak = view["peak_live_event"];
  CHECK(peak > 0);
  CHECK(replay["policies"][0]["peak_live_event"] == peak);
  CHECK(json({"summary", run.path})["peak_event"] == peak);
  CHECK(replay["operations"] == view["events"]);
  const std::string small = std::to_string(replay["lower_bound"].get<std::uint64_t>() - 1);
  const Json failed = json({"replay", run.path, "--no-scan", "--capacity", small})["policies"][0]["out_of_memory"];
  CHECK(json({"explain", run.path, "--capacity", small})["event"] == failed["event"]);
  const CommandResult text = limpid_command({"mem", "replay", run.path, "--no-scan"});
  std::string number = std::to_string(peak);
  for (int at = static_cast<int>(number.size()) - 3; at > 0; at -= 3) number.insert(static_cast<std::size_t>(at), ",");
  CHECK_MESSAGE(contains(text.out, "lower bound"), text.out);
  CHECK_MESSAGE(contains(text.out, " at event " + number + " "), text.out);
}

TEST_CASE("mem: options that contradict each other or mean nothing are refused, and named") {
  const Run& run = trained();
  TempFolder folder;
  const CommandResult scan =
      limpid_command({"mem", "replay", run.path, "--no-scan", "--granularity", "2MiB"});
  CHECK(scan.code == 2);
  CHECK(contains(scan.err, "--granularity and --no-scan do not go together"));
  const CommandResult plain =
      limpid_command({"mem", "export", run.path, "-o", folder / "t.jsonl", "--capacity", "1GiB"});
  CHECK(plain.code == 2);
  CHECK(contains(plain.err, "--capacity and the format jsonl do not go together"));
  const CommandResult twice =
      limpid_command({"mem", "replay", run.path, "--settings", "max_split_size_mb:64,max_split_size_mb:32"});
  CHECK(twice.code == 2);
  CHECK(contains(twice.err, "max_split_size_mb is given twice"));
}

TEST_CASE("what cannot be written to its end leaves no file") {
  const Run& run = trained();
  TempFolder folder;
  CommandOptions full;
  full.file_limit = 1000;
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"mem", "export", run.path, "-o", folder / "t.jsonl"},
           {"mem", "export", run.path, "-o", folder / "s.pickle"},
           {"mem", "view", run.path, "-o", folder / "v.html"},
           {"mem", "import", run.path + "/trace.bin", "-o", folder / "i.bin"}}) {
    CAPTURE(words[1]);
    const CommandResult r = limpid_command(words, full);
    CHECK(r.code == 4);
    CHECK_MESSAGE(contains(r.err, "File too large"), r.err);
  }
  CHECK(fs::is_empty(folder / ""));
}

TEST_CASE("a disk that is full for the trace: a warning, whole chunks, and the training as without") {
  TempFolder folder;
  auto train = [&](const std::string& run, const CommandOptions& options) {
    return limpid_command({"train", "--data", "synthetic", "--input", "3x8x8", "--classes", "4", "--limit", "160",
                           "--model", "seed", "--batch", "16", "--micro-batch", "1", "--epochs", "1", "--workers", "1", "--threads", "1",
                           "--quiet", "--json", "--out", folder / run},
                          options);
  };
  CommandOptions full;
  full.file_limit = 40'000;  // weights and optimizer state have room, the trace has not
  const CommandResult whole = train("whole", {}), cut = train("cut", full);
  REQUIRE(whole.code == 0);
  REQUIRE(fs::file_size(folder / "whole/trace.bin") > 45'000);
  CHECK_MESSAGE(cut.code == 0, cut.err);
  CHECK_MESSAGE(contains(cut.err, "the memory trace ends early, at its last whole chunk: cannot write "), cut.err);
  CHECK(contains(cut.err, "File too large"));
  CHECK(whole.json()["trace_problem"].is_null());
  CHECK(contains(cut.json()["trace_problem"], "File too large"));
  CHECK(cut.json()["train_loss"] == whole.json()["train_loss"]);
  CHECK(fs::exists(folder / "cut/ckpt/last"));
  CHECK(limpid_command({"eval", "--checkpoint", folder / "cut", "--quiet"}).code == 0);
  // What stands in the file are whole chunks of the same trace.
  CHECK(fs::file_size(folder / "cut/trace.bin") <= 40'000);
  const CommandResult read = limpid_command({"mem", "summary", folder / "cut", "--json"});
  CHECK(read.code == 0);
  CHECK(contains(read.err, "the writer did not close the file"));
  CHECK(read.json()["records"] > 0);
  CHECK(read.json()["cut"] == true);
}

TEST_CASE("the trace of a run: limit, off, and again when it goes on") {
  TempFolder folder;
  auto train = [&](const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train",   "--data", "synthetic",  "--input",   "3x16x16", "--classes", "4",
                                      "--limit", "64",     "--model",    "lenet",     "--batch", "16",        "--quiet",
                                      "--json",  "--out",  folder / run, "--workers", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return limpid_command(words);
  };
  CHECK(train("off", {"--trace", "off", "--epochs", "1"}).json()["trace"].is_null());
  CHECK_FALSE(fs::exists(folder / "off/trace.bin"));
  CHECK(train("small", {"--trace", "2KiB", "--epochs", "1"}).code == 0);
  CHECK(fs::file_size(folder / "small/trace.bin") < 2048 + 100);
  CHECK(limpid_command({"mem", "summary", folder / "small", "--json"}).json()["not_recorded"] > 0);
  CHECK(train("bad", {"--trace", "much"}).code == 2);
  CHECK(train("small", {"--resume", "--epochs", "2", "--trace", "1MiB"}).code == 0);
  CHECK(fs::exists(folder / "small/trace.4.bin"));
  CHECK(train("small", {"--overwrite", "--trace", "off", "--epochs", "1"}).code == 0);
  CHECK_FALSE(fs::exists(folder / "small/trace.4.bin"));
  CHECK_FALSE(fs::exists(folder / "small/trace.bin"));
}
