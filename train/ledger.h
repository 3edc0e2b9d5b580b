// The effective-batch ledger: one record an optimizer step in RUN/ledger.jsonl, which says what the step was made of:
// which samples, in which micro-batches, with which weight each, divided by what, clipped by how much, at which rate.
// The weights are measured (autograd/loss_weights.h), not claimed. check_ledger() proves from the records alone that
// every sample was used once an epoch and weighed 1/N, or lists what was not so, with numbers. Memory has a ledger of
// its own (memory/ledger.h); its totals at the end of an epoch stand in the same file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <limpid/autograd/loss_weights.h>
#include <limpid/train/step.h>

namespace limpid::train {

inline constexpr std::int64_t kLedgerVersion = 1;

// What the run means to do: the first record.
struct LedgerPlan {
  std::int64_t samples = 0;          // of the training set
  std::int64_t effective_batch = 0;  // samples a step
  std::int64_t micro_batch = 0;      // at most, at once
  // Not 0: computed in pieces of this many samples, at multiples of which micro-batches are cut (TrainSettings). Nothing:
  // a ledger from before this was recorded; then nothing is concluded from the pieces' sizes.
  std::optional<std::int64_t> quantum = 0;
  bool drop_last = false;
  // The order of an epoch is RandomSampler(samples, seed): then hashes of ids can be checked. False: only listed ids
  // can.
  bool shuffled = true;
  std::uint64_t seed = 0;
  std::string lr_policy = {};  // ScalingPolicy::describe(); the rates themselves are in the steps
  std::string kernels = {};  // the instruction set that computes, "AVX2" (train/machine.h)
};

// One optimizer step. Weights are d(loss of the step) / d(loss of one sample), without the loss scale.
struct LedgerStep {
  std::int64_t step = 0;   // attempted steps, from 0
  std::int64_t epoch = 0;  // of its first sample
  std::int64_t samples = 0;
  std::uint64_t ids_hash = 0;     // hash_of() the ids in their order
  std::vector<std::int64_t> ids;  // empty: not listed
  std::vector<MicroBatchRecord> micro_batches;
  double count = 0;     // what the sum of gradients was divided by
  double loss_sum = 0;  // over the samples
  bool applied = true;  // false: the step was skipped, `skipped` says why
  std::string skipped;
  std::string precision = "fp32";     // of the forward pass
  double scale = 1;                   // of the loss
  std::string found_inf;              // layer of the first gradient or result that is no finite number
  std::int64_t found_inf_micro = -1;  // and its micro-batch
  std::optional<double> grad_norm;    // before clipping
  double clip_coefficient = 1;
  double lr = 0;
  std::int64_t schedule_position = 0;  // that gave lr: applied steps before this one
  double weight_decay_factor = 1;  // what a weight is multiplied by besides its gradient's step: 1 - lr wd for AdamW
  std::int64_t bn_updates = 0;     // times that running statistics moved
  std::uint64_t rng_seed = 0,
                rng_step = 0;  // key of the masks (tensor/random.h); the sample's place in the step is the rest
  std::vector<OomRetry> retries;
  TrustRatios trust_ratios = {};  // of an applied step of LAMB or LARS
};

struct LedgerEpoch {
  std::int64_t epoch = 0;
  std::int64_t steps = 0;              // so far
  std::vector<std::int64_t> dropped;   // ids left out by drop_last
  // Read from what the trainer wrote beside; absent: not measured, or no finite number.
  std::optional<double> train_loss = {}, train_accuracy = {}, validation_loss = {}, validation_accuracy = {};
};

struct Ledger {
  LedgerPlan plan;
  std::vector<LedgerStep> steps;
  std::vector<LedgerEpoch> epochs;
};

// Order counts; 0 samples give 0.
std::uint64_t hash_of(std::span<const std::int64_t> ids);

// One line of ledger.jsonl each, without the newline. The last entry, "crc", is the CRC-32 of the rest.
std::string ledger_line(const LedgerPlan& plan);
std::string ledger_line(const LedgerStep& step);
// `memory`: an object of further entries (memory_report.h), or empty.
std::string ledger_line(const LedgerEpoch& epoch, const std::string& memory = "");

// DataError, with the line's number, for a file that is cut, changed by hand, of another version or no ledger.
Ledger read_ledger(const std::string& path);
Ledger parse_ledger(const std::string& text);

struct Violation {
  std::string rule;        // "weight", "sample", "order", "count", "schedule", "step", "record"
  std::int64_t step = -1;  // -1: of the epoch
  std::int64_t epoch = 0;
  double expected = 0, found = 0;
  std::string text;  // a sentence with both
};

struct LedgerCheck {
  std::vector<Violation> violations;
  std::vector<std::string> notes;  // skipped steps, dropped samples, retries: allowed, but not silent
  std::int64_t steps = 0, skipped = 0, samples = 0, whole_epochs = 0;
  bool damaged = false;  // some violations are what no run writes, or nothing was trained: the records prove nothing
  double largest_weight_error = 0;  // largest |weight N - 1|
};

// What the other files of a run folder know of its ledger.
struct LedgerWitness {
  std::int64_t epochs = 0;        // to be made: run.json
  std::int64_t logged_steps = 0;  // in steps.jsonl, which is written behind the ledger
  std::int64_t checkpoint_step = 0;
  std::uint64_t checkpoint_bytes = 0, ledger_bytes = 0;  // of the ledger: when the last checkpoint was written, and now
};

// A weight may differ from 1/N by 1e-6 of it: float32 rounding of two divisions is 2e-7.
LedgerCheck check_ledger(const Ledger& ledger, const LedgerWitness* witness = nullptr);
// The ledger of a run folder, against run.json, the last checkpoint and steps.jsonl: a ledger that lost its end is told
// from that of a run that did not finish. DataError as read_ledger().
LedgerCheck check_run_ledger(const std::string& folder);
std::string to_string(const LedgerCheck& check);
std::string to_json(const LedgerCheck& check);

// Keeps the ledger of a loop of your own, right or wrong: it measures what the loop does.
//
//   LedgerRecorder recorder(plan);
//   recorder.samples(ids);  loss.backward();
//   recorder.step(optimizer.lr(), schedule position);
class LedgerRecorder {
 public:
  explicit LedgerRecorder(LedgerPlan plan) { ledger_.plan = plan; }
  // The next backward is of these samples.
  void samples(const std::vector<std::int64_t>& ids);
  // The optimizer is about to step with all gradients since the last zero_grad().
  void step(double lr, std::int64_t schedule_position);
  // The gradients are dropped. Samples that were in no step by then go to waste; without this call those of a step are
  // in the next one again.
  void zero_grad();
  void end_epoch();
  const Ledger& ledger() const { return ledger_; }

 private:
  void collect();
  Ledger ledger_;
  LossWeights weights_;
  std::vector<std::int64_t> pending_;  // ids whose weights are still to be collected
  LedgerStep open_;
  std::int64_t epoch_ = 0;
};

}  // namespace limpid::train
