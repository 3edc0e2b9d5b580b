// What `limpid train` lets a user set about memory: policy and knobs, reserve plan, retention, workspace cap, huge pages.
#include <doctest/doctest.h>

#include <fstream>

#include <limpid/memory/policies.h>

#include "command.h"

using namespace limpid_test;
using Json = nlohmann::json;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> small_run(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"train",   "--data",  "synthetic", "--input",  "3x16x16", "--classes", "4",
                                    "--limit", "72",      "--model",   "resnet20", "--batch", "16",        "--epochs",
                                    "2",       "--workers", "1",       "--threads", "1",      "--json",    "--quiet"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The losses, digit for digit.
std::vector<std::string> losses_of(const std::string& folder) {
  std::ifstream file(folder + "/steps.jsonl");
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line)["loss"].dump());
  return out;
}

// From the segment records of the recorded run itself.
std::uint64_t peak_reserved_of(const std::string& run, const std::string& jsonl) {
  if (limpid_command({"mem", "export", run, "-o", jsonl}).code != 0) return 0;
  std::ifstream file(jsonl);
  std::uint64_t reserved = 0, peak = 0;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    const std::string kind = record.value("e", "");
    if (kind == "segment_alloc" || kind == "segment_map") {
      reserved += record["bytes"].get<std::uint64_t>();
    } else if (kind == "segment_free" || kind == "segment_unmap") {
      reserved -= record["bytes"].get<std::uint64_t>();
    } else {
      peak = std::max(peak, reserved);
    }
  }
  return peak;
}

Json settings_of(const std::string& folder) {
  std::ifstream file(folder + "/run.json");
  return Json::parse(file)["settings"];
}

}  // namespace

TEST_CASE("every policy: the same losses bit for bit, and a replay of the trace has the run's own peak") {
  TempFolder folder;
  std::vector<std::string> expected;
  for (const limpid::memory::PolicyEntry& policy : limpid::memory::policies()) {
    CAPTURE(policy.name);
    const std::string out = folder / policy.name;
    const CommandResult r = limpid_command(small_run({"--policy", policy.name, "--out", out}));
    REQUIRE(r.code == 0);
    CHECK(r.json()["policy"] == policy.name);
    CHECK(settings_of(out)["policy"] == policy.name);
    const std::vector<std::string> losses = losses_of(out);
    REQUIRE(losses.size() == 10);
    if (expected.empty()) expected = losses;
    CHECK(losses == expected);
    const CommandResult again = limpid_command({"mem", "replay", out, "--no-scan", "--json"});
    REQUIRE(again.code == 0);
    const Json replayed = again.json()["policies"][0];
    CHECK(replayed["policy"] == policy.name);
    // The segment records of the trace are the recorded run's own.
    CHECK(limpid_command({"mem", "summary", out, "--json"}).json()["policy"] == policy.name);
    CHECK(replayed["peak_reserved"] == peak_reserved_of(out, folder / "trace.jsonl"));
  }
}

TEST_CASE("knobs and role pools are kept with the run and its trace, and a resumed run keeps them") {
  TempFolder folder;
  const std::string out = folder / "run";
  const std::string knobs = "role_pools:[param+optimizer,grad]";
  const CommandResult first = limpid_command(
      small_run({"--policy", "expandable", "--alloc-conf", knobs, "--retain", "64MiB", "--out", out}));
  REQUIRE(first.code == 0);
  const Json settings = settings_of(out);
  CHECK(settings["policy"] == "expandable");
  CHECK(settings["alloc_conf"] == "retain_mb:64," + knobs);
  const CommandResult more = limpid_command({"train", "--resume", "--out", out, "--epochs", "3", "--json", "--quiet"});
  REQUIRE(more.code == 0);
  CHECK(more.json()["policy"] == "expandable");
  CHECK(more.json()["alloc_conf"] == "retain_mb:64," + knobs);
  const CommandResult other =
      limpid_command({"train", "--resume", "--out", out, "--epochs", "4", "--retain", "8MiB", "--json", "--quiet"});
  REQUIRE(other.code == 0);
  CHECK(other.json()["alloc_conf"] == "retain_mb:8," + knobs);
  CHECK(other.json()["policy"] == "expandable");
}

TEST_CASE("--reserve-plan: no device call from the first step on") {
  TempFolder folder;
  const std::string plain = folder / "plain";
  const CommandResult without = limpid_command(small_run({"--out", plain}));
  REQUIRE(without.code == 0);
  CHECK(without.json()["device_calls"] > 0);
  CHECK(without.json()["reserve_plan"].is_null());
  for (const char* policy : {"native", "expandable", "nosplit", "stitch", "bfc", "arena"}) {
    for (const std::string& plan : {std::string("dry"), plain}) {
      CAPTURE(policy);
      CAPTURE(plan);
      const std::string out = folder / (std::string(policy) + (plan == "dry" ? "-dry" : "-trace"));
      const CommandResult r = limpid_command(small_run({"--policy", policy, "--reserve-plan", plan, "--out", out}));
      REQUIRE(r.code == 0);
      const Json json = r.json();
      CHECK(json["device_calls"] == 0);
      CHECK(json["device_calls_after_first_step"] == 0);
      CHECK(json["reserve_plan"]["passes"].back()["device_calls"] == 0);
      CHECK(losses_of(out) == losses_of(plain));
    }
  }
}

TEST_CASE("--reserve-plan: a trace of another model is refused, one of smaller steps is told") {
  TempFolder folder;
  const std::string plain = folder / "plain", small = folder / "small";
  REQUIRE(limpid_command(small_run({"--out", plain})).code == 0);
  REQUIRE(limpid_command(small_run({"--micro-batch", "2", "--out", small})).code == 0);
  const CommandResult other = limpid_command({"train", "--data", "synthetic", "--input", "3x16x16", "--classes", "4", "--limit", "72",
                                              "--model", "lenet", "--quiet", "--reserve-plan", plain});
  CHECK(other.code == 2);
  CHECK_MESSAGE(contains(other.err, "is the trace of another model: its parameters have "), other.err);
  CHECK(limpid_command(small_run({"--reserve-plan", plain})).err.find("did not suffice") == std::string::npos);
  const CommandResult less = limpid_command(small_run({"--reserve-plan", small}));
  CHECK(less.code == 0);
  const std::string calls = std::to_string(less.json()["device_calls"].get<int>());
  CHECK(calls != "0");
  CHECK_MESSAGE(contains(less.err, "the reserve plan did not suffice: the steps made " + calls + " device calls"), less.err);
}

TEST_CASE("--reserve-plan takes nothing twice: the optimizer's state is there already") {
  auto run = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "--data", "synthetic", "--input", "1x28x28", "--limit", "300", "--model",
                                      "lenet", "--epochs", "1", "--workers", "1", "--quiet", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return limpid_command(words).json();
  };
  const Json plain = run({}), planned = run({"--reserve-plan", "dry"});
  const Json& plan = planned["reserve_plan"];
  CHECK(plan["live_before"] > plan["reserved_before"].get<std::uint64_t>() / 4);
  CHECK(planned["peak_reserved_bytes"] <= plain["peak_reserved_bytes"]);
}

TEST_CASE("--workspace-cap, --huge-pages off and a cap that is too small") {
  TempFolder folder;
  const std::string out = folder / "run";
  const CommandResult r = limpid_command(small_run({"--workspace-cap", "256KiB", "--huge-pages", "off", "--out", out}));
  REQUIRE(r.code == 0);
  CHECK(settings_of(out)["workspace_cap"] == 256 << 10);
  CHECK(settings_of(out)["huge_pages"] == false);
  CHECK(r.json()["workspace_cap"] == 256 << 10);
  CHECK(r.json()["huge_pages"] == false);
  REQUIRE(limpid_command({"mem", "export", out, "-o", folder / "t.jsonl"}).code == 0);
  std::ifstream file(folder / "t.jsonl");
  std::uint64_t largest = 0;
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line);
    if (record.value("e", "") == "alloc" && record.value("role", "") == "workspace")
      largest = std::max(largest, record["bytes"].get<std::uint64_t>());
  }
  CHECK(largest > 100 << 10);
  CHECK(largest <= 256 << 10);
  const CommandResult small = limpid_command(small_run({"--workspace-cap", "1KiB"}));
  CHECK(small.code == 2);
  CHECK(contains(small.err, "the workspace cap is 1024"));
  // The cap is part of the numbers: a run does not go on under another one.
  const CommandResult other =
      limpid_command({"train", "--resume", "--out", out, "--workspace-cap", "1MiB", "--epochs", "3", "--quiet"});
  CHECK(other.code == 2);
  CHECK(contains(other.err, "workspace_cap: 262144, now 1048576"));
  const CommandResult plan =
      limpid_command({"plan", "--model", "resnet20", "--input", "3x16x16", "--classes", "4", "--batch", "16",
                      "--workspace-cap", "256KiB", "--verify", "--json", "--quiet"});
  CHECK(plan.code == 0);
}

TEST_CASE("bad values of the memory options end with code 2") {
  const std::vector<std::vector<std::string>> bad = {{"--policy", "magic"},
                                                     {"--alloc-conf", "x:1"},
                                                     {"--alloc-conf", "role_pools:[nobody]"},
                                                     {"--retain", "1000"},
                                                     {"--retain", "lots"},
                                                     {"--retain", "8MiB", "--alloc-conf", "retain_mb:16"},
                                                     {"--alloc-conf", "retain_mb:8,retain_mb:16"},
                                                     {"--momentum", "abc"},
                                                     {"--lr", "fast"},
                                                     {"--huge-pages", "maybe"},
                                                     {"--workspace-cap", "many"},
                                                     {"--reserve-plan", "dry", "--retain", "8MiB"}};
  for (const auto& words : bad) {
    CAPTURE(words[1]);
    CHECK(limpid_command(small_run(words)).code == 2);
  }
  CHECK(limpid_command(small_run({"--reserve-plan", "/nowhere/trace.bin"})).code == 4);
  // What the plan needs does not fit under the cap.
  const CommandResult r = limpid_command(small_run({"--reserve-plan", "dry", "--memory-cap", "6MiB"}));
  CHECK(r.code == 3);
}
