// Batch norm in small micro-batches. Every step is an effective batch of 32 samples, computed in micro-batches of 2, 4, 8
// or 32: batch norm with each micro-batch's own statistics, exact batch norm (the statistics of all 32, which is also what
// synchronised batch norm gives to several machines), group norm and layer norm. Printed: test accuracy, and how far the
// mean that batch norm sees is from the true one. Exit code 0 when only the first row depends on the cut, 1 when not.
//
//   bn_small_batch [--samples 768] [--epochs 4] [--seeds 2]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <limpid/data/synthetic.h>
#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

constexpr std::int64_t kEffective = 32, kClasses = 10;
constexpr std::int64_t kMicro[] = {2, 4, 8, 32};
constexpr double kNoise = 0.25;  // of the images: hard enough that the rows differ

struct Row {
  const char* name;
  train::BatchNormMode mode;
  bool replace;
  nn::SampleNorm norm;
};
const Row kRows[] = {
    {"batch norm, each micro-batch", train::BatchNormMode::micro, false, nn::SampleNorm::group},
    {"batch norm, exact (= synchronised)", train::BatchNormMode::exact, false, nn::SampleNorm::group},
    {"group norm", train::BatchNormMode::micro, true, nn::SampleNorm::group},
    {"layer norm", train::BatchNormMode::micro, true, nn::SampleNorm::layer},
};

data::DatasetPtr images(std::int64_t size, bool training) {
  return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
      .size = size, .channels = 1, .height = 12, .width = 12, .classes = kClasses, .noise = kNoise, .seed = 7, .train = training});
}

struct Result {
  double accuracy = 0;
  double epoch_loss = 0;  // of the first epoch: what the cut does to the arithmetic
};

Result train_once(const Row& row, std::int64_t micro, std::int64_t samples, std::int64_t epochs, std::uint64_t seed) {
  const auto model = nn::make_model("lenet-bn", {.input = {1, 12, 12}, .classes = kClasses, .seed = seed});
  if (row.replace) nn::replace_batch_norm(*model, row.norm);
  optim::SGD optimizer(model->parameters(), {.lr = 0.02, .momentum = 0.9});
  train::Step step(*model, optimizer, {.batch_norm = row.mode});
  data::DataLoader loader(images(samples, true), {.batch_size = kEffective, .micro_batch = micro, .shuffle = true,
                                                 .drop_last = true, .seed = seed});
  model->train();
  Result result;
  std::int64_t number = 0;
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    for (const data::Batch& batch : loader) {
      if (batch.place.micro == 0) step.begin(number++, kEffective, data::micro_batch_sizes(kEffective, micro));
      step.add(batch);
      if (batch.place.micro + 1 < batch.place.micros) continue;
      const double loss = step.finish().loss_sum;
      if (epoch == 0) result.epoch_loss += loss / static_cast<double>(samples);
    }
  }
  data::DataLoader test(images(2000, false), {.batch_size = 100});
  result.accuracy = train::evaluate(*model, test, kClasses).accuracy;
  return result;
}

// How far a micro-batch's mean is from that of all samples, in standard deviations of the values: root mean square over
// micro-batches and channels, at the first batch norm of an untrained network.
double noise_of_mean(std::int64_t micro) {
  constexpr std::int64_t kSamples = 256;
  const auto model = nn::make_model("lenet-bn", {.input = {1, 12, 12}, .classes = kClasses, .seed = 1});
  Tensor seen;  // [N,C,H,W]
  train::batch_norm_layers(*model)[0].second->register_forward_pre_hook([&](nn::Module&, const Tensor& x) {
    seen = x.detach();
    return Tensor();
  });
  const NoGradGuard guard;
  model->eval();
  data::DataLoader loader(images(kSamples, true), {.batch_size = kSamples});
  for (const data::Batch& batch : loader) (*model)(batch.x);
  const std::int64_t channels = seen.size(1), pixels = seen.size(2) * seen.size(3);
  const std::vector<double> values = contiguous(seen).to_vector<double>();
  double sum = 0;
  for (std::int64_t c = 0; c < channels; c++) {
    std::vector<double> means(static_cast<std::size_t>(kSamples / micro), 0);
    double mean = 0, square = 0;
    for (std::int64_t n = 0; n < kSamples; n++) {
      for (std::int64_t i = 0; i < pixels; i++) {
        const double v = values[static_cast<std::size_t>((n * channels + c) * pixels + i)];
        means[static_cast<std::size_t>(n / micro)] += v / static_cast<double>(micro * pixels);
        mean += v, square += v * v;
      }
    }
    const double count = static_cast<double>(kSamples * pixels);
    mean /= count;
    const double variance = square / count - mean * mean;
    for (double m : means) sum += (m - mean) * (m - mean) / variance / static_cast<double>(means.size());
  }
  return std::sqrt(sum / static_cast<double>(channels));
}

}  // namespace

static int example(const Arguments& arguments) {
  const std::int64_t samples = arguments["--samples"], epochs = arguments["--epochs"];
  const std::int64_t seeds = arguments["--seeds"];
  std::printf("lenet-bn on %lld generated images, %lld epochs, effective batch %lld, %lld seeds: test accuracy in %%\n\n",
              static_cast<long long>(samples), static_cast<long long>(epochs), static_cast<long long>(kEffective),
              static_cast<long long>(seeds));
  std::printf("%-36s", "micro-batch");
  for (std::int64_t micro : kMicro) std::printf("%9lld", static_cast<long long>(micro));
  std::printf("   depends on the cut\n");
  bool as_expected = true;
  for (const Row& row : kRows) {
    std::printf("%-36s", row.name);
    std::vector<double> losses;
    for (std::int64_t micro : kMicro) {
      double accuracy = 0, loss = 0;
      for (std::int64_t seed = 0; seed < seeds; seed++) {
        const Result r = train_once(row, micro, samples, epochs, static_cast<std::uint64_t>(seed) + 1);
        accuracy += r.accuracy / static_cast<double>(seeds), loss += r.epoch_loss / static_cast<double>(seeds);
      }
      losses.push_back(loss);
      std::printf("%9.1f", 100 * accuracy);
      std::fflush(stdout);
    }
    // The first epoch's loss tells: rounding alone moves it by far less than a thousandth.
    const auto [least, most] = std::minmax_element(losses.begin(), losses.end());
    const bool depends = (*most - *least) / *least > 1e-3;
    std::printf("   %s (first epoch's loss %.4f to %.4f)\n", depends ? "yes" : "no", *least, *most);
    as_expected &= depends == (&row == &kRows[0]);
  }
  std::printf("\n%-36s", "noise of the mean (std. deviations)");
  double before = 1;
  for (std::int64_t micro : kMicro) {
    const double noise = noise_of_mean(micro);
    std::printf("%9.4f", noise);
    as_expected &= noise < before;
    before = noise;
  }
  std::printf("\n");
  return as_expected ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "Batch norm in small micro-batches beside exact batch norm, group norm and layer norm: "
                               "which depends on the cut.",
                      .options = {{"--samples", 768, "Training images", 32},
                                  {"--epochs", 4, "Passes over them"},
                                  {"--seeds", 2, "Runs of each row"}},
                      .small_run = "--samples 256 --epochs 2 --seeds 1"},
                     example);
}
