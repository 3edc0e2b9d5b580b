// limpid plan: what a training run will take, without running it.
#include <charconv>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/memory/policies.h>
#include <limpid/tensor/device.h>
#include <limpid/train/batch_finders.h>
#include <limpid/train/plan.h>

#include "commands.h"
#include "common.h"
#include "progress.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::int64_t effective_batch = 0, micro_batch = 0;
  train::PlanSettings settings;
  std::string input, capacity, card, other = "600MiB", policy = "native", alloc_conf, curve, workspace_cap;
  std::string data, device = "dry:cpu";
  bool find = false, verify = false, json = false, quiet = false;
  // Which were given: contradictions are refused, never resolved in silence.
  CLI::Option *given_data, *given_input, *given_classes, *given_samples, *given_validation, *given_test;
  CLI::Option *given_card, *given_other, *given_effective_batch;
};

// The sizes of the data sets that `limpid train` knows, and the bytes they keep in memory.
struct KnownData {
  const char* name;
  std::vector<std::int64_t> input;
  std::int64_t train, test;
};
const KnownData* known_data(const std::string& name) {
  static const KnownData kKnown[] = {{"fashion-mnist", {1, 28, 28}, 60000, 10000},
                                     {"mnist", {1, 28, 28}, 60000, 10000},
                                     {"cifar10", {3, 32, 32}, 50000, 10000}};
  for (const KnownData& known : kKnown)
    if (name == known.name) return &known;
  LIMPID_THROW(ArgumentError, "--data is fashion-mnist, mnist or cifar10, got ", name,
               "; for others give --input, --classes and --samples");
}

std::pair<std::int64_t, std::int64_t> parse_range(const std::string& text) {
  std::int64_t first = 0, last = 0;
  const char* end = text.data() + text.size();
  auto [colon, error] = std::from_chars(text.data(), end, first);
  bool good = error == std::errc() && colon != end && *colon == ':';
  if (good) {
    auto [rest, second] = std::from_chars(colon + 1, end, last);
    good = second == std::errc() && rest == end;
  }
  LIMPID_CHECK(good && first >= 1 && first <= last, ArgumentError,
               "--curve is FIRST:LAST with 1 <= FIRST <= LAST, got ", text);
  constexpr std::int64_t kMostPoints = 65536;
  LIMPID_CHECK(last - first < kMostPoints, ArgumentError, "--curve has at most ", kMostPoints, " batch sizes, got ", text);
  return {first, last};
}

void refuse_contradictions(const PlanOptions& o) {
  for (const CLI::Option* fixed : {o.given_input, o.given_classes, o.given_samples, o.given_validation, o.given_test}) {
    refuse_both(o.given_data, fixed, "the data set has its own");
  }
  LIMPID_CHECK(!o.settings.run.train.drop_last || o.given_data->count() > 0 || o.settings.run.samples > 0, ArgumentError,
               "--drop-last needs --samples or --data: without them every batch is full");
  refuse_without(o.given_other, o.given_card, "it is taken off a card's memory");
  LIMPID_CHECK(parse_device(o.device).is_dry(), ArgumentError,
               "--device of a plan is dry:cpu or dry:cuda, since nothing is computed; got ", o.device);
}

train::PlanSettings settings_of(const PlanOptions& o) {
  refuse_contradictions(o);
  train::PlanSettings s = o.settings;
  train::RehearsalSettings& run = s.run;
  if (!o.data.empty()) {
    const KnownData* known = known_data(o.data);
    const std::int64_t bytes = known->input[0] * known->input[1] * known->input[2];
    run.train.input = known->input;
    run.train.classes = 10;
    run.validation = static_cast<std::int64_t>(run.train.val_fraction * static_cast<double>(known->train) + 0.5);
    run.samples = known->train - run.validation;
    run.test = known->test;
    run.resident = {static_cast<std::uint64_t>(known->train * bytes), static_cast<std::uint64_t>(known->test * bytes)};
  }
  if (!o.input.empty()) run.train.input = parse_input(o.input);
  if (run.train.input.empty()) run.train.input = parse_input(usual_input(run.train.model));
  if (run.train.classes == 0) run.train.classes = 10;
  if (!o.workspace_cap.empty()) run.train.workspace_cap = parse_bytes(o.workspace_cap, "--workspace-cap");
  s.device = parse_device(o.device);
  s.policy = memory::policy_named(o.policy);
  s.allocator = memory::parse_allocator_settings(o.alloc_conf);
  train::check(run);
  return s;
}

// Where the capacity comes from, for people: a card's size less what is not ours.
struct Room {
  std::uint64_t capacity = 0;  // 0: unlimited
  std::uint64_t card = 0, other = 0;
};
Room room_of(const PlanOptions& o) {
  Room room;
  if (!o.capacity.empty()) room.capacity = parse_bytes(o.capacity, "--capacity");
  if (o.card.empty()) return room;
  room.card = parse_bytes(o.card, "--card");
  room.other = parse_bytes(o.other, "--other");
  LIMPID_CHECK(room.other < room.card, ArgumentError, "--other ", o.other, " leaves nothing of --card ", o.card);
  room.capacity = room.card - room.other;
  return room;
}

int run(const PlanOptions& o) {
  train::PlanSettings settings = settings_of(o);
  const Room room = room_of(o);
  if (!o.curve.empty()) parse_range(o.curve);  // refused before any work
  LIMPID_CHECK(o.effective_batch == 0 || (!o.find && o.curve.empty() && settings.run.accumulate == 1), ArgumentError,
               "--effective-batch fixes the samples a step: --find, --curve and --accumulate ask for others");
  LIMPID_CHECK(o.given_effective_batch->empty() || o.effective_batch > 0, ArgumentError,
               "--effective-batch must be at least 1, got ", o.effective_batch);
  LIMPID_CHECK(o.micro_batch == 0 || o.effective_batch > 0, ArgumentError,
               "--micro-batch cuts an effective batch: give --effective-batch too");
  LIMPID_CHECK(!o.find || room.capacity > 0, ArgumentError, "--find needs --capacity or --card");
  settings.run.train.memory_cap = room.capacity;
  const train::TrainSettings& t = settings.run.train;
  std::FILE* text = o.json ? stderr : stdout;
  Progress progress(o.quiet);
  std::optional<train::FittingMicroBatch> choice;
  if (o.effective_batch > 0) {
    settings.run.train.batch = o.effective_batch;
    settings.run.train.micro_batch = o.micro_batch;
    if (o.micro_batch == 0 && room.capacity > 0) choice = train::choose_micro_batch(settings);
    train::check(settings.run);
  }
  Json json;
  json["model"] = t.model;
  json["device"] = o.device;
  json["input"] = t.input;
  json["classes"] = t.classes;
  json["batch"] = t.batch;
  json["accumulate"] = settings.run.accumulate;
  json["optimizer"] = t.optimizer;
  json["policy"] = o.policy;
  json["capacity"] = room.capacity ? Json(room.capacity) : Json(nullptr);

  std::fprintf(text, "%s, input %s, %lld classes, %s, batch %lld%s\n", t.model.c_str(),
               to_string(Shape(t.input)).c_str(), static_cast<long long>(t.classes), t.optimizer.c_str(),
               static_cast<long long>(t.batch),
               settings.run.accumulate > 1 ? concat(" x ", settings.run.accumulate, " micro-batches").c_str() : "");
  if (o.effective_batch > 0) {
    const std::int64_t micro = t.micro_batch > 0 ? t.micro_batch : t.batch;
    const std::vector<std::int64_t> sizes = train::micro_batches_of(t, t.batch);
    if (choice && choice->micro_batch == 0) {
      std::fprintf(text, "no micro-batch fits (%lld dry runs); in one part:\n", static_cast<long long>(choice->tried));
    } else {
      std::fprintf(text, "computed in %s of at most %lld samples%s\n", counted(static_cast<std::int64_t>(sizes.size()), "part").c_str(),
                 static_cast<long long>(micro), choice ? concat(": the fewest that fit (", choice->tried, " dry runs)").c_str() : "");
    }
    json["micro_batch"] = micro;
    json["micro_batches"] = sizes;
  }
  if (room.card) {
    std::fprintf(text, "card %s = context and other programs %s + capacity %s\n", format_bytes(room.card).c_str(),
                 format_bytes(room.other).c_str(), format_bytes(room.capacity).c_str());
    json["card"] = room.card;
    json["other"] = room.other;
  }

  const train::Prediction p = train::predict(settings);
  std::fprintf(text, "\n%s", train::to_string(p).c_str());
  json["prediction"] = Json::parse(train::to_json(p));

  bool agrees = true, out_of_memory = !p.fits;
  if (o.verify) {
    progress.message("running the same steps for real");
    const train::Prediction m = train::measure(settings);
    out_of_memory = !m.fits;
    const std::uint64_t predicted[] = {p.run.memory.allocated, p.run.memory.reserved};
    const std::uint64_t measured[] = {m.run.memory.allocated, m.run.memory.reserved};
    agrees = m.fits == p.fits && predicted[0] == measured[0] && predicted[1] == measured[1];
    auto cell = [](bool fits, std::uint64_t n) {
      return fits ? format_count(static_cast<std::int64_t>(n)) : std::string("out of memory");
    };
    std::fprintf(text, "\n%-10s %16s %16s %12s\n", "bytes", "predicted", "measured", "difference");
    const char* names[] = {"allocated", "reserved"};
    for (int i = 0; i < 2; i++) {
      const auto difference = static_cast<std::int64_t>(predicted[i]) - static_cast<std::int64_t>(measured[i]);
      std::fprintf(text, "%-10s %16s %16s %12s\n", names[i], cell(p.fits, predicted[i]).c_str(),
                   cell(m.fits, measured[i]).c_str(), p.fits == m.fits ? format_count(difference).c_str() : "-");
    }
    if (p.fits && !m.fits) std::fprintf(text, "the real run: %s\n", memory::to_string(*m.oom).c_str());
    json["measured"] = Json::parse(train::to_json(m));
  }

  auto scanning = [&](std::int64_t batch, std::int64_t bound) {
    if ((bound - batch) % 64 == 0) progress.message(concat("scanning from ", bound, ": batch ", batch));
  };
  if (o.find) {
    const train::FinderTable table = train::compare_finders(settings, room.capacity, 1024, scanning);
    std::fprintf(text, "\n%s", train::to_string(table).c_str());
    json["find"] = Json::parse(train::to_json(table));
  } else if (room.capacity && o.effective_batch == 0) {
    const train::MaxBatch best = train::max_batch(settings, room.capacity, train::kLargestBatch, scanning);
    const auto largest = static_cast<long long>(best.batch), bound = static_cast<long long>(best.bound);
    if (best.batch == train::kLargestBatch) {
      std::fprintf(text, "\nLargest batch in %s: at least %lld\n", format_bytes(room.capacity).c_str(), largest);
    } else {
      std::fprintf(text,
                   "\nLargest batch in %s: %lld; every larger one up to %lld, where live bytes alone exceed it, fails "
                   "(%lld dry runs)\n",
                   format_bytes(room.capacity).c_str(), largest, bound, static_cast<long long>(best.runs));
    }
    json["max_batch"] = best.batch;
    json["max_batch_bound"] = best.bound;
    json["max_batch_runs"] = best.runs;
  }
  if (!o.curve.empty()) {
    const auto [first, last] = parse_range(o.curve);
    train::PlanSettings unlimited = settings;
    unlimited.run.train.memory_cap = 0;
    const train::Curve curve = train::plan_curve(unlimited, first, last, [&, last = last](std::int64_t batch) {
      if (batch % 64 == 0) progress.message(concat("curve: batch ", batch, " of ", last));
    });
    std::fprintf(text, "\n%s", train::to_string(curve).c_str());
    json["curve"] = Json::parse(train::to_json(curve));
  }
  if (o.json) std::printf("%s\n", json.dump().c_str());
  if (out_of_memory) return kOutOfMemory;
  return agrees ? kOk : kFailedCheck;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("plan", "What a training run will take, to the byte, without running it");
  auto o = std::make_shared<PlanOptions>();
  train::RehearsalSettings& r = o->settings.run;
  train::TrainSettings& t = r.train;
  sub->add_option("--model", t.model, "mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, resnet50")
      ->capture_default_str();
  add_fuse(*sub, t.fuse);
  add_integer(*sub, "--batch", t.batch, "Samples a step, or a micro-batch")->capture_default_str();
  o->given_input = sub->add_option("--input", o->input, "One sample, CxHxW; default: what the model is usually fed with");
  o->given_classes = add_integer(*sub, "--classes", t.classes, "Outputs (0 = 10)");
  sub->add_option("--optimizer", t.optimizer, "adam, adamw, sgd, rmsprop, lamb or lars")->capture_default_str();
  add_real(*sub, "--momentum", t.momentum, "Of sgd, rmsprop and lars: one more state");
  sub->add_option("--amp", t.amp, "Precision of the forward pass: fp32, bf16 or fp16")->capture_default_str();
  add_real(*sub, "--clip", t.clip, "Gradient clipping (0 = off)");
  CLI::Option* batch = sub->get_option("--batch");
  o->given_effective_batch = add_integer(*sub, "--effective-batch", o->effective_batch, "Samples a step, computed in micro-batches; with a capacity the largest that fit, as limpid train")
      ->excludes(batch);
  add_integer(*sub, "--micro-batch", o->micro_batch, "Most samples of the effective batch at once");
  add_integer(*sub, "--quantum", t.quantum, "Compute in pieces of this many samples, as limpid train");
  sub->add_option("--bn-mode", t.bn_mode, "Batch norm in micro-batches: micro, frozen or exact, as limpid train")->capture_default_str();
  add_integer(*sub, "--accumulate", r.accumulate, "Micro-batches of --batch samples a step")->capture_default_str();
  o->given_data =
      sub->add_option("--data", o->data, "fashion-mnist, mnist or cifar10: their sizes, halves and bytes in memory")
          ->group("Data");
  o->given_samples = add_integer(*sub, "--samples", r.samples, "Training samples of an epoch: fixes the short last batch (0 = none)")
      ->group("Data");
  o->given_validation = add_integer(*sub, "--val-samples", r.validation, "Validation samples, evaluated after each epoch")->group("Data");
  o->given_test = add_integer(*sub, "--test-samples", r.test, "Test samples: their loader has buffers too")->group("Data");
  sub->add_flag("--drop-last", t.drop_last, "Leave out the short last batch of an epoch")->group("Data");
  sub->add_flag("--checkpoints", r.checkpoints, "The run has a folder: a checkpoint after each epoch")->group("Data");
  add_integer(*sub, "--workers", t.workers, "Loader threads: 0 keeps one batch ready, others three")
      ->capture_default_str()
      ->group("Data");
  sub->add_option("--device", o->device, "Whose allocations are planned: dry:cpu or dry:cuda")->capture_default_str()->group("Memory");
  sub->add_option("--capacity", o->capacity, "Memory of the run, e.g. 8GiB, as limpid train --memory-cap")
      ->group("Memory");
  o->given_card = sub->add_option("--card", o->card, "Memory of a card, e.g. 24GiB; --other is taken off first")
      ->group("Memory")
      ->excludes("--capacity");
  o->given_other = sub->add_option("--other", o->other, "With --card: driver context and other programs")
      ->capture_default_str()
      ->group("Memory");
  sub->add_option("--policy", o->policy, "Allocation policy of the compute pool: native, expandable, stitch, bfc, ...")
      ->capture_default_str()
      ->group("Memory");
  sub->add_option("--alloc-conf", o->alloc_conf, "Its knobs, e.g. max_split_size_mb:64")->group("Memory");
  sub->add_option("--workspace-cap", o->workspace_cap, "Largest workspace of one kernel call, as limpid train")
      ->group("Memory");
  sub->add_option("--curve", o->curve, "FIRST:LAST: peaks for every batch size of the range")->group("Questions");
  sub->add_flag("--find", o->find, "Largest batch: six ways to find it, their trial runs and errors")
      ->group("Questions");
  sub->add_flag("--verify", o->verify, "Also run the same steps on the CPU (for dry:cuda on the GPU) and compare")->group("Questions");
  sub->add_flag("--quiet", o->quiet, "No progress on stderr");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Examples:\n"
      "  limpid plan --model resnet50 --batch 64 --input 3x224x224\n"
      "  limpid plan --model lenet --batch 128 --data fashion-mnist --capacity 256MiB --find\n"
      "  limpid plan --model resnet18 --batch 64 --card 24GiB --accumulate 4 --optimizer sgd --momentum 0.9\n"
      "  limpid plan --model resnet18 --effective-batch 256 --capacity 2GiB\n"
      "  limpid plan --model seed --batch 16 --curve 1:64\n"
      "  limpid plan --model lenet --batch 64 --workspace-cap 1MiB --verify");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
