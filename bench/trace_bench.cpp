// What a memory trace in a file costs a training step: groups of steps with and without a recording in turn, CPU time
// of the thread, and the recording's flush inside the time. Prints records and microseconds a step, and the ratio.
//   trace_bench [GROUPS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include <limpid/limpid.h>
#include <limpid/memory/trace_file.h>

using namespace limpid;

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void measure(const char* name, std::int64_t batch, int steps, int groups) {
  const Shape input = name[0] == 'r' ? Shape{3, 32, 32} : Shape{1, 28, 28};
  auto model = nn::make_model(name, {.input = input, .classes = 10});
  optim::Adam adam(model->parameters(), {.lr = 1e-6});
  Tensor x = randn({batch, input[0], input[1], input[2]}, {.role = memory::Role::io});
  Tensor y = randint(0, 10, {batch}, {.dtype = int64, .role = memory::Role::io});
  auto group = [&](memory::TraceRecording* recording) {
    const double start = cpu_seconds();
    for (int i = 0; i < steps; i++) {
      adam.zero_grad();
      cross_entropy((*model)(x), y).backward();
      adam.step();
    }
    if (recording) recording->flush();
    return 1e6 * (cpu_seconds() - start) / steps;
  };
  const char* path = "trace_bench.tmp.bin";
  memory::Allocator& pool = memory::host_allocator();
  group(nullptr);
  std::vector<double> with, without, ratios;
  std::uint64_t records = 0, bytes = 0;
  for (int g = 0; g < groups; g++) {
    without.push_back(group(nullptr));
    memory::TraceRecording recording(pool, path);
    recording.flush();
    const std::uint64_t before = recording.writer().records(), size = recording.writer().size();
    with.push_back(group(&recording));
    records = recording.writer().records() - before;
    bytes = recording.writer().size() - size;
    ratios.push_back(with.back() / without.back());
  }
  std::remove(path);
  std::sort(with.begin(), with.end());
  std::sort(without.begin(), without.end());
  std::sort(ratios.begin(), ratios.end());
  std::printf(
      "%-8s B=%-4lld %6.1f records a step, %4.1f bytes each; a step %9.1f us, with a trace %9.1f us (medians); "
      "ratio %.4f (median of pairs), %.4f (of minima)\n",
      name, static_cast<long long>(batch), static_cast<double>(records) / steps,
      static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(records, 1)),
      without[without.size() / 2], with[with.size() / 2], ratios[ratios.size() / 2], with[0] / without[0]);
}

}  // namespace

int main(int argc, char** argv) {
  const int groups = argc > 1 ? std::atoi(argv[1]) : 15;
  cpu::set_num_threads(1);
  measure("mlp", 16, 500, groups);
  measure("lenet", 8, 20, groups);
  measure("resnet20", 4, 4, groups);
  return 0;
}
