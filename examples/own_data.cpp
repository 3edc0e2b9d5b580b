// A data set of your own: derive from data::Dataset, write size() and get(). Here: images of circles and squares, drawn
// on demand by the loader's threads. The training loop is the library's Trainer. Options: --epochs N
#include <cmath>
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

namespace {

// Sample `index` is the same image whoever asks: all random numbers come from (seed, index).
class Shapes final : public data::Dataset {
 public:
  Shapes(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}
  std::int64_t size() const override { return size_; }
  std::int64_t num_classes() const override { return 2; }
  std::vector<std::string> class_names() const override { return {"circle", "square"}; }

  data::Example get(std::int64_t index) const override {
    Generator random(mix_key(seed_, static_cast<std::uint64_t>(index)));
    const std::int64_t label = random.below(2);
    const double radius = 4 + 4 * random.uniform(), cx = 10 + 8 * random.uniform(), cy = 10 + 8 * random.uniform();
    Tensor image = zeros({1, 28, 28});
    float* pixel = image.mutable_data<float>();
    for (int row = 0; row < 28; row++) {
      for (int column = 0; column < 28; column++, pixel++) {
        const double dx = column - cx, dy = row - cy;
        const bool inside =
            label == 0 ? std::hypot(dx, dy) < radius : std::max(std::abs(dx), std::abs(dy)) < 0.886 * radius;
        *pixel = static_cast<float>((inside ? 1.0 : 0.0) + 0.1 * random.normal());
      }
    }
    return {.input = image, .label = label};
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

class Printer final : public train::TrainObserver {
 public:
  void on_epoch(const train::EpochRecord& r) override {
    std::printf("epoch %d: training loss %.4f, validation accuracy %.1f %%\n", static_cast<int>(r.epoch + 1),
                r.train_loss, 100 * r.validation->accuracy);
  }
};

}  // namespace

static int example(const Arguments& arguments) {
  train::TrainSettings settings;
  settings.epochs = arguments["--epochs"];
  settings.batch = 32;
  settings.seed = 3;

  train::TrainParts parts;
  parts.training = std::make_shared<Shapes>(1000, 1);
  parts.validation = std::make_shared<Shapes>(200, 2);
  parts.test = std::make_shared<Shapes>(400, 3);
  parts.card.input = {1, 28, 28};
  parts.card.classes = 2;
  parts.card.class_names = parts.training->class_names();
  parts.model = nn::make_model("lenet", {.input = {1, 28, 28}, .classes = 2, .seed = settings.seed});

  Printer printer;
  train::Trainer trainer(settings, parts, train::Start::fresh, &printer);
  const train::TrainResult result = trainer.run();
  std::printf("test accuracy %.1f %%\n\n%s", 100 * result.test->accuracy, to_string(result.memory).c_str());
  return result.test->samples == 400 ? 0 : 1;
}

int main(int argc, char** argv) {
  return run_example(
      argc, argv,
      {.shows = "A data set of your own (circles and squares, drawn on demand) and the library's Trainer.",
       .options = {{"--epochs", 5, "Passes over the training images"}},
       .small_run = "--epochs 2"},
      example);
}
