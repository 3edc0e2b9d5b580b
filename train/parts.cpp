#include <limpid/train/parts.h>

#include <algorithm>

#include <limpid/data/split.h>
#include <limpid/nn/fuse.h>
#include <limpid/nn/models/models.h>
#include <limpid/tensor/random.h>
#include <limpid/train/scaling_policy.h>

namespace limpid::train {
namespace {

// Statistics of data sets without published ones are taken over this many samples.
constexpr std::int64_t kStatsSamples = 5000;

data::OpenOptions open_options(const TrainSettings& settings, const std::vector<std::string>& search_paths,
                               bool train) {
  data::OpenOptions options;
  options.name = settings.data;
  options.data_dir = settings.data_dir;
  options.search_paths = search_paths;
  options.train = train;
  options.classes = settings.classes;
  options.on_broken = settings.skip_broken ? data::BrokenImage::skip : data::BrokenImage::fatal;
  if (!settings.input.empty()) {
    options.channels = settings.input[0];
    options.height = settings.input[1];
    options.width = settings.input[2];
  }
  return options;
}

// Validation, test and training halves must agree, or the accuracy would mean nothing.
void check_same_classes(const data::Dataset& training, const data::OpenedDataset& other) {
  const std::vector<std::string> a = training.class_names(), b = other.dataset->class_names();
  auto lacking = [](const std::vector<std::string>& from, const std::vector<std::string>& in) {
    std::string out;
    for (const std::string& name : from)
      if (std::find(in.begin(), in.end(), name) == in.end()) out += (out.empty() ? "" : ", ") + name;
    return out.empty() ? std::string("none") : out;
  };
  LIMPID_CHECK(a == b, DataError, "[data] the classes of ", other.location, " are not those of the training half: it ",
               "lacks ", lacking(a, b), "; it has besides ", lacking(b, a));
  LIMPID_CHECK(training.num_classes() == other.dataset->num_classes(), DataError, "[data] the training half has ",
               training.num_classes(), " classes, ", other.location, " ", other.dataset->num_classes());
}

void take_notes(TrainParts& parts, const data::OpenedDataset& opened) {
  parts.skipped.insert(parts.skipped.end(), opened.skipped.begin(), opened.skipped.end());
  for (const std::string& name : opened.empty_classes)
    parts.warnings.push_back(concat("the class ", name, " has no image in ", opened.location));
}

void set_normalization(ModelCard& card, const std::string& data_name, const data::Dataset& dataset) {
  auto stats = data::known_stats(data_name);
  if (!stats) stats = data::channel_stats(dataset, kStatsSamples);
  card.mean = stats->mean;
  card.std = stats->std;
  // A constant channel has nothing to scale.
  for (double& s : card.std) {
    if (!(s > 0)) s = 1;
  }
}

}  // namespace

data::TransformPtr normalization(const ModelCard& card) {
  return card.mean.empty() ? nullptr : data::normalize(card.mean, card.std);
}

std::shared_ptr<nn::Module> make_model(const ModelCard& card, std::uint64_t seed) {
  LIMPID_CHECK(!card.model.empty(), ArgumentError, "[model] the checkpoint names no model: name it");
  return nn::make_model(card.model, {.input = card.input, .classes = card.classes, .seed = seed});
}

std::shared_ptr<nn::Module> make_model(const TrainSettings& s) {
  std::shared_ptr<nn::Module> model =
      nn::make_model(s.model, {.input = Shape(s.input), .classes = s.classes, .seed = s.seed});
  if (s.fuse) nn::fuse(*model);
  return model;
}

TrainParts make_parts(const TrainSettings& settings, const std::vector<std::string>& search_paths) {
  check(settings);
  manual_seed(settings.seed);
  TrainParts parts;
  data::OpenedDataset training = data::open_dataset(open_options(settings, search_paths, true));
  parts.location = training.location;
  take_notes(parts, training);
  data::DatasetPtr all = training.dataset;
  if (settings.limit > 0) all = data::limit(all, settings.limit, settings.seed);

  auto open_half = [&](const char* half) {
    data::OpenOptions options = open_options(settings, search_paths, false);
    if (settings.data == "folder") options.half = half;
    data::OpenedDataset opened = data::open_dataset(options);
    check_same_classes(*training.dataset, opened);
    take_notes(parts, opened);
    return opened.dataset;
  };
  // A folder may come without a test half; there is then no test accuracy.
  const bool folder = settings.data == "folder";
  if (!folder || data::has_folder_half(settings.data_dir, "test")) parts.test = open_half("test");
  if (folder && data::has_folder_half(settings.data_dir, "val")) parts.validation = open_half("val");

  ModelCard& card = parts.card;
  card.model = settings.model;
  card.input = all->spec().input_shape;
  card.classes = all->num_classes();
  LIMPID_CHECK(card.classes >= 2, DataError, "[data] a classifier needs at least 2 classes, ", settings.data, " has ",
               card.classes);
  LIMPID_CHECK(card.input.size() == 3, DataError, "[data] expected images [C,H,W], ", settings.data, " gives ",
               card.input);
  for (int i = 0; i < static_cast<int>(settings.input.size()); i++) {
    LIMPID_CHECK(card.input[i] == settings.input[static_cast<std::size_t>(i)], ArgumentError, "[data] ", settings.data,
                 " gives images ", card.input, ", asked for ", Shape(settings.input));
  }
  LIMPID_CHECK(settings.classes == 0 || settings.classes == card.classes, ArgumentError, "[data] ", settings.data,
               " has ", card.classes, " classes, asked for ", settings.classes);
  card.class_names = all->class_names();
  card.data = settings.data;

  if (settings.val_fraction > 0 && !parts.validation) {
    auto [rest, validation] = data::split(all, settings.val_fraction, settings.seed);
    parts.training = rest;
    if (validation->size() > 0) parts.validation = validation;
  } else {
    parts.training = all;
  }
  LIMPID_CHECK(parts.training->size() > 0, DataError, "[data] no sample is left for training: ", all->size(),
               " samples, validation fraction ", settings.val_fraction);
  LIMPID_CHECK(!settings.drop_last || parts.training->size() >= settings.batch, ArgumentError,
               "[data] with drop-last no batch is left: ", parts.training->size(), " samples, batch ", settings.batch);

  set_normalization(card, settings.data, *parts.training);
  parts.evaluation_transform = normalization(card);
  std::vector<data::TransformPtr> chain;
  if (settings.augment) {
    chain.push_back(data::random_crop({.padding = 4}));
    if (card.input[0] == 3) chain.push_back(data::random_horizontal_flip());
  }
  chain.push_back(normalization(card));
  parts.training_transform = data::compose(chain);

  parts.model = make_model(card, settings.seed);
  if (settings.fuse) nn::fuse(*parts.model);
  if (!settings.init.empty()) {
    const Checkpoint from = open_checkpoint(settings.init);
    load_weights(*parts.model, from.model, settings.init);
    // A weight file alone does not know its run.
    if (!from.folder.empty()) {
      parts.init_batch = from.settings.batch;
      parts.init_lr = scaling_policy(from.settings).lr(from.settings.batch);
    }
  }
  return parts;
}

EvaluationData make_evaluation_data(const TrainSettings& settings, ModelCard& card,
                                    const std::vector<std::string>& search_paths) {
  LIMPID_CHECK(card.input.empty() || card.input.size() == 3, DataError, "[data] the model takes inputs ", card.input,
               ", expected [channels,height,width]");
  TrainSettings wanted = settings;
  // Folders are resized to the model's input; generated data is made for it.
  if (!card.input.empty() && (settings.data == "folder" || settings.data == "synthetic")) {
    wanted.input = card.input.vec();
    if (settings.data == "synthetic") wanted.classes = card.classes;
  }
  data::OpenedDataset test = data::open_dataset(open_options(wanted, search_paths, false));
  const Shape shape = test.dataset->spec().input_shape;
  const std::int64_t classes = test.dataset->num_classes();
  if (card.input.empty()) {
    card.input = shape;
    card.classes = settings.classes > 0 ? settings.classes : classes;
    card.class_names = test.dataset->class_names();
    card.data = settings.data;
    set_normalization(card, settings.data, *test.dataset);
  }
  LIMPID_CHECK(shape == card.input, DataError, "[data] ", settings.data, " gives images ", shape,
               ", the model was trained on ", card.input);
  LIMPID_CHECK(classes == card.classes, DataError, "[data] ", settings.data, " has ", classes, " classes, the model ",
               card.classes);
  EvaluationData out{test.dataset, normalization(card), test.location};
  if (settings.limit > 0) out.dataset = data::limit(out.dataset, settings.limit, settings.seed);
  return out;
}

}  // namespace limpid::train
