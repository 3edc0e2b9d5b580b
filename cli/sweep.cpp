// limpid sweep: one model at many batch sizes (time, memory, learning), or single operations at odd sizes.
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/train/size_lab.h>
#include <limpid/train/sweep.h>
#include <limpid/train/sweep_learning.h>

#include "commands.h"
#include "common.h"
#include "progress.h"
#include "sweep_page/sweep_page.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLeastSteps = 20, kLabRounds = 41;

struct SweepOptions {
  train::SweepSettings sweep;
  train::LearningSettings learning;
  std::int64_t steps = 0;  // 0: not told
  std::string batches = "16:256:x2", input, memory_cap, policies, gemm, channels = "30:33:1,60:66:1";
  std::vector<std::string> out;
  bool json = false, quiet = false;
  // Options that only one of the three kinds of sweep reads.
  std::vector<CLI::Option*> of_model, of_learning, of_lab;
};

// The first of these that was given, as text; empty when there is none.
std::string given(const std::vector<CLI::Option*>& options) {
  for (const CLI::Option* option : options)
    if (option->count() > 0) return option->get_name();
  return "";
}

std::vector<train::ScalingRule> parse_policies(const std::string& text) {
  std::vector<train::ScalingRule> rules;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    rules.push_back(train::parse_scaling_rule(text.substr(at, end - at)));
    at = end + 1;
  }
  for (std::size_t i = 0; i < rules.size(); i++) {
    for (std::size_t j = 0; j < i; j++)
      LIMPID_CHECK(rules[i] != rules[j], ArgumentError, "--lr-policy names ", to_string(rules[i]), " twice: ", text);
  }
  return rules;
}

// Refused before anything runs: the files could not be named at the end of an hour.
void check_out(const std::vector<std::string>& files, bool lab) {
  bool seen[2] = {false, false};
  for (const std::string& file : files) {
    const bool csv = file.ends_with(".csv"), page = file.ends_with(".html");
    LIMPID_CHECK(csv || page, ArgumentError, "-o writes a .html page or a .csv file, got ", file);
    LIMPID_CHECK(!seen[csv], ArgumentError, "-o is given for one .html page and one .csv file at most, got ",
                 files.size(), " files, ", file, " as another of its kind");
    seen[csv] = true;
    LIMPID_CHECK(!csv || !lab, ArgumentError, "--gemm has no .csv form (got ", file, "): --json or a .html page");
    refuse_overwriting("-o", file, {});
  }
}

void write_results(const SweepOptions& o, const SweepResults& results, std::FILE* to) {
  for (const std::string& file : o.out) {
    write_file_atomically(file, file.ends_with(".csv") ? train::to_csv(*results.sweep) : sweep_page(results));
    std::fprintf(to, "wrote %s\n", file.c_str());
  }
}

SweepResults run_lab(SweepOptions& o, Progress& progress) {
  train::SizeLabSettings lab;
  lab.batches = train::parse_batches(o.gemm);
  lab.channels = train::parse_batches(o.channels);
  lab.rounds = o.steps > 0 ? o.steps : kLabRounds;
  lab.warmup = o.sweep.warmup;
  lab.threads = o.sweep.train.threads;
  SweepResults results;
  results.lab = train::size_lab(lab, [&](const std::string& op) { progress.message(op); });
  return results;
}

SweepResults run_model(SweepOptions& o, bool learns, Progress& progress) {
  train::TrainSettings& t = o.sweep.train;
  o.sweep.batches = train::parse_batches(o.batches);
  if (!o.memory_cap.empty()) t.memory_cap = parse_bytes(o.memory_cap, "--memory-cap");
  SweepResults results;
  // The data first: a wrong name is found before the first measurement.
  train::LearningSettings& l = o.learning;
  if (learns) {
    l.train = t;
    l.train.input = o.input.empty() ? std::vector<std::int64_t>{} : parse_input(o.input);
    l.batches = o.sweep.batches;
    if (!o.policies.empty()) l.policies = parse_policies(o.policies);
    l.search_paths = data_search_paths();
    results.learning = train::learn(l, [&](std::int64_t batch, const train::ScalingPolicy& policy, std::uint64_t seed) {
      progress.message(concat("training with batch ", batch, ", policy ", policy.describe(), ", seed ", seed));
    });
    t.input = results.learning->input;
    t.classes = results.learning->classes;
  } else {
    t.input = parse_input(o.input.empty() ? usual_input(t.model) : o.input);
    if (t.classes == 0) t.classes = 10;
  }
  results.sweep = train::sweep(o.sweep, [&](std::int64_t batch) { progress.message(concat("timing batch ", batch)); });
  return results;
}

int run(SweepOptions& o) {
  const bool lab = !o.gemm.empty();
  const std::string learning = given(o.of_learning), model = given(o.of_model), lab_only = given(o.of_lab);
  LIMPID_CHECK(!lab || (model.empty() && learning.empty()), ArgumentError, "--gemm measures single operations; ",
               model.empty() ? learning : model, " belongs to a sweep of a model");
  LIMPID_CHECK(lab || lab_only.empty(), ArgumentError, lab_only, " needs --gemm");
  const bool learns = !o.policies.empty() || o.learning.target_accuracy > 0;
  LIMPID_CHECK(learns || learning.empty(), ArgumentError, learning, " needs --lr-policy or --target-accuracy: without them nothing is trained");
  LIMPID_CHECK(o.steps == 0 || o.steps >= kLeastSteps, ArgumentError, "--steps must be at least ", kLeastSteps, ", got ", o.steps,
               ": quartiles of fewer say little");
  LIMPID_CHECK(o.steps <= train::kMostTimings, ArgumentError, "--steps must be at most ", train::kMostTimings, ", got ",
               o.steps);
  LIMPID_CHECK(o.sweep.warmup >= 0 && o.sweep.warmup <= train::kMostTimings, ArgumentError,
               "--warmup-steps must be from 0 to ", train::kMostTimings, ", got ", o.sweep.warmup);
  o.sweep.steps = o.steps > 0 ? o.steps : kLeastSteps;
  check_out(o.out, lab);
  Progress progress(o.quiet);
  const SweepResults results = lab ? run_lab(o, progress) : run_model(o, learns, progress);
  std::FILE* to = o.json ? stderr : stdout;
  if (results.sweep) std::fprintf(to, "%s", train::to_string(*results.sweep).c_str());
  if (results.learning) std::fprintf(to, "\n%s", train::to_string(*results.learning).c_str());
  if (results.lab) std::fprintf(to, "%s", train::to_string(*results.lab).c_str());
  write_results(o, results, to);
  if (o.json) print_json(results_json(results));
  return kOk;
}

void add_options(CLI::App& sub, SweepOptions& o) {
  train::TrainSettings& t = o.sweep.train;
  auto put = [&](std::vector<CLI::Option*>& list, const char* group) {
    return [&list, group](CLI::Option* option) { list.push_back(option->group(group)); };
  };
  auto model = put(o.of_model, "Model"), learning = put(o.of_learning, "Learning (with --lr-policy or --target-accuracy)"),
       lab = put(o.of_lab, "Single operations");
  model(sub.add_option("--model", t.model, "mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, resnet50")->capture_default_str());
  model(add_fuse(sub, t.fuse));
  model(sub.add_option("--batches", o.batches, "Sizes and ranges: 16:256:x2,31,33 or 16:64:16")->capture_default_str());
  model(sub.add_option("--input", o.input, "One sample, CxHxW; default: what the model is usually fed with, or the data's own"));
  model(add_integer(sub, "--classes", t.classes, "Outputs (0 = 10, or the data's own)"));
  model(sub.add_option("--optimizer", t.optimizer, "adam, adamw, sgd, rmsprop, lamb or lars")->capture_default_str());
  model(sub.add_option("--momentum", t.momentum, "Of sgd, rmsprop and lars"));
  model(sub.add_option("--amp", t.amp, "Precision of the forward pass: fp32, bf16 or fp16")->capture_default_str());
  model(add_integer(sub, "--micro-batch", t.micro_batch, "Most samples computed at once (0 = the whole batch)"));
  model(sub.add_option("--memory-cap", o.memory_cap, "Memory for computing, e.g. 2GiB; a batch that does not fit is a row that says so"));

  train::LearningSettings& l = o.learning;
  learning(sub.add_option("--lr-policy", o.policies, "Train too, under these rules: none,linear,sqrt"));
  learning(sub.add_option("--target-accuracy", l.target_accuracy,
                          "Train too: epochs and seconds until validation reaches it, e.g. 0.9")
               ->check(
                   [](const std::string& text) {
                     double share = 0;
                     const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
                     const bool number = error == std::errc() && end == text.data() + text.size();
                     return number && share > 0 && share <= 1
                                ? ""
                                : concat("expected a share above 0, at most 1, got ", text);
                   },
                   ""));
  learning(add_integer(sub, "--seeds", l.seeds, "Runs of each size and policy")->capture_default_str());
  learning(sub.add_option("--data", t.data, "fashion-mnist, mnist, cifar10, folder or synthetic")->capture_default_str());
  learning(sub.add_option("--data-dir", t.data_dir, "Where the data is"));
  learning(add_integer(sub, "--limit", t.limit, "Training samples used, validation included (0 = all)"));
  learning(sub.add_option("--val-fraction", t.val_fraction, "Share kept for validation")->capture_default_str());
  learning(add_integer(sub, "--epochs", t.epochs, "Passes over the training samples: every run sees as many samples")->capture_default_str());
  learning(add_integer(sub, "--after-samples", l.after_samples, "Tell the accuracy after this many samples (0 = at the end)"));
  learning(sub.add_option("--lr", t.lr, "Learning rate at the reference batch")->capture_default_str());
  learning(add_integer(sub, "--reference-batch", t.reference_batch, "Batch that --lr was found at (0 = the smallest of --batches)"));
  learning(add_integer(sub, "--warmup", t.warmup, "Steps of linear warmup")->capture_default_str());
  learning(sub.add_option("--weight-decay", t.weight_decay, "Decoupled for adamw, else added to the gradient"));
  learning(sub.add_flag("--always-adapt", t.always_adapt, "lamb, lars: trust ratios also where there is no weight decay"));
  learning(add_integer(sub, "--seed", t.seed, "The first seed")->capture_default_str());
  learning(add_integer(sub, "--workers", t.workers, "Loader threads")->capture_default_str());

  sub.add_option("--gemm", o.gemm, "Instead of a model: matmul, linear, conv2d, relu and dropout at these sizes, e.g. 31,32,33,63,64,65")
      ->group("Single operations");
  lab(sub.add_option("--channels", o.channels, "Sizes of conv2d and linear in channels")->capture_default_str());

  add_integer(sub, "--threads", t.threads, "Compute threads (0 = all cores)");
  add_integer(sub, "--steps", o.steps, "Timed steps a size, 20 or more (0 = 20; 41 rounds of single operations)");
  add_integer(sub, "--warmup-steps", o.sweep.warmup, "Steps before them")->capture_default_str();
  sub.add_option("-o,--out", o.out,
                 "A page with charts (.html), or the rows (.csv); may be given twice, once for each");
  sub.add_flag("--json", o.json, "Last line on stdout: one JSON object");
  sub.add_flag("--quiet", o.quiet, "No progress on stderr");
}

}  // namespace

void add_sweep(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("sweep", "Many batch sizes: time, memory, the knee, what they do to learning; odd sizes and powers of two");
  auto o = std::make_shared<SweepOptions>();
  add_options(*sub, *o);
  sub->footer(
      "Steps are timed on samples that lie in memory: the loader has no part in these times.\n"
      "Examples:\n"
      "  limpid sweep --model resnet9 --batches 16:256:x2,31,33\n"
      "  limpid sweep --model lenet --batches 8:512:x2 --memory-cap 256MiB --json -o sweep.csv\n"
      "  limpid sweep --model lenet --batches 32,256 --lr-policy none,linear --seeds 3 --target-accuracy 0.85 \\\n"
      "               --optimizer sgd --lr 0.05 --limit 6000 --epochs 4 -o sweep.html\n"
      "  limpid sweep --gemm 31,32,33,63,64,65 -o sizes.html");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
