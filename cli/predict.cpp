// limpid predict: image files to classes.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <system_error>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/data/folder.h>
#include <limpid/data/image.h>
#include <limpid/data/registry.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/parts.h>

#include "commands.h"
#include "common.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PredictOptions {
  std::string checkpoint, model, input, data;
  std::vector<std::string> images;
  std::vector<double> mean, std;
  std::int64_t top = 3, threads = 0, classes = 0;
  bool top_given = false, best = false, json = false;
};

// What the checkpoint does not say comes from the options; what it says must not be contradicted.
void complete(train::ModelCard& card, const PredictOptions& o) {
  const bool own = !card.model.empty();
  auto agree = [&](const char* option, const auto& given, const auto& found) {
    LIMPID_CHECK(!own || given == found, ArgumentError, o.checkpoint, ": the checkpoint has ", option, " ", found,
                 ", given is ", given);
  };
  if (!o.model.empty()) agree("--model", o.model, card.model), card.model = o.model;
  if (!o.input.empty()) {
    const Shape input(parse_input(o.input));
    agree("--input", to_string(input), to_string(card.input));
    card.input = input;
  }
  if (o.classes > 0) agree("--classes", o.classes, card.classes), card.classes = o.classes;
  if (!o.data.empty()) {
    LIMPID_CHECK(!own || o.data == card.data, ArgumentError, o.checkpoint, ": the checkpoint was trained on ", card.data,
                 ", given is --data ", o.data);
    const std::optional<data::ChannelStats> stats = data::known_stats(o.data);
    LIMPID_CHECK(own || stats, ArgumentError, "--data ", o.data, " has no published statistics: give --mean and --std");
    if (!own) card.mean = stats->mean, card.std = stats->std, card.class_names = data::known_classes(o.data);
    if (!own && o.classes == 0) card.classes = static_cast<std::int64_t>(card.class_names.size());
  }
  LIMPID_CHECK(!card.model.empty() && !card.input.empty() && card.classes > 0, ArgumentError, o.checkpoint,
               " does not describe its model: give --model, --input and --data or --classes");
  LIMPID_CHECK(card.class_names.empty() || card.class_names.size() == static_cast<std::size_t>(card.classes),
               ArgumentError, "--data ", o.data, " has ", card.class_names.size(), " classes, --classes is ",
               card.classes);
  LIMPID_CHECK(card.input.size() == 3 && (card.input[0] == 1 || card.input[0] == 3), DataError,
               "the model takes inputs ", card.input, "; images have 1 or 3 channels");
  if (!o.mean.empty() || !o.std.empty()) {
    LIMPID_CHECK(!own, ArgumentError, o.checkpoint, " has its own normalisation: leave out --mean and --std");
    card.mean = o.mean, card.std = o.std;
  }
  const auto channels = static_cast<std::size_t>(card.input[0]);
  LIMPID_CHECK((card.mean.empty() && card.std.empty()) || (card.mean.size() == channels && card.std.size() == channels),
               ArgumentError, "the mean has ", card.mean.size(), " numbers and the std ", card.std.size(),
               ", the input has ", channels, " channels");
  if (!own && card.mean.empty()) {
    std::fprintf(stderr, "limpid: warning: the inputs are not normalised: %s does not say how; --data or --mean and "
                         "--std do\n", o.checkpoint.c_str());
  }
}

// A folder stands for the image files in it.
std::vector<std::string> expand(const std::vector<std::string>& images) {
  std::vector<std::string> out;
  for (const std::string& path : images) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      out.push_back(path);
      continue;
    }
    const std::vector<std::string> files = data::image_files(path);
    LIMPID_CHECK(!files.empty(), DataError, path, " is a folder without .jpg, .jpeg or .png files");
    out.insert(out.end(), files.begin(), files.end());
  }
  return out;
}

// [1, C, H, W], resized and normalised as in training.
Tensor load_image(const std::string& path, const train::ModelCard& card, const data::TransformPtr& transform) {
  const data::Image image = data::decode_image(path, {.channels = static_cast<int>(card.input[0])});
  Tensor raw = empty(card.input);
  data::resize_to_planes(image, card.input[1], card.input[2], raw.mutable_data<float>());
  if (!transform) return raw.unsqueeze(0);
  Tensor x = empty(card.input);
  data::SampleRandom random(0, 0, 0);  // normalisation draws nothing
  transform->apply(raw.data<float>(), card.input, x.mutable_data<float>(), random);
  return x.unsqueeze(0);
}

// The classes of one image, the likeliest first.
Json predict_one(const std::string& path, const PredictOptions& o, const train::ModelCard& card, nn::Module& model,
                 const data::TransformPtr& transform) {
  const std::vector<double> p = softmax(model(load_image(path, card, transform)), 1).to_vector<double>();
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  order.resize(static_cast<std::size_t>(o.top));
  auto name = [&](std::size_t c) { return c < card.class_names.size() ? card.class_names[c] : std::to_string(c); };
  Json entry{{"path", path},
             {"class", name(order[0])},
             {"index", order[0]},
             {"probability", p[order[0]]},
             {"top", Json::array()}};
  std::string line = path + ":";
  for (std::size_t c : order) {
    entry["top"].push_back({{"class", name(c)}, {"index", c}, {"probability", p[c]}});
    line += "  " + name(c) + " " + percent(p[c]);
  }
  std::fprintf(o.json ? stderr : stdout, "%s\n", printable(line).c_str());
  return entry;
}

Json report_broken(const std::string& path, const Error& error) {
  std::fprintf(stderr, "limpid: %s\n", printable_lines(error.what()).c_str());
  return {{"path", path}, {"error", error.message()}};
}

int run(PredictOptions& o) {
  LIMPID_CHECK(o.top >= 1, ArgumentError, "--top must be at least 1, got ", o.top);
  LIMPID_CHECK(o.threads >= 0 && o.threads <= 1024, ArgumentError, "--threads must be from 0 to 1024, got ", o.threads);
  if (o.threads > 0) cpu::set_num_threads(static_cast<int>(o.threads));
  train::Checkpoint checkpoint = train::open_checkpoint(o.checkpoint, o.best);
  train::ModelCard& card = checkpoint.card;
  complete(card, o);
  LIMPID_CHECK(o.top <= card.classes || !o.top_given, ArgumentError, "--top is ", o.top, ", the model has ",
               card.classes, " classes");
  o.top = std::min(o.top, card.classes);
  std::shared_ptr<nn::Module> model = train::make_model(card);
  train::load_weights(*model, checkpoint.model, o.checkpoint);
  checkpoint.model.clear();
  model->eval();
  NoGradGuard no_grad;
  const data::TransformPtr transform = train::normalization(card);
  const std::string used = checkpoint.folder.empty() ? o.checkpoint : checkpoint.folder;
  std::fprintf(stderr, "checkpoint %s\n", used.c_str());
  Json json;
  json["checkpoint"] = used;
  json["predictions"] = Json::array();
  int code = kOk;
  for (const std::string& path : expand(o.images)) {
    // One image that cannot be read does not keep the others from being looked at.
    try {
      json["predictions"].push_back(predict_one(path, o, card, *model, transform));
    } catch (const DataError& error) {
      json["predictions"].push_back(report_broken(path, error));
      code = kBadData;
    } catch (const IoError& error) {
      json["predictions"].push_back(report_broken(path, error));
      code = kBadData;
    }
  }
  if (o.json) print_json(json);
  return code;
}

}  // namespace

void add_predict(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("predict", "Classes of image files (JPEG, PNG)");
  auto o = std::make_shared<PredictOptions>();
  sub->add_option("--checkpoint", o->checkpoint,
                  "Run folder (its last checkpoint), RUN/ckpt/best, a checkpoint folder or a safetensors file")
      ->required();
  sub->add_flag("--best", o->best, "Of a run folder: the checkpoint with the lowest validation loss");
  sub->add_option("images", o->images, "Image files, or folders of them; resized to the model's input")->required();
  CLI::Option* top = add_integer(*sub, "--top", o->top, "Classes shown for each image")->capture_default_str();
  sub->add_option("--model", o->model, "For weight files that do not name their model");
  sub->add_option("--input", o->input, "The same: CxHxW");
  add_integer(*sub, "--classes", o->classes, "The same: number of classes");
  sub->add_option("--data", o->data, "The same: the data set it was trained on gives normalisation and class names");
  sub->add_option("--mean", o->mean, "The same: mean of each channel, e.g. 0.49,0.48,0.45")->delimiter(',')->check(real_problem, "");
  sub->add_option("--std", o->std, "The same: standard deviation of each channel")->delimiter(',')->check(real_problem, "");
  add_integer(*sub, "--threads", o->threads, "Compute threads (0 = all cores)")->capture_default_str();
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Images that cannot be read are named on stderr, the others are predicted, and the exit code is 4.\n"
      "Examples:\n"
      "  limpid predict --checkpoint run cat.jpg dog.png\n"
      "  limpid predict --checkpoint weights.safetensors --model resnet20 --input 3x32x32 --data cifar10 photos");
  sub->callback([o, top, &action] {
    o->top_given = top->count() > 0;
    action = [o] { return run(*o); };
  });
}

}  // namespace limpid::cli
