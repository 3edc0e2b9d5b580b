// Mixed precision as a whole: an error at any point of a step leaves nothing behind, and the three precisions learn alike.
#include <doctest/doctest.h>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/watch.h>
#include <limpid/data/registry.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/optim/grad_scaler.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/optim/sgd.h>
#include <limpid/train/amp.h>
#include <limpid/train/evaluate.h>
#include <limpid/train/parts.h>

using namespace limpid;

namespace {

struct Stop {};  // thrown by the watcher below

class StopAt final : public Watcher {
 public:
  explicit StopAt(int event) : left_(event) {}
  void on_result(const Tensor&, std::span<const Tensor* const>, DType) override { count(); }
  void on_cast(const Tensor&, const Tensor&, bool) override { count(); }
  void on_backward(const Node&, std::span<const Tensor>, std::span<const Tensor>) override { count(); }

 private:
  void count() {
    if (left_-- == 0) throw Stop{};
  }
  int left_;
};

}  // namespace

TEST_CASE("an error at any event of a step leaves autocast off, no copies, and the same bits when the step is made again") {
  std::vector<std::vector<double>> results;
  int stopped = 0;
  for (int event = 1000;; event = event == 1000 ? 0 : event + 1) {
    manual_seed(3);
    auto model = nn::make_model("lenet", {.input = {1, 12, 12}, .classes = 3, .seed = 1});
    optim::Adam adam(model->parameters(), {.lr = 1e-2});
    optim::GradScaler scaler({.init_scale = 1024});
    Tensor x = randn({4, 1, 12, 12}), y = from_vector(std::vector<std::int64_t>{0, 1, 2, 0}, {4});
    auto step = [&] {
      Tensor loss;
      {
        Autocast amp({.dtype = float16});
        loss = cross_entropy((*model)(x), y);
      }
      scaler.scale(loss).backward();
      scaler.step(adam);
      scaler.update();
    };
    bool failed = false;
    try {
      StopAt watcher(event);
      WatchScope watch(&watcher);
      step();
    } catch (const Stop&) {
      failed = true;
      CHECK_FALSE(autocast_enabled());
      CHECK(autocast_cache_bytes() == 0);
      CHECK(detail::watcher == nullptr);
      scaler.abandon();
      adam.zero_grad();
      step();
    }
    std::vector<double> weights;
    for (const Tensor& p : model->parameters()) {
      std::vector<double> w = p.to_vector<double>();
      weights.insert(weights.end(), w.begin(), w.end());
    }
    CHECK(scaler.get_growth_tracker() == 1);
    if (results.empty()) results.push_back(weights);
    CHECK(weights == results[0]);
    stopped += failed;
    if (event < 1000 && !failed) break;
  }
  CHECK(stopped > 40);
}

TEST_CASE("precisions by name") {
  CHECK_FALSE(train::autocast_for("fp32").enabled);
  CHECK_FALSE(train::needs_scaler("fp32"));
  CHECK(train::autocast_for("bf16").dtype == bfloat16);
  CHECK_FALSE(train::needs_scaler("bf16"));
  CHECK(train::autocast_for("fp16").dtype == float16);
  CHECK(train::autocast_for("fp16").enabled);
  CHECK(train::needs_scaler("fp16"));
  CHECK_THROWS_WITH_AS(train::autocast_for("half"), "[amp] expected fp32, bf16 or fp16, got half", ArgumentError);
}

TEST_CASE("long: resnet20 on 10,000 images of Fashion-MNIST reaches the same accuracy in f32, bf16 and f16 with a scaler") {
  if (!data::find_dataset("fashion-mnist", "", {"/usr/local/share/datasets", "/usr/share/datasets"})) {
    MESSAGE("Fashion-MNIST is not here (Debian: dataset-fashion-mnist)");
    return;
  }
  std::vector<double> accuracies;
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    train::TrainSettings settings;
    settings.model = "resnet20";
    settings.limit = 10000;
    settings.val_fraction = 0;
    settings.seed = 1;
    train::TrainParts parts = train::make_parts(settings, {"/usr/local/share/datasets", "/usr/share/datasets"});
    data::DataLoader loader(parts.training, {.batch_size = 128, .shuffle = true, .drop_last = true, .num_workers = 1, .seed = 1,
                                             .transform = parts.training_transform});
    data::DataLoader test(parts.test, {.batch_size = 256, .transform = parts.evaluation_transform});
    constexpr std::int64_t kEpochs = 6;
    optim::SGD sgd(parts.model->parameters(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4});
    optim::Scheduler schedule(sgd, optim::OneCycle({.max_lr = 0.1, .total_steps = kEpochs * loader.size()}), optim::Unit::step);
    optim::GradScaler scaler({.enabled = train::needs_scaler(precision)});
    std::int64_t skipped = 0;
    for (std::int64_t epoch = 0; epoch < kEpochs; epoch++) {
      loader.set_epoch(epoch);
      for (const data::Batch& batch : loader) {
        sgd.zero_grad();
        Tensor loss;
        {
          Autocast amp(train::autocast_for(precision));
          loss = cross_entropy((*parts.model)(batch.x), batch.y);
        }
        scaler.scale(loss).backward();
        optim::StepTicket ticket = scaler.step(sgd);
        scaler.update();
        if (ticket.stepped()) schedule.step();
        skipped += ticket.skipped();
      }
    }
    const train::Evaluation result = train::evaluate(*parts.model, test, 10);
    accuracies.push_back(result.accuracy);
    MESSAGE(precision, ": accuracy ", 100 * result.accuracy, " %, loss ", result.loss, ", ", skipped, " steps skipped, ",
            loader.size() * kEpochs, " steps");
  }
  CHECK(accuracies[0] > 0.85);
  for (double a : accuracies) CHECK(std::abs(a - accuracies[0]) <= 0.01);
}
