// A small convolutional network on generated images, with a loader, augmentation, a schedule, and weights written as a
// safetensors file and read back. Options: --samples N --epochs N
#include <cstdio>
#include <filesystem>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

double accuracy_of(nn::Module& model, data::DataLoader& loader) {
  NoGradGuard no_grad;
  model.eval();
  std::int64_t correct = 0, all = 0;
  for (auto& [images, labels] : loader) {
    correct += eq(argmax(model(images), 1), labels).to(int64).sum().item_int();
    all += labels.size(0);
  }
  model.train();
  return static_cast<double>(correct) / static_cast<double>(all);
}

nn::Sequential make_net() {
  return nn::Sequential({
      {"conv1", nn::Conv2d({.in_channels = 3, .out_channels = 16, .kernel_size = 3, .padding = 1})},
      {"bn1", nn::BatchNorm2d({.num_features = 16})},
      {"relu1", nn::ReLU()},
      {"pool1", nn::MaxPool2d(2)},
      {"conv2", nn::Conv2d({.in_channels = 16, .out_channels = 32, .kernel_size = 3, .padding = 1})},
      {"bn2", nn::BatchNorm2d({.num_features = 32})},
      {"relu2", nn::ReLU()},
      {"pool2", nn::AdaptiveAvgPool2d(1)},
      {"flatten", nn::Flatten()},
      {"drop", nn::Dropout({.p = 0.1})},
      {"fc", nn::Linear({.in_features = 32, .out_features = 10})},
  });
}

}  // namespace

static int example(const Arguments& arguments) {
  const std::int64_t samples = arguments["--samples"];
  const std::int64_t epochs = arguments["--epochs"];
  manual_seed(7);

  data::SyntheticDataset training({.size = samples});
  data::SyntheticDataset test({.size = samples / 4, .train = false});
  data::DataLoader loader(
      training, {.batch_size = 64,
                 .shuffle = true,
                 .num_workers = 2,
                 .seed = 7,
                 .transform = data::compose({data::random_crop({.padding = 2}), data::random_horizontal_flip()})});
  data::DataLoader test_loader(test, {.batch_size = 64});

  nn::Sequential model = make_net();
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4});
  optim::Scheduler schedule(optimizer, optim::CosineAnnealing({.t_max = epochs * loader.size()}), optim::Unit::step);
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    double sum = 0;
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      Tensor loss = cross_entropy(model(images), labels, {.label_smoothing = 0.05});
      loss.backward();
      optim::clip_grad_norm_(model.parameters(), 5.0);
      optimizer.step();
      schedule.step();
      sum += loss.item();
    }
    std::printf("epoch %d: loss %.4f\n", static_cast<int>(epoch + 1), sum / static_cast<double>(loader.size()));
  }
  const double accuracy = accuracy_of(model, test_loader);
  std::printf("test accuracy %.1f %%\n", 100 * accuracy);

  // The file that PyTorch's users open with safetensors.torch.load_file.
  const std::string file = (std::filesystem::temp_directory_path() / "limpid_cnn_example.safetensors").string();
  save_safetensors(file, model.state_dict());
  nn::Sequential copy = make_net();
  copy.load_state_dict(load_safetensors(file));
  std::filesystem::remove(file);
  const double again = accuracy_of(copy, test_loader);
  std::printf("the same weights, read from a file: %.1f %%\n", 100 * again);
  return again == accuracy ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "A small convolutional network on generated images: loader, augmentation, schedule, "
                               "weights as a safetensors file.",
                      .options = {{"--samples", 4000, "Training images", 4}, {"--epochs", 4, "Passes over them"}},
                      .small_run = "--samples 256 --epochs 1"},
                     example);
}
