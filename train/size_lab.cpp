#include <limpid/train/size_lab.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/gemm.h>
#include <limpid/tensor/cpu/loop.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/random.h>
#include <limpid/train/machine.h>

namespace limpid::train {
namespace {

constexpr std::int64_t kLargestSize = 4096;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One operation at one size.
struct Candidate {
  std::function<Tensor()> run;
  cpu::TaskList tasks;
  double units = 0;  // of what the cost is told for
};
using Make = std::function<Candidate(std::int64_t size)>;

// ---- the operations. Shapes are small enough for a laptop's cache, so that the arithmetic is what counts.
constexpr std::int64_t kSide = 96;       // of the products
constexpr std::int64_t kFeatures = 256;  // of the linear layer
constexpr std::int64_t kImage = 16, kMaps = 32;
constexpr std::int64_t kElements = cpu::kGrain;  // of a sample of relu: one task
constexpr std::int64_t kRows = 128, kImages = 8;  // where the channels vary

Candidate matmul_at(std::int64_t n) {
  const Tensor a = randn({n, kSide, kSide}), b = randn({n, kSide, kSide});
  const cpu::GemmDesc desc = {.m = kSide, .n = kSide, .k = kSide, .a_row = kSide, .b_row = kSide, .c_row = kSide, .batch = n,
                              .a_batch = kSide * kSide, .b_batch = kSide * kSide, .c_batch = kSide * kSide};
  return {[a, b] { return matmul(a, b); }, cpu::gemm_tasks(desc, sizeof(float)), static_cast<double>(n)};
}

Candidate linear_of(std::int64_t rows, std::int64_t in, std::int64_t out) {
  const Tensor x = randn({rows, in}), w = randn({out, in}), bias = randn({out});
  const cpu::GemmDesc desc = {.m = rows, .n = out, .k = in, .a_row = in, .b_row = 1, .b_col = in, .c_row = out};
  Candidate c{[x, w, bias] { return linear(x, w, bias); }, cpu::gemm_tasks(desc, sizeof(float)), 0};
  c.units = c.tasks.useful;
  return c;
}

Candidate conv_of(std::int64_t images, std::int64_t channels) {
  const Tensor x = randn({images, channels, kImage, kImage}).contiguous(MemoryFormat::channels_last);
  const Tensor w = randn({channels, channels, 3, 3}), bias = randn({channels});
  const cpu::ConvDesc desc = {.n = images, .c = channels, .h = kImage, .w = kImage, .k = channels, .r = 3, .s = 3,
                              .pad_h = 1, .pad_w = 1};
  const cpu::ConvPlan plan = cpu::plan_conv2d(cpu::ConvPass::forward, desc, sizeof(float));
  Candidate c{[x, w, bias] { return conv2d(x, w, bias, {.padding = 1}); },
              cpu::conv2d_forward_tasks(desc, plan, sizeof(float)), 0};
  c.units = c.tasks.useful;
  return c;
}

cpu::TaskList elementwise_tasks(std::int64_t elements, std::int64_t grain) {
  cpu::TaskList list;
  list.useful = static_cast<double>(elements);
  for (std::int64_t at = 0; at < elements; at += grain)
    list.tasks.push_back(static_cast<double>(std::min(grain, elements - at)));
  return list;
}

Candidate per_sample(Candidate candidate, std::int64_t samples) {
  candidate.units = static_cast<double>(samples);
  return candidate;
}

// ---- measuring
double seconds_of(const Candidate& c, std::int64_t calls) {
  const double start = now_seconds();
  for (std::int64_t i = 0; i < calls; i++) c.run();
  return (now_seconds() - start) / static_cast<double>(calls);
}

// As many calls as take `least` seconds, found with the first size.
std::int64_t calls_for(const Candidate& c, double least) {
  seconds_of(c, 1);  // first touches
  const double one = std::min(seconds_of(c, 1), seconds_of(c, 1));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(least / std::max(one, 1e-9))), 1, 100000);
}

std::int64_t reference_of(std::int64_t size, const std::vector<std::int64_t>& sizes) {
  std::int64_t best = 0;
  for (std::int64_t other : sizes) {
    if (other % 16 == 0 && (best == 0 || std::abs(other - size) < std::abs(best - size))) best = other;
  }
  return best > 0 ? best : sizes.back();
}

SizeExperiment run_experiment(const SizeLabSettings& s, SizeExperiment experiment, const std::vector<std::int64_t>& sizes,
                              std::int64_t threads, const Make& make) {
  std::vector<Candidate> candidates;
  for (std::int64_t size : sizes) candidates.push_back(make(size));
  const std::int64_t calls = calls_for(candidates.front(), s.least_seconds);
  std::vector<std::vector<double>> seconds(sizes.size());
  for (std::int64_t round = -s.warmup; round < s.rounds; round++) {
    for (std::size_t i = 0; i < sizes.size(); i++) {
      const double t = seconds_of(candidates[i], calls);
      if (round >= 0) seconds[i].push_back(t);
    }
  }
  for (std::size_t i = 0; i < sizes.size(); i++) {
    SizeRow row;
    row.size = sizes[i];
    row.seconds = spread_of(seconds[i]);
    row.per_unit = row.seconds.median / candidates[i].units;
    row.predicted = task_cost(candidates[i].tasks, threads);
    row.reference = reference_of(row.size, sizes);
    const auto at = static_cast<std::size_t>(std::find(sizes.begin(), sizes.end(), row.reference) - sizes.begin());
    row.predicted_ratio = row.predicted / task_cost(candidates[at].tasks, threads);
    std::vector<double> ratios;
    for (std::size_t r = 0; r < seconds[i].size(); r++)
      ratios.push_back(seconds[i][r] / candidates[i].units / (seconds[at][r] / candidates[at].units));
    row.ratio = spread_of(std::move(ratios));
    row.verdict = judge(row);
    experiment.rows.push_back(row);
  }
  return experiment;
}

}  // namespace

double task_cost(const cpu::TaskList& list, std::int64_t threads) {
  LIMPID_CHECK(threads >= 1 && !list.tasks.empty() && list.useful > 0, ArgumentError, "[task_cost] wants at least 1 thread and 1 task, got ",
               threads, " and ", list.tasks.size());
  if (list.serial) return std::accumulate(list.tasks.begin(), list.tasks.end(), 0.0) / list.useful * static_cast<double>(threads);
  std::multiset<double> free_at;  // when each thread has nothing to do
  for (std::int64_t t = 0; t < threads; t++) free_at.insert(0);
  for (double work : list.tasks) {
    const double start = *free_at.begin();
    free_at.erase(free_at.begin());
    free_at.insert(start + work);
  }
  return *free_at.rbegin() * static_cast<double>(threads) / list.useful;
}

double waves(std::int64_t tiles, std::int64_t processors) {
  LIMPID_CHECK(tiles >= 1 && processors >= 1, ArgumentError, "[waves] wants at least 1 tile and 1 processor, got ", tiles,
               " and ", processors);
  return static_cast<double>((tiles + processors - 1) / processors * processors) / static_cast<double>(tiles);
}

double card_cost(std::int64_t batch, std::int64_t processors) {
  constexpr std::int64_t kTiles = (1024 / 128) * (1024 / 128);
  return waves(batch * kTiles, processors);
}

double SizeRow::noise() const {
  return 1.57 * (ratio.high - ratio.low) / std::sqrt(static_cast<double>(std::max<std::int64_t>(ratio.count, 1)));
}

Verdict judge(const SizeRow& row) {
  if (row.size == row.reference) return Verdict::reference;
  const double difference = std::abs(row.ratio.median - row.predicted_ratio);
  if (difference > std::max(kAgree, row.noise())) return Verdict::disagree;
  return row.noise() > kAgree ? Verdict::noisy : Verdict::agree;
}

std::int64_t SizeLab::count(Verdict verdict) const {
  std::int64_t n = 0;
  for (const SizeExperiment& e : experiments)
    n += std::count_if(e.rows.begin(), e.rows.end(), [&](const SizeRow& r) { return r.verdict == verdict; });
  return n;
}

SizeLab size_lab(const SizeLabSettings& s, const std::function<void(const std::string&)>& progress) {
  LIMPID_CHECK(!s.batches.empty(), ArgumentError, "[size_lab] there are no sizes");
  LIMPID_CHECK(s.rounds >= 1 && s.rounds <= kMostTimings && s.warmup >= 0 && s.warmup <= kMostTimings, ArgumentError,
               "[size_lab] 1 to ", kMostTimings, " rounds and 0 to ", kMostTimings, " to warm up, got ", s.rounds,
               " and ", s.warmup);
  for (const std::vector<std::int64_t>& sizes : {s.batches, s.channels}) {
    for (std::int64_t size : sizes) {
      LIMPID_CHECK(size >= 1 && size <= kLargestSize, ArgumentError, "[size_lab] sizes are from 1 to ", kLargestSize, ", got ",
                   size);
    }
  }
  if (s.threads > 0) cpu::set_num_threads(static_cast<int>(s.threads));
  NoGradGuard no_grad;
  SizeLab lab;
  lab.threads = cpu::num_threads();
  lab.isa = machine_info().isa;
  lab.panel = cpu::panel_columns(sizeof(float));
  auto sorted = [](std::set<std::int64_t> sizes) { return std::vector<std::int64_t>(sizes.begin(), sizes.end()); };
  const std::vector<std::int64_t> products = sorted({s.batches.begin(), s.batches.end()});
  std::set<std::int64_t> more(s.batches.begin(), s.batches.end());
  std::vector<std::int64_t> added;
  for (std::int64_t size : {60, 62})
    if (more.insert(size).second) added.push_back(size);
  const std::vector<std::int64_t> layers = sorted(more), channels = sorted({s.channels.begin(), s.channels.end()});
  auto add = [&](const char* op, const std::string& shape, const char* unit, const std::vector<std::int64_t>& sizes,
                 const Make& make) {
    if (progress) progress(concat(op, " ", shape));
    SizeExperiment experiment = {.op = op, .shape = shape, .unit = unit};
    if (&sizes == &layers) experiment.added = added;
    lab.experiments.push_back(run_experiment(s, std::move(experiment), sizes, lab.threads, make));
  };
  add("matmul", concat("[n,", kSide, ",", kSide, "] x [n,", kSide, ",", kSide, "]"), "sample", products, matmul_at);
  add("linear", concat("[n,", kFeatures, "] -> [n,", kFeatures, "]"), "sample", layers,
      [](std::int64_t n) { return per_sample(linear_of(n, kFeatures, kFeatures), n); });
  add("conv2d", concat("3x3 on [n,", kMaps, ",", kImage, ",", kImage, "]"), "sample", layers,
      [](std::int64_t n) { return per_sample(conv_of(n, kMaps), n); });
  add("relu", concat("[n,", kElements, "]"), "sample", layers, [](std::int64_t n) {
    const Tensor x = randn({n, kElements});
    return Candidate{[x] { return relu(x); }, elementwise_tasks(n * kElements, cpu::kGrain), static_cast<double>(n)};
  });
  add("dropout", concat("[n,", cpu::kGrainCostly, "]"), "sample", layers, [](std::int64_t n) {
    const Tensor x = randn({n, cpu::kGrainCostly});
    return Candidate{[x] { return dropout(x, 0.5, 1); }, elementwise_tasks(n * cpu::kGrainCostly, cpu::kGrainCostly),
                     static_cast<double>(n)};
  });
  if (channels.empty()) return lab;
  add("conv2d", concat("3x3 on [", kImages, ",c,", kImage, ",", kImage, "], c to c channels"), "multiply-add", channels,
      [](std::int64_t c) { return conv_of(kImages, c); });
  add("linear", concat("[", kRows, ",c] -> [", kRows, ",c]"), "multiply-add", channels,
      [](std::int64_t c) { return linear_of(kRows, c, c); });
  return lab;
}

}  // namespace limpid::train
