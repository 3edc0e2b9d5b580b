// limpid eval: a checkpoint on the test half of a data set.
#include <cmath>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/evaluate.h>
#include <limpid/train/parts.h>

#include "commands.h"
#include "common.h"
#include "progress.h"

namespace limpid::cli {
namespace {

struct EvalOptions {
  std::string checkpoint, model, memory_cap;
  train::TrainSettings settings;
  const CLI::Option* device = nullptr;
  bool best = false, json = false, quiet = false;
};

int run(EvalOptions& o) {
  train::TrainSettings& s = o.settings;
  const std::uint64_t cap = o.memory_cap.empty() ? 0 : parse_bytes(o.memory_cap, "--memory-cap");
  if (cap > 0) memory::host_allocator().set_capacity(cap);
  train::Checkpoint checkpoint = under_memory_cap(cap, false, [&] { return train::open_checkpoint(o.checkpoint, o.best); });
  if (s.data.empty()) s.data = checkpoint.card.data;
  LIMPID_CHECK(!s.data.empty(), ArgumentError, o.checkpoint, " does not say which data it was trained on: give --data");
  if (s.data_dir.empty() && s.data == checkpoint.settings.data) s.data_dir = checkpoint.settings.data_dir;
  if (!o.model.empty()) {
    LIMPID_CHECK(checkpoint.card.model.empty() || checkpoint.card.model == o.model, ArgumentError, o.checkpoint,
                 " holds the model ", checkpoint.card.model, ", asked for ", o.model);
    checkpoint.card.model = o.model;
  }
  LIMPID_CHECK(!checkpoint.card.model.empty(), ArgumentError, o.checkpoint,
               " does not say which model it holds: give --model");
  s.device = chosen_device(*o.device, s.device);
  train::check(s);
  if (s.threads > 0) cpu::set_num_threads(static_cast<int>(s.threads));

  const train::EvaluationData data = train::make_evaluation_data(s, checkpoint.card, data_search_paths());
  std::shared_ptr<nn::Module> model = train::make_model(checkpoint.card);
  train::load_weights(*model, checkpoint.model, o.checkpoint);
  checkpoint.model.clear();
  const Device device = parse_device(s.device);
  model->to(device);
  data::DataLoader loader(
      data.dataset, {.batch_size = s.batch, .num_workers = static_cast<int>(s.workers), .pin_memory = device != kCpu, .transform = data.transform});
  const train::Evaluation result = under_memory_cap(cap, false, [&] {
    Progress progress(o.quiet);
    return train::evaluate(*model, loader, checkpoint.card.classes, [&](std::int64_t done, std::int64_t total) {
      progress.on_evaluation("evaluating", done, total);
    });
  });
  const std::string used = checkpoint.folder.empty() ? o.checkpoint : checkpoint.folder;
  if (!o.json || !o.quiet) {
    std::FILE* to = o.json ? stderr : stdout;
    std::vector<std::string> shown;
    for (const std::string& name : checkpoint.card.class_names) shown.push_back(printable(name));
    std::fprintf(to, "model %s of %s on %s (%s)\n%s", printable(checkpoint.card.model).c_str(), used.c_str(),
                 printable(s.data).c_str(), data.location.c_str(), train::to_string(result, shown).c_str());
  }
  if (!o.json) return kOk;

  using Json = nlohmann::ordered_json;
  Json json;
  json["accuracy"] = result.accuracy;
  json["loss"] = std::isfinite(result.loss) ? Json(result.loss) : Json();
  json["samples"] = result.samples;
  json["correct"] = result.correct;
  json["seconds"] = result.seconds;
  json["class_names"] = checkpoint.card.class_names;
  json["class_accuracy"] = Json::array();
  for (double a : result.class_accuracy()) json["class_accuracy"].push_back(std::isnan(a) ? Json(nullptr) : Json(a));
  json["confusion"] = Json::array();
  for (std::int64_t truth = 0; truth < result.classes; truth++) {
    Json row = Json::array();
    for (std::int64_t predicted = 0; predicted < result.classes; predicted++)
      row.push_back(result.count(truth, predicted));
    json["confusion"].push_back(row);
  }
  json["model"] = checkpoint.card.model;
  json["data"] = s.data;
  json["checkpoint"] = used;
  print_json(json);
  return kOk;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("eval", "Accuracy, loss and confusion matrix of a checkpoint");
  auto o = std::make_shared<EvalOptions>();
  o->settings.data.clear();
  train::TrainSettings& s = o->settings;
  sub->add_option("--checkpoint", o->checkpoint,
                  "Run folder (its last checkpoint), RUN/ckpt/best, a checkpoint folder or a safetensors file")
      ->required();
  sub->add_flag("--best", o->best, "Of a run folder: the checkpoint with the lowest validation loss");
  sub->add_option("--data", s.data, "Data set; default: what the model was trained on");
  sub->add_option("--data-dir", s.data_dir, "Where the data is, itself or in a folder of its name; without it: $LIMPID_DATA, the "
                  "system's share/datasets. A folder has test/CLASS/IMAGE.jpg, or val/");
  sub->add_option("--model", o->model, "For weight files that do not name their model");
  add_integer(*sub, "--batch", s.batch, "Samples at a time")->capture_default_str();
  add_integer(*sub, "--limit", s.limit, "Use a seeded random subset of this many samples (0 = all)")->capture_default_str();
  add_integer(*sub, "--threads", s.threads, "Compute threads (0 = all cores)")->capture_default_str();
  add_integer(*sub, "--workers", s.workers, "Loader threads")->capture_default_str();
  o->device = sub->add_option("--device", s.device, kDeviceHelp);
  sub->add_option("--memory-cap", o->memory_cap, "Limit of the memory for computing, e.g. 512MiB");
  sub->add_flag("--skip-broken", s.skip_broken, "folder: leave out images that cannot be read");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->add_flag("--quiet", o->quiet, "No progress on stderr");
  sub->footer(
      "Examples:\n"
      "  limpid eval --checkpoint run --data fashion-mnist\n"
      "  limpid eval --checkpoint run --best --json\n"
      "  limpid eval --checkpoint weights.safetensors --model lenet --data fashion-mnist");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
