// limpid train: the main job, from data to accuracy.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/memory/policies.h>
#include <limpid/train/batch_norm_advice.h>
#include <limpid/train/oom_advice.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/train/trainer.h>

#include "commands.h"
#include "common.h"
#include "progress.h"
#include "report/report_page.h"

namespace limpid::cli {
namespace {

using train::TrainSettings;

struct TrainOptions {
  TrainSettings settings;
  CLI::Option* effective_batch = nullptr;
  CLI::Option* micro_batch = nullptr;
  CLI::Option* alloc_conf = nullptr;
  CLI::Option* device = nullptr;
  std::string memory_cap, input, trace, retain, huge_pages, workspace_cap;
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
  auto add = [&]<class T>(const char* name, T TrainSettings::*member, const char* help) {
    CLI::Option* option;
    if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::uint64_t>) {
      option = add_integer(sub, name, s.*member, help);
    } else if constexpr (std::is_same_v<T, double>) {
      option = add_real(sub, name, s.*member, help);
    } else {
      option = sub.add_option(name, s.*member, help);
    }
    return keep(option->capture_default_str(), member);
  };
  auto flag = [&](const char* name, bool TrainSettings::*member, const char* help) {
    return keep(sub.add_flag(name, s.*member, help), member);
  };
  add("--data", &TrainSettings::data, "fashion-mnist, mnist, cifar10, folder or synthetic. A folder has train/CLASS/IMAGE.jpg (or .png), test/ and val/ "
      "with the same classes if wanted; without val/ a share of train/ is held out, without train/ the classes lie in "
      "the folder itself")
      ->group("Data");
  add("--data-dir", &TrainSettings::data_dir, "Where the data is, itself or in a folder of its name; without it: $LIMPID_DATA, the system's share/datasets")
      ->group("Data");
  add("--limit", &TrainSettings::limit,
      "Use a seeded random subset of this many training samples, validation included (0 = all); the test set stays "
      "whole")
      ->group("Data");
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
  add("--init", &TrainSettings::init, "Start from these weights: a safetensors file (PyTorch's names), run folder or checkpoint")
      ->group("Model");
  keep(add_fuse(sub, s.fuse), &TrainSettings::fuse)->group("Model");
  add("--epochs", &TrainSettings::epochs, "Passes over the training samples; a run can be lengthened under --schedule constant: --resume --epochs N")->group("Training");
  CLI::Option* batch = add("--batch", &TrainSettings::batch,
                           "Samples a step, computed at once; more than the training set has is warned of, and refused "
                           "under --lr-policy linear or sqrt")
                           ->group("Training");
  o.effective_batch = keep(add_integer(sub, "--effective-batch", s.batch, "Samples a step, computed in micro-batches; with --memory-cap and without --micro-batch the largest that fit"),
       &TrainSettings::batch)->group("Training")->excludes(batch);
  o.micro_batch = keep(add_integer(sub, "--micro-batch", s.micro_batch, "Most samples computed at once; their gradients add up, each sample weighs 1/batch (0 = the whole batch)"),
       &TrainSettings::micro_batch)->group("Training");
  add("--quantum", &TrainSettings::quantum, "Compute in pieces of this many samples, always: the same bits for every --micro-batch, a multiple of it (0 = off)")->group("Training");
  add("--bn-mode", &TrainSettings::bn_mode, "Batch norm in micro-batches: micro (each by its own statistics), frozen (the running ones) or exact (those of the whole batch, at 2 sweeps a layer)")->group("Training");
  add("--bn-momentum", &TrainSettings::bn_momentum, "step: the micro-batches of a step move running statistics as one batch would; micro: each one does")->group("Training");
  add("--optimizer", &TrainSettings::optimizer, "adam, adamw, sgd, rmsprop, lamb or lars")->group("Training");
  add("--lr", &TrainSettings::lr, "Learning rate; with --lr-policy that of --reference-batch")->group("Training");
  add("--lr-policy", &TrainSettings::lr_policy,
      "How the rate follows the batch: none; linear (SGD's rule): lr batch/reference; sqrt (for Adam). Refuses a batch "
      "larger than the training set: no step has so many samples")
      ->group("Training");
  add("--reference-batch", &TrainSettings::reference_batch, "Effective batch that --lr was found at")->group("Training");
  add("--momentum", &TrainSettings::momentum, "Of sgd, rmsprop and lars")->group("Training");
  add("--weight-decay", &TrainSettings::weight_decay, "Decoupled for adamw, else added to the gradient")
      ->group("Training");
  flag("--always-adapt", &TrainSettings::always_adapt, "lamb, lars: trust ratios also where there is no weight decay")->group("Training");
  add("--schedule", &TrainSettings::schedule, "constant; cosine (to 0); step (a tenth after each third of the run); exponential (ends at a hundredth of --lr); "
      "onecycle (starts at lr/25, rises to --lr in the first 30 %, ends near 0)")->group("Training");
  add("--warmup", &TrainSettings::warmup, "Steps of linear warmup before the schedule: step k of N has the rate lr k/N, the first one 0")->group("Training");
  add("--amp", &TrainSettings::amp, "Precision of the forward pass: fp32, bf16, or fp16 with a loss scale; weights stay fp32")->group("Training");
  add("--clip", &TrainSettings::clip, "Clip the gradients' joint L2 norm (0 = off)")->group("Training");
  add("--label-smoothing", &TrainSettings::label_smoothing, "In [0, 1)")->group("Training");
  add("--seed", &TrainSettings::seed, "Of all random numbers")->group("Training");
  add("--threads", &TrainSettings::threads, "Compute threads (0 = all cores); the numbers do not depend on it")
      ->group("Machine");
  add("--workers", &TrainSettings::workers, "Loader threads; the numbers do not depend on it")->group("Machine");
  o.device = add("--device", &TrainSettings::device, kDeviceHelp)->default_str("")->group("Machine");
  add("--on-oom", &TrainSettings::on_oom, "When the memory runs out in a step: stop, or retry it with smaller micro-batches")->group("Memory");
  keep(sub.add_option("--memory-cap", o.memory_cap, "Limit of the run's memory, data and loader (io) included, e.g. 2GiB"), &TrainSettings::memory_cap)
      ->group("Memory");
  add("--policy", &TrainSettings::policy, "Allocation policy of the compute pool: native, nosplit, expandable, stitch, bfc, buddy, arena, rmm_pool or async; the numbers do not depend on it")
      ->group("Memory");
  o.alloc_conf = add("--alloc-conf", &TrainSettings::alloc_conf, "Its knobs, with PyTorch's names: max_split_size_mb:64,garbage_collection_threshold:0.8; "
      "and pools by role: role_pools:[param+optimizer,grad]")->group("Memory");
  keep(sub.add_option("--retain", o.retain, "When a step ends, give free memory back until no more than this is reserved, e.g. 256MiB (default: keep all); alloc-conf's retain_mb"),
       &TrainSettings::alloc_conf)->group("Memory");
  keep(sub.add_option("--workspace-cap", o.workspace_cap, "Largest workspace of one kernel call, e.g. 8MiB; may change the last digits of the numbers"),
       &TrainSettings::workspace_cap)->group("Memory");
  add("--reserve-plan", &TrainSettings::reserve_plan, "Reserve before the first step what this trace (file or run folder) needs; dry: the trace of a dry rehearsal of this run")
      ->group("Memory");
  keep(sub.add_option("--huge-pages", o.huge_pages, "on or off: ask the system for huge pages, or decline them")->default_str("on"),
       &TrainSettings::huge_pages)->group("Memory");
  add("--out", &TrainSettings::out, "Run folder, new or empty: settings, logs, checkpoints; without it nothing is kept")->group("Run folder");
  add("--checkpoint-every", &TrainSettings::checkpoint_every, "Steps between checkpoints inside an epoch (0 = none)")
      ->group("Run folder");
  add("--keep-checkpoints", &TrainSettings::keep_checkpoints, "Newest checkpoints that stay, besides the best")
      ->group("Run folder");
  keep(sub.add_option("--trace", o.trace, "Largest size of the memory trace in the run folder, e.g. 1GiB; off = none")
           ->default_str("64MiB"),
       &TrainSettings::trace)
      ->group("Run folder");
  add("--monitor", &TrainSettings::monitor_every, "Steps a record of the monitor: samples/s, where the time went, memory by role (0 = none)")->group("Run folder");
  flag("--tensorboard", &TrainSettings::tensorboard, "Also write event files for TensorBoard into the run folder")->group("Run folder");
  flag("--ledger-ids", &TrainSettings::ledger_ids, "List the samples of every step in ledger.jsonl, besides their hash")->group("Run folder");
  sub.add_flag("--resume", o.resume, "Go on with the run in --out, bit for bit; options given again must agree")
      ->group("Run folder");
  sub.add_flag("--overwrite", o.overwrite, "Remove an earlier run in --out first: the files that limpid wrote, once data and model are accepted")
      ->group("Run folder")
      ->excludes("--resume");
  sub.add_flag("--json", o.json, "Last line on stdout: one JSON object");
  sub.add_flag("--quiet", o.quiet, "No progress on stderr, warnings and errors only");
}

// The settings to run with: those given, on top of those of the run to resume.
TrainSettings final_settings(TrainOptions& o) {
  if (!o.memory_cap.empty()) o.settings.memory_cap = parse_bytes(o.memory_cap, "--memory-cap");
  if (!o.trace.empty()) o.settings.trace = o.trace == "off" ? 0 : parse_bytes(o.trace, "--trace");
  if (!o.workspace_cap.empty()) o.settings.workspace_cap = parse_bytes(o.workspace_cap, "--workspace-cap");
  if (!o.huge_pages.empty()) {
    LIMPID_CHECK(o.huge_pages == "on" || o.huge_pages == "off", ArgumentError, "--huge-pages is on or off, got ",
                 o.huge_pages);
    o.settings.huge_pages = o.huge_pages == "on";
  }
  if (!o.retain.empty()) {
    const std::uint64_t bytes = parse_bytes(o.retain, "--retain");
    LIMPID_CHECK(bytes % (1 << 20) == 0, ArgumentError, "--retain is a number of whole MiB, got ", o.retain);
    // Beside the other knobs: in a resumed run, those that it was started with.
    if (o.resume && o.settings.alloc_conf.empty() && !o.settings.out.empty()) {
      o.settings.alloc_conf = train::RunFolder::settings_of(o.settings.out).alloc_conf;
    }
    memory::AllocatorSettings knobs = memory::parse_allocator_settings(o.settings.alloc_conf);
    LIMPID_CHECK(o.alloc_conf->count() == 0 || knobs.retain == memory::AllocatorSettings::kRetainAll, ArgumentError,
                 "--retain ", o.retain, " and --alloc-conf retain_mb:", knobs.retain >> 20,
                 " both say what stays reserved: give one of them");
    knobs.retain = bytes;
    o.settings.alloc_conf = memory::to_string(knobs);
  }
  if (!o.input.empty()) o.settings.input = parse_input(o.input);
  o.settings.device = chosen_device(*o.device, o.settings.device);
  if (!o.resume) {
    train::check(o.settings);
    return o.settings;
  }
  LIMPID_CHECK(!o.settings.out.empty(), ArgumentError, "--resume needs --out, the folder of the run");
  std::error_code ignored;
  LIMPID_CHECK(std::filesystem::exists(o.settings.out + "/run.json", ignored), ArgumentError, "--resume: ",
               o.settings.out, " holds no run");
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
  // What there is no number for is null, infinity and NaN too.
  auto number = [](const std::optional<double>& value) { return value && std::isfinite(*value) ? Json(*value) : Json(); };
  auto of = [&](const std::optional<train::Evaluation>& e, double train::Evaluation::*member) {
    return e ? number((*e).*member) : Json();
  };
  using train::Evaluation;
  Json json;
  json["test_accuracy"] = of(r.test, &Evaluation::accuracy);
  json["test_loss"] = of(r.test, &Evaluation::loss);
  json["train_seconds"] = r.train_seconds;
  json["samples_per_second"] = r.samples_per_second > 0 ? Json(r.samples_per_second) : Json();
  json["steps"] = r.steps;
  json["epochs"] = r.epochs;
  json["samples"] = r.samples;
  json["train_loss"] = number(r.train_loss);
  json["train_accuracy"] = number(r.train_accuracy);
  json["validation_loss"] = of(r.validation, &Evaluation::loss);
  json["validation_accuracy"] = of(r.validation, &Evaluation::accuracy);
  json["best_epoch"] = r.best_epoch < 0 ? Json() : Json(r.best_epoch);
  json["best_validation_loss"] = r.best_epoch < 0 ? Json() : number(r.best_validation_loss);
  json["diverged"] = r.diverged;
  json["peak_allocated_bytes"] = r.memory.allocated;
  json["peak_reserved_bytes"] = r.memory.reserved;
  const Json memory = Json::parse(train::to_json(r.memory));
  json["memory_at_peak"] = memory.at("roles");
  json["rounding_at_peak_bytes"] = memory.at("rounding");
  json["peak_at"] = memory.at("at");
  json["leaks"] = Json::array();
  for (const memory::LeakReport& leak : r.leaks) json["leaks"].push_back(Json::parse(memory::to_json(leak)));
  json["parameters"] = r.parameters;
  json["trust_ratios"] = nullptr;
  for (const auto& [name, ratio] : r.trust_ratios) json["trust_ratios"][name] = number(ratio);
  json["policy"] = s.policy;
  json["alloc_conf"] = s.alloc_conf;
  json["huge_pages"] = s.huge_pages;
  json["workspace_cap"] = s.workspace_cap;
  json["diagnosis"] = r.diagnosis ? Json::parse(train::to_json(*r.diagnosis)) : Json(nullptr);
  json["device_calls"] = r.device_calls;
  json["device_calls_after_first_step"] = r.device_calls_after_first_step;
  json["reserve_plan"] = r.reserved ? Json::parse(memory::to_json(*r.reserved)) : Json(nullptr);
  json["checkpoint"] = r.checkpoint.empty() ? Json() : Json(r.checkpoint);
  json["trace"] = r.trace.empty() ? Json(nullptr) : Json(r.trace);
  json["trace_problem"] = r.trace_problem.empty() ? Json(nullptr) : Json(r.trace_problem);
  json["stopped"] = r.stopped;
  json["data"] = s.data;
  json["model"] = s.model;
  json["batch"] = s.batch;
  json["lr"] = train::scaling_policy(s).lr(s.batch);
  json["lr_policy"] = s.lr_policy;
  json["reference_batch"] = s.reference_batch > 0 ? Json(s.reference_batch) : Json();
  json["micro_batch"] = s.micro_batch > 0 ? s.micro_batch : s.batch;
  json["quantum"] = s.quantum;
  json["bn_mode"] = s.bn_mode;
  json["bn_momentum"] = s.bn_momentum;
  json["seed"] = s.seed;
  return json;
}

void print_result(const train::TrainResult& r, std::FILE* to) {
  std::fprintf(to, "%s after %s, %.1f s of training, %.0f samples/s\n", r.stopped ? "stopped" : "done",
               counted(r.steps, "step").c_str(), r.train_seconds, r.samples_per_second);
  if (r.validation) {
    std::fprintf(to, "validation accuracy %s, loss %.4f%s\n", percent(r.validation->accuracy).c_str(),
                 r.validation->loss, r.stopped ? concat(" (after epoch ", r.epochs, ")").c_str() : "");
  }
  if (r.test) std::fprintf(to, "test accuracy %s, loss %.4f\n", percent(r.test->accuracy).c_str(), r.test->loss);
  if (r.diverged) std::fprintf(to, "diverged: the loss is no finite number\n");
  if (r.diagnosis) std::fprintf(to, "diagnosis: %s\n", r.diagnosis->text.c_str());
  std::fprintf(to, "\n%s", train::to_string(r.memory).c_str());
  if (r.reserved) {
    std::fprintf(to, "\n%s\ndevice calls of the training: %s\n", memory::to_string(*r.reserved).c_str(),
                 format_count(r.device_calls).c_str());
  }
  if (!r.checkpoint.empty()) std::fprintf(to, "\ncheckpoint %s\n", r.checkpoint.c_str());
  if (!r.trace.empty()) {
    std::fprintf(to, "memory trace %s%s\n", r.trace.c_str(), r.trace_problem.empty() ? "" : " ends early");
  }
}

// The verdict and what would have fitted: on stderr, as the last line of --json, and in the run folder as oom.json.
void explain_failure(memory::OutOfMemoryInfo info, train::PlanSettings plan, const TrainOptions& o,
                     Progress& progress) {
  std::uint64_t& cap = plan.run.train.memory_cap;
  if (parse_device(plan.run.train.device) == kCpu) {
    if (cap == 0) cap = info.capacity + memory::io_allocator().ledger().reserved;
    train::advise(info, plan, plan.run.train.policy,
                  [&](const std::string& trying) { progress.message("trying dry: " + trying); });
  } else {
    info.advice_note = "none: dry runs are of the CPU's allocations";
  }
  std::fprintf(stderr, "\n%s\n", memory::report(info).c_str());
  const std::string json = memory::to_json(info);
  const std::string& out = plan.run.train.out;
  if (!out.empty()) {
    try {
      write_file_atomically(out + "/oom.json", json + "\n");
      progress.message("the verdict is in " + out + "/oom.json");
    } catch (const Error& error) {  // the failure itself is what must be reported
      progress.warning(error.what());
    }
  }
  if (o.json) print_json({{"error", "out of memory"}, {"oom", nlohmann::ordered_json::parse(json)}});
}

// What differs from the usual: "policy bfc, workspace cap 8.00 MiB".
std::string memory_text(const TrainSettings& s) {
  std::string out;
  auto add = [&out](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  if (s.policy != "native") add("policy " + s.policy);
  if (!s.alloc_conf.empty()) add(s.alloc_conf);
  if (s.workspace_cap > 0) add("workspace cap " + format_bytes(s.workspace_cap));
  if (!s.huge_pages) add("no huge pages");
  if (!s.reserve_plan.empty()) add("reserve plan " + s.reserve_plan);
  return out;
}

// --effective-batch under a cap: the largest micro-batches that fit, found dry.
void choose_micro_batch(TrainSettings& settings, const train::TrainParts& parts, Progress& progress) {
  train::PlanSettings plan = {.run = train::rehearsal_of(settings, parts),
                              .allocator = memory::parse_allocator_settings(settings.alloc_conf),
                              .policy = memory::policy_named(settings.policy)};
  const train::FittingMicroBatch choice = train::choose_micro_batch(plan);
  if (choice.micro_batch == 0) {
    LIMPID_CHECK(choice.why, InternalError, "[train] a dry run that does not fit says why");
    memory::OutOfMemoryError error(*choice.why);
    error.add_context(concat("--effective-batch ", settings.batch, " in --memory-cap ", format_bytes(settings.memory_cap),
                             ": no micro-batch fits (", choice.tried, " dry runs); the last one: "));
    throw error;
  }
  if (choice.below_batch_norm) {
    progress.warning(concat("no micro-batch of ", train::kSmallBatchNorm, " samples or more fits into ",
                            format_bytes(settings.memory_cap), ": batch norm's statistics will be noisy"));
  }
  settings.micro_batch = plan.run.train.micro_batch;
  const train::MemoryReport& peak = choice.at->run.memory;
  progress.message(concat("micro  ", counted(static_cast<std::int64_t>(choice.sizes.size()), "part"), " of at most ",
                          choice.micro_batch, " samples: predicted peak ", format_bytes(peak.reserved),
                          " of ", format_bytes(settings.memory_cap), " (", choice.tried, " dry runs)"));
}

int run(TrainOptions& o) {
  TrainSettings settings = final_settings(o);
  Progress progress(o.quiet);
  LIMPID_CHECK(!o.overwrite || !settings.out.empty(), ArgumentError, "--overwrite needs --out, the folder of the run");
  // What can be seen of the folder is looked at before the data is loaded.
  if (settings.out.empty()) {
    progress.message("there is no --out: nothing of this run will be kept");
  } else if (o.resume) {
    train::RunFolder::lock(settings.out);
  } else {
    train::RunFolder::check_new(settings.out, o.overwrite);
  }

  train::apply_memory_settings(settings);
  train::TrainParts parts = train::make_parts(settings, data_search_paths());
  for (const data::SkippedFile& file : parts.skipped)
    progress.message(concat("skipped ", file.path, ": ", file.reason));
  for (const std::string& warning : parts.warnings) progress.warning(warning);
  settings.init_batch = parts.init_batch, settings.init_lr = parts.init_lr;
  if (!o.resume && o.effective_batch->count() > 0 && o.micro_batch->count() == 0 && settings.memory_cap > 0) {
    LIMPID_CHECK(parse_device(settings.device) == kCpu, ArgumentError,
                 "--effective-batch with --memory-cap is cut by dry runs of the CPU's allocations, the device is ", settings.device,
                 ": give --micro-batch");
    choose_micro_batch(settings, parts, progress);
  }
  progress.message(concat("data   ", settings.data, " (", parts.location, "): ", format_count(parts.training->size()),
                          " training, ", format_count(parts.validation ? parts.validation->size() : 0), " validation, ",
                          format_count(parts.test ? parts.test->size() : 0), " test samples of ", parts.card.input));
  train::check_scaled_batch(settings, parts.training->size());
  const train::ScalingPolicy policy = train::scaling_policy(settings);
  progress.message(concat("model  ", settings.model, ", ", format_count(parts.model->num_parameters()), " parameters; ",
                          settings.optimizer, ", lr ", policy.lr(settings.batch), ", batch ", settings.batch));
  if (settings.reference_batch > 0) progress.message("policy " + policy.describe());
  for (const std::string& warning : train::rate_warnings(settings)) progress.warning(warning);
  if (const std::string text = memory_text(settings); !text.empty()) progress.message("memory " + text);
  const train::BatchNormAdvice norm =
      train::batch_norm_advice(settings, *parts.model, parts.card.input, parts.training->size());
  LIMPID_CHECK(norm.error.empty(), ArgumentError, norm.error);
  if (!norm.warning.empty()) progress.warning(norm.warning);
  if (!norm.cost.empty()) progress.message("norm   " + norm.cost);
  const train::PlanSettings plan = {.run = train::rehearsal_of(settings, parts),
                                    .allocator = memory::parse_allocator_settings(settings.alloc_conf),
                                    .policy = memory::policy_named(settings.policy)};
  train::TrainResult result;
  try {
    result = under_memory_cap(settings.memory_cap, true, [&] {
      const train::Start start = o.resume      ? train::Start::resume
                                 : o.overwrite ? train::Start::overwrite
                                               : train::Start::fresh;
      train::Trainer trainer(settings, std::move(parts), start, &progress);
      return trainer.run(&stop_on_signals());
    });
  } catch (const memory::OutOfMemoryError& error) {
    explain_failure(error.info(), plan, o, progress);
    throw;
  }
  if (!settings.out.empty()) {
    try {
      write_report(settings.out, settings.out + "/report.html");
    } catch (const Error& error) {  // the run itself is whole
      progress.warning(concat("there is no report of the run: ", error.what()));
    }
  }
  if (result.reserved && result.device_calls > 0) {
    progress.warning(concat("the reserve plan did not suffice: the steps made ", result.device_calls,
                            " device calls; it is of other steps than those of this run, or of another size"));
  }
  if (!result.trace_problem.empty()) {  // the run itself is whole
    progress.warning(concat("the memory trace ends early, at its last whole chunk: ", result.trace_problem));
  }
  if (settings.out.empty()) {
    progress.message("nothing was kept: there is no --out");
  } else if (result.stopped) {
    progress.message("stopped; go on with: limpid train --resume --out " + settings.out);
  }
  if (!o.json || !o.quiet) print_result(result, o.json ? stderr : stdout);
  if (o.json) print_json(result_json(result, settings));
  return result.stopped ? 128 + stop_signal() : kOk;
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
      "  limpid train --resume --out run --epochs 6\n"
      "  limpid train --model lenet --policy expandable --reserve-plan dry --workspace-cap 4MiB\n"
      "  limpid train --model lenet --memory-cap 256MiB --retain 128MiB --alloc-conf role_pools:[param+optimizer]\n"
      "  limpid train --model resnet9 --effective-batch 256 --memory-cap 512MiB --on-oom retry\n"
      "  limpid train --data folder --data-dir photos --input 3x64x64 --model resnet9 --augment\n"
      "  limpid train --data cifar10 --model resnet20 --optimizer sgd --lr 0.1 --momentum 0.9 --weight-decay 1e-4 \\\n"
      "               --schedule cosine --warmup 200 --augment --epochs 30");
  sub->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace limpid::cli
