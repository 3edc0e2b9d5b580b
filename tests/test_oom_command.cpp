// Out of memory through the command: limpid train and limpid mem explain.
#include <doctest/doctest.h>
#include <filesystem>
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

TEST_CASE("a cap below what the model itself takes is out of memory, with the verdict") {
  TempFolder folder;
  const CommandResult r = limpid_command(train(folder / "run", {"--memory-cap", "10MiB", "--json"}));
  CHECK(r.code == 3);
  const Json json = Json::parse(r.out);
  CHECK(json["oom"]["capacity"] == 10 << 20);
  CHECK(json["oom"]["reason"].get<std::string>().find("the capacity is 10.00 MiB") != std::string::npos);
}

TEST_CASE("plan and reserve-plan refuse what they cannot do") {
  TempFolder folder;
  auto code = [](std::vector<std::string> words) { return limpid_command(std::move(words)).code; };
  CHECK(code({"plan", "--model", "mlp", "--input", "65792x5153x54410972897"}) == 2);  // the product overflows
  CHECK(code({"plan", "--model", "lenet", "--accumulate", "1000000"}) == 2);
  CHECK(code({"plan", "--model", "lenet", "--batch", "9223372036854775807"}) == 2);
  CHECK(code({"plan", "--model", "lenet", "--curve", "1:1000000000"}) == 2);
  const CommandResult late = limpid_command({"plan", "--model", "lenet", "--curve", "5:3"});
  CHECK(late.code == 2);
  CHECK(late.out.empty());
  const std::string out = folder / "run";
  REQUIRE(limpid_command(train(out, {"--batch", "64"})).code == 0);
  const auto bytes = limpid::read_file(out + "/trace.bin");
  limpid::write_file_atomically(folder / "cut.bin", {reinterpret_cast<const char*>(bytes.data()), 1000});
  const CommandResult cut = limpid_command(train(folder / "second", {"--reserve-plan", folder / "cut.bin"}));
  CHECK(cut.code == 4);
  CHECK(cut.err.find("ends early") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "second"));  // nothing was begun
  CHECK(code(train(folder / "second", {"--batch", "64"})) == 0);
}
