// Out of memory through the command: limpid train and limpid mem explain.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limpid/base/file.h>

#include "command.h"

using namespace limpid_test;
using Json = nlohmann::json;

namespace {
std::vector<std::string> train(const std::string& out, std::initializer_list<std::string> more) {
  std::vector<std::string> words = {"train", "--data", "synthetic", "--input", "1x28x28", "--model", "lenet",
                                    "--limit", "300", "--epochs", "1", "--workers", "0", "--quiet", "--out", out};
  words.insert(words.end(), more);
  return words;
}
}  // namespace

TEST_CASE("a training run that does not fit says why, and following the advice it runs") {
  TempFolder folder;
  const std::string out = folder / "run";
  const CommandResult failed = limpid_command(train(out, {"--batch", "128", "--memory-cap", "44MiB", "--json"}));
  CHECK(failed.code == 3);
  for (const char* part : {"cause  ", "request  ", "input  ", "in the way  ", "it fits  "})
    CHECK_MESSAGE(failed.err.find(part) != std::string::npos, part);
  const Json json = Json::parse(failed.out);
  CHECK(json["error"] == "out of memory");
  const Json& oom = json["oom"];
  CHECK(oom["requested"].get<std::uint64_t>() > 0);
  CHECK(oom["phase"] != "none");
  CHECK(oom["input"].get<std::uint64_t>() > 128 * 28 * 28 * 4);
  CHECK(Json::parse(limpid::read_file(out + "/oom.json")) == oom);
  std::string batch;
  for (const Json& a : oom["advice"]) {
    if (a["kind"] == "batch") batch = a["change"].get<std::string>().substr(std::string("with batch ").size());
  }
  REQUIRE_FALSE(batch.empty());
  CHECK(limpid_command(train(folder / "second", {"--batch", batch, "--memory-cap", "44MiB"})).code == 0);

  // The trace of the failed run tells the same, and every line of it was replayed.
  const CommandResult explained = limpid_command({"mem", "explain", out, "--json"});
  CHECK(explained.code == 3);
  const Json told = Json::parse(explained.out);
  CHECK(told["failed"] == true);
  CHECK(told["recorded"] == true);
  CHECK(told["oom"]["cause"] == oom["cause"]);
  CHECK(told["oom"]["requested"] == oom["requested"]);
  CHECK(told["oom"]["layer"] == oom["layer"]);
  CHECK(told["oom"]["pins"]["count"] == oom["pins"]["count"]);
  CHECK(told["oom"]["pins"]["replayed"] == true);
}

TEST_CASE("mem explain: a run that fits, and the same run in less memory") {
  TempFolder folder;
  const std::string out = folder / "run";
  REQUIRE(limpid_command(train(out, {"--batch", "64"})).code == 0);
  const CommandResult fine = limpid_command({"mem", "explain", out});
  CHECK(fine.code == 0);
  CHECK(fine.out.find("every request is served") != std::string::npos);
  const CommandResult less = limpid_command({"mem", "explain", out, "--capacity", "30MiB"});
  CHECK(less.code == 3);
  CHECK(less.out.find("cause  ") != std::string::npos);
  CHECK(less.out.find("more capacity") != std::string::npos);
  CHECK(limpid_command({"mem", "explain", folder / "none"}).code == 4);
  CHECK(limpid_command({"mem", "explain", out, "--capacity", "many"}).code == 2);
}
