// TrainSettings: every choice that a training run depends on, as plain values; run.json keeps them, so that a run can
// be repeated or resumed. Not a parser of command lines (cli/), and no defaults are taken from the environment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <limpid/memory/allocator.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/optim/optimizer.h>

namespace limpid::train {

struct TrainSettings {
  // Data.
  std::string data = "fashion-mnist";  // fashion-mnist, mnist, cifar10, folder, synthetic
  std::string data_dir;                // where the files are; empty: the places given by the caller
  std::int64_t limit = 0;              // training samples used, validation included; 0 = all
  double val_fraction = 0.05;          // share of the training samples held out for validation, in [0, 1)
  bool augment = false;                // random crop (padding 4) and, for colour images, horizontal flip
  bool drop_last = false;              // leave out the short last batch of an epoch
  std::vector<std::int64_t> input;     // channels, height, width; empty: the data set's own
  std::int64_t classes = 0;            // 0: the data set's own
  bool skip_broken = false;            // folder: leave out images that cannot be decoded, instead of an error
  // Model and optimization.
  std::string model = "lenet";
  std::string init;  // a safetensors file to start from
  // Of the run that made these weights: effective batch and lr, 0 where there is none or it is not known. Not to be
  // chosen: the trainer notes it, for the warnings and the report.
  std::int64_t init_batch = 0;
  double init_lr = 0;
  bool fuse = true;  // neighbouring layers as one operation (nn/fuse.h): other last digits, fewer bytes kept
  std::int64_t epochs = 3;
  std::int64_t batch = 128;  // samples an optimizer step: the effective batch
  // Samples computed at once, at most; 0 = the whole batch. Their gradients add up, each sample weighs 1/batch.
  std::int64_t micro_batch = 0;
  // Not 0: samples are computed in pieces of this many, so that micro_batch, then a multiple of it, does not change a bit.
  std::int64_t quantum = 0;
  std::string bn_mode = "micro";     // micro, frozen, exact (batch_norm_modes.h)
  std::string bn_momentum = "step";  // step: a step moves running statistics as one batch would; micro: each micro-batch
  std::string optimizer = "adam";  // adam, adamw, sgd, rmsprop, lamb, lars
  double lr = 1e-3;                    // at reference_batch, if there is an lr_policy; onecycle: the highest
  std::string lr_policy = "none";      // none, linear, sqrt (train/scaling_policy.h)
  std::int64_t reference_batch = 0;    // effective batch that lr was found at; 0 = not told
  double momentum = 0;                // sgd, rmsprop and lars
  double weight_decay = 0;            // adamw: decoupled; the others: added to the gradient
  bool always_adapt = false;          // lamb, lars: trust ratios also without weight_decay
  std::string schedule = "constant";  // constant, cosine, step, exponential, onecycle
  std::int64_t warmup = 0;            // steps of linear warmup from 0
  std::string amp = "fp32";           // precision of the forward pass: fp32, bf16, or fp16 with a loss scale (amp.h)
  double clip = 0;                    // L2 norm of all gradients together; 0 = off
  double label_smoothing = 0;
  std::uint64_t seed = 0;
  // Execution: these do not change the numbers.
  std::string device = "cpu";
  std::int64_t threads = 0;  // 0 = as many as the machine has
  std::int64_t workers = 2;
  std::uint64_t memory_cap = 0;  // bytes; 0 = no cap
  // When the memory runs out in a step: stop, or retry it with smaller micro-batches (which may change the last digits,
  // and with batch norm the statistics).
  std::string on_oom = "stop";
  std::string policy = "native";  // of the compute pool (memory/policies.h)
  std::string alloc_conf;         // its knobs, as for parse_allocator_settings()
  std::string reserve_plan;       // before the first step, reserve what this trace needs; "dry": that of a dry rehearsal
  bool huge_pages = true;
  // Largest workspace of one kernel call in bytes; 0 = no cap. It may choose other algorithms, so it changes the last
  // digits of the numbers.
  std::uint64_t workspace_cap = 0;
  // The run folder.
  std::string out;                    // empty: nothing is written
  std::int64_t checkpoint_every = 0;  // steps; a checkpoint is written at the end of every epoch in any case
  std::int64_t keep_checkpoints = 2;  // the newest ones that stay, `best` aside
  bool ledger_ids = false;            // list the samples of every step in ledger.jsonl, besides their hash
  std::uint64_t trace = std::uint64_t{64} << 20;  // largest size of the memory trace in bytes; 0 = no trace
  std::int64_t monitor_every = 10;  // steps a record of the monitor (monitor.h); 0 = off
  bool tensorboard = false;         // event files for TensorBoard beside the logs

  bool operator==(const TrainSettings&) const = default;
};

// The pool of the run's tensors and workspaces: that of settings.device.
memory::Allocator& compute_pool(const TrainSettings& settings);

// ArgumentError names the first setting outside its range.
void check(const TrainSettings& settings);

// One JSON object, and back. Unknown keys and wrong types are a DataError; missing keys keep their defaults.
std::string to_json(const TrainSettings& settings);
TrainSettings settings_from_json(const std::string& text);

// Gives the pools of CPU tensors the policy, its knobs and the huge pages that the settings name. Before the first tensor
// of the process, else an ArgumentError when the pool was made with others.
void apply_memory_settings(const TrainSettings& settings);

// The micro-batches that a step of `samples` is cut into.
std::vector<std::int64_t> micro_batches_of(const TrainSettings& settings, std::int64_t samples);
// Samples that an evaluation takes at a time.
std::int64_t evaluation_batch(const TrainSettings& settings);

// Names of the settings that change the numbers and differ, with both values: "batch: 64, now 128". Empty when a run
// with `saved` may go on with `wanted`. `epochs` may grow under a constant schedule.
std::vector<std::string> conflicts(const TrainSettings& saved, const TrainSettings& wanted);

// The update rule and the learning-rate schedule that the settings name. `total_steps` is the length of the whole run.
std::unique_ptr<optim::Optimizer> make_optimizer(const TrainSettings& settings, const std::vector<Tensor>& params);
std::shared_ptr<optim::Schedule> make_schedule(const TrainSettings& settings, std::int64_t total_steps);

}  // namespace limpid::train
