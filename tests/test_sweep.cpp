// The sweep: sizes as text, quartiles, the knee, one small sweep whose memory is as predicted, the command's form.
#include <doctest/doctest.h>

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
  s.rows[0].fits = false;
  CHECK(to_string(s).find("   16   out of memory\n") != std::string::npos);
  CHECK(to_csv(s).find("\n16,0,") != std::string::npos);
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
  s.train.memory_cap = 4 << 20;
  s.batches = {2, 512};
  const Sweep capped = sweep(s);
  CHECK(capped.rows[0].fits);
  CHECK_FALSE(capped.rows[1].fits);
  CHECK(capped.knee == 2);
  s.batches = {};
  CHECK_THROWS_AS(sweep(s), ArgumentError);
  s.batches = {4};
  s.steps = 0;
  CHECK_THROWS_AS(sweep(s), ArgumentError);
  s.steps = 1;
  s.train.classes = 0;
  CHECK_THROWS_AS(sweep(s), ArgumentError);
}

TEST_CASE("the command: table, JSON, CSV, refusals") {
  TempFolder folder;
  const std::string csv = folder / "sweep.csv";
  CommandResult r = limpid_command({"sweep", "--model", "mlp", "--batches", "8,16", "--input", "1x8x8", "--json", "-o", csv});
  REQUIRE(r.code == 0);
  const nlohmann::json json = r.json();
  REQUIRE(json["rows"].size() == 2);
  CHECK(json["rows"][1]["batch"] == 16);
  CHECK(json["rows"][0]["timed_steps"] == 20);
  CHECK(json["rows"][0]["peak_allocated_bytes"] == json["rows"][0]["predicted_allocated_bytes"]);
  CHECK((json["knee"] == 8 || json["knee"] == 16));
  std::ifstream file(csv);
  int lines = 0;
  for (std::string line; std::getline(file, line);) lines++;
  CHECK(lines == 3);
  CHECK(limpid_command({"sweep", "--model", "mlp", "--batches", "8", "--steps", "5"}).code == 2);
  CHECK(limpid_command({"sweep", "--model", "mlp", "--batches", "8:4:x2"}).code == 2);
  CHECK(limpid_command({"sweep", "--model", "none", "--batches", "8"}).code == 2);
  CHECK(limpid_command({"sweep", "--model", "mlp", "--batches", "8", "-o", "x.txt"}).code == 2);
}
