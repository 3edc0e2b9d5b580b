// The largest batch that fits: a formula, fits through trial runs, trial and error, and a dry run, each beside the
// truth. A cap on the memory plays the card. Every answer is then trained for real under that cap, and so is the batch
// after the largest one, which must run out of memory. Exit code 0 when the dry run's answer is the boundary, to the
// sample and its peak to the byte, and every real run ended as its dry run said; 1 when not.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

struct Case {
  const char* model;
  std::vector<std::int64_t> input;
  std::uint64_t cap;
};
const Case kCases[] = {
    {"seed", {3, 24, 24}, 24 * kMiB}, {"lenet", {1, 28, 28}, 80 * kMiB}, {"resnet20", {3, 16, 16}, 48 * kMiB}};

train::PlanSettings plan_of(const Case& c) {
  train::PlanSettings s;
  s.run.train.model = c.model;
  s.run.train.input = c.input;
  s.run.train.classes = 10;
  s.run.train.optimizer = "adam";
  s.run.train.workers = 0;
  s.run.train.epochs = 1;
  s.run.train.memory_cap = c.cap;
  return s;
}

// Three steps on the CPU.
train::Prediction run_live(train::PlanSettings s, std::int64_t batch) {
  s.run.train.batch = batch;
  memory::io_allocator().empty_cache();
  return train::measure(s);
}

const char* word(bool fits) { return fits ? "runs" : "out of memory"; }

// Adds up the formula's error, in samples.
bool compare(const Case& c, std::int64_t& formula_error) {
  train::PlanSettings s = plan_of(c);
  const train::FinderTable table = train::compare_finders(s, c.cap);
  std::printf("%s, samples of %s, Adam, in %s: the largest batch is %lld\n", c.model, to_string(Shape(c.input)).c_str(),
              format_bytes(c.cap).c_str(), static_cast<long long>(table.truth));
  std::printf("  %-18s %7s %9s %7s   %-14s %s\n", "", "answer", "error", "trials", "trained", "how");
  bool ok = table.truth >= 2;
  for (const train::FinderRow& row : table.rows) {
    const double error = 100.0 * static_cast<double>(row.answer - table.truth) / static_cast<double>(table.truth);
    std::string trained = "not tried";
    if (row.answer >= 1 && row.answer <= 4 * table.truth) {
      const bool fits = run_live(s, row.answer).fits;
      ok &= fits == row.fits;
      trained = word(fits);
    }
    std::printf("  %-18s %7lld %+7.1f %% %7lld   %-14s %s\n", row.name.c_str(), static_cast<long long>(row.answer),
                error, static_cast<long long>(row.trials), trained.c_str(), row.how.c_str());
  }
  const train::Prediction dry = train::predict(s, table.truth), at = run_live(s, table.truth),
                          beyond = run_live(s, table.truth + 1);
  std::printf("  boundary, trained: batch %lld %s, batch %lld %s", static_cast<long long>(table.truth), word(at.fits),
              static_cast<long long>(table.truth + 1), word(beyond.fits));
  if (at.fits) {
    std::printf("; peak %s reserved, predicted %s", format_bytes(at.run.memory.reserved).c_str(),
                format_bytes(dry.run.memory.reserved).c_str());
  }
  std::printf("\n\n");
  ok &= at.fits && !beyond.fits && dry.run.memory.reserved == at.run.memory.reserved &&
        dry.run.live_peak == at.run.live_peak;
  formula_error += std::abs(table.rows.front().answer - table.truth);
  return ok && table.rows.back().answer == table.truth;
}

}  // namespace

static int example(const Arguments&) {
  bool ok = true;
  std::int64_t formula_error = 0;
  for (const Case& c : kCases) ok &= compare(c, formula_error);
  std::printf(
      "The rule of thumb takes the peak of one sample for what each sample adds: parameters and gradients count again "
      "with\n"
      "every sample, and what a larger batch needs besides is not in it. Its error has either sign.\n");
  return ok && formula_error > 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "The largest batch that fits: a formula, fits through trial runs, trial and error, and "
                               "a dry run, beside the truth."},
                     example);
}
