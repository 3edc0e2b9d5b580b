// limpid check accumulation: is the gradient of an accumulated batch that of the batch, and if not, why?
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <limpid/data/sampler.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/replace_norm.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/random.h>
#include <limpid/train/batch_invariance.h>
#include <limpid/train/equivalence.h>

#include "check.h"
#include "common.h"

namespace limpid::cli {
namespace {

struct AccumulationOptions {
  std::string model = "lenet-bn", input, bn_mode = "micro", norm = "batch", dtype = "f32", loop;
  std::int64_t batch = 64, micro = 16, classes = 10, threads = 0, quantum = -1, steps = 10;
  std::uint64_t seed = 0;
  bool json = false;
};

DType dtype_named(const std::string& name) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16})
    if (name == to_string(dtype)) return dtype;
  LIMPID_THROW(ArgumentError, "--dtype is f64, f32, f16 or bf16, got ", name);
}

train::EquivalenceProblem problem_of(const AccumulationOptions& o) {
  auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    LIMPID_CHECK(value >= least, ArgumentError, name, " must be at least ", least, ", got ", value);
  };
  at_least("--batch", o.batch, 1);
  at_least("--micro", o.micro, 1);
  at_least("--classes", o.classes, 2);
  at_least("--threads", o.threads, 0);
  LIMPID_CHECK(o.micro <= o.batch, ArgumentError, "--micro ", o.micro, " is larger than --batch ", o.batch);
  LIMPID_CHECK(o.norm == "batch" || o.norm == "group" || o.norm == "layer", ArgumentError,
               "--norm is batch, group or layer, got ", o.norm);
  train::EquivalenceProblem p;
  p.micro_batches = data::micro_batch_sizes(o.batch, o.micro);
  p.batch_norm = train::batch_norm_mode_named(o.bn_mode);
  p.dtype = dtype_named(o.dtype);
  if (!o.loop.empty()) p.loop = train::loop_with(train::loop_bug_named(o.loop));
  const Shape input(parse_input(o.input.empty() ? usual_input(o.model) : o.input));
  p.model = [o, input] {
    const auto model = nn::make_model(o.model, {.input = input, .classes = o.classes, .seed = o.seed});
    if (o.norm != "batch") nn::replace_batch_norm(*model, o.norm == "group" ? nn::SampleNorm::group : nn::SampleNorm::layer);
    return model;
  };
  if (o.threads > 0) cpu::set_num_threads(static_cast<int>(o.threads));
  Generator generator(o.seed);
  Shape shape = input;
  shape.insert(0, o.batch);
  p.x = randn(shape, {}, generator);
  p.y = randint(0, o.classes, {o.batch}, {.dtype = DType::int64}, generator);
  return p;
}

// --quantum: whole steps, compared byte by byte. The cuts are the batch and its halves, down to the quantum.
int run_invariance(const AccumulationOptions& o, const train::EquivalenceProblem& p) {
  LIMPID_CHECK(o.dtype == "f32" && o.loop.empty(), ArgumentError,
               "--quantum compares the bits of limpid's own steps in f32: --dtype and --loop belong to the check without it");
  LIMPID_CHECK(o.quantum >= 0 && o.quantum <= o.batch, ArgumentError, "--quantum is 0 to --batch ", o.batch, ", got ", o.quantum);
  LIMPID_CHECK(o.steps >= 1, ArgumentError, "--steps must be at least 1, got ", o.steps);
  train::InvarianceProblem problem{.model = p.model, .x = p.x, .y = p.y, .micro_batches = {}, .steps = o.steps, .step = {}};
  problem.step.batch_norm = p.batch_norm;
  problem.step.quantum = o.quantum;
  const std::int64_t least = o.quantum > 0 ? o.quantum : std::max<std::int64_t>(o.batch / 8, 1);
  for (std::int64_t micro = o.batch; micro >= least; micro = micro % 2 == 0 ? micro / 2 : 0) {
    if (o.quantum > 0 && micro % o.quantum != 0) break;
    problem.micro_batches.push_back(micro);
  }
  LIMPID_CHECK(!problem.micro_batches.empty(), ArgumentError, "--batch ", o.batch, " is no multiple of --quantum ", o.quantum);
  if (o.threads > 0) problem.threads = {static_cast<int>(o.threads)};
  const train::InvarianceReport report = train::check_batch_invariance(problem);
  std::fprintf(o.json ? stderr : stdout, "%s: %s", o.model.c_str(), train::to_string(report).c_str());
  if (o.json) print_json(nlohmann::ordered_json::parse(train::to_json(report)));
  return report.equal ? kOk : kFailedCheck;
}

int run(const AccumulationOptions& o) {
  if (o.quantum >= 0) return run_invariance(o, problem_of(o));
  const train::EquivalenceReport report = train::check_accumulation(problem_of(o));
  std::FILE* text = o.json ? stderr : stdout;
  std::fprintf(text, "%s: %s", o.model.c_str(), train::to_string(report).c_str());
  if (o.json) print_json(nlohmann::ordered_json::parse(train::to_json(report)));
  return report.equal ? kOk : kFailedCheck;
}

}  // namespace

void add_check_accumulation(CLI::App& check, Action& action) {
  CLI::App* sub = check.add_subcommand("accumulation", "Is the gradient of k micro-batches that of the whole batch, and if not, why?");
  auto o = std::make_shared<AccumulationOptions>();
  sub->add_option("--model", o->model, "mlp, seed, lenet, lenet-bn, resnet9, resnet20, resnet18, resnet50")->capture_default_str();
  add_integer(*sub, "--batch", o->batch, "Samples of the effective batch")->capture_default_str();
  add_integer(*sub, "--micro", o->micro, "Most samples of a micro-batch")->capture_default_str();
  sub->add_option("--bn-mode", o->bn_mode, "Batch norm: micro, frozen or exact, as limpid train")->capture_default_str();
  sub->add_option("--norm", o->norm, "batch; group or layer: batch norm replaced by it")->capture_default_str();
  sub->add_option("--dtype", o->dtype, "Of the measurement beside the proof in f64: f32, f16, bf16; f64: the proof alone")
      ->capture_default_str();
  sub->add_option("--loop", o->loop, "A loop with a mistake: not-divided, mean-of-means, lost, no-offset or bf16-sums");
  add_integer(*sub, "--quantum", o->quantum,
              "Instead, Adam steps in pieces of this many samples: the same bits for every cut and for 1 and 2 threads? 0: not "
              "in pieces, to see the difference");
  add_integer(*sub, "--steps", o->steps, "With --quantum")->capture_default_str();
  sub->add_option("--input", o->input, "One sample, CxHxW; default: what the model is usually fed with");
  add_integer(*sub, "--classes", o->classes, "Outputs")->capture_default_str();
  add_integer(*sub, "--seed", o->seed, "Of the weights and of the samples, which are random")->capture_default_str();
  add_integer(*sub, "--threads", o->threads, "Compute threads (0 = all cores)");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Examples:\n"
      "  limpid check accumulation --model lenet --batch 64 --micro 16\n"
      "  limpid check accumulation --model lenet-bn --batch 64 --micro 8 --bn-mode exact\n"
      "  limpid check accumulation --model lenet --batch 60 --micro 16 --loop mean-of-means\n"
      "  limpid check accumulation --model lenet --batch 64 --quantum 8\n"
      "In f64 the arithmetic is as good as exact, so the gradients must be equal to 1e-12: a proof. Exit code 0: equal\n"
      "within the bounds, 1: not, and the causes are listed with what each of them changes.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
