// What a run is made of: the model and the three data sets, built from settings by name. A user with a model or data of
// his own fills TrainParts himself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <limpid/data/registry.h>
#include <limpid/data/transforms.h>
#include <limpid/nn/module.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/settings.h>

namespace limpid::train {

struct TrainParts {
  std::shared_ptr<nn::Module> model;
  data::DatasetPtr training;
  data::DatasetPtr validation;              // null: no validation, and no `best`
  data::DatasetPtr test;                    // null: no test
  data::TransformPtr training_transform;    // null: none
  data::TransformPtr evaluation_transform;  // null: none
  ModelCard card;
  std::string location;                    // where the data was found
  std::vector<data::SkippedFile> skipped;  // broken images that were left out
  std::vector<std::string> warnings;       // sentences about the data that the user should read
  std::int64_t init_batch = 0;             // effective batch and lr of the run that settings.init comes from;
  double init_lr = 0;                      // 0: there is none, or it is not known
};

// Opens the data, splits off the validation samples, seeds the random numbers and builds the model; with settings.init
// its weights come from there. `search_paths`: where data sets may lie besides settings.data_dir.
TrainParts make_parts(const TrainSettings& settings, const std::vector<std::string>& search_paths);

// The test half of a data set, for `eval`. `settings` names the data. What the card lacks (shape, classes,
// normalisation) is filled in from the data; what it has must agree: DataError otherwise.
struct EvaluationData {
  data::DatasetPtr dataset;
  data::TransformPtr transform;
  std::string location;
};
EvaluationData make_evaluation_data(const TrainSettings& settings, ModelCard& card,
                                    const std::vector<std::string>& search_paths);

// The model of a card; ArgumentError when it names none.
std::shared_ptr<nn::Module> make_model(const ModelCard& card, std::uint64_t seed = 0);

// The model that settings name, fused if they say so. They must tell input and classes.
std::shared_ptr<nn::Module> make_model(const TrainSettings& settings);

// The normalisation of a card; null for none.
data::TransformPtr normalization(const ModelCard& card);

}  // namespace limpid::train
