// Time of one training step (forward, cross-entropy, backward, fused Adam) of the shipped models on random data.
//   step_bench MODEL BATCH THREADS STEPS [--json] [--fuse off]
// Prints the median with the fastest and slowest step, the peak memory, and the pages that the system had to map after the
// second step (minor faults of the process). bench/compare/ runs it in turns with a peer.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <limpid/limpid.h>

using namespace limpid;

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: step_bench MODEL BATCH THREADS STEPS [--json] [--fuse off]\n");
    return 2;
  }
  std::string name = argv[1];
  std::int64_t batch = std::atoll(argv[2]);
  int steps = std::atoi(argv[4]);
  cpu::set_num_threads(std::atoi(argv[3]));
  bool json = false, fuse = true;
  for (int i = 5; i < argc; i++) {
    if (!std::strcmp(argv[i], "--json")) json = true;
    if (!std::strcmp(argv[i], "--fuse") && i + 1 < argc) fuse = std::strcmp(argv[i + 1], "off") != 0;
  }
  const auto usage_now = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage;
  };
  Shape input = name == "seed" ? Shape{3, 224, 224} : name.rfind("resnet", 0) == 0 ? Shape{3, 32, 32} : Shape{1, 28, 28};

  try {
    auto model = nn::make_model(name, {.input = input, .classes = 10});
    if (fuse) nn::fuse(*model);
    optim::Adam adam(model->parameters(), {.lr = 1e-6});
    Tensor x = randn({batch, input[0], input[1], input[2]}, {.role = memory::Role::io});
    Tensor y = randint(0, 10, {batch}, {.dtype = int64, .role = memory::Role::io});
    int warm_up = std::max(2, steps / 5);
    std::vector<double> times;
    long faults = 0;
    for (int i = 0; i < steps + warm_up; i++) {
      if (i == 2) faults = usage_now().ru_minflt;
      auto start = std::chrono::steady_clock::now();
      adam.zero_grad();
      cross_entropy((*model)(x), y).backward();
      adam.step();
      double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      if (i >= warm_up) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    double median = times[times.size() / 2];
    const rusage usage = usage_now();
    faults = usage.ru_minflt - faults;
    auto peak = memory::host_allocator().ledger_at_peak();
    const char* format =
        json ? "{\"model\":\"%s\",\"batch\":%lld,\"threads\":%d,\"fuse\":%s,\"median_ms\":%.4f,\"min_ms\":%.4f,\"max_ms\":%.4f,"
               "\"peak_live_bytes\":%llu,\"rss_bytes\":%lld,\"faults_after_step_2\":%ld}\n"
             : "limpid %s B=%lld T=%d fuse=%s: median %.3f ms (min %.3f, max %.3f), peak live %llu bytes, RSS %lld bytes, "
               "%ld minor faults after step 2\n";
    std::printf(format, name.c_str(), static_cast<long long>(batch), cpu::num_threads(), fuse ? "true" : "false", median, times.front(),
                times.back(), static_cast<unsigned long long>(peak.live_total), static_cast<long long>(usage.ru_maxrss) * 1024, faults);
  } catch (const Error& e) {
    std::fprintf(stderr, "step_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}
