// Which batch size? Time, busy threads and memory of a step from 16 to 256, odd sizes among them, and what each size
// learns from the same samples. Sizes above the knee cost memory and bring no speed.
// Exit code 0 when every measured peak is the dry run's to the byte, the knee is that of the rule, and every size saw
// the same samples; 1 when not. Times decide nothing.
//
//   sweep [--steps 20] [--samples 2000] [--epochs 2]
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

static int example(const Arguments& arguments) {
  train::SweepSettings timing;
  timing.train.model = "lenet";
  timing.train.input = {1, 16, 16};
  timing.train.classes = 10;
  timing.batches = train::parse_batches("16:256:x2,31,33");
  timing.steps = arguments["--steps"];
  train::LearningSettings learning;
  learning.train = timing.train;
  learning.train.data = "synthetic";
  learning.train.limit = arguments["--samples"];
  learning.train.val_fraction = 0.2;
  learning.train.epochs = arguments["--epochs"];
  learning.train.optimizer = "sgd";
  learning.train.lr = 0.01;
  learning.train.momentum = 0.9;
  learning.train.reference_batch = 32;
  learning.train.workers = 0;
  learning.train.seed = 1;
  learning.batches = timing.batches;
  learning.policies = {train::ScalingRule::linear};

  const train::Sweep sweep = train::sweep(timing);
  const train::Learning learned = train::learn(learning);
  std::printf("%s\n%s", train::to_string(sweep).c_str(), train::to_string(learned).c_str());

  bool ok =
      sweep.rows.size() == 7 && learned.rows.size() == 7 && sweep.knee && sweep.knee == train::find_knee(sweep.rows);
  for (std::size_t i = 0; ok && i < sweep.rows.size(); i++) {
    const train::SweepRow& row = sweep.rows[i];
    ok &= row.fits && row.allocated == row.predicted_allocated && row.reserved == row.predicted_reserved;
    ok &= row.step.count == timing.steps && row.batch == learned.rows[i].batch;
    ok &= i == 0 || row.allocated > sweep.rows[i - 1].allocated;
    for (const train::LearningRun& run : learned.rows[i].runs)
      ok &= !run.points.empty() && run.points.back().samples == learned.after_samples;
  }
  return ok ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.shows = "Which batch size? Time, busy threads and memory of a step from 16 to 256, and what each size learns.",
       .options = {{"--steps", 20, "Timed steps of each size"},
                   {"--samples", 2000, "Images, a fifth of them for validation", 5},
                   {"--epochs", 2, "Passes over them"}},
       .small_run = "--steps 3 --samples 600 --epochs 1"},
      example);
}
