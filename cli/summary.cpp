// limpid summary: what a model costs, layer by layer.
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/nn/fuse.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/summary.h>
#include <limpid/tensor/dry.h>
#include <limpid/train/activation_ledger.h>

#include "commands.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct SummaryOptions {
  std::string model = "lenet", input;
  std::int64_t batch = 1, classes = 10;
  bool fuse = true, saved = false, json = false;
};

int run(const SummaryOptions& o) {
  LIMPID_CHECK(o.batch >= 1, ArgumentError, "--batch must be at least 1, got ", o.batch);
  LIMPID_CHECK(o.classes >= 1, ArgumentError, "--classes must be at least 1, got ", o.classes);
  const Shape input(parse_input(o.input.empty() ? usual_input(o.model) : o.input));
  dry::Run run;  // shapes and bytes are all that is asked for
  std::shared_ptr<nn::Module> model = nn::make_model(o.model, {.input = input, .classes = o.classes});
  std::vector<nn::ChainRun> chains;
  if (o.fuse) chains = nn::fuse(*model);
  const nn::ModelSummary s = nn::summary(*model, input, o.batch);
  std::FILE* text = o.json ? stderr : stdout;
  std::fprintf(text, "%s", nn::to_string(s).c_str());
  if (!chains.empty()) std::fprintf(text, "\nComputed as one operation:\n%s", nn::to_string(chains).c_str());
  std::optional<train::ActivationLedger> ledger;
  if (o.saved) {
    train::RehearsalSettings settings;
    settings.train.model = o.model;
    settings.train.input = input.vec();
    settings.train.classes = o.classes;
    settings.train.batch = o.batch;
    settings.train.fuse = o.fuse;
    ledger = train::activation_ledger(settings);
    std::fprintf(text, "\n%s", train::to_string(*ledger).c_str());
  }
  if (!o.json) return kOk;

  nlohmann::ordered_json json;
  json["model"] = o.model;
  json["batch"] = s.batch;
  json["input"] = s.input_shape.vec();
  json["classes"] = o.classes;
  json["params"] = s.parameters;
  json["parameters"] = s.parameters;
  json["parameter_bytes"] = s.parameter_bytes;
  json["buffer_bytes"] = s.buffer_bytes;
  json["input_bytes_per_sample"] = s.input_bytes;
  json["output_bytes_per_sample"] = s.output_bytes;
  json["saved_bytes_per_sample"] = s.saved_bytes;
  json["saved_bytes_fixed"] = s.saved_fixed;
  json["saved_bytes_total"] = s.saved_total();
  json["flops_per_sample"] = s.flops;
  json["layers"] = nlohmann::ordered_json::array();
  for (const nn::LayerSummary& layer : s.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"type", layer.type},
                              {"description", layer.description},
                              {"output_shape", layer.output_shape.vec()},
                              {"parameters", layer.parameters},
                              {"output_bytes_per_sample", layer.output_bytes},
                              {"saved_bytes_per_sample", layer.saved_bytes},
                              {"saved_bytes_fixed", layer.saved_fixed},
                              {"flops_per_sample", layer.flops}});
  }
  json["chains"] = nlohmann::ordered_json::array();
  for (const nn::ChainRun& chain : chains) {
    json["chains"].push_back({{"parts", chain.parts}, {"function", chain.function}, {"composed", chain.composed}});
  }
  if (ledger) json["saved"] = nlohmann::ordered_json::parse(train::to_json(*ledger));
  print_json(json);
  return kOk;
}

}  // namespace

void add_summary(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("summary", "Per layer: output shape, parameters, bytes a sample, FLOPs");
  auto o = std::make_shared<SummaryOptions>();
  sub->add_option("--model", o->model, "mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, resnet50")
      ->capture_default_str();
  add_fuse(*sub, o->fuse);
  add_integer(*sub, "--batch", o->batch, "Batch size of the totals")->capture_default_str();
  sub->add_option("--input", o->input, "One sample, CxHxW; default: what the model is usually fed with");
  add_integer(*sub, "--classes", o->classes, "Outputs")->capture_default_str();
  sub->add_flag("--saved", o->saved,
                "Also every tensor kept for the backward pass: by which layer and why, bytes, aliases, life span");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Examples:\n  limpid summary --model seed --batch 16 --input 3x224x224 --classes 10\n"
      "  limpid summary --model lenet --batch 64 --saved");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
