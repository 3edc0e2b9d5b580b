// limpid bench: results, comparison with a baseline, refusals. No time is judged: baselines are made from the run's
// own.
#include <doctest/doctest.h>

#include <algorithm>

#include "command.h"

using namespace limpid_test;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words bench(const Words& more) {
  Words words = {"bench", "--rows", "mlp:2", "--quiet", "--json"};
  if (std::find(more.begin(), more.end(), "--repeats") == more.end()) words.insert(words.end(), {"--repeats", "5"});
  if (std::find(more.begin(), more.end(), "--threads") == more.end()) words.insert(words.end(), {"--threads", "1"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void write_scaled(const Json& result, double factor, const std::string& path) {
  Json scaled = result;
  for (Json& row : scaled["rows"]) row["median"] = row["median"].get<double>() * factor;
  std::ofstream(path) << scaled;
}

}  // namespace

TEST_CASE("a bench's rows, and the ratio to a baseline") {
  const TempFolder folder;
  const std::string kept = folder / "kept.json";
  const CommandResult first = limpid_command(bench({"-o", kept}));
  REQUIRE(first.code == 0);
  const Json result = first.json();
  REQUIRE(result["rows"].size() == 6);
  for (const Json& row : result["rows"]) {
    CHECK(row["median"].get<double>() > 0);
    CHECK(row["low"].get<double>() <= row["median"].get<double>());
    CHECK(row["median"].get<double>() <= row["high"].get<double>());
  }
  CHECK(result["rows"][0]["name"] == "mlp:2");
  CHECK(result["rows"][0]["peak_live_bytes"].get<std::int64_t>() > 4 * 101770);  // the parameters at least
  std::ifstream file(kept);
  CHECK(Json::parse(file) == result);

  write_scaled(result, 1e-6, folder / "fast.json");
  const CommandResult slower = limpid_command(bench({"--compare", folder / "fast.json"}));
  CHECK(slower.code == 1);
  CHECK(slower.err.find("slower than 1.25 times the baseline") != std::string::npos);
  CHECK(slower.json()["rows"][0]["ratio"].get<double>() > 1000);
  write_scaled(result, 1e6, folder / "slow.json");
  CHECK(limpid_command(bench({"--compare", folder / "slow.json"})).code == 0);

  Json other = result;
  other["threads"] = 77;
  std::ofstream(folder / "other.json") << other;
  const CommandResult warned = limpid_command(bench({"--compare", folder / "other.json", "--factor", "1e9"}));
  CHECK(warned.code == 0);
  CHECK(warned.err.find("the baseline has threads 77, this run 1") != std::string::npos);
}

TEST_CASE("what a bench refuses") {
  const TempFolder folder;
  std::ofstream(folder / "no.json") << "{\"kind\": \"limpid bench\", \"rows\": [{\"name\": \"x\", \"median\": 0}]}";
  std::ofstream(folder / "cut.json") << "{\"kind\": \"limpid be";
  std::ofstream(folder / "good.json") << "{\"kind\": \"limpid bench\", \"rows\": []}";
  struct Case {
    Words more;
    int code;
    const char* text;
  };
  for (const Case& c : std::vector<Case>{
           {{"--compare", folder / "no.json"}, 4, "is no result of limpid bench"},
           {{"--compare", folder / "cut.json"}, 4, "is no result of limpid bench"},
           {{"--compare", folder / "absent.json"}, 4, "absent.json"},
           {{"--compare", folder / "good.json", "-o", folder / "good.json"}, 2, "would overwrite the input"},
           {{"--factor", "nan"}, 2, "--factor must be above 1"},
           {{"--factor", "1"}, 2, "--factor must be above 1, got 1"},
           {{"--repeats", "4"}, 2, "--repeats is 5 to 10000, got 4"},
           {{"--threads", "-1"}, 2, "--threads is 0"}}) {
    const CommandResult r = limpid_command(bench(c.more));
    CHECK_MESSAGE(r.code == c.code, c.text, ": ", r.err);
    CHECK_MESSAGE(r.err.find(c.text) != std::string::npos, r.err);
  }
  for (const char* rows : {"mlp", "mlp:", "mlp:0", "mlp:2x", "mlp:999999", "nonsense:2"}) {
    const CommandResult r = limpid_command({"bench", "--rows", rows, "--quiet"});
    CHECK_MESSAGE(r.code == 2, rows, ": ", r.err);
  }
}
