// A multilayer perceptron that learns two interleaved spirals from tensors in memory. No loader, no files.
// Options: --epochs N
#include <cmath>
#include <cstdio>
#include <vector>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

static int example(const Arguments& arguments) {
  const std::int64_t epochs = arguments["--epochs"];
  manual_seed(1);

  // 200 points: two arms, a turn and a half each.
  std::vector<float> points;
  std::vector<std::int64_t> arms;
  for (int i = 0; i < 200; i++) {
    const int arm = i % 2;
    const double t = i / 200.0, angle = 3 * M_PI * t + M_PI * arm;
    points.push_back(static_cast<float>(t * std::cos(angle)));
    points.push_back(static_cast<float>(t * std::sin(angle)));
    arms.push_back(arm);
  }
  Tensor x = from_vector(points, {200, 2});
  Tensor y = from_vector(arms, {200});

  nn::Sequential model(nn::Linear({.in_features = 2, .out_features = 64}), nn::Tanh(),
                       nn::Linear({.in_features = 64, .out_features = 64}), nn::Tanh(),
                       nn::Linear({.in_features = 64, .out_features = 2}));
  std::printf("%s\n", model.repr().c_str());
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  optim::Scheduler schedule(optimizer, optim::CosineAnnealing({.t_max = epochs}), optim::Unit::epoch);

  double first = 0, last = 0;
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    optimizer.zero_grad();
    Tensor loss = cross_entropy(model(x), y);
    loss.backward();
    optimizer.step();
    schedule.step();
    last = loss.item();
    if (epoch == 0) first = last;
    if (epoch % 50 == 0) std::printf("epoch %3d: loss %.4f\n", static_cast<int>(epoch), last);
  }

  NoGradGuard no_grad;
  const double accuracy = eq(argmax(model(x), 1), y).to(float32).mean().item();
  std::printf("loss %.4f, accuracy %.1f %%\n", last, 100 * accuracy);
  return last < first ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "A multilayer perceptron that learns two interleaved spirals from tensors in memory.",
                      .options = {{"--epochs", 300, "Passes over the points", 2}},
                      .small_run = "--epochs 60"},
                     example);
}
