// Records memory traces of training whose shapes stay or change from step to step, and plans each one offline. Runs
// dry: the allocations are those of the CPU, and nothing is computed. Prints one JSON line a trace; fragmentation.py
// reads them.
//   record_traces FOLDER
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <limpid/limpid.h>
#include <limpid/memory/offline_policy.h>
#include <limpid/memory/replay.h>
#include <limpid/memory/trace_file.h>
#include <limpid/memory/trace_import.h>
#include <limpid/tensor/dry.h>

using namespace limpid;

namespace {

struct Step {
  std::int64_t batch, pixels;  // of a square image
  bool training = true;
};

struct Workload {
  const char *name, *model;
  std::int64_t channels;
  std::vector<Step> steps;
};

void record(const Workload& w, const std::string& path) {
  ScopeGuard scope{Scope{}};
  dry::Run run;
  dry::Placeholder loss(0);
  memory::TraceRecording recording(run.pool(), path);
  {
    const Shape input{w.channels, w.steps[0].pixels, w.steps[0].pixels};
    auto model = nn::make_model(w.model, {.input = input, .classes = 10});
    optim::Adam adam(model->parameters());
    std::uint32_t number = 0;
    for (const Step& step : w.steps) {
      set_step(number++);
      Tensor x = zeros({step.batch, w.channels, step.pixels, step.pixels}, {.role = memory::Role::io});
      Tensor y = zeros({step.batch}, {.dtype = int64, .role = memory::Role::io});
      if (!step.training) {
        model->eval();
        NoGradGuard no_grad;
        PhaseScope phase(Phase::eval);
        argmax((*model)(x), 1);
        model->train();
        continue;
      }
      adam.zero_grad();
      Tensor error;
      {
        PhaseScope phase(Phase::forward);
        error = cross_entropy((*model)(x), y);
      }
      error.backward();
      PhaseScope phase(Phase::optimizer);
      adam.step();
    }
  }
  recording.close();
}

void plan_offline(const Workload& w, const std::string& path) {
  const memory::TraceLog log = memory::read_trace(path);
  const memory::ReplayScript script(log);
  auto plan = std::make_shared<memory::TracePlan>(memory::plan_trace(log.records));
  auto report = std::make_shared<memory::OfflineReport>();
  memory::ReplayOptions options;
  options.policy = memory::make_offline_policy(plan, report);
  const memory::ReplayResult result = memory::replay(script, options);
  std::printf(
      "{\"name\": \"%s\", \"trace\": \"%s\", \"steps\": %zu, \"buffers\": %zu, \"height\": %zu, \"method\": \"%s\", "
      "\"followed\": %s, \"peak_reserved\": %llu, \"peak_live\": %llu, \"utilisation\": %.6f, \"device_calls\": "
      "%lld}\n",
      w.name, path.c_str(), w.steps.size(), plan->buffers.size(), plan->plan.height, plan->plan.method,
      report->mismatch ? "false" : "true", static_cast<unsigned long long>(result.peak_reserved),
      static_cast<unsigned long long>(result.peak_live), result.fragmentation.utilisation,
      static_cast<long long>(result.device_calls()));
  std::fflush(stdout);
}

std::vector<Step> made(std::size_t count, const std::function<Step(std::size_t)>& step) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < count; i++) steps.push_back(step(i));
  return steps;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: record_traces FOLDER\n");
    return 2;
  }
  std::mt19937_64 random(1);
  auto between = [&random](std::int64_t low, std::int64_t high, std::int64_t unit) {
    return low + unit * static_cast<std::int64_t>(random() % static_cast<std::uint64_t>((high - low) / unit + 1));
  };
  using S = std::size_t;
  const std::vector<Workload> workloads = {
      {"lenet-steady", "lenet", 1,
       made(12,
            [](S) {
              return Step{128, 28};
            })},
      {"resnet18-steady", "resnet18", 3,
       made(6,
            [](S) {
              return Step{64, 32};
            })},
      {"resnet18-steady-eval", "resnet18", 3,
       made(8,
            [](S i) {
              return i % 4 == 3 ? Step{256, 32, false} : Step{64, 32};
            })},
      {"resnet18-batches-up", "resnet18", 3,
       made(16,
            [](S i) {
              return Step{8 * static_cast<std::int64_t>(i + 1), 32};
            })},
      {"resnet18-batches-down", "resnet18", 3,
       made(16,
            [](S i) {
              return Step{8 * static_cast<std::int64_t>(16 - i), 32};
            })},
      {"resnet18-batches-random", "resnet18", 3,
       made(24,
            [&](S) {
              return Step{between(8, 128, 1), 32};
            })},
      {"resnet18-sizes-random", "resnet18", 3,
       made(24,
            [&](S) {
              return Step{32, between(16, 64, 4)};
            })},
      {"resnet20-sizes-random", "resnet20", 3,
       made(24,
            [&](S) {
              return Step{64, between(16, 64, 4)};
            })},
      {"seed-sizes-random", "seed", 3,
       made(40,
            [&](S) {
              return Step{16, between(96, 256, 8)};
            })},
  };
  try {
    for (const Workload& w : workloads) {
      const std::string path = std::string(argv[1]) + "/" + w.name + ".trace";
      record(w, path);
      plan_offline(w, path);
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "record_traces: %s\n", e.what());
    return 1;
  }
  return 0;
}
