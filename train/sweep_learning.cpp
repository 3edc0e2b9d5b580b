#include <limpid/train/sweep_learning.h>

#include <algorithm>
#include <cmath>

#include <limpid/autograd/functions.h>
#include <limpid/memory/oom.h>
#include <limpid/train/trainer.h>

namespace limpid::train {
namespace {

// The noise is estimated from so many parts of so many samples.
constexpr std::int64_t kNoiseParts = 16, kNoiseSize = 16;

class Recorder : public TrainObserver {
 public:
  Recorder(LearningRun& run, std::int64_t training) : run_(run), training_(training) {}
  void on_epoch(const EpochRecord& e) override {
    LearningPoint p;
    p.epoch = e.epoch + 1;
    p.samples = p.epoch * training_;
    p.seconds = (run_.points.empty() ? 0 : run_.points.back().seconds) + e.seconds;
    p.train_loss = e.train_loss;
    p.train_accuracy = e.train_accuracy;
    p.validation_loss = e.validation->loss;
    p.validation_accuracy = e.validation->accuracy;
    run_.points.push_back(p);
  }

 private:
  LearningRun& run_;
  std::int64_t training_;
};

std::optional<GradientNoise> noise_of(nn::Module& model, const TrainParts& parts, std::uint64_t seed) {
  const std::int64_t count = std::min(kNoiseParts, parts.training->size() / kNoiseSize);
  if (count < 2) return std::nullopt;
  data::DataLoader loader(parts.training, {.batch_size = kNoiseSize, .shuffle = true, .seed = seed,
                                           .transform = parts.evaluation_transform});
  model.eval();
  const data::BatchPlan plan = loader.plan(0);
  return gradient_noise(model.parameters(), count, kNoiseSize, [&](std::int64_t part) {
    const auto ids = plan.indices(part);
    const data::Batch batch = loader.load({ids.begin(), ids.end()}, 0);
    return cross_entropy(model(batch.x), batch.y);
  });
}

// What the runs of a sweep do not need.
TrainSettings bare(TrainSettings s) {
  s.out.clear();
  s.trace = 0;
  s.monitor_every = 0;
  return s;
}

LearningRun run_once(const TrainSettings& s, const TrainParts& parts) {
  LearningRun run;
  run.seed = s.seed;
  Recorder recorder(run, parts.training->size());
  try {
    Trainer trainer(s, parts, Start::fresh, &recorder);
    run.diverged = trainer.run().diverged;
    if (!run.diverged) run.noise = noise_of(trainer.model(), parts, s.seed);
  } catch (const memory::OutOfMemoryError& error) {
    run.failure = error.what();
  }
  return run;
}

}  // namespace

LearningRow::Range LearningRow::over_runs(const std::function<std::optional<double>(const LearningRun&)>& value) const {
  Range range;
  for (const LearningRun& run : runs) {
    const std::optional<double> v = value(run);
    if (!v || !std::isfinite(*v)) continue;
    range.least = range.count == 0 ? *v : std::min(range.least, *v);
    range.most = range.count == 0 ? *v : std::max(range.most, *v);
    range.mean += (*v - range.mean) / static_cast<double>(++range.count);
  }
  return range;
}

const LearningPoint* point_after(const LearningRun& run, std::int64_t samples) {
  for (const LearningPoint& p : run.points)
    if (p.samples >= samples) return &p;
  return nullptr;
}

const LearningPoint* point_at_target(const LearningRun& run, double target) {
  for (const LearningPoint& p : run.points)
    if (target > 0 && p.validation_accuracy >= target) return &p;
  return nullptr;
}

Learning learn(const LearningSettings& settings,
               const std::function<void(std::int64_t, const ScalingPolicy&, std::uint64_t)>& progress) {
  LIMPID_CHECK(!settings.batches.empty() && !settings.policies.empty(), ArgumentError,
               "[learn] there are no batch sizes or no policies");
  LIMPID_CHECK(settings.seeds >= 1, ArgumentError, "[learn] at least 1 seed, got ", settings.seeds);
  LIMPID_CHECK(settings.target_accuracy >= 0 && settings.target_accuracy <= 1, ArgumentError,
               "[learn] a target accuracy is between 0 and 1, got ", settings.target_accuracy);
  LIMPID_CHECK(settings.after_samples >= 0, ArgumentError, "[learn] accuracy after at least 1 sample, got ",
               settings.after_samples);
  TrainSettings s = bare(settings.train);
  if (s.reference_batch == 0) s.reference_batch = *std::min_element(settings.batches.begin(), settings.batches.end());
  Learning out;
  out.model = s.model;
  out.data = s.data;
  out.optimizer = s.optimizer;
  out.epochs = s.epochs;
  out.target_accuracy = settings.target_accuracy;
  for (std::int64_t batch : settings.batches) {
    for (ScalingRule rule : settings.policies) {
      s.batch = batch;
      s.micro_batch = settings.train.micro_batch < batch ? settings.train.micro_batch : 0;
      s.lr_policy = to_string(rule);
      s.seed = settings.train.seed;
      check(s);
      LearningRow row;
      row.batch = batch;
      row.policy = scaling_policy(s);
      row.lr = row.policy.lr(batch);
      row.warnings = row.policy.warnings(batch, s.optimizer);
      // At the reference batch all policies say the same: such runs are made once.
      const auto same = std::find_if(out.rows.begin(), out.rows.end(),
                                     [&](const LearningRow& other) { return other.batch == batch && other.lr == row.lr; });
      if (same != out.rows.end()) row.runs = same->runs;
      for (std::int64_t i = 0; i < settings.seeds && same == out.rows.end(); i++, s.seed++) {
        if (progress) progress(batch, row.policy, s.seed);
        const TrainParts parts = make_parts(s, settings.search_paths);
        LIMPID_CHECK(parts.validation, ArgumentError, "[learn] a sweep of learning needs validation samples, the val-fraction is ",
                     s.val_fraction);
        check_scaled_batch(s, parts.training->size());
        out.input = parts.card.input.vec();
        out.classes = parts.card.classes;
        out.training = parts.training->size();
        out.validation = parts.validation->size();
        const std::int64_t all = out.training * s.epochs;
        LIMPID_CHECK(settings.after_samples <= all, ArgumentError, "[learn] accuracy after ", settings.after_samples,
                     " samples, but a run has ", all, ": ", s.epochs, " epochs of ", out.training);
        row.runs.push_back(run_once(s, parts));
      }
      out.rows.push_back(std::move(row));
    }
  }
  const std::int64_t wanted = settings.after_samples > 0 ? settings.after_samples : out.training * s.epochs;
  out.after_samples = (wanted + out.training - 1) / out.training * out.training;
  return out;
}

}  // namespace limpid::train
