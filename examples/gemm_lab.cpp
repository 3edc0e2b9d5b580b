// Is 32 faster than 31 or 33? Single operations at odd sizes and powers of two. The raw time of a call grows with the
// size, because there is more to compute: only the time a sample tells. Beside it stands a prediction that knows whole
// panels and idle threads, and no powers of two; beside the products, that for two GPUs.
// Exit code 0 when the tables are complete and each verdict is what the printed rule says of its row, 1 when not. What
// was measured decides nothing: times differ from machine to machine.
//
//   gemm_lab [--rounds 41]
#include <cmath>
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

const train::SizeRow* row_of(const train::SizeExperiment& e, std::int64_t size) {
  for (const train::SizeRow& r : e.rows)
    if (r.size == size) return &r;
  return nullptr;
}

double percent(double ratio) { return 100 * (ratio - 1); }

// What the experiment looks like when the work is forgotten: a call at `size` against one at its reference.
void print_raw(const train::SizeExperiment& e) {
  for (const train::SizeRow& r : e.rows) {
    if (r.size == r.reference) continue;
    const train::SizeRow& base = *row_of(e, r.reference);
    std::printf("%-8s %3lld against %2lld %+12.1f %% %+12.1f %% %+12.1f %% %+12.1f %%   %s\n", e.op.c_str(),
                static_cast<long long>(r.size), static_cast<long long>(r.reference),
                percent(r.seconds.median / base.seconds.median),
                percent(static_cast<double>(r.size) / static_cast<double>(base.size)), percent(r.ratio.median),
                percent(r.predicted_ratio), train::to_string(r.verdict));
  }
}

bool complete(const train::SizeLab& lab) {
  const std::size_t rows[] = {6, 8, 8, 8, 8, 11, 11};  // of each experiment
  bool ok = lab.experiments.size() == std::size(rows);
  std::int64_t verdicts = 0;
  for (std::size_t i = 0; ok && i < std::size(rows); i++) {
    const train::SizeExperiment& e = lab.experiments[i];
    ok &= e.rows.size() == rows[i];
    for (const train::SizeRow& r : e.rows) {
      ok &= r.verdict == train::judge(r) && row_of(e, r.reference) != nullptr;
      ok &= (r.size != r.reference) || r.predicted_ratio == 1;
      if (e.unit == "sample") ok &= std::abs(r.per_unit * static_cast<double>(r.size) / r.seconds.median - 1) < 1e-12;
      verdicts++;
    }
  }
  using enum train::Verdict;
  return ok && verdicts == lab.count(reference) + lab.count(agree) + lab.count(disagree) + lab.count(noisy);
}

}  // namespace

static int example(const Arguments& arguments) {
  train::SizeLabSettings settings;
  settings.batches = train::parse_batches("31,32,33,63,64,65");
  settings.channels = train::parse_batches("30:33:1,60:66:1");
  settings.rounds = arguments["--rounds"];
  const train::SizeLab lab = train::size_lab(settings);
  std::printf("%s\n", train::to_string(lab).c_str());

  std::printf("%-8s %14s %14s %14s %14s %14s\n", "", "size", "raw call", "more work", "a sample", "predicted");
  for (const train::SizeExperiment& e : lab.experiments)
    if (e.unit == "sample") print_raw(e);
  std::printf(
      "raw call: time of a call, which says that the smaller size is always better; more work: the samples it has "
      "more;\n"
      "a sample: the same time divided by the samples\n");

  // On a GPU of 132 multiprocessors the odd size wins, on one of 128 the power of two: what counts is how full the last
  // wave is.
  auto cost = [](std::int64_t size, std::int64_t processors) { return train::card_cost(size, processors); };
  const bool waves = cost(33, 132) < cost(32, 132) && cost(32, 132) < cost(31, 132) && cost(32, 128) < cost(31, 128) &&
                     cost(32, 128) < cost(33, 128);
  return complete(lab) && waves ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.shows = "Is 32 faster than 31 or 33? Single operations at odd sizes and powers of two, beside a prediction.",
       .options = {{"--rounds", 41, "Timings of each size"}},
       .small_run = "--rounds 3"},
      example);
}
