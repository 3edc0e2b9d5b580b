// Trainer: the training loop. Each step: one batch, forward, cross-entropy, backward, clipping, update, schedule; each
// epoch: validation and a checkpoint. It prints nothing: an observer is told. A stop flag ends the run between two
// steps, or batches of an evaluation, with a checkpoint; a resumed run goes on bit for bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <limpid/autograd/node.h>
#include <limpid/data/loader.h>
#include <limpid/memory/leak.h>
#include <limpid/memory/reserve_plan.h>
#include <limpid/memory/trace_file.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/train/batch_plan.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/evaluate.h>
#include <limpid/train/memory_report.h>
#include <limpid/train/monitor.h>
#include <limpid/train/parts.h>
#include <limpid/train/run_folder.h>
#include <limpid/train/step.h>
#include <limpid/train/tensorboard.h>

namespace limpid::train {

struct StepRecord {
  std::int64_t step = 0;   // from 0
  std::int64_t epoch = 0;  // from 0
  std::int64_t samples = 0;
  double loss = 0;                    // mean of the batch, with label smoothing
  double accuracy = 0;                // of the batch, in [0, 1]
  double lr = 0;                      // that the step was made with
  std::int64_t micro_batches = 1;     // as computed
  bool applied = true;                // false: a gradient was not finite, and the step was skipped
  double scale = 1;                   // of the loss
  std::int64_t retries = 0;           // attempts that ran out of memory and were taken back
  TrustRatios trust_ratios = {};      // of an applied step of LAMB or LARS
  double seconds = 0;                 // waiting for the batch included
  std::uint64_t allocated_bytes = 0;  // compute pool, after the step
  std::uint64_t reserved_bytes = 0;
};

struct EpochRecord {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // steps so far
  double train_loss = 0;  // mean over the epoch's samples, as they came
  double train_accuracy = 0;
  double seconds = 0;  // of the training steps
  std::optional<Evaluation> validation;
  bool best = false;  // lowest validation loss so far
};

// What to do with the run folder.
enum class Start : std::uint8_t {
  fresh,      // it must be new or empty
  resume,     // go on with the run in it
  overwrite,  // remove an earlier run in it first
};

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // Before the first step; `first_step` > 0 in a resumed run.
  virtual void on_start(std::int64_t /*first_step*/, std::int64_t /*total_steps*/, std::int64_t /*steps_an_epoch*/) {}
  // What an epoch will be cut into; before on_start.
  virtual void on_plan(const EpochPlan&) {}
  virtual void on_step(const StepRecord&) {}
  virtual void on_monitor(const MonitorRecord&) {}  // every settings.monitor_every steps, after on_step
  virtual void on_epoch(const EpochRecord&) {}
  virtual void on_checkpoint(const std::string& /*folder*/) {}
  virtual void on_leak(const memory::LeakReport&) {}
  // A step that changed nothing, and where the value came from: "step 3, micro-batch 1: ...", or why that is unknown.
  virtual void on_skip(const StepRecord&, const std::string& /*what*/) {}
  virtual void on_retry(std::int64_t /*step*/, const OomRetry&) {}
  virtual void on_evaluation(const char* /*what*/, std::int64_t /*done*/, std::int64_t /*total*/) {}
};

struct TrainResult {
  bool stopped = false;  // by the flag, before the end
  std::int64_t steps = 0;
  std::int64_t epochs = 0;  // whole ones
  std::int64_t samples = 0;
  double train_seconds = 0;  // training steps only, those before a resume included
  double samples_per_second = 0;
  std::optional<double> train_loss;  // of the last epoch that this process finished
  std::optional<double> train_accuracy;
  std::optional<Evaluation> validation;  // of the last whole epoch
  std::optional<Evaluation> test;        // of the final weights; not after a stop
  std::int64_t best_epoch = -1;          // by validation loss
  double best_validation_loss = 0, best_validation_accuracy = 0;
  bool diverged = false;   // the last loss known (training, validation or test) is not finite
  MemoryReport memory;     // of the training, without the test
  std::vector<memory::LeakReport> leaks;  // memory that grew from step to step; empty: the live set was a fixed point
  std::string checkpoint;  // folder; empty without a run folder
  std::string trace;          // file of the memory trace; empty without one
  std::string trace_problem;  // why the trace ends early; the training is not concerned
  std::int64_t parameters = 0;
  // Segments or pages of the compute pool that the training took or gave back; after the first step of this process.
  std::int64_t device_calls = 0, device_calls_after_first_step = 0;
  std::optional<memory::ReservePlanResult> reserved;  // with settings.reserve_plan
  std::optional<Diagnosis> diagnosis;                 // of this process's steps; absent without the monitor
  TrustRatios trust_ratios;  // of the last applied step of this process; empty without LAMB or LARS
};

class Trainer {
 public:
  // Sets threads, the memory cap and the workspace cap of the process; policy and knobs of the compute pool must be those
  // of the settings already (apply_memory_settings). The cap holds for both pools together: the compute pool gets what
  // data set and loader leave. A run folder is made or, with Start::resume, continued from its `last` checkpoint; a run
  // that was killed before its first checkpoint starts anew. Nothing in the folder changes before everything else is
  // accepted. `observer` may be null and must outlive the trainer.
  Trainer(TrainSettings settings, TrainParts parts, Start start = Start::fresh, TrainObserver* observer = nullptr);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  TrainResult run(const std::atomic<bool>* stop = nullptr);

  nn::Module& model() { return *parts_.model; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const RunState& state() const { return state_; }
  std::int64_t total_steps() const { return total_steps_; }

 private:
  void restore(const Checkpoint& checkpoint);
  void add_to_step(const data::Batch& batch);
  StepRecord finish_step(const data::Batch& last);
  void write_ledger(const StepRecord& record, const StepOutcome& outcome);
  void log_step(const StepRecord& record);
  void monitor_step(const StepRecord& record, bool last);
  std::optional<EpochRecord> finish_epoch();  // nothing when it was stopped: the epoch still is to be validated
  void save(bool best);
  Evaluation evaluate_on(data::DataLoader& loader, const char* what);

  TrainSettings settings_;
  const std::atomic<bool>* stop_ = nullptr;
  TrainParts parts_;
  TrainObserver* observer_;
  TrainObserver silent_;
  std::unique_ptr<data::DataLoader> loader_, validation_loader_, test_loader_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Scheduler> scheduler_;
  std::unique_ptr<optim::GradScaler> scaler_;  // null without a loss scale
  std::unique_ptr<Step> step_;
  std::vector<std::int64_t> step_ids_;  // of the step under way, in order
  std::uint64_t step_input_ = 0;        // bytes, of its largest micro-batch so far
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<EventFile> events_;  // null without settings.tensorboard
  std::unique_ptr<memory::TraceRecording> recording_;
  RunState state_;
  std::int64_t steps_an_epoch_ = 0, total_steps_ = 0;
  std::optional<memory::ReservePlanResult> reserved_;
  std::int64_t saved_step_ = -1;
  memory::LeakCheck leak_check_{compute_pool(settings_), live_graph()};
  std::vector<memory::LeakReport> leaks_;
  std::optional<std::uint64_t> largest_input_;  // bytes, of the steps made
  std::string saved_folder_;
  TrustRatios trust_ratios_;  // of the last applied step
};

}  // namespace limpid::train
