// The sweep: sizes as text, quartiles, the knee, one small sweep whose memory is as predicted, the command's form.
#include <doctest/doctest.h>

#include <algorithm>

#include <limpid/base/format.h>
#include <limpid/train/sweep.h>

#include "command.h"

using namespace limpid;
using namespace limpid::train;
using namespace limpid_test;
using Sizes = std::vector<std::int64_t>;

namespace {

SweepRow row(std::int64_t batch, double seconds, double spread = 0) {
  SweepRow r;
  r.batch = batch;
  r.step = {seconds, seconds * (1 - spread / 2), seconds * (1 + spread / 2), 20};
  return r;
}

}  // namespace

TEST_CASE("batch sizes as text") {
  CHECK(parse_batches("16:256:x2,31,33") == Sizes{16, 31, 32, 33, 64, 128, 256});
  CHECK(parse_batches("16:64:16") == Sizes{16, 32, 48, 64});
  CHECK(parse_batches("5,5,3:3:x2") == Sizes{3, 5});
  CHECK(parse_batches("10:100:x3") == Sizes{10, 30, 90});
  CHECK_THROWS_WITH_AS(parse_batches("16,x"), "sizes are whole numbers from 1 to 1048576 and ranges such as 16:256:x2 or 16:64:16; got x in 16,x",
                       ArgumentError);
  for (const char* bad : {"", "0", "-3", "1,,2", "1:2", "1:2:3:4", "9:3:x2", "1:9:x1", "1:9:0", "1:9:x", "2000000", "1:5000:1"})
    CHECK_THROWS_AS(parse_batches(bad), ArgumentError);
}

TEST_CASE("median and quartiles") {
  const Spread s = spread_of({4, 1, 3, 2, 5});
  CHECK(s.median == 3);
  CHECK(s.low == 2);
  CHECK(s.high == 4);
  CHECK(s.count == 5);
  CHECK(s.iqr() == doctest::Approx(2.0 / 3));
  CHECK(s.noisy());
  const Spread even = spread_of({1, 2});
  CHECK(even.median == 1.5);
  CHECK(even.low == 1.25);
  CHECK_FALSE(spread_of({100, 101, 102, 100, 900}).noisy());  // one interruption of five moves no quartile
  CHECK(spread_of({7}).iqr() == 0);
  CHECK_THROWS_AS(spread_of({}), ArgumentError);
}

TEST_CASE("the knee is the smallest batch with 95 % of the best throughput") {
  // 100, 190, 194, 200 samples/s
  CHECK(find_knee({row(10, 0.1), row(19, 0.1), row(97, 0.5), row(200, 1)}) == 19);
  CHECK(find_knee({row(10, 0.1), row(18, 0.1), row(97, 0.5), row(200, 1)}) == 97);
  SweepRow absent;
  absent.batch = 4;
  absent.fits = false;
  CHECK(find_knee({absent}) == std::nullopt);
  CHECK(find_knee({absent, row(8, 1)}) == 8);
  CHECK(find_knee({}) == std::nullopt);
}

TEST_CASE("a table flags noisy rows and marks the knee") {
  Sweep s;
  s.model = "lenet";
  s.threads = 2;
  s.rows = {row(16, 0.016, 0.2), row(32, 0.017, 0.01)};
  s.knee = find_knee(s.rows);
  const std::string text = to_string(s);
  CHECK(text.find("   16    16.000   10.0      1000.0      1.0000") != std::string::npos);
  CHECK(text.find("noisy\n   32") != std::string::npos);
  CHECK(text.find(" <- knee\nknee: batch 32, the smallest with at least 95 % of the best samples/s") != std::string::npos);
  CHECK(to_csv(s).find("\n16,1,0.016,0.0144,0.0176,1,1000,0.001,") != std::string::npos);
  s.rows[0] = {};
  s.rows[0].batch = 16;
  s.rows[0].fits = false;
  s.rows[0].why = "predicted not to fit";
  s.rows[0].predicted_allocated = 77;
  CHECK(to_string(s).find("   16   predicted not to fit\n") != std::string::npos);
  CHECK(to_csv(s).find("\n16,0,,,,,,,,,,77,0,0\n32,1,") != std::string::npos);
  // As many columns in every line.
  std::istringstream lines(to_csv(s));
  for (std::string line; std::getline(lines, line);) CHECK(std::count(line.begin(), line.end(), ',') == 13);
}

TEST_CASE("the memory of a row is what its dry run said, to the byte") {
  SweepSettings s;
  s.train.model = "lenet-bn";
  s.train.input = {1, 28, 28};
  s.train.classes = 10;
  s.batches = {1 + 2, 8, 33};
  s.warmup = 1;
  s.steps = 2;
  for (std::int64_t micro : {0, 4}) {
    s.train.micro_batch = micro;
    const Sweep result = sweep(s);
    REQUIRE(result.rows.size() == 3);
    for (const SweepRow& r : result.rows) {
      CAPTURE(r.batch);
      CHECK(r.fits);
      CHECK(r.allocated > 0);
      CHECK(r.allocated == r.predicted_allocated);
      CHECK(r.reserved == r.predicted_reserved);
      CHECK(r.step.count == 2);
    }
    CHECK(result.rows[2].allocated > result.rows[0].allocated);
  }
  s.train.micro_batch = 0;
  s.batches = {2, 512, 1 << 20};
  s.train.memory_cap = 64 << 20;
  const Sweep capped = sweep(s);
  CHECK(capped.rows[0].fits);
  CHECK(capped.rows[0].why.empty());
  CHECK(capped.rows[0].reserved <= s.train.memory_cap);
  CHECK(capped.rows[0].reserved == capped.rows[0].predicted_reserved);
  CHECK(capped.knee == 2);
  for (std::size_t i : {1, 2}) {  // said, not tried
    const SweepRow& r = capped.rows[i];
    CHECK_FALSE(r.fits);
    CHECK(r.step.count == 0);
    CHECK(r.predicted_allocated > s.train.memory_cap);
    CHECK(r.why == "predicted not to fit: needs " + format_bytes(r.predicted_allocated) + " of the 64.00 MiB memory cap");
  }
  // Without a cap the machine's own memory is one.
  s.train.memory_cap = 0;
  s.batches = {1 << 20};
  CHECK(sweep(s).rows[0].why.find(", the machine has ") != std::string::npos);
  s.batches = {};
  CHECK_THROWS_AS(sweep(s), ArgumentError);
  s.batches = {4};
  s.steps = 0;
  CHECK_THROWS_AS(sweep(s), ArgumentError);
  s.steps = 1;
  s.train.classes = 0;
  CHECK_THROWS_AS(sweep(s), ArgumentError);
}

TEST_CASE("the command: table, JSON, CSV, page") {
  TempFolder folder;
  const std::string csv = folder / "sweep.csv", page = folder / "sweep.html";
  CommandResult r = limpid_command({"sweep", "--model", "mlp", "--batches", "8,16", "--input", "1x8x8", "--json", "-o", csv, "-o", page});
  REQUIRE(r.code == 0);
  const nlohmann::json json = r.json();
  REQUIRE(json["rows"].size() == 2);
  CHECK(json["rows"][1]["batch"] == 16);
  CHECK(json["learning"].is_null());
  for (const nlohmann::json& row : json["rows"]) {
    CHECK(row["timed_steps"] == 20);
    CHECK(row["peak_allocated_bytes"] == row["predicted_allocated_bytes"]);
    CHECK(row["peak_reserved_bytes"] == row["predicted_reserved_bytes"]);
    CHECK(row["noisy"] == (row["iqr_share"].get<double>() > 0.05));  // stable, or flagged
    CHECK(row["step_seconds_low"] <= row["step_seconds"]);
    CHECK(row["step_seconds"] <= row["step_seconds_high"]);
    CHECK(row["busy"] > 0);
  }
  CHECK((json["knee"] == 8 || json["knee"] == 16));
  std::ifstream file(csv);
  int lines = 0;
  for (std::string line; std::getline(file, line);) lines++;
  CHECK(lines == 3);
  std::ifstream html(page);
  const std::string text((std::istreambuf_iterator<char>(html)), {});
  CHECK(text.find("Batch sizes of mlp") != std::string::npos);
  CHECK(text.find("default-src 'none'") != std::string::npos);
  CHECK(text.find("{{") == std::string::npos);

  r = limpid_command({"sweep", "--model", "lenet", "--batches", "4,100000", "--memory-cap", "64MiB", "--quiet"});
  CHECK(r.code == 0);
  CHECK(r.err.empty());
  CHECK(r.out.find("100000   predicted not to fit: needs ") != std::string::npos);
}

TEST_CASE("the command trains too, and measures single operations") {
  CommandResult r = limpid_command({"sweep", "--model", "mlp", "--batches", "8,32", "--data", "synthetic", "--input", "1x8x8", "--limit", "200",
                                    "--val-fraction", "0.2", "--epochs", "2", "--lr-policy", "none,linear", "--optimizer", "adam", "--seeds", "2",
                                    "--target-accuracy", "0.2", "--json"});
  REQUIRE(r.code == 0);
  const nlohmann::json json = r.json(), learning = json["learning"];
  REQUIRE(learning["rows"].size() == 4);
  CHECK(learning["after_samples"] == 320);
  CHECK(learning["rows"][3]["policy"] == "linear");
  CHECK(learning["rows"][3]["lr"].get<double>() == doctest::Approx(4e-3));
  CHECK(learning["rows"][3]["runs"][1]["points"].size() == 2);
  CHECK(r.err.find("warning: batch 32, linear: the linear rule is SGD's; adam") != std::string::npos);
  CHECK(r.err.find("warning: batch 32, none: the effective batch is 32, lr 0.001 belongs to a batch of 8") != std::string::npos);

  r = limpid_command({"sweep", "--gemm", "15,16", "--channels", "16,17", "--threads", "1", "--json"});
  REQUIRE(r.code == 0);
  const nlohmann::json lab = r.json();
  REQUIRE(lab["experiments"].size() == 7);
  CHECK(lab["experiments"][0]["rows"].size() == 2);
  CHECK(lab["experiments"][1]["rows"].size() == 4);  // 60 and 62 besides
  CHECK(r.err.find(" agree, ") != std::string::npos);
}

TEST_CASE("the command refuses with a sentence and code 2") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--batches", "8", "--steps", "5"}, "--steps must be at least 20, got 5"},
      {{"--batches", "8", "--steps", "9223372036854775807"},
       "--steps must be at most 1000000, got 9223372036854775807"},
      {{"--gemm", "8", "--steps", "9223372036854775807"}, "--steps must be at most 1000000, got 9223372036854775807"},
      {{"--batches", "8", "--warmup-steps", "9223372036854775807"},
       "--warmup-steps must be from 0 to 1000000, got 9223372036854775807"},
      {{"--batches", "8", "--classes", "9223372036854775807"},
       "classes must be at most 65536, got 9223372036854775807"},
      {{"--batches", "8", "--classes", "65537"}, "classes must be at most 65536, got 65537"},
      {{"--target-accuracy", "nan"}, "--target-accuracy: expected a share above 0, at most 1, got nan"},
      {{"--target-accuracy", "0"}, "--target-accuracy: expected a share above 0, at most 1, got 0"},
      {{"--batches", "8", "-o", "a.csv", "-o", "b.html", "-o", "c.html"},
       "-o is given for one .html page and one .csv file at most, got 3 files, c.html"},
      {{"--lr-policy", "linear", "--data", "synthetic", "--limit", "100", "--batches", "8,4096"},
       "lr-policy linear would scale lr for a batch of 4096, but the training set has"},
      {{"--batches", "8:4:x2"}, "a range of sizes goes upwards; got 8:4:x2"},
      {{"--batches", "0"}, "got 0"},
      {{"--batches", "8,,16"}, "got nothing in 8,,16"},
      {{"--batches", ""}, "empty"},
      {{"--model", "none", "--batches", "8"}, "none"},
      {{"--batches", "8", "-o", "x.txt"}, "-o writes a .html page or a .csv file, got x.txt"},
      {{"--gemm", "31", "-o", "x.csv"}, "--gemm has no .csv form"},
      {{"--gemm", "31", "--model", "mlp"}, "--model belongs to a sweep of a model"},
      {{"--gemm", "31", "--lr-policy", "none"}, "--lr-policy belongs to a sweep of a model"},
      {{"--gemm", "0"}, "got 0"},
      {{"--gemm", "31", "--channels", "66:60:1"}, "goes upwards"},
      {{"--channels", "16"}, "--channels needs --gemm"},
      {{"--seeds", "3"}, "--seeds needs --lr-policy or --target-accuracy"},
      {{"--lr-policy", "none", "--seeds", "0"}, "at least 1 seed, got 0"},
      {{"--lr-policy", "square"}, "lr-policy is none, linear or sqrt; got square"},
      {{"--lr-policy", "none,none"}, "names none twice"},
      {{"--target-accuracy", "1.5"}, "1.5"},
      {{"--target-accuracy", "0.5", "--data", "synthetic", "--limit", "100", "--after-samples", "1000000"},
       "accuracy after 1000000 samples, but a run has"},
      {{"--lr-policy", "none", "--data", "synthetic", "--val-fraction", "0"}, "needs validation samples"},
      {{"--batches", "8", "--memory-cap", "lots"}, "lots"},
      {{"--batches", "8", "--micro-batch", "64"}, "micro-batch 64 is larger"},
      {{"--batches", "8", "--warmup-steps", "-1"}, "-1"},
  };
  for (const auto& [arguments, expected] : cases) {
    std::vector<std::string> words = {"sweep"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const CommandResult r = limpid_command(words);
    CAPTURE(expected);
    CAPTURE(r.err);
    CHECK(r.code == 2);
    CHECK(r.out.empty());
    CHECK(r.err.find(expected) != std::string::npos);
  }
}
