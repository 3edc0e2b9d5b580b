// limpid plan as a process: its predictions are what limpid train reports; its errors have their exit codes.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "command.h"

using limpid_test::limpid_command;
using Json = nlohmann::json;

namespace {

void check_same_peak(const Json& train, const Json& plan) {
  REQUIRE(train.is_object());
  REQUIRE(plan.is_object());
  const Json& predicted = plan.at("prediction");
  for (const char* key : {"peak_allocated_bytes", "peak_reserved_bytes", "memory_at_peak", "rounding_at_peak_bytes",
                          "peak_at", "parameters"})
    CHECK_MESSAGE(train.at(key) == predicted.at(key), key, ": ", train.at(key).dump(), " and ",
                  predicted.at(key).dump());
}

}  // namespace

TEST_CASE("limpid plan predicts what limpid train reports, with data set, loaders, validation and a short last batch") {
  limpid_test::TempFolder folder;
  const auto train =
      limpid_command({"train",        "--data",     "synthetic", "--input",        "3x8x8", "--classes",
                      "10",           "--limit",    "65",        "--val-fraction", "0.2",   "--model",
                      "resnet20",     "--batch",    "16",        "--epochs",       "2",     "--optimizer",
                      "sgd",          "--momentum", "0.9",       "--clip",         "1",     "--out",
                      folder / "run", "--quiet",    "--json"});
  REQUIRE(train.code == 0);
  const auto plan = limpid_command({"plan", "--model",       "resnet20", "--input",       "3x8x8", "--batch",
                                    "16",   "--samples",     "52",       "--val-samples", "13",    "--test-samples",
                                    "2000", "--optimizer",   "sgd",      "--momentum",    "0.9",   "--clip",
                                    "1",    "--checkpoints", "--json"});
  REQUIRE(plan.code == 0);
  check_same_peak(train.json(), plan.json());
}

TEST_CASE("under a cap that makes the allocator give back and ask again the prediction still holds") {
  const std::string cap = "38MiB";
  const auto train =
      limpid_command({"train", "--data",         "synthetic", "--input", "1x12x12", "--classes", "10",  "--limit",
                      "700",   "--val-fraction", "0.1",       "--model", "lenet",   "--batch",   "200", "--epochs",
                      "2",     "--memory-cap",   cap,         "--quiet", "--json",      "--fuse", "off"});
  const auto plan =
      limpid_command({"plan", "--model", "lenet", "--fuse", "off", "--input", "1x12x12", "--batch", "200", "--samples", "630",
                      "--val-samples", "70", "--test-samples", "2000", "--capacity", cap, "--json", "--quiet"});
  REQUIRE(train.code == plan.code);
  REQUIRE(train.code == 0);
  check_same_peak(train.json(), plan.json());
  const Json json = plan.json();
  CHECK(json.at("prediction").at("compute").at("retries").get<int>() > 0);
}

TEST_CASE("limpid plan --verify runs the steps and finds no difference") {
  const auto r = limpid_command({"plan", "--model", "lenet", "--input", "1x12x12", "--batch", "8", "--accumulate", "3",
                                 "--samples", "100", "--val-samples", "9", "--verify", "--json"});
  REQUIRE(r.code == 0);
  CHECK(r.json().at("measured").at("compute") == r.json().at("prediction").at("compute"));
  CHECK(r.err.find("difference") != std::string::npos);
}

TEST_CASE("limpid plan answers in tables: card, finders, curve") {
  const auto r = limpid_command({"plan", "--model", "lenet", "--input", "1x12x12", "--batch", "8", "--card", "1GiB",
                                 "--other", "976MiB", "--find", "--curve", "1:8"});
  REQUIRE(r.code == 0);
  for (const char* text : {"capacity 48.00 MiB", "rule of thumb", "YOLOv5 autobatch", "limpid plan", "exact",
                           "By dry run", "end of the range", "steady from step"})
    CHECK_MESSAGE(r.out.find(text) != std::string::npos, text);
  const auto j = limpid_command({"plan", "--model", "mlp", "--batch", "8", "--capacity", "32MiB", "--json", "--quiet"});
  REQUIRE(j.code == 0);
  CHECK(j.json().at("max_batch").get<int>() > 8);
  CHECK(j.json().at("max_batch_runs").get<int>() ==
        j.json().at("max_batch_bound").get<int>() - j.json().at("max_batch").get<int>() + 1);
}

TEST_CASE("limpid plan: exit codes and sentences of bad requests") {
  struct Case {
    std::vector<std::string> arguments;
    int code;
    const char* text;
  };
  for (const Case& c :
       std::vector<Case>{{{"plan", "--model", "alexnet"}, 2, "there is no model 'alexnet'"},
                         {{"plan", "--batch", "0"}, 2, "batch must be at least 1"},
                         {{"plan", "--curve", "9:3"}, 2, "--curve is FIRST:LAST"},
                         {{"plan", "--curve", "x"}, 2, "--curve is FIRST:LAST"},
                         {{"plan", "--find"}, 2, "--find needs --capacity or --card"},
                         {{"plan", "--policy", "magic"}, 2, "magic"},
                         {{"plan", "--data", "imagenet"}, 2, "--data is fashion-mnist, mnist or cifar10"},
                         {{"plan", "--card", "1GiB", "--other", "2GiB"}, 2, "leaves nothing"},
                         {{"plan", "--accumulate", "0"}, 2, "accumulate must be at least 1"},
                         {{"plan", "--alloc-conf", "nonsense:1"}, 2, "nonsense"},
                         {{"plan", "--effective-batch", "0"}, 2, "--effective-batch must be at least 1, got 0"},
                         {{"plan", "--effective-batch", "-1"}, 2, "--effective-batch must be at least 1, got -1"},
                         {{"plan", "--momentum", "abc"}, 2, "--momentum: expected a number such as 0.9 or 1e-3, got abc"},
                         {{"plan", "--clip", "0,5"}, 2, "--clip: expected a number such as 0.9 or 1e-3, got 0,5"},
                         {{"plan", "--batch", "1e3"}, 2, "--batch: expected a whole number"},
                         {{"plan", "--device", "cpu"}, 2, "--device of a plan is dry:cpu or dry:cuda"},
                         {{"plan", "--model", "lenet", "--batch", "512", "--capacity", "16MiB", "--quiet"}, 3, ""}}) {
    const auto r = limpid_command(c.arguments);
    CHECK_MESSAGE(r.code == c.code, c.arguments.back(), ": ", r.err);
    CHECK_MESSAGE(r.err.find(c.text) != std::string::npos, r.err);
  }
}

TEST_CASE("limpid plan refuses options that contradict each other, and names both") {
  struct Case {
    std::vector<std::string> more;
    const char* text;
  };
  for (const Case& c : std::vector<Case>{
           {{"--data", "mnist", "--input", "1x28x28"}, "--data and --input do not go together"},
           {{"--data", "mnist", "--classes", "10"}, "--data and --classes do not go together"},
           {{"--data", "mnist", "--samples", "100"}, "--data and --samples do not go together"},
           {{"--data", "mnist", "--val-samples", "0"}, "--data and --val-samples do not go together"},
           {{"--data", "mnist", "--test-samples", "9"}, "--data and --test-samples do not go together"},
           {{"--other", "600MiB"}, "--other needs --card"},
           {{"--other", "1GiB", "--capacity", "8GiB"}, "--other needs --card"},
           {{"--drop-last"}, "--drop-last needs --samples or --data"},
           {{"--alloc-conf", "max_split_size_mb:64,max_split_size_mb:32"}, "max_split_size_mb is given twice"},
           {{"--card", "8GiB", "--capacity", "8GiB"}, "--capacity"}}) {
    std::vector<std::string> words = {"plan", "--model", "mlp", "--quiet"};
    words.insert(words.end(), c.more.begin(), c.more.end());
    const auto r = limpid_command(words);
    CHECK_MESSAGE(r.code == 2, c.text, ": ", r.err);
    CHECK_MESSAGE(r.err.find(c.text) != std::string::npos, r.err);
  }
  CHECK(limpid_command({"plan", "--model", "mlp", "--data", "mnist", "--drop-last", "--quiet"}).code == 0);
  CHECK(limpid_command({"plan", "--model", "mlp", "--card", "8GiB", "--other", "600MiB", "--quiet"}).code == 0);
}

// A limit on addresses is what a sanitizer's shadow memory does not survive.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("limpid plan --verify: what the system does not give is out of memory, exit code 3") {
  limpid_test::CommandOptions small;
  small.address_limit = std::uint64_t{700} << 20;
  // Under native a segment is refused, under the others the range of addresses.
  for (const char* policy : {"native", "expandable", "stitch", "async"}) {
    const auto r = limpid_command({"plan", "--model", "lenet", "--batch", "2048", "--policy", policy,
                                   "--verify", "--json", "--quiet"},
                                  small);
    CHECK_MESSAGE(r.code == 3, policy, ": ", r.err);
    const Json json = r.json();
    REQUIRE(json.is_object());
    CHECK(json.at("prediction").at("fits") == true);
    CHECK(json.at("measured").at("fits") == false);
    CHECK_MESSAGE(r.err.find("the real run: out of memory") != std::string::npos, r.err);
    CHECK(r.err.find("Cause: external: the device reports") != std::string::npos);
  }
}
#endif

TEST_CASE("limpid summary --saved lists what is kept and why") {
  // One operation a layer: ReLU's result; fused: a bit for each of its values.
  for (const char* fuse : {"on", "off"}) {
    const bool on = std::string(fuse) == "on";
    const auto r = limpid_command({"summary", "--model", "seed", "--batch", "16", "--saved", "--json", "--fuse", fuse});
    REQUIRE(r.code == 0);
    bool kept = false;
    const Json json = r.json();
    for (const Json& row : json.at("saved"))
      kept |= row.at("op") == (on ? "conv2d_relu_mean" : "relu") && row.at("slot") == (on ? "bits" : "y") &&
              row.at("bytes_per_sample") == 12616704 / (on ? 32 : 1);
    CHECK(kept);
    CHECK(json.at("chains").size() == (on ? 1 : 0));
    CHECK(json.at("layers").size() == 5);
    CHECK(r.err.find("Kept for the backward pass, batch 16") != std::string::npos);
  }
  const auto wrong = limpid_command({"summary", "--model", "seed", "--fuse", "perhaps"});
  CHECK(wrong.code == 2);
  CHECK(wrong.err.find("perhaps") != std::string::npos);
}
