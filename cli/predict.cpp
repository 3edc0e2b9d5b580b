// limpid predict: image files to classes.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/data/image.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/parts.h>

#include "commands.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct PredictOptions {
  std::string checkpoint, model, input;
  std::vector<std::string> images;
  std::int64_t top = 3, threads = 0, classes = 0;
  bool json = false;
};

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

int run(const PredictOptions& o) {
  LIMPID_CHECK(o.top >= 1, ArgumentError, "--top must be at least 1, got ", o.top);
  LIMPID_CHECK(o.threads >= 0, ArgumentError, "--threads must be at least 0, got ", o.threads);
  if (o.threads > 0) cpu::set_num_threads(static_cast<int>(o.threads));
  train::Checkpoint checkpoint = train::open_checkpoint(o.checkpoint);
  train::ModelCard& card = checkpoint.card;
  if (card.model.empty()) {
    LIMPID_CHECK(!o.model.empty() && !o.input.empty() && o.classes > 0, ArgumentError, o.checkpoint,
                 " does not describe its model: give --model, --input and --classes");
    card.model = o.model;
    card.input = Shape(parse_input(o.input));
    card.classes = o.classes;
  }
  LIMPID_CHECK(card.input.size() == 3 && (card.input[0] == 1 || card.input[0] == 3), DataError,
               "the model takes inputs ", card.input, "; images have 1 or 3 channels");
  std::shared_ptr<nn::Module> model = train::make_model(card);
  train::load_weights(*model, checkpoint.model, o.checkpoint);
  model->eval();
  NoGradGuard no_grad;
  const data::TransformPtr transform = train::normalization(card);
  nlohmann::ordered_json json;
  json["predictions"] = nlohmann::ordered_json::array();
  for (const std::string& path : o.images) {
    const Tensor logits = (*model)(load_image(path, card, transform));
    const std::vector<double> p = softmax(logits, 1).to_vector<double>();
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
    order.resize(std::min(order.size(), static_cast<std::size_t>(o.top)));
    auto name = [&](std::size_t c) { return c < card.class_names.size() ? card.class_names[c] : std::to_string(c); };
    nlohmann::ordered_json entry{{"path", path},
                                 {"class", name(order[0])},
                                 {"index", order[0]},
                                 {"probability", p[order[0]]},
                                 {"top", nlohmann::ordered_json::array()}};
    std::FILE* to = o.json ? stderr : stdout;
    std::fprintf(to, "%s:", path.c_str());
    for (std::size_t c : order) {
      entry["top"].push_back({{"class", name(c)}, {"index", c}, {"probability", p[c]}});
      std::fprintf(to, "  %s %s", name(c).c_str(), percent(p[c]).c_str());
    }
    std::fprintf(to, "\n");
    json["predictions"].push_back(entry);
  }
  if (o.json) std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  return kOk;
}

}  // namespace

void add_predict(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("predict", "Classes of image files (JPEG, PNG)");
  auto o = std::make_shared<PredictOptions>();
  sub->add_option("--checkpoint", o->checkpoint, "Run folder, its ckpt/best, a checkpoint folder or a safetensors file")
      ->required();
  sub->add_option("images", o->images, "Image files; resized to the model's input")->required();
  sub->add_option("--top", o->top, "Classes shown for each image")->capture_default_str();
  sub->add_option("--model", o->model, "For weight files that do not name their model");
  sub->add_option("--input", o->input, "The same: CxHxW");
  sub->add_option("--classes", o->classes, "The same");
  sub->add_option("--threads", o->threads, "Compute threads (0 = all cores)")->capture_default_str();
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer("Example:\n  limpid predict --checkpoint run cat.jpg dog.png");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
