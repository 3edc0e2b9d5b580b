#include <limpid/train/step.h>

#include <algorithm>
#include <utility>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/loss_weights.h>
#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/raw.h>
#include <limpid/tensor/storage.h>
#include <limpid/train/amp.h>
#include <limpid/train/amp_ledger.h>
#include <limpid/train/evaluate.h>
#include <limpid/train/memory_report.h>
#include <limpid/train/settings.h>

namespace limpid::train {
namespace {

memory::Stats pool_stats(const nn::Module& model) { return allocator_for(device_of(model)).stats(); }

// One allocation for all buffers of `dtype`, cut into views with the buffers' shapes.
void save_buffers_of(DType dtype, const std::vector<Tensor>& buffers, std::vector<Tensor>& saved) {
  std::int64_t elements = 0;
  Device device;
  for (const Tensor& b : buffers)
    if (b.dtype() == dtype) elements += b.numel(), device = b.device();
  if (elements == 0) return;
  Tensor all = empty({elements}, {.dtype = dtype, .device = device, .role = memory::Role::param});
  all.storage()->set_name(intern("buffers before the step"));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < buffers.size(); i++) {
    if (buffers[i].dtype() != dtype) continue;
    saved[i] = raw::reshape(raw::narrow(all, 0, at, buffers[i].numel()), buffers[i].shape());
    at += buffers[i].numel();
  }
}

}  // namespace

StepOptions step_options(const TrainSettings& s) {
  return {.label_smoothing = s.label_smoothing,
          .precision = s.amp,
          .clip = s.clip,
          .batch_norm = batch_norm_mode_named(s.bn_mode),
          .adjust_momentum = s.bn_momentum == "step",
          .quantum = s.quantum,
          .retry = s.on_oom == "retry"};
}

Step::Step(nn::Module& model, optim::Optimizer& optimizer, StepOptions options, optim::GradScaler* scaler)
    : model_(model), optimizer_(optimizer), accumulator_(optimizer, scaler), options_(std::move(options)), scaler_(scaler) {
  autocast_for(options_.precision);  // the name is checked
  LIMPID_CHECK(!options_.retry || options_.load, ArgumentError,
               "[step] a retry must be able to load the samples again: options.load is empty");
  for (const auto& [name, buffer] : model.named_buffers()) buffers_.push_back(buffer);
  saved_buffers_.resize(buffers_.size());
  NoGradGuard guard;
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64, DType::int32,
                      DType::uint8, DType::boolean})
    save_buffers_of(dtype, buffers_, saved_buffers_);
  LIMPID_CHECK(options_.quantum >= 0, ArgumentError, "[step] the quantum is at least 0, got ", options_.quantum);
  if (options_.batch_norm == BatchNormMode::frozen) set_batch_norm_mode(model, BatchNormMode::frozen);
  for (auto& [path, layer] : batch_norm_layers(model))
    if (!layer->frozen()) norms_.push_back(layer);
  exact_ = options_.batch_norm == BatchNormMode::exact && !norms_.empty();
}

void Step::set_micro_batch_limit(std::int64_t limit) {
  LIMPID_CHECK(options_.quantum == 0 || limit == 0, ArgumentError, "[step] pieces have the quantum ", options_.quantum,
               " and cannot be limited to ", limit);
  limit_ = limit;
}

void Step::copy_buffers(bool back) {
  NoGradGuard guard;
  for (std::size_t i = 0; i < buffers_.size(); i++) {
    if (back) {
      raw::copy(buffers_[i], saved_buffers_[i]);
    } else {
      raw::copy(saved_buffers_[i], buffers_[i]);
    }
  }
}

void Step::begin(std::int64_t step, std::int64_t samples, std::vector<std::int64_t> batches) {
  LIMPID_CHECK(samples > 0, ArgumentError, "[step] a step needs at least one sample, got ", samples);
  step_ = step;
  samples_ = samples;
  batches_ = std::move(batches);
  parts_.clear();
  kept_.clear();
  outcome_ = StepOutcome{};
  set_step(static_cast<std::uint32_t>(step));
  copy_buffers(false);
  random_ = random_state();
  generator_seed_ = default_generator().seed();
  generator_position_ = default_generator().position();
  scale_before_ = scaler_ ? scaler_->get_scale() : 1;
  open();
}

void Step::open() {
  accumulator_.begin(static_cast<double>(samples_));
  std::vector<OomRetry> retries = std::move(outcome_.retries);
  outcome_ = StepOutcome{};
  outcome_.retries = std::move(retries);
  done_ = largest_piece_ = 0;
  adjust_momentum();
  const memory::Stats stats = pool_stats(model_);
  released_segments_ = stats.get(memory::Metric::segment).freed;
  released_bytes_ = stats.get(memory::Metric::reserved_bytes).freed;
}

void Step::adjust_momentum() {
  if (!options_.adjust_momentum || batches_.empty()) return;
  std::size_t pieces = 0;
  for (std::int64_t batch : batches_) pieces += cut(batch).size();
  for (nn::BatchNorm* layer : norms_) layer->set_micro_batches(static_cast<std::int64_t>(pieces));
}

void Step::undo() {
  copy_buffers(true);
  random_state() = random_;
  default_generator().set(generator_seed_, generator_position_);
  open();  // drops the gradients
  set_micro_batch(0);
}

// The step is over, made or given up: nothing of it stays.
void Step::close() {
  for (nn::BatchNorm* layer : norms_) layer->set_micro_batches(1);
  parts_.clear();
  kept_.clear();
  set_micro_batch(0);
}

std::vector<std::int64_t> Step::cut(std::int64_t samples) const {
  if (options_.quantum > 0) return data::micro_batch_sizes(samples, options_.quantum, options_.quantum);
  return data::micro_batch_sizes(samples, limit_ > 0 ? limit_ : samples);
}

std::pair<Tensor, Tensor> Step::forward(const Tensor& x, const Tensor& y, std::size_t index, std::int64_t first) {
  set_micro_batch(static_cast<std::uint32_t>(index));
  begin_micro_batch(static_cast<std::uint64_t>(step_), first);
  largest_piece_ = std::max(largest_piece_, x.size(0));
  PhaseScope phase(Phase::forward);
  const Autocast amp(autocast_for(options_.precision));
  Tensor logits = model_(x);
  Tensor loss = cross_entropy(logits, y, {.label_smoothing = options_.label_smoothing});
  return {std::move(loss), std::move(logits)};
}

void Step::compute_piece(const Tensor& x, const Tensor& y) {
  MicroBatchRecord record;
  record.samples = x.size(0);
  const auto [loss, logits] = forward(x, y, outcome_.micro_batches.size(), done_);
  {
    const LossWeights weights;
    accumulator_.add_mean(loss, static_cast<double>(record.samples));
    if (!weights.rows().empty()) {
      const auto [least, most] = std::minmax_element(weights.rows().begin(), weights.rows().end());
      record.weight_min = *least / scale_before_;
      record.weight_max = *most / scale_before_;
    }
  }
  record.loss_sum = loss.item() * static_cast<double>(record.samples);
  const std::vector<std::int64_t> predicted = predicted_classes(logits);
  const std::vector<std::int64_t> truth = y.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < truth.size(); i++) outcome_.correct += truth[i] == predicted[i];
  outcome_.loss_sum += record.loss_sum;
  outcome_.samples += record.samples;
  done_ += record.samples;
  outcome_.micro_batches.push_back(record);
}

void Step::compute(const data::Batch& batch) {
  const std::vector<std::int64_t> sizes = cut(batch.size());
  const Tensor x = where_computed(batch.x, model_), y = where_computed(batch.y, model_);
  if (sizes.size() == 1) return compute_piece(x, y);
  std::int64_t at = 0;
  for (std::int64_t size : sizes) {
    compute_piece(raw::narrow(x, 0, at, size), raw::narrow(y, 0, at, size));
    at += size;
  }
}

void Step::compute_exact() {
  struct Piece {
    Tensor x, y;
    std::int64_t first = 0;  // sample of the step
  };
  std::vector<Piece> pieces;
  std::int64_t first = 0;
  for (const auto& [x, y] : kept_) {
    std::int64_t at = 0;
    for (std::int64_t size : cut(x.size(0))) {
      pieces.push_back({raw::narrow(x, 0, at, size), raw::narrow(y, 0, at, size), first});
      at += size, first += size;
    }
  }
  ExactBatchNorm exact(model_);
  exact.collect(pieces.size(), [&](std::size_t i) {
    const Piece& piece = pieces[i];
    const Tensor loss = forward(piece.x, piece.y, i, piece.first).first;
    accumulator_.add_mean(loss, static_cast<double>(piece.x.size(0)));
  });
  accumulator_.begin(static_cast<double>(samples_));  // what was collected does not count
  done_ = 0;
  for (const Piece& piece : pieces) compute_piece(piece.x, piece.y);
  exact.finish();
}

bool Step::prepare_retry(const memory::OutOfMemoryError& error) {
  const memory::OutOfMemoryInfo& info = error.info();
  const memory::Stats stats = pool_stats(model_);
  OomRetry retry;
  retry.micro_batch = largest_piece_;
  retry.next_micro_batch = (largest_piece_ + 1) / 2;
  retry.requested = info.requested;
  retry.where = describe_instant(info.scope);
  retry.released_segments = stats.get(memory::Metric::segment).freed - released_segments_;
  retry.released_bytes = static_cast<std::uint64_t>(stats.get(memory::Metric::reserved_bytes).freed - released_bytes_);
  undo();
  if (!options_.retry || options_.quantum > 0 || retry.micro_batch <= 1) return false;
  limit_ = retry.next_micro_batch;
  adjust_momentum();
  outcome_.retries.push_back(std::move(retry));
  return true;
}

void Step::recompute() {
  for (const Part& part : parts_) {
    const auto samples = static_cast<std::int64_t>(part.ids.size());
    auto first = part.ids.begin();
    for (std::int64_t size : cut(samples)) {
      compute(options_.load({first, first + size}, part.epoch));
      first += size;
    }
  }
}

template <class Attempt>
void Step::with_retries(Attempt&& attempt) {
  for (bool again = false;; again = true) {
    try {
      if (again) recompute();
      return attempt();
    } catch (const memory::OutOfMemoryError& error) {
      if (prepare_retry(error)) continue;
      close();
      throw;
    } catch (...) {
      undo();
      close();
      throw;
    }
  }
}

// The skipped step once more, from the same state and so with the same values, and somebody watching. Only then is
// every tensor read, so that other steps pay nothing.
void Step::find_non_finite() {
  StepOutcome outcome = std::move(outcome_);
  AmpLedger ledger({.find_non_finite = true, .count_underflow = false});
  try {
    const WatchScope watch(&ledger);
    undo();
    if (exact_) {
      compute_exact();
    } else {
      recompute();
    }
  } catch (const memory::OutOfMemoryError&) {
    // The place stays unknown; the step was taken back all the same.
  }
  undo();
  outcome_ = std::move(outcome);
  if (ledger.non_finite().empty()) return;
  const NonFinite& first = ledger.non_finite().front();
  outcome_.found_inf_layer = first.layer;
  outcome_.found_inf_micro_batch = first.micro_batch;
  outcome_.found_inf_what = to_string(first);
}

TrustRatios Step::trust_ratios() const {
  if (!optimizer_.has_trust_ratios()) return {};
  const std::vector<Tensor> parameters = optimizer_.parameters();
  const std::vector<double> ratios = optimizer_.trust_ratios();
  TrustRatios out;
  for (std::size_t i = 0; i < ratios.size(); i++) {
    const std::string& name = parameters[i].name();
    out.emplace_back(name.empty() ? concat("parameter ", i) : name, ratios[i]);
  }
  return out;
}

void Step::add(const data::Batch& batch) {
  LIMPID_CHECK(batch.size() > 0 && done_ + batch.size() <= samples_, ArgumentError, "[step] ", batch.size(),
               " samples after ", done_, ": the step has ", samples_);
  LIMPID_CHECK(options_.quantum == 0 || done_ % options_.quantum == 0, ArgumentError, "[step] a batch after ", done_,
               " samples, which are no multiple of the quantum ", options_.quantum);
  if (exact_) {
    with_retries([&] {
      const auto kept = [this](const Tensor& t) {
        Tensor there = where_computed(t, model_);
        return there.storage() == t.storage() ? raw::clone(t) : there;
      };
      kept_.emplace_back(kept(batch.x), kept(batch.y));
      done_ += batch.size();
    });
    return;
  }
  with_retries([&] { compute(batch); });
  parts_.push_back({batch.indices, batch.epoch});
}

StepOutcome Step::finish() {
  LIMPID_CHECK(done_ == samples_, ArgumentError, "[step] the step has ", samples_, " samples, got ", done_);
  with_retries([&] {
    if (exact_) compute_exact();
    outcome_.update = accumulator_.step(options_.clip);
  });
  outcome_.applied = outcome_.update.ticket.stepped();
  if (!outcome_.applied) {
    if (options_.load || exact_) find_non_finite();
    copy_buffers(true);
  } else {
    outcome_.trust_ratios = trust_ratios();
    if (!norms_.empty()) outcome_.batch_norm_updates = exact_ ? 1 : static_cast<std::int64_t>(outcome_.micro_batches.size());
  }
  close();
  return std::move(outcome_);
}

}  // namespace limpid::train
