// Learning rates that follow the batch, from outside: each step's rate, warnings, what the run records, and LAMB's and
// LARS's trust ratios in ledger and result.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include <limpid/train/ledger.h>

#include "command.h"

using namespace limpid_test;
using Words = std::vector<std::string>;
using limpid::train::Ledger;
using limpid::train::LedgerStep;
using limpid::train::read_ledger;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// 320 training samples, one epoch.
CommandResult small_train(const Words& more) {
  Words words = {"train", "--data",         "synthetic", "--input", "1x8x8", "--classes", "4",        "--limit",
                 "400",   "--val-fraction", "0.2",       "--model", "mlp",   "--seed",    "5",        "--threads",
                 "1",     "--workers",      "0",         "--trace", "off",   "--json",    "--epochs", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return limpid_command(words);
}

std::vector<double> rates(const Ledger& ledger) {
  std::vector<double> out;
  for (const LedgerStep& step : ledger.steps) out.push_back(step.lr);
  return out;
}

}  // namespace

TEST_CASE("the rate of every step under five policies, and what the ledger says of the policy") {
  TempFolder folder;
  struct Case {
    Words more;
    std::string policy;
    double reached;  // after the warmup
    std::int64_t warmup;
  };
  const Case cases[] = {
      {{"--optimizer", "sgd", "--lr", "0.001", "--batch", "64"}, "none, lr 0.001", 1e-3, 0},
      // From 32 to 256: eight times the rate.
      {{"--optimizer", "sgd", "--lr", "0.001", "--batch", "256", "--lr-policy", "linear", "--reference-batch", "32"},
       "linear from 0.001 at batch 32",
       8e-3,
       0},
      {{"--optimizer", "adam", "--lr", "0.001", "--batch", "128", "--lr-policy", "sqrt", "--reference-batch", "32"},
       "sqrt from 0.001 at batch 32",
       2e-3,
       0},
      {{"--optimizer", "sgd", "--lr", "0.01", "--batch", "16", "--lr-policy", "linear", "--reference-batch", "64"},
       "linear from 0.01 at batch 64",
       2.5e-3,
       0},
      // The effective batch counts, not the micro-batch; the warmup counts optimizer steps.
      {{"--optimizer", "sgd", "--lr", "0.001", "--effective-batch", "64", "--micro-batch", "16", "--lr-policy",
        "linear", "--reference-batch", "32", "--warmup", "4"},
       "linear from 0.001 at batch 32, warmup 4 steps",
       2e-3,
       4},
  };
  int number = 0;
  for (const Case& c : cases) {
    CAPTURE(c.policy);
    const std::string run = folder / ("run" + std::to_string(number++));
    Words more = c.more;
    more.insert(more.end(), {"--out", run});
    const CommandResult r = small_train(more);
    REQUIRE_MESSAGE(r.code == 0, r.err);
    const Ledger ledger = read_ledger(run + "/ledger.jsonl");
    CHECK(ledger.plan.lr_policy == c.policy);
    const std::vector<double> lr = rates(ledger);
    REQUIRE(lr.size() >= 2);
    for (std::size_t step = 0; step < lr.size(); step++) {
      const double share = c.warmup > 0 ? std::min(1.0, static_cast<double>(step) / static_cast<double>(c.warmup)) : 1;
      CHECK(lr[step] == doctest::Approx(c.reached * share).epsilon(1e-12));
    }
  }
  // The policy is part of the run.
  const CommandResult other = limpid_command({"train", "--resume", "--out", folder / "run1", "--lr-policy", "sqrt"});
  CHECK(other.code == 2);
  CHECK(contains(other.err, "lr_policy: \"linear\", now \"sqrt\""));
}

TEST_CASE("warnings: no policy, Adam under the linear rule, a start without warmup, nonsense") {
  const CommandResult none = small_train({"--batch", "256", "--reference-batch", "32", "--optimizer", "sgd"});
  CHECK(contains(none.err,
                 "the effective batch is 256, lr 0.001 belongs to a batch of 32, and no lr policy connects them"));
  const CommandResult adam = small_train({"--batch", "256", "--reference-batch", "32", "--lr-policy", "linear"});
  CHECK(contains(adam.err, "the linear rule is SGD's; adam divides by the size of the gradients"));
  CHECK(contains(adam.err, "is 8 times the reference and starts at once"));
  const CommandResult quiet = small_train({"--batch", "256", "--reference-batch", "32", "--lr-policy", "sqrt"});
  CHECK_FALSE(contains(quiet.err, "warning"));
  const CommandResult missing = small_train({"--lr-policy", "linear"});
  CHECK(missing.code == 2);
  CHECK(contains(missing.err, "lr-policy linear needs reference-batch"));
  const CommandResult unknown = small_train({"--lr-policy", "cube"});
  CHECK(unknown.code == 2);
  CHECK(contains(unknown.err, "lr-policy is none, linear or sqrt; got cube"));
}

TEST_CASE("weights of a run with another effective batch are warned of, unless a policy connects the two") {
  TempFolder folder;
  const std::string first = folder / "first";
  REQUIRE(small_train({"--batch", "32", "--lr", "0.002", "--out", first}).code == 0);
  const std::string text = "the weights of " + first +
                           " were trained with an effective batch of 32 (lr 0.002); this run has 64 and no "
                           "lr policy connects them";
  auto err = [&](const Words& more) {
    Words words = {"--init", first};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult r = small_train(words);
    CHECK(r.code == 0);
    return r.err;
  };
  CHECK(contains(err({"--batch", "64"}), text));
  // The report page has it too, long after the first weights are gone.
  const std::string second = folder / "second";
  CHECK(contains(err({"--batch", "64", "--out", second}), text));
  std::filesystem::remove_all(first + "_away");
  std::filesystem::rename(first, first + "_away");
  CHECK(limpid_command({"report", second, "-o", folder / "page.html"}).code == 0);
  CHECK(contains(text_of(folder / "page.html"), text));
  std::filesystem::rename(first + "_away", first);
  CHECK(contains(err({"--effective-batch", "64", "--micro-batch", "32"}), text));
  CHECK_FALSE(contains(err({"--batch", "32"}), "warning"));
  CHECK_FALSE(contains(err({"--effective-batch", "32", "--micro-batch", "8"}), "warning"));
  CHECK_FALSE(contains(err({"--batch", "64", "--lr-policy", "sqrt", "--reference-batch", "32"}), "warning"));
  // A reference batch is an answer: this rate was found at this batch.
  CHECK_FALSE(contains(err({"--batch", "64", "--reference-batch", "64"}), "warning"));
}

TEST_CASE("trust ratios: in the ledger's steps and in the result, 1 where nothing is adapted") {
  TempFolder folder;
  for (const std::string rule : {"lamb", "lars"}) {
    CAPTURE(rule);
    const std::string run = folder / rule;
    const CommandResult r = small_train({"--optimizer", rule, "--weight-decay", "0.01", "--batch", "64", "--out", run});
    REQUIRE_MESSAGE(r.code == 0, r.err);
    CHECK_FALSE(contains(r.err, "warning"));
    const Ledger ledger = read_ledger(run + "/ledger.jsonl");
    REQUIRE(ledger.steps.size() == 5);
    bool adapted = false;
    for (const LedgerStep& step : ledger.steps) {
      REQUIRE(step.trust_ratios.size() == 4);
      for (const auto& [name, ratio] : step.trust_ratios) adapted |= ratio != 1;
    }
    CHECK(adapted);
    const auto& last = ledger.steps.back().trust_ratios;
    CHECK(r.json()["trust_ratios"].size() == last.size());
    for (const auto& [name, ratio] : last) CHECK(r.json()["trust_ratios"][name] == ratio);
    CHECK(limpid_command({"check", "ledger", run}).code == 0);

    // Without weight decay both are said to do nothing.
    const CommandResult idle = small_train({"--optimizer", rule, "--batch", "64"});
    CHECK(contains(idle.err, rule + " adapts what has weight decay, and there is none: every trust ratio will be 1"));
    const auto ones = idle.json()["trust_ratios"];
    CHECK(ones.size() == last.size());
    for (const auto& ratio : ones) CHECK(ratio == 1);
    const CommandResult always = small_train({"--optimizer", rule, "--batch", "64", "--always-adapt"});
    CHECK_FALSE(contains(always.err, "warning"));
    bool other = false;
    const auto ratios = always.json()["trust_ratios"];
    for (const auto& ratio : ratios) other |= ratio != 1;
    CHECK(other);
  }
  const CommandResult sgd = small_train({"--optimizer", "sgd", "--out", folder / "sgd"});
  CHECK(sgd.json()["trust_ratios"].is_null());
  CHECK(read_ledger(folder / "sgd/ledger.jsonl").steps[0].trust_ratios.empty());
  CHECK_FALSE(contains(text_of(folder / "sgd/ledger.jsonl"), "trust_ratios"));
  const CommandResult refused = small_train({"--optimizer", "sgd", "--always-adapt"});
  CHECK(refused.code == 2);
  CHECK(contains(refused.err, "always-adapt belongs to lamb and lars, the optimizer is sgd"));
}
