// limpid sweep: one model at many batch sizes, or single operations at many sizes.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/train/sweep.h>

#include "commands.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct SweepOptions {
  train::SweepSettings sweep;
  std::string batches = "16:256:x2", input, memory_cap, out;
  bool json = false, quiet = false;
};

int run(SweepOptions& o) {
  train::TrainSettings& t = o.sweep.train;
  o.sweep.batches = train::parse_batches(o.batches);
  t.input = parse_input(o.input.empty() ? usual_input(t.model) : o.input);
  if (t.classes == 0) t.classes = 10;
  if (!o.memory_cap.empty()) t.memory_cap = parse_bytes(o.memory_cap, "--memory-cap");
  LIMPID_CHECK(o.sweep.steps >= 20, ArgumentError, "--steps must be at least 20, got ", o.sweep.steps,
               ": quartiles of fewer say little");
  const bool csv = o.out.ends_with(".csv");
  LIMPID_CHECK(o.out.empty() || csv, ArgumentError, "-o writes a .csv file, got ", o.out);
  const train::Sweep result = train::sweep(o.sweep, [&](std::int64_t batch) {
    if (!o.quiet) std::fprintf(stderr, "batch %lld\n", static_cast<long long>(batch));
  });
  std::FILE* to = o.json ? stderr : stdout;
  std::fprintf(to, "%s", train::to_string(result).c_str());
  if (csv) write_file_atomically(o.out, train::to_csv(result));
  if (!o.out.empty()) std::fprintf(to, "wrote %s\n", o.out.c_str());
  if (o.json) print_json(nlohmann::ordered_json::parse(train::to_json(result)));
  return kOk;
}

}  // namespace

void add_sweep(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("sweep", "One model at many batch sizes: time, throughput, memory, the knee");
  auto o = std::make_shared<SweepOptions>();
  train::TrainSettings& t = o->sweep.train;
  sub->add_option("--model", t.model, "mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, resnet50")->capture_default_str();
  sub->add_option("--batches", o->batches, "Sizes and ranges: 16:256:x2,31,33 or 16:64:16")->capture_default_str();
  sub->add_option("--input", o->input, "One sample, CxHxW; default: what the model is usually fed with");
  add_integer(*sub, "--classes", t.classes, "Outputs (0 = 10)");
  sub->add_option("--optimizer", t.optimizer, "adam, adamw, sgd, rmsprop, lamb or lars")->capture_default_str();
  sub->add_option("--amp", t.amp, "Precision of the forward pass: fp32, bf16 or fp16")->capture_default_str();
  add_integer(*sub, "--micro-batch", t.micro_batch, "Most samples computed at once (0 = the whole batch)");
  add_integer(*sub, "--threads", t.threads, "Compute threads (0 = all cores)");
  sub->add_option("--memory-cap", o->memory_cap, "Memory for computing, e.g. 2GiB; a batch that does not fit is a row that says so");
  add_integer(*sub, "--steps", o->sweep.steps, "Timed steps a size, 20 or more")->capture_default_str();
  add_integer(*sub, "--warmup-steps", o->sweep.warmup, "Steps before them")->capture_default_str();
  sub->add_option("-o,--out", o->out, "A .csv file with the rows");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->add_flag("--quiet", o->quiet, "No progress on stderr");
  sub->footer(
      "The samples lie in memory before the clock starts: the loader has no part in these times.\n"
      "Examples:\n"
      "  limpid sweep --model resnet9 --batches 16:256:x2,31,33\n"
      "  limpid sweep --model lenet --batches 8:512:x2 --json -o sweep.csv");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
