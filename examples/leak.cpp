// A loop that sums up its loss with history keeps the graph of every step. LeakCheck sees it after the third step.
// Exit code 0 when it was seen, 1 when not.
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

static int example(const Arguments&) {
  manual_seed(1);
  nn::Sequential model(nn::Linear({.in_features = 16, .out_features = 32}), nn::ReLU(),
                       nn::Linear({.in_features = 32, .out_features = 4}));
  optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  memory::LeakCheck leaks(memory::host_allocator(), live_graph());

  Tensor total = zeros({});
  for (int step = 1; step <= 5; step++) {
    optimizer.zero_grad();
    Tensor loss = cross_entropy(model(randn({8, 16})), zeros({8}, {.dtype = int64}));
    loss.backward();
    optimizer.step();
    total = total + loss;  // total += loss.item() would keep a number only
    if (auto report = leaks.step_done()) {
      std::printf("%s\n", to_string(*report).c_str());
      return step == 3 ? 0 : 1;
    }
  }
  std::puts("nothing grew");
  return 1;
}

int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.shows = "A loop that keeps the graph of every step, and the check that sees it after the third one."}, example);
}
