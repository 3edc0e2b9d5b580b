// Checkpoints: a folder CKPT/STEP with model.safetensors, optimizer.safetensors and state.json, written whole under
// another name, synced, renamed; then one pointer file (`last`, `best`) is renamed into place. The pointer has size and
// CRC-32 of every file, so that a torn or changed checkpoint is noticed and named. A kill at any instant leaves the
// former checkpoint valid. Not here: when to write one (trainer.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <limpid/data/loader.h>
#include <limpid/nn/module.h>
#include <limpid/optim/optimizer.h>
#include <limpid/train/run_folder.h>

namespace limpid::train {

// How to build the model again, and how its inputs were prepared. Kept in state.json and in the weight file's metadata.
struct ModelCard {
  std::string model;  // name for nn::make_model; empty: a model of the user's
  Shape input;        // of one sample
  std::int64_t classes = 0;
  std::vector<std::string> class_names;
  std::string data;               // name of the data set
  std::vector<double> mean, std;  // normalisation, a channel; empty = none
};

// Everything besides tensors that the next step depends on, and the run's records so far.
struct RunState {
  std::int64_t step = 0;                                     // applied optimizer steps
  data::LoaderState loader;                                  // the next batch
  std::uint64_t generator_seed = 0, generator_position = 0;  // default_generator()
  std::map<std::string, double> scheduler;
  std::map<std::string, double> scaler;  // empty without a loss scale
  // The present epoch so far.
  double epoch_loss = 0;  // sum over samples
  std::int64_t epoch_correct = 0, epoch_samples = 0;
  double epoch_seconds = 0;
  // The whole run so far.
  double train_seconds = 0;
  std::int64_t samples = 0;
  std::int64_t micro_batch_limit = 0;  // set by a step that ran out of memory (step.h); 0 = none
  double best_loss = 0;  // on the validation samples; valid when best_epoch >= 0
  double best_accuracy = 0;
  std::int64_t best_epoch = -1, best_step = -1;
  LogOffsets log_offsets;
};

struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
  bool operator==(const FileDigest&) const = default;
};
// Of a file's contents (CRC-32 of zlib and PNG).
FileDigest digest_file(const std::string& path);

struct Checkpoint {
  std::string folder;  // empty: a weight file alone
  nn::StateDict model;
  optim::OptimizerState optimizer;
  RunState state;
  ModelCard card;
  TrainSettings settings;
};

class CheckpointStore {
 public:
  // `folder` is RUN/ckpt. Remains of writers that were killed are removed at the first save.
  explicit CheckpointStore(std::string folder, std::int64_t keep = 2);
  // Returns the new folder, now named by `last` (and by `best` when asked). Older ones are removed, apart from the
  // newest `keep` and the one that `best` names. IoError when it cannot be written; what was there stays valid.
  std::string save(const nn::Module& model, const optim::Optimizer& optimizer, const RunState& state,
                   const ModelCard& card, const TrainSettings& settings, bool best);
  bool has(const std::string& pointer = "last") const;
  // The folder that a pointer names, not verified.
  std::string folder_of(const std::string& pointer = "last") const;
  // Verified against the pointer: DataError names the file and what differs. `weights_only` leaves out the optimizer's
  // tensors.
  Checkpoint load(const std::string& pointer = "last", bool weights_only = false) const;
  // What a run goes on from: `last`, after a look at `best`; nothing when there is no checkpoint yet. DataError when a
  // pointer is damaged, or missing beside several checkpoints.
  std::optional<Checkpoint> load_to_resume() const;

 private:
  void remove_old() const;
  std::string folder_;
  std::int64_t keep_;
  bool cleaned_ = false;
};

// For evaluation, without the optimizer's tensors: a run folder (its `last`, or `best` when asked), a pointer file, a
// checkpoint folder, or a safetensors file. Of the last one only `model` is filled, and `card` where limpid has written
// the file.
Checkpoint open_checkpoint(const std::string& path, bool best = false);

// Weights into a model; DataError naming the keys when they do not fit.
void load_weights(nn::Module& model, const nn::StateDict& weights, const std::string& source);

}  // namespace limpid::train
