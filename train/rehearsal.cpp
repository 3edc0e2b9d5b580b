#include <limpid/train/rehearsal.h>

#include <algorithm>
#include <cstring>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/base/scope.h>
#include <limpid/data/loader.h>
#include <limpid/optim/optimizer.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/workspace_cap.h>
#include <limpid/train/amp.h>
#include <limpid/train/evaluate.h>
#include <limpid/train/step.h>

namespace limpid::train {
namespace {

constexpr std::int64_t kEpochs = 2;         // the second finds what the first one's validation left behind
constexpr std::int64_t kFullEvalSteps = 2;  // as full_steps, for validation

// Samples of zeros, labelled in turn.
class BlankDataset final : public data::Dataset {
 public:
  BlankDataset(std::int64_t size, Shape input, std::int64_t classes)
      : size_(size), input_(std::move(input)), classes_(classes) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override { return {zeros(input_), index % classes_, {}}; }
  data::ExampleSpec spec() const override { return {input_, DType::float32, {}, DType::int64}; }
  void write(std::int64_t index, const data::ExampleSpec& spec, void* input, void* target) const override {
    std::memset(input, 0, spec.input_bytes());
    const std::int64_t label = index % classes_;
    std::memcpy(target, &label, sizeof label);
  }
  std::int64_t num_classes() const override { return classes_; }

 private:
  std::int64_t size_;
  Shape input_;
  std::int64_t classes_;
};

// The samples that stand for `all`: at most `full` whole units of `unit` samples, and the rest that fills none.
std::int64_t shortened(std::int64_t all, std::int64_t unit, std::int64_t full) {
  return std::min(all / unit, full) * unit + all % unit;
}

// Segments lie elsewhere on every device, so their order does not count; that of the blocks inside does.
std::uint64_t layout_of(const memory::Allocator& pool) {
  std::uint64_t sum = 0;
  for (const memory::SegmentInfo& segment : pool.snapshot()) {
    std::uint64_t hash = mix_key(segment.size, static_cast<std::uint64_t>(segment.pool));
    for (const memory::BlockInfo& block : segment.blocks) {
      hash = mix_key(hash, block.size);
      hash = mix_key(
          hash, static_cast<std::uint64_t>(block.state) * memory::kRoleCount + static_cast<std::uint64_t>(block.role));
    }
    sum += hash;
  }
  return sum;
}

std::int64_t device_calls(const memory::Allocator& pool) {
  const memory::Stats stats = pool.stats();
  return stats.num_device_alloc + stats.num_device_free;
}

std::optional<std::int64_t> find_steady_step(const std::vector<RehearsalStep>& steps) {
  std::vector<const RehearsalStep*> full;
  for (const RehearsalStep& s : steps) {
    if (s.epoch == 0 && s.full) full.push_back(&s);
  }
  // Backwards from the last one, as long as nothing differs.
  std::size_t first = full.size();
  while (first > 0 && full[first - 1]->layout == full.back()->layout) first--;
  if (full.size() - first < 2 || full.back()->device_calls > 0) return std::nullopt;
  return full[first]->step;
}

}  // namespace

void apply_cap(std::uint64_t cap, memory::Allocator& pool, const memory::Ledger& io_ledger) {
  if (cap == 0) return pool.set_capacity(0);
  const std::uint64_t io = io_ledger.reserved, own = pool.ledger().reserved;
  if (io >= cap || own > cap - io) {  // nothing is left for a step
    memory::OutOfMemoryInfo info;
    info.device = pool.device_name();
    info.requested = info.rounded = io + own;
    info.reserved = io + own;
    info.live = pool.ledger().allocated() + io_ledger.allocated();
    info.capacity = cap;
    info.sum_of = "the model and the loaders";
    info.reason = concat("model and loaders alone take ", format_bytes(io + own), ", the capacity is ", format_bytes(cap));
    throw memory::OutOfMemoryError(std::move(info));
  }
  pool.set_capacity(cap - io);
}

void check(const RehearsalSettings& s) {
  check(s.train);
  auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    LIMPID_CHECK(value >= least, ArgumentError, "[plan] ", name, " must be at least ", least, ", got ", value);
  };
  LIMPID_CHECK(s.train.input.size() == 3, ArgumentError,
               "[plan] needs the size of one sample (channels, height, width)");
  at_least("classes", s.train.classes, 1);
  at_least("accumulate", s.accumulate, 1);
  // Every micro-batch of a step is run, so the time and the trace grow with them.
  constexpr std::int64_t kMostMicroBatches = 4096, kMostSamples = std::int64_t{1} << 31;
  LIMPID_CHECK(s.accumulate <= kMostMicroBatches, ArgumentError, "[plan] accumulate is at most ", kMostMicroBatches,
               ", got ", s.accumulate);
  LIMPID_CHECK(s.accumulate == 1 || s.train.micro_batch == 0, ArgumentError, "[plan] accumulate ", s.accumulate,
               " and micro-batch ", s.train.micro_batch, " both say how a step is cut: use one of them");
  LIMPID_CHECK(s.train.micro_batch == 0 || s.train.batch / s.train.micro_batch <= kMostMicroBatches, ArgumentError,
               "[plan] a batch of ", s.train.batch, " is cut into more than ", kMostMicroBatches, " micro-batches of ",
               s.train.micro_batch);
  LIMPID_CHECK(s.train.batch <= kMostSamples, ArgumentError, "[plan] batch is at most ", kMostSamples, ", got ",
               s.train.batch);
  at_least("samples", s.samples, 0);
  at_least("validation samples", s.validation, 0);
  at_least("test samples", s.test, 0);
  at_least("full steps", s.full_steps, 1);
  LIMPID_CHECK(s.samples == 0 || !s.train.drop_last || s.samples >= s.train.batch, ArgumentError,
               "[plan] with drop-last no batch is left: ", s.samples, " samples, batch ", s.train.batch);
}

RehearsalSettings rehearsal_of(const TrainSettings& settings, const TrainParts& parts) {
  RehearsalSettings s;
  s.train = settings;
  s.train.model = parts.card.model;
  s.train.input = parts.card.input.vec();
  s.train.classes = parts.card.classes;
  s.samples = parts.training->size();
  s.validation = parts.validation ? parts.validation->size() : 0;
  s.test = parts.test ? parts.test->size() : 0;
  s.checkpoints = !settings.out.empty();
  for (const memory::SegmentInfo& segment : memory::io_allocator().snapshot()) {
    for (const memory::BlockInfo& block : segment.blocks) {
      if (block.state == memory::BlockState::allocated) s.resident.push_back(block.requested);
    }
  }
  return s;
}

RehearsalResult rehearse(const RehearsalSettings& s, memory::Allocator& pool, memory::Allocator& io_pool,
                         Device device) {
  check(s);
  const ScopeGuard scope(current_scope());
  const RandomStateScope random;
  const WorkspaceCapScope workspace(s.train.workspace_cap);
  const Shape input(s.train.input);
  const Device host = default_device();
  const bool one_memory = device == host;  // tensors and data
  std::vector<Ref<Storage>> resident;
  for (std::uint64_t bytes : s.resident)
    resident.push_back(Storage::create_in(io_pool, bytes, host, memory::Role::io, intern("dataset")));

  const std::shared_ptr<nn::Module> model = s.model ? s.model() : make_model(s.train);

  const std::int64_t window = s.train.batch * s.accumulate;  // samples a step
  const std::int64_t micro = s.accumulate > 1 ? s.train.batch : s.train.micro_batch;
  const std::int64_t evaluated = evaluation_batch(s.train);
  auto make_loader = [&](std::int64_t samples, bool training) {
    data::LoaderOptions options;
    options.batch_size = training ? window : evaluated;
    options.micro_batch = training ? micro : 0;
    options.quantum = training ? std::max<std::int64_t>(s.train.quantum, 1) : 1;
    options.drop_last = training && s.train.drop_last;
    options.num_workers = static_cast<int>(s.train.workers);
    options.pin_memory = device.type == DeviceType::cuda;
    return std::make_unique<data::DataLoader>(std::make_shared<BlankDataset>(samples, input, s.train.classes), options);
  };
  const std::int64_t samples = s.samples ? shortened(s.samples, window, s.full_steps) : window * s.full_steps;
  const auto loader = make_loader(samples, true);
  std::unique_ptr<data::DataLoader> validation, test;
  if (s.validation) validation = make_loader(shortened(s.validation, evaluated, kFullEvalSteps), false);
  if (s.test) test = make_loader(shortened(s.test, evaluated, 1), false);

  pool.empty_cache();
  pool.reset_peak_stats();
  io_pool.reset_peak_stats();
  apply_cap(s.train.memory_cap, pool, one_memory ? io_pool.ledger() : memory::Ledger());

  model->name_tree();
  model->to(device);
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(s.train, model->parameters());
  std::unique_ptr<optim::GradScaler> scaler;
  if (needs_scaler(s.train.amp)) scaler = std::make_unique<optim::GradScaler>();
  StepOptions options = step_options(s.train);
  options.retry = false;
  Step training(*model, *optimizer, std::move(options), scaler.get());
  model->train();

  if (validation && s.evaluate_first) evaluate(*model, *validation, s.train.classes);
  RehearsalResult result;
  result.parameters = model->num_parameters();
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < std::min(s.train.epochs, kEpochs); epoch++) {
    loader->set_epoch(epoch);
    std::int64_t calls = 0;
    for (const data::Batch& batch : *loader) {
      if (batch.place.micro == 0) {
        calls = device_calls(pool);
        training.begin(step, batch.place.effective_size);
      }
      training.add(batch);
      if (batch.place.micro + 1 < batch.place.micros) continue;
      training.finish();
      pool.end_step();
      const memory::Ledger now = pool.ledger();
      result.steps.push_back({.step = step++,
                              .epoch = epoch,
                              .samples = batch.place.effective_size,
                              .full = batch.place.effective_size == window,
                              .allocated = now.allocated(),
                              .reserved = now.reserved,
                              .device_calls = device_calls(pool) - calls,
                              .layout = layout_of(pool)});
    }
    if (validation) evaluate(*model, *validation, s.train.classes);
    if (s.checkpoints) {
      const optim::OptimizerState state = optimizer->state_dict();  // the step counts become tensors
    }
  }
  optimizer->zero_grad();
  const memory::Ledger peak = pool.ledger_at_peak();
  result.memory = memory_report(peak, one_memory ? io_pool.ledger_at_peak() : memory::Ledger());
  result.live_peak = peak.peak_live;
  result.stats = pool.stats();
  result.steady_step = find_steady_step(result.steps);
  return result;
}

}  // namespace limpid::train
