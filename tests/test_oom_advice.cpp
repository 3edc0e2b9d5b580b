// A training run that does not fit: the command's verdict, and advice that holds when it is followed for real.
#include <map>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limpid/base/file.h>
#include <limpid/memory/policies.h>
#include <limpid/train/oom_advice.h>

using namespace limpid;
using namespace limpid::train;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

PlanSettings lenet(std::int64_t batch, std::uint64_t cap) {
  PlanSettings s;
  s.run.train.model = "lenet";
  s.run.train.fuse = false;  // the caps below fail in different ways without it
  s.run.train.input = {1, 28, 28};
  s.run.train.classes = 10;
  s.run.train.batch = batch;
  s.run.train.workers = 0;
  s.run.train.memory_cap = cap;
  s.run.samples = 3 * batch + 5;
  s.run.validation = 2 * batch;
  return s;
}

memory::OutOfMemoryInfo failure_of(const PlanSettings& s) {
  const Prediction p = predict(s);
  REQUIRE_FALSE(p.fits);
  return *p.oom;
}

}  // namespace

TEST_CASE("every line of advice fits when it is followed on real memory") {
  std::map<std::string, int> kinds;
  for (std::uint64_t cap : {34, 46, 54, 62, 70}) {
    const PlanSettings failed = lenet(64, cap * kMiB);
    if (predict(failed).fits) continue;
    memory::OutOfMemoryInfo info = failure_of(failed);
    advise(info, failed, "native");
    for (const memory::Advice& a : info.advice) {
      CAPTURE(cap);
      CAPTURE(a.change);
      kinds[a.kind]++;
      CHECK(a.peak_reserved <= cap * kMiB);
      PlanSettings followed = failed;
      if (a.kind == "policy") {
        followed.policy = memory::policy_named(a.change.substr(std::string("with policy ").size()));
      } else if (a.kind == "eval_first") {
        followed.run.evaluate_first = true;
      } else if (a.kind == "batch") {
        followed.run.train.batch = std::stoll(a.change.substr(std::string("with batch ").size()));
      } else {
        REQUIRE(a.kind == "micro_batches");
        REQUIRE(std::sscanf(a.change.c_str(), "with %ld micro-batches of %ld", &followed.run.accumulate,
                            &followed.run.train.batch) == 2);
      }
      const Prediction real = measure(followed);
      CHECK(real.fits);
      if (real.fits)
        CHECK(static_cast<std::uint64_t>(real.run.stats.get(memory::Metric::reserved_bytes).peak) == a.peak_reserved);
    }
  }
  CHECK(kinds["policy"] > 0);
  CHECK(kinds["batch"] > 0);
  CHECK(kinds["micro_batches"] > 0);
}

TEST_CASE("the batch advised is the largest that fits") {
  const PlanSettings failed = lenet(64, 46 * kMiB);
  memory::OutOfMemoryInfo info = failure_of(failed);
  advise(info, failed, "native");
  std::int64_t advised = 0;
  for (const memory::Advice& a : info.advice) {
    if (a.kind == "batch") advised = std::stoll(a.change.substr(std::string("with batch ").size()));
  }
  REQUIRE(advised > 0);
  for (std::int64_t batch = advised + 1; batch < 64; batch++) CHECK_FALSE(predict(failed, batch).fits);
}

TEST_CASE("a failure that a dry run does not repeat gets no advice, and a note") {
  PlanSettings fits = lenet(8, 500 * kMiB);
  memory::OutOfMemoryInfo info;
  advise(info, fits, "native");
  CHECK(info.advice.empty());
  CHECK(info.advice_note.find("outside the training loop") != std::string::npos);
  fits.run.train.memory_cap = 0;
  CHECK_THROWS_WITH(advise(info, fits, "native"), "[advise] the failed run has no capacity");
}

TEST_CASE("nothing helps when not even one sample fits") {
  const PlanSettings failed = lenet(64, 12 * kMiB);
  memory::OutOfMemoryInfo info = failure_of(failed);
  advise(info, failed, "native");
  CHECK(info.advice.empty());
  CHECK(info.advice_note.find("not even one sample") != std::string::npos);
}
