#include <limpid/train/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <nlohmann/json.hpp>

#include <limpid/base/format.h>
#include <limpid/base/scope.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/oom.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/workspace_cap.h>
#include <limpid/train/amp.h>
#include <limpid/train/ledger.h>
#include <limpid/train/run_log.h>
#include <limpid/train/machine.h>
#include <limpid/train/rehearsal.h>
#include <limpid/train/reserve.h>
#include <limpid/train/scaling_policy.h>

namespace limpid::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// JSON has no NaN and no infinity.
nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

Trainer::Trainer(TrainSettings settings, TrainParts parts, Start start, TrainObserver* observer)
    : settings_(std::move(settings)), parts_(std::move(parts)), observer_(observer ? observer : &silent_) {
  check(settings_);
  LIMPID_CHECK(parts_.model && parts_.training, ArgumentError, "[train] a run needs a model and training data");
  settings_.init_batch = parts_.init_batch;
  settings_.init_lr = parts_.init_lr;
  check_scaled_batch(settings_, parts_.training->size());
  apply_memory_settings(settings_);
  set_workspace_cap(settings_.workspace_cap);
  if (settings_.threads > 0) cpu::set_num_threads(static_cast<int>(settings_.threads));

  auto make_loader = [&](const data::DatasetPtr& dataset, const data::TransformPtr& transform, bool training) {
    data::LoaderOptions options;
    options.batch_size = training ? settings_.batch : evaluation_batch(settings_);
    options.micro_batch = training ? settings_.micro_batch : 0;
    options.quantum = training ? std::max<std::int64_t>(settings_.quantum, 1) : 1;
    options.shuffle = training;
    options.drop_last = training && settings_.drop_last;
    options.num_workers = static_cast<int>(settings_.workers);
    options.seed = settings_.seed;
    options.transform = transform;
    options.pin_memory = parse_device(settings_.device) != kCpu;
    return std::make_unique<data::DataLoader>(dataset, options);
  };
  loader_ = make_loader(parts_.training, parts_.training_transform, true);
  if (parts_.validation) validation_loader_ = make_loader(parts_.validation, parts_.evaluation_transform, false);
  if (parts_.test) test_loader_ = make_loader(parts_.test, parts_.evaluation_transform, false);
  monitor_ = std::make_unique<Monitor>(settings_.monitor_every, monitor_sources(*loader_, compute_pool(settings_)));

  memory::Allocator& pool = compute_pool(settings_);
  pool.empty_cache();
  pool.reset_peak_stats();
  memory::io_allocator().reset_peak_stats();
  const memory::Ledger data = data_ledger(pool);
  if (settings_.memory_cap > 0) {
    const std::uint64_t io = data.reserved;
    LIMPID_CHECK(io < settings_.memory_cap, ArgumentError, "[train] memory-cap ", format_bytes(settings_.memory_cap),
                 " is too small: data set and loader (io) alone take ", format_bytes(io));
  }
  apply_cap(settings_.memory_cap, pool, data);

  parts_.model->name_tree();
  parts_.model->to(parse_device(settings_.device));
  optimizer_ = make_optimizer(settings_, parts_.model->parameters());
  if (needs_scaler(settings_.amp)) scaler_ = std::make_unique<optim::GradScaler>();
  StepOptions options = step_options(settings_);
  options.load = [this](const std::vector<std::int64_t>& ids, std::int64_t epoch) { return loader_->load(ids, epoch); };
  step_ = std::make_unique<Step>(*parts_.model, *optimizer_, std::move(options), scaler_.get());
  steps_an_epoch_ = loader_->plan(0).steps();
  LIMPID_CHECK(!__builtin_mul_overflow(steps_an_epoch_, settings_.epochs, &total_steps_), ArgumentError,
               "[train] ", settings_.epochs, " epochs of ", steps_an_epoch_, " steps are more than can be counted");
  scheduler_ =
      std::make_unique<optim::Scheduler>(*optimizer_, make_schedule(settings_, total_steps_), optim::Unit::step);
  state_.loader.seed = settings_.seed;
  random_context().seed = settings_.seed;

  // Read before anything in the run folder changes.
  std::optional<memory::TraceLog> reserve_log;
  if (!settings_.reserve_plan.empty()) reserve_log = reserve_trace(settings_, parts_);
  auto reserve = [&] {
    if (reserve_log) reserved_ = memory::reserve_plan(pool, *reserve_log, memory::first_of_steps(*reserve_log));
  };
  if (settings_.out.empty()) {
    LIMPID_CHECK(start == Start::fresh, ArgumentError, "[train] resuming and overwriting need the run's folder");
    reserve();
    return;
  }
  store_ = std::make_unique<CheckpointStore>(settings_.out + "/ckpt", settings_.keep_checkpoints);
  if (start == Start::resume) {
    std::unique_ptr<RunLock> lock = RunFolder::lock(settings_.out);
    if (std::optional<Checkpoint> checkpoint = store_->load_to_resume()) {
      check_logs(settings_.out, checkpoint->state.log_offsets, checkpoint->state.step);
      restore(*checkpoint);
      saved_step_ = state_.step;
      saved_folder_ = checkpoint->folder;
    }
    folder_ = RunFolder::resume(settings_.out, state_.log_offsets, settings_, std::move(lock));
  } else {
    folder_ = RunFolder::create(settings_.out, settings_, start == Start::overwrite);
  }
  if (folder_->ledger().size() == 0) {  // new, or killed before its first checkpoint
    folder_->ledger().write_line(ledger_line(LedgerPlan{
        .samples = parts_.training->size(),
        .effective_batch = settings_.batch,
        .micro_batch = settings_.micro_batch > 0 ? settings_.micro_batch : settings_.batch,
        .quantum = settings_.quantum,
        .drop_last = settings_.drop_last,
        .shuffled = true,
        .seed = settings_.seed,
        .lr_policy = scaling_policy(settings_).describe(),
        .kernels = machine_info().isa}));
  }
  if (settings_.tensorboard) events_ = std::make_unique<EventFile>(folder_->events(state_.step), state_.step);
  if (settings_.trace > 0) {
    recording_ = std::make_unique<memory::TraceRecording>(pool, folder_->trace(state_.step), settings_.trace);
  }
  reserve();  // behind the recording's start, so that a replay of the trace has it too
}

Trainer::~Trainer() = default;

void Trainer::restore(const Checkpoint& checkpoint) {
  const std::vector<std::string> differences = conflicts(checkpoint.settings, settings_);
  LIMPID_CHECK(differences.empty(), ArgumentError, "[resume] the run was made with other settings: ", [&] {
    std::string text;
    for (const std::string& d : differences) text += (text.empty() ? "" : "; ") + d;
    return text;
  }());
  const RunState& saved = checkpoint.state;
  const std::string file = checkpoint.folder + "/state.json";
  const data::LoaderState& at = saved.loader;
  const data::BatchPlan plan = loader_->plan(at.epoch);
  LIMPID_CHECK(at.epoch <= settings_.epochs && at.position <= plan.size() &&
                   (at.position == plan.size() || plan.place(at.position).micro == 0) &&
                   saved.step == at.epoch * steps_an_epoch_ + plan.step_at(at.position),
               DataError, "[resume] ", file, " is at step ", saved.step, " = epoch ", at.epoch, ", position ",
               at.position, "; this run has ", settings_.epochs, " epochs of ", steps_an_epoch_,
               " steps: the file is damaged or the data has changed");
  LIMPID_CHECK(at.seed == settings_.seed, DataError, "[resume] ", file, " has the loader_seed ", at.seed,
               ", the run has the seed ", settings_.seed);
  for (const char* log : {"steps.jsonl", "ledger.jsonl"})
    LIMPID_CHECK(saved.log_offsets.contains(log), DataError, "[resume] ", file, ": log_offsets does not have ", log);
  if (const auto count = saved.scheduler.find("count"); count != saved.scheduler.end()) {
    LIMPID_CHECK(count->second == std::floor(count->second) && count->second <= static_cast<double>(saved.step),
                 DataError, "[resume] ", file, ": scheduler.count is ", count->second,
                 ", expected a whole number up to the step ", saved.step);
  }
  // The rates that the settings give, before the schedule.
  for (const auto& [name, value] : scheduler_->state_dict()) {
    const auto found = saved.scheduler.find(name);
    LIMPID_CHECK(name == "count" || found == saved.scheduler.end() || std::abs(found->second - value) <= 1e-9 * value,
                 DataError, "[resume] ", file, " has the scheduler's ", name, " ", found->second,
                 ", the settings give ", value);
  }
  load_weights(*parts_.model, checkpoint.model, checkpoint.folder + "/model.safetensors");
  try {
    optimizer_->load_state_dict(checkpoint.optimizer);
    scheduler_->load_state_dict(saved.scheduler);
    if (scaler_) scaler_->load_state_dict(saved.scaler);
  } catch (const memory::OutOfMemoryError&) {
    throw;
  } catch (const Error& error) {
    LIMPID_THROW(DataError, "[resume] ", checkpoint.folder, ": ", error.message());
  }
  state_ = saved;
  default_generator().set(state_.generator_seed, state_.generator_position);
  step_->set_micro_batch_limit(state_.micro_batch_limit);
}

// Out of memory inside a step: the error gets to know the step's input and those before.
void Trainer::add_to_step(const data::Batch& batch) {
  Monitor::Computing computing(*monitor_);
  if (batch.place.micro == 0) {
    step_ids_.clear();
    step_input_ = 0;
    step_->begin(state_.step, batch.place.effective_size, micro_batches_of(settings_, batch.place.effective_size));
  }
  step_ids_.insert(step_ids_.end(), batch.indices.begin(), batch.indices.end());
  const std::uint64_t input = batch.x.nbytes() + batch.y.nbytes();
  step_input_ = std::max(step_input_, input);
  try {
    step_->add(batch);
  } catch (const memory::OutOfMemoryError& error) {
    memory::OutOfMemoryInfo info = error.info();
    info.input = input;
    info.largest_input_before = largest_input_;
    throw memory::OutOfMemoryError(std::move(info));
  }
}

StepRecord Trainer::finish_step(const data::Batch& last) {
  const StepOutcome outcome = [this] {
    Monitor::Computing computing(*monitor_);
    return step_->finish();
  }();
  largest_input_ = std::max(largest_input_.value_or(0), step_input_);
  StepRecord record;
  record.step = state_.step;
  record.epoch = last.epoch;
  record.samples = outcome.samples;
  record.lr = optimizer_->lr();
  record.loss = unsigned_nan(outcome.loss_sum / static_cast<double>(outcome.samples));
  record.accuracy = static_cast<double>(outcome.correct) / static_cast<double>(record.samples);
  record.micro_batches = static_cast<std::int64_t>(outcome.micro_batches.size());
  record.retries = static_cast<std::int64_t>(outcome.retries.size());
  record.applied = outcome.applied;
  record.scale = outcome.update.scale;
  record.trust_ratios = outcome.trust_ratios;
  for (const OomRetry& retry : outcome.retries) observer_->on_retry(record.step, retry);
  if (!record.applied) observer_->on_skip(record, outcome.found_inf_what);
  write_ledger(record, outcome);
  state_.step++;
  state_.samples += record.samples;
  state_.micro_batch_limit = step_->micro_batch_limit();
  if (!record.applied) return record;  // neither the schedule nor the epoch's means know of it
  trust_ratios_ = record.trust_ratios;
  // The schedule has no value after the last step.
  if (state_.step < total_steps_) scheduler_->step();
  state_.epoch_correct += outcome.correct;
  state_.epoch_loss += record.loss * static_cast<double>(record.samples);
  state_.epoch_samples += record.samples;
  return record;
}

void Trainer::write_ledger(const StepRecord& record, const StepOutcome& outcome) {
  if (!folder_) return;
  LedgerStep entry;
  entry.step = record.step;
  entry.epoch = record.epoch;
  entry.samples = record.samples;
  entry.ids_hash = hash_of(step_ids_);
  if (settings_.ledger_ids) entry.ids = step_ids_;
  entry.micro_batches = outcome.micro_batches;
  entry.count = outcome.update.count;
  entry.loss_sum = outcome.loss_sum;
  entry.applied = outcome.applied;
  entry.precision = settings_.amp;
  entry.scale = outcome.update.scale;
  entry.found_inf = outcome.found_inf_layer;
  entry.found_inf_micro = outcome.found_inf_micro_batch;
  if (!outcome.applied) {
    entry.skipped = outcome.found_inf_what.empty() ? "a gradient was not finite" : outcome.found_inf_what;
  }
  entry.grad_norm = outcome.update.grad_norm;
  entry.clip_coefficient = outcome.update.clip_coefficient;
  entry.lr = record.lr;
  entry.schedule_position = scheduler_->count();
  entry.weight_decay_factor = settings_.optimizer == "adamw" ? 1 - record.lr * settings_.weight_decay : 1;
  entry.bn_updates = outcome.batch_norm_updates;
  entry.rng_seed = random_context().seed;
  entry.rng_step = static_cast<std::uint64_t>(record.step);
  entry.retries = outcome.retries;
  entry.trust_ratios = outcome.trust_ratios;
  folder_->ledger().write_line(ledger_line(entry));
}

void Trainer::log_step(const StepRecord& r) {
  if (events_) events_->write(r);
  if (!folder_) return;
  const nlohmann::ordered_json json = {{"step", r.step},
                                       {"epoch", r.epoch},
                                       {"loss", finite_or_null(r.loss)},
                                       {"accuracy", r.accuracy},
                                       {"lr", r.lr},
                                       {"samples", r.samples},
                                       {"micro_batches", r.micro_batches},
                                       {"retries", r.retries},
                                       {"applied", r.applied},
                                       {"scale", r.scale},
                                       {"seconds", r.seconds},
                                       {"allocated_bytes", r.allocated_bytes},
                                       {"reserved_bytes", r.reserved_bytes}};
  folder_->steps().write_line(json.dump());
}

void Trainer::monitor_step(const StepRecord& r, bool last) {
  const std::optional<MonitorRecord> record = monitor_->step_done(
      {.step = r.step, .epoch = r.epoch, .samples = r.samples, .lr = r.lr, .scale = r.scale}, last);
  if (!record) return;
  if (folder_) folder_->monitor().write_line(to_json(*record));
  if (events_) events_->write(*record);
  observer_->on_monitor(*record);
}

Evaluation Trainer::evaluate_on(data::DataLoader& loader, const char* what) {
  return evaluate(
      model(), loader, parts_.card.classes,
      [&](std::int64_t done, std::int64_t total) { observer_->on_evaluation(what, done, total); },
      step_->micro_batch_limit(), stop_);
}

std::optional<EpochRecord> Trainer::finish_epoch() {
  EpochRecord record;
  record.epoch = state_.loader.epoch;
  record.step = state_.step;
  const double samples = static_cast<double>(std::max<std::int64_t>(state_.epoch_samples, 1));
  record.train_loss = unsigned_nan(state_.epoch_loss / samples);
  record.train_accuracy = static_cast<double>(state_.epoch_correct) / samples;
  record.seconds = state_.epoch_seconds;
  if (validation_loader_) {
    record.validation = evaluate_on(*validation_loader_, "validation");
    if (record.validation->stopped) return std::nullopt;
    // A loss that is not a number is never the best.
    record.best = !std::isnan(record.validation->loss) &&
                  (state_.best_epoch < 0 || !(record.validation->loss >= state_.best_loss));
    if (record.best) {
      state_.best_loss = record.validation->loss;
      state_.best_accuracy = record.validation->accuracy;
      state_.best_epoch = record.epoch;
      state_.best_step = state_.step;
    }
  }
  state_.loader = {settings_.seed, record.epoch + 1, 0};
  state_.epoch_loss = state_.epoch_seconds = 0;
  state_.epoch_correct = state_.epoch_samples = 0;
  if (folder_) {
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(memory_line(compute_pool(settings_)));
    json["train_loss"] = finite_or_null(record.train_loss);
    json["train_accuracy"] = record.train_accuracy;
    if (record.validation) {
      json["validation_loss"] = finite_or_null(record.validation->loss);
      json["validation_accuracy"] = record.validation->accuracy;
    }
    const LedgerEpoch entry{
        .epoch = record.epoch, .steps = state_.step, .dropped = loader_->plan(record.epoch).dropped()};
    folder_->ledger().write_line(ledger_line(entry, json.dump()));
  }
  return record;
}

void Trainer::save(bool best) {
  if (!folder_) return;
  folder_->sync();
  if (recording_) recording_->flush();
  state_.log_offsets = folder_->offsets();
  state_.generator_seed = default_generator().seed();
  state_.generator_position = default_generator().position();
  state_.scheduler = scheduler_->state_dict();
  if (scaler_) state_.scaler = scaler_->state_dict();
  saved_folder_ = store_->save(model(), *optimizer_, state_, parts_.card, settings_, best);
  saved_step_ = state_.step;
  observer_->on_checkpoint(saved_folder_);
}

TrainResult Trainer::run(const std::atomic<bool>* stop) {
  stop_ = stop;
  auto stop_asked = [&] { return stop && stop->load(std::memory_order_relaxed); };
  TrainResult result;
  memory::Allocator& pool = compute_pool(settings_);
  auto device_calls = [&pool] {
    const memory::Stats stats = pool.stats();
    return stats.num_device_alloc + stats.num_device_free;
  };
  const std::int64_t first_step = state_.step, calls_before = device_calls();
  std::int64_t calls_after_first = 0;
  model().train();
  observer_->on_plan(epoch_plan(*loader_, state_.loader.epoch));
  observer_->on_start(state_.step, total_steps_, steps_an_epoch_);
  while (state_.loader.epoch < settings_.epochs && !result.stopped) {
    loader_->set_state(state_.loader);
    monitor_->go_on();
    Clock::time_point start = Clock::now();
    for (const data::Batch& batch : *loader_) {
      add_to_step(batch);
      if (batch.place.micro + 1 < batch.place.micros) continue;
      StepRecord record = finish_step(batch);
      pool.end_step();
      if (state_.step == first_step + 1) calls_after_first = device_calls();
      state_.loader.position = batch.position + 1;
      if (std::optional<memory::LeakReport> leak = leak_check_.step_done()) {
        observer_->on_leak(*leak);
        leaks_.push_back(std::move(*leak));
      }
      const memory::Ledger now = pool.ledger();
      record.allocated_bytes = now.allocated();
      record.reserved_bytes = now.reserved;
      record.seconds = seconds_since(start);
      state_.epoch_seconds += record.seconds;
      state_.train_seconds += record.seconds;
      log_step(record);
      observer_->on_step(record);
      // The last step of an epoch is followed by the epoch's own checkpoint.
      const bool last = batch.place.effective + 1 == steps_an_epoch_;
      result.stopped = stop_asked() && !last;
      monitor_step(record, last || result.stopped);
      if (result.stopped) break;
      if (!last && settings_.checkpoint_every > 0 && state_.step % settings_.checkpoint_every == 0) {
        monitor_->pause();
        save(false);
        monitor_->go_on();
      }
      start = Clock::now();
    }
    if (result.stopped) break;
    const std::optional<EpochRecord> epoch = finish_epoch();
    result.stopped = !epoch;
    if (!epoch) break;
    result.train_loss = epoch->train_loss;
    result.train_accuracy = epoch->train_accuracy;
    result.validation = epoch->validation;
    save(epoch->best);
    if (events_) events_->write(*epoch);
    observer_->on_epoch(*epoch);
    result.stopped = stop_asked() && state_.loader.epoch < settings_.epochs;
  }
  if (result.stopped && saved_step_ != state_.step) save(false);
  optimizer_->zero_grad();

  result.steps = state_.step;
  result.epochs = state_.loader.epoch;
  result.samples = state_.samples;
  result.train_seconds = state_.train_seconds;
  result.samples_per_second = state_.train_seconds > 0 ? static_cast<double>(state_.samples) / state_.train_seconds : 0;
  result.best_epoch = state_.best_epoch;
  result.best_validation_loss = state_.best_loss;
  result.best_validation_accuracy = state_.best_accuracy;
  result.memory = memory_report(pool);
  result.leaks = std::move(leaks_);
  result.checkpoint = saved_folder_;
  result.parameters = model().num_parameters();
  result.reserved = reserved_;
  result.trust_ratios = trust_ratios_;
  result.diagnosis = diagnose(monitor_->totals(), settings_.workers, cpu::num_threads());
  if (state_.step > first_step) {
    result.device_calls = device_calls() - calls_before;
    result.device_calls_after_first_step = device_calls() - calls_after_first;
  }
  if (!result.stopped && test_loader_) {
    result.test = evaluate_on(*test_loader_, "test");
    result.stopped = result.test->stopped;
    if (result.stopped) result.test.reset();
  }
  for (double loss : {state_.epoch_loss, result.train_loss.value_or(0), result.validation ? result.validation->loss : 0,
                      result.test ? result.test->loss : 0}) {
    result.diverged |= !std::isfinite(loss);
  }
  if (recording_) {
    result.trace = recording_->writer().path();
    try {
      recording_->close();
    } catch (const IoError& error) {
      result.trace_problem = error.what();
    }
  }
  return result;
}

}  // namespace limpid::train
