// Mixed precision side by side: the same network, the same start and the same data in f32, in bf16 and in f16 with a loss
// scaler. Bytes, speed, loss curve, skipped steps, accuracy; then the ledger of the f16 run's first step.
// Options: --samples N --epochs N --batch N --size N. Exit code 1 when a run does not learn, 16 bits do not save memory, or the
// scaler does not skip.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

struct Result {
  std::uint64_t saved = 0, workspace = 0, peak = 0;  // at the instant of the highest use
  double samples_per_second = 0;
  std::vector<double> losses;  // mean of each epoch
  std::int64_t steps = 0, skipped = 0;
  double scale = 1;
  double accuracy = 0;
  std::string ledger;
};

nn::Sequential make_net(std::int64_t classes) {
  return nn::Sequential({
      {"conv1", nn::Conv2d({.in_channels = 3, .out_channels = 16, .kernel_size = 3, .padding = 1, .bias = false})},
      {"bn1", nn::BatchNorm2d({.num_features = 16})},
      {"relu1", nn::ReLU()},
      {"pool1", nn::MaxPool2d(2)},
      {"conv2", nn::Conv2d({.in_channels = 16, .out_channels = 32, .kernel_size = 3, .padding = 1, .bias = false})},
      {"bn2", nn::BatchNorm2d({.num_features = 32})},
      {"relu2", nn::ReLU()},
      {"pool2", nn::AdaptiveAvgPool2d(1)},
      {"flatten", nn::Flatten()},
      {"fc", nn::Linear({.in_features = 32, .out_features = classes})},
  });
}

double accuracy_of(nn::Module& model, data::DataLoader& loader) {
  NoGradGuard no_grad;
  model.eval();
  std::int64_t correct = 0, all = 0;
  for (auto& [images, labels] : loader) {
    correct += eq(argmax(model(images), 1), labels).to(int64).sum().item_int();
    all += labels.size(0);
  }
  return static_cast<double>(correct) / static_cast<double>(all);
}

Result run(const std::string& precision, data::DataLoader& loader, data::DataLoader& test, std::int64_t epochs) {
  using Clock = std::chrono::steady_clock;
  manual_seed(7);
  nn::Sequential model = make_net(10);
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  optim::Scheduler schedule(optimizer, optim::CosineAnnealing({.t_max = epochs * loader.size()}), optim::Unit::step);
  // The first scale is far too high on purpose: the scaler has to find its way down.
  optim::GradScaler scaler({.init_scale = 0x1p24, .growth_interval = 200, .enabled = train::needs_scaler(precision)});
  memory::Allocator& pool = memory::host_allocator();
  pool.empty_cache();
  pool.reset_peak_stats();
  Result result;
  train::AmpLedger ledger;
  double seconds = 0;
  std::int64_t timed = 0;
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    double sum = 0;
    for (auto& [images, labels] : loader) {
      set_step(static_cast<std::uint32_t>(result.steps));
      const bool look = result.steps == 0 && scaler.enabled();  // looking costs time: this step is not timed
      const Clock::time_point begin = Clock::now();
      {
        WatchScope watch(look ? &ledger : nullptr);
        optimizer.zero_grad();
        Tensor loss;
        {
          Autocast amp(train::autocast_for(precision));
          loss = cross_entropy(model(images), labels);
        }
        scaler.scale(loss).backward();
        sum += loss.item();
      }
      const optim::StepTicket ticket = scaler.step(optimizer);
      if (look) ledger.step_done(scaler, ticket);
      scaler.update();
      if (ticket.stepped()) schedule.step();
      result.skipped += ticket.skipped();
      if (result.steps++ == 0) continue;
      seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      timed += labels.size(0);
    }
    result.losses.push_back(sum / static_cast<double>(loader.size()));
  }
  optimizer.zero_grad();
  const memory::Ledger peak = pool.ledger_at_peak();
  result.peak = peak.peak_live;
  result.saved = peak.role(memory::Role::saved);
  result.workspace = peak.role(memory::Role::workspace);
  result.samples_per_second = seconds > 0 ? static_cast<double>(timed) / seconds : 0;
  result.scale = scaler.get_scale();
  result.accuracy = accuracy_of(model, test);
  if (scaler.enabled()) result.ledger = train::to_string(ledger);
  return result;
}

}  // namespace

static int example(const Arguments& arguments) {
  const std::int64_t samples = arguments["--samples"];
  const std::int64_t epochs = arguments["--epochs"];
  const std::int64_t batch = arguments["--batch"];
  const std::int64_t size = arguments["--size"];
  LIMPID_CHECK(samples >= batch, ArgumentError, "--batch ", batch, " is larger than --samples ", samples,
               ": there would be no step");
  data::SyntheticDataset training({.size = samples, .height = size, .width = size});
  data::SyntheticDataset held_out({.size = samples / 4, .height = size, .width = size, .train = false});
  data::DataLoader loader(training, {.batch_size = batch, .shuffle = true, .drop_last = true, .seed = 7});
  data::DataLoader test(held_out, {.batch_size = batch});

  const std::string precisions[] = {"fp32", "bf16", "fp16"};
  std::vector<Result> results;
  for (const std::string& p : precisions) results.push_back(run(p, loader, test, epochs));

  std::printf("%-10s%12s%12s%12s%12s%9s%10s%10s   loss by epoch\n", "precision", "peak", "saved", "workspace", "samples/s",
              "skipped", "scale", "accuracy");
  for (std::size_t i = 0; i < results.size(); i++) {
    const Result& r = results[i];
    std::printf("%-10s%12s%12s%12s%12.0f%5lld/%-3lld%10.0f%8.1f %%  ", precisions[i].c_str(), format_bytes(r.peak).c_str(),
                format_bytes(r.saved).c_str(), format_bytes(r.workspace).c_str(), r.samples_per_second,
                static_cast<long long>(r.skipped), static_cast<long long>(r.steps), r.scale, 100 * r.accuracy);
    for (double loss : r.losses) std::printf(" %.3f", loss);
    std::printf("\n");
  }
  std::printf("\nThe first step in fp16:\n%s", results[2].ledger.c_str());

  bool ok = results[2].skipped > 0 && results[0].skipped == 0;
  for (const Result& r : results) {
    ok &= r.losses.back() < r.losses.front();
    ok &= &r == &results[0] || r.saved < results[0].saved;
  }
  return ok ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "Mixed precision side by side: one network in f32, bf16 and f16 from the same start: "
                               "bytes, speed, losses, skipped\n"
                               "steps, accuracy.",
                      .options = {{"--samples", 2048, "Training images", 4},
                                  {"--epochs", 4, "Passes over them", 2},
                                  {"--batch", 64, "Samples a step"},
                                  {"--size", 32, "Side of an image", 4}},
                      .small_run = "--samples 256 --epochs 2 --size 16"},
                     example);
}
