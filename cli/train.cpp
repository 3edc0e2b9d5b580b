// limpid train: the main job, from data to accuracy.
#include <cstdio>
#include <functional>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/train/trainer.h>

#include "commands.h"
#include "common.h"
#include "progress.h"

namespace limpid::cli {
namespace {

using train::TrainSettings;

struct TrainOptions {
  TrainSettings settings;
  std::string memory_cap, input, trace;
  bool resume = false, overwrite = false, json = false, quiet = false;
  // Options that set a member: in a resumed run, those given replace what the run was started with.
  struct Bound {
    CLI::Option* option;
    std::function<void(const TrainSettings& from, TrainSettings& to)> copy;
  };
  std::vector<Bound> bound;
};

void bind_options(CLI::App& sub, TrainOptions& o) {
  TrainSettings& s = o.settings;
  auto keep = [&](CLI::Option* option, auto member) {
    o.bound.push_back({option, [member](const TrainSettings& from, TrainSettings& to) { to.*member = from.*member; }});
    return option;
  };
  auto add = [&](const char* name, auto member, const char* help) {
    return keep(sub.add_option(name, s.*member, help)->capture_default_str(), member);
  };
  auto flag = [&](const char* name, bool TrainSettings::*member, const char* help) {
    return keep(sub.add_flag(name, s.*member, help), member);
  };
  add("--data", &TrainSettings::data, "fashion-mnist, mnist, cifar10, folder (one folder a class) or synthetic")
      ->group("Data");
  add("--data-dir", &TrainSettings::data_dir, "Where the data is; else $LIMPID_DATA, then the system's share/datasets")
      ->group("Data");
  add("--limit", &TrainSettings::limit, "Use this many training samples, validation included (0 = all)")->group("Data");
  add("--val-fraction", &TrainSettings::val_fraction, "Share of the training samples kept for validation")
      ->group("Data");
  flag("--augment", &TrainSettings::augment, "Random crops, and flips of colour images")->group("Data");
  flag("--drop-last", &TrainSettings::drop_last, "Leave out the short last batch of an epoch")->group("Data");
  keep(sub.add_option("--input", o.input, "Image size CxHxW, e.g. 3x32x32 (folder: images are resized)"),
       &TrainSettings::input)
      ->group("Data");
  add("--classes", &TrainSettings::classes, "Number of classes (synthetic; 0 = the data's own)")->group("Data");
  flag("--skip-broken", &TrainSettings::skip_broken, "folder: leave out images that cannot be read")->group("Data");
  add("--model", &TrainSettings::model, "mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, resnet50")
      ->group("Model");
  add("--init", &TrainSettings::init, "Start from the weights in this safetensors file (PyTorch's names)")
      ->group("Model");
  add("--epochs", &TrainSettings::epochs, "Passes over the training samples")->group("Training");
  add("--batch", &TrainSettings::batch, "Samples a step")->group("Training");
  add("--optimizer", &TrainSettings::optimizer, "adam, adamw, sgd or rmsprop")->group("Training");
  add("--lr", &TrainSettings::lr, "Learning rate")->group("Training");
  add("--momentum", &TrainSettings::momentum, "Of sgd and rmsprop")->group("Training");
  add("--weight-decay", &TrainSettings::weight_decay, "Decoupled for adamw, else added to the gradient")
      ->group("Training");
  add("--schedule", &TrainSettings::schedule, "constant, cosine, step, exponential or onecycle")->group("Training");
  add("--warmup", &TrainSettings::warmup, "Steps of linear warmup from 0")->group("Training");
  add("--clip", &TrainSettings::clip, "Clip the gradients' joint L2 norm (0 = off)")->group("Training");
  add("--label-smoothing", &TrainSettings::label_smoothing, "In [0, 1)")->group("Training");
  // The parser would wrap a negative number around.
  add("--seed", &TrainSettings::seed, "Of all random numbers")
      ->group("Training")
      ->check(
          [](const std::string& text) {
            return text.starts_with("-") ? std::string("must not be negative") : std::string();
          },
          "UINT64");
  add("--threads", &TrainSettings::threads, "Compute threads (0 = all cores); the numbers do not depend on it")
      ->group("Machine");
  add("--workers", &TrainSettings::workers, "Loader threads; the numbers do not depend on it")->group("Machine");
  add("--device", &TrainSettings::device, "cpu")->group("Machine");
  keep(sub.add_option("--memory-cap", o.memory_cap, "Limit of the run's memory, e.g. 2GiB"), &TrainSettings::memory_cap)
      ->group("Machine");
  add("--out", &TrainSettings::out, "Run folder: settings, logs, checkpoints")->group("Run folder");
  add("--checkpoint-every", &TrainSettings::checkpoint_every, "Steps between checkpoints inside an epoch (0 = none)")
      ->group("Run folder");
  add("--keep-checkpoints", &TrainSettings::keep_checkpoints, "Newest checkpoints that stay, besides the best")
      ->group("Run folder");
  keep(sub.add_option("--trace", o.trace, "Largest size of the memory trace in the run folder, e.g. 1GiB; off = none")
           ->default_str("64MiB"),
       &TrainSettings::trace)
      ->group("Run folder");
  sub.add_flag("--resume", o.resume, "Go on with the run in --out, bit for bit; options given again must agree")
      ->group("Run folder");
  sub.add_flag("--overwrite", o.overwrite, "Remove an earlier run in --out first")
      ->group("Run folder")
      ->excludes("--resume");
  sub.add_flag("--json", o.json, "Last line on stdout: one JSON object");
  sub.add_flag("--quiet", o.quiet, "No progress on stderr");
}

// The settings to run with: those given, on top of those of the run to resume.
TrainSettings final_settings(TrainOptions& o) {
  if (!o.memory_cap.empty()) o.settings.memory_cap = parse_bytes(o.memory_cap, "--memory-cap");
  if (!o.trace.empty()) o.settings.trace = o.trace == "off" ? 0 : parse_bytes(o.trace, "--trace");
  if (!o.input.empty()) o.settings.input = parse_input(o.input);
  if (!o.resume) {
    train::check(o.settings);
    return o.settings;
  }
  LIMPID_CHECK(!o.settings.out.empty(), ArgumentError, "--resume needs --out, the folder of the run");
  LIMPID_CHECK(train::RunFolder::holds_run(o.settings.out), ArgumentError, "--resume: ", o.settings.out,
               " holds no run");
  TrainSettings settings = train::RunFolder::settings_of(o.settings.out);
  const TrainSettings saved = settings;
  for (const TrainOptions::Bound& b : o.bound) {
    if (b.option->count() > 0) b.copy(o.settings, settings);
  }
  settings.out = o.settings.out;
  train::check(settings);
  std::string differing;
  for (const std::string& d : train::conflicts(saved, settings)) differing += (differing.empty() ? "" : "; ") + d;
  LIMPID_CHECK(differing.empty(), ArgumentError, "--resume: the run was started with other settings: ", differing);
  return settings;
}

nlohmann::ordered_json result_json(const train::TrainResult& r, const TrainSettings& s) {
  using Json = nlohmann::ordered_json;
  auto optional_number = [](bool present, double value) { return present ? Json(value) : Json(nullptr); };
  Json json;
  json["test_accuracy"] = optional_number(r.test.has_value(), r.test ? r.test->accuracy : 0);
  json["test_loss"] = optional_number(r.test.has_value(), r.test ? r.test->loss : 0);
  json["train_seconds"] = r.train_seconds;
  json["samples_per_second"] = r.samples_per_second;
  json["steps"] = r.steps;
  json["epochs"] = r.epochs;
  json["samples"] = r.samples;
  json["train_loss"] = r.train_loss;
  json["train_accuracy"] = r.train_accuracy;
  json["validation_loss"] = optional_number(r.validation.has_value(), r.validation ? r.validation->loss : 0);
  json["validation_accuracy"] = optional_number(r.validation.has_value(), r.validation ? r.validation->accuracy : 0);
  json["best_epoch"] = r.best_epoch < 0 ? Json(nullptr) : Json(r.best_epoch);
  json["best_validation_loss"] = optional_number(r.best_epoch >= 0, r.best_validation_loss);
  json["peak_allocated_bytes"] = r.memory.allocated;
  json["peak_reserved_bytes"] = r.memory.reserved;
  const Json memory = Json::parse(train::to_json(r.memory));
  json["memory_at_peak"] = memory.at("roles");
  json["rounding_at_peak_bytes"] = memory.at("rounding");
  json["peak_at"] = memory.at("at");
  json["parameters"] = r.parameters;
  json["checkpoint"] = r.checkpoint.empty() ? Json(nullptr) : Json(r.checkpoint);
  json["trace"] = r.trace.empty() ? Json(nullptr) : Json(r.trace);
  json["stopped"] = r.stopped;
  json["data"] = s.data;
  json["model"] = s.model;
  json["batch"] = s.batch;
  json["seed"] = s.seed;
  return json;
}

void print_result(const train::TrainResult& r, std::FILE* to) {
  std::fprintf(to, "%s after %lld steps, %.1f s of training, %.0f samples/s\n", r.stopped ? "stopped" : "done",
               static_cast<long long>(r.steps), r.train_seconds, r.samples_per_second);
  if (r.validation) {
    std::fprintf(to, "validation accuracy %s, loss %.4f\n", percent(r.validation->accuracy).c_str(),
                 r.validation->loss);
  }
  if (r.test) std::fprintf(to, "test accuracy %s, loss %.4f\n", percent(r.test->accuracy).c_str(), r.test->loss);
  std::fprintf(to, "\n%s", train::to_string(r.memory).c_str());
  if (!r.checkpoint.empty()) std::fprintf(to, "\ncheckpoint %s\n", r.checkpoint.c_str());
  if (!r.trace.empty()) {
    std::fprintf(to, "memory trace %s%s%s\n", r.trace.c_str(), r.trace_problem.empty() ? "" : " ends early: ",
                 r.trace_problem.c_str());
  }
}

int run(TrainOptions& o) {
  const TrainSettings settings = final_settings(o);
  const std::atomic<bool>& stop = stop_on_signals();
  Progress progress(o.quiet);
  if (o.overwrite && !settings.out.empty()) train::RunFolder::remove_run(settings.out);
  LIMPID_CHECK(o.resume || settings.out.empty() || !train::RunFolder::holds_run(settings.out), ArgumentError, "--out ",
               settings.out, " already holds a run: --resume goes on with it, --overwrite removes it");

  train::TrainParts parts = train::make_parts(settings, data_search_paths());
  for (const data::SkippedFile& file : parts.skipped)
    progress.message(concat("skipped ", file.path, ": ", file.reason));
  progress.message(concat("data   ", settings.data, " (", parts.location, "): ", format_count(parts.training->size()),
                          " training, ", format_count(parts.validation ? parts.validation->size() : 0), " validation, ",
                          format_count(parts.test ? parts.test->size() : 0), " test samples of ", parts.card.input));
  progress.message(concat("model  ", settings.model, ", ", format_count(parts.model->num_parameters()), " parameters; ",
                          settings.optimizer, ", lr ", settings.lr, ", batch ", settings.batch));
  train::Trainer trainer(settings, std::move(parts), o.resume, &progress);
  const train::TrainResult result = trainer.run(&stop);
  if (result.stopped) {
    progress.message(settings.out.empty() ? "stopped; nothing was kept, there is no --out"
                                          : "stopped; go on with: limpid train --resume --out " + settings.out);
  }
  print_result(result, o.json ? stderr : stdout);
  if (o.json) std::printf("%s\n", result_json(result, settings).dump().c_str());
  return kOk;
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("train", "Train a model: data, training, accuracy, memory ledger, checkpoints");
  auto options = std::make_shared<TrainOptions>();
  bind_options(*sub, *options);
  sub->footer(
      "Examples:\n"
      "  limpid train --data fashion-mnist --model lenet --epochs 3 --out run\n"
      "  limpid train --resume --out run\n"
      "  limpid train --data folder --data-dir photos --input 3x64x64 --model resnet9 --augment\n"
      "  limpid train --data cifar10 --model resnet20 --optimizer sgd --lr 0.1 --momentum 0.9 --weight-decay 1e-4 \\\n"
      "               --schedule cosine --warmup 200 --augment --epochs 30");
  sub->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace limpid::cli
