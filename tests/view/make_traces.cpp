// Writes the traces that tests/view/view.py looks at: make_view_traces DIR
//   train.trace    real: a small CNN trained for some steps with a short last batch, and evaluated
//   million.trace  made up: 1,000,000 events
//   names.trace    made up: names that would break a careless page, several streams, a failed request
#include <cstdio>
#include <string>

#include <limpid/limpid.h>
#include <limpid/memory/trace_file.h>
#include <limpid/nn/models/models.h>

#include "traces.h"

namespace {

using namespace limpid;

void train_small(const std::string& path) {
  memory::TraceRecording recording(memory::host_allocator(), path);
  auto model = nn::make_model("lenet-bn", {.input = {1, 28, 28}, .classes = 10, .seed = 1});
  model->name_tree();
  optim::Adam adam(model->parameters(), {.lr = 1e-3});
  for (std::uint32_t step = 0; step < 6; step++) {
    set_step(step);
    Tensor x, y;
    {
      PhaseScope phase(Phase::data);
      const std::int64_t batch = step == 5 ? 40 : 64;
      x = randn({batch, 1, 28, 28});
      y = zeros({batch}, {.dtype = DType::int64});
    }
    adam.zero_grad();
    Tensor loss;
    {
      PhaseScope phase(Phase::forward);
      loss = cross_entropy((*model)(x), y);
    }
    {
      PhaseScope phase(Phase::backward);
      loss.backward();
    }
    PhaseScope phase(Phase::optimizer);
    adam.step();
  }
  {
    PhaseScope phase(Phase::eval);
    model->eval();
    NoGradGuard no_grad;
    (*model)(randn({128, 1, 28, 28}));
  }
  recording.close();
}

void write_names(const std::string& path) {
  using memory::Role;
  limpid_test::TraceBuilder b;
  b.scope.phase = Phase::forward;
  b.scope.module = b.name("</script><script>alert(1)</script>");
  b.scope.op = b.name("op <!-- & \"quotes\"");
  const auto first = b.alloc(3 << 20, Role::param, "weight \xff\xfe not UTF-8 \xe2\x82\xac");
  const auto second = b.alloc(5 << 20, Role::activation, "", 7);
  const auto third = b.alloc(700, Role::workspace, "{{data}} ]]> \\u003c", 0x1234567890abcdef);
  b.use(second, 0);
  b.failed(std::uint64_t{3} << 30, "a tensor too large");
  b.free(second);
  b.free(b.alloc(4 << 20, Role::activation, "", 7));
  b.free(third);
  b.rename(first, "renamed <b>weight</b>");
  b.free(first);
  memory::write_trace(path, b.log);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_view_traces DIR\n");
    return 2;
  }
  const std::string folder = argv[1];
  train_small(folder + "/train.trace");
  memory::write_trace(folder + "/million.trace", limpid_test::training_loop(1000000));
  write_names(folder + "/names.trace");
  return 0;
}
