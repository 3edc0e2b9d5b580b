#include <limpid/train/sweep.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <memory>
#include <set>

#include <limpid/base/format.h>
#include <limpid/base/scope.h>
#include <limpid/memory/allocator.h>
#include <limpid/memory/host_memory.h>
#include <limpid/optim/grad_scaler.h>
#include <limpid/tensor/cpu/cpu_time.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/random.h>
#include <limpid/train/amp.h>
#include <limpid/train/machine.h>
#include <limpid/train/parts.h>
#include <limpid/train/step.h>

namespace limpid::train {
namespace {

constexpr std::int64_t kLargestSize = 1 << 20;
constexpr std::size_t kMostSizes = 1000;

std::int64_t parse_size(const std::string& word, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  LIMPID_CHECK(error == std::errc() && end == word.data() + word.size() && value >= 1 && value <= kLargestSize, ArgumentError,
               "sizes are whole numbers from 1 to ", kLargestSize, " and ranges such as 16:256:x2 or 16:64:16; got ", word.empty() ? "nothing" : word,
               " in ", text);
  return value;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One batch of random samples in the row of the data; its labels are in turn, and zeros where nothing is computed.
data::Batch random_batch(const TrainSettings& s) {
  data::Batch batch;
  Shape shape(s.input);
  shape.insert(0, s.batch);
  batch.x = randn(shape, {.role = memory::Role::io});
  if (default_device() == kCpu) {
    std::vector<std::int64_t> labels(static_cast<std::size_t>(s.batch));
    for (std::size_t i = 0; i < labels.size(); i++) labels[i] = static_cast<std::int64_t>(i) % s.classes;
    batch.y = from_vector(labels, {s.batch});
  } else {
    batch.y = zeros({s.batch}, {.dtype = DType::int64});
  }
  batch.indices.resize(static_cast<std::size_t>(s.batch));
  return batch;
}

// The steps of one row, live or dry; `before` and `after` are called around each of them. Returns the peaks of `pool`.
template <class Before, class After>
memory::Stats run_steps(const TrainSettings& s, std::int64_t steps, memory::Allocator& pool, Before&& before, After&& after) {
  pool.set_capacity(s.memory_cap);
  const std::shared_ptr<nn::Module> model = make_model(s);
  model->name_tree();
  model->train();
  const std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(s, model->parameters());
  std::unique_ptr<optim::GradScaler> scaler;
  if (needs_scaler(s.amp)) scaler = std::make_unique<optim::GradScaler>();
  StepOptions options = step_options(s);
  options.retry = false;  // a row that does not fit says so
  Step step(*model, *optimizer, std::move(options), scaler.get());
  step.set_micro_batch_limit(s.micro_batch);
  const data::Batch batch = random_batch(s);
  for (std::int64_t i = 0; i < steps; i++) {
    before(i);
    step.begin(i, s.batch, {s.batch});
    step.add(batch);
    step.finish();
    pool.end_step();
    after(i);
  }
  return pool.stats();
}

std::uint64_t peak(const memory::Stats& stats, memory::Metric metric) {
  return static_cast<std::uint64_t>(stats.get(metric).peak);
}

// The steps of a row without their arithmetic. Nothing when they do not fit the cap.
std::optional<memory::Stats> predict_row(const TrainSettings& s, std::int64_t steps) {
  dry::Run run;
  dry::Placeholder loss(0);
  auto nothing = [](std::int64_t) {};
  try {
    return run_steps(s, steps, run.pool(), nothing, nothing);
  } catch (const memory::OutOfMemoryError&) {
    return std::nullopt;
  }
}

SweepRow refused(SweepRow row, std::string why) {
  row.fits = false;
  row.why = std::move(why);
  return row;
}

SweepRow measure_row(const SweepSettings& settings, std::int64_t size) {
  SweepRow row;
  row.batch = size;
  TrainSettings s = settings.train;
  s.batch = size;
  if (s.micro_batch >= size) s.micro_batch = 0;
  auto predicted = [&](const memory::Stats& stats) {
    row.predicted_allocated = peak(stats, memory::Metric::allocated_bytes);
    row.predicted_reserved = peak(stats, memory::Metric::reserved_bytes);
  };
  TrainSettings free = s;
  free.memory_cap = 0;
  const std::optional<memory::Stats> without_cap = predict_row(free, settings.warmup + 1);
  if (!without_cap) return refused(row, "predicted not to fit into any memory that can be addressed");
  predicted(*without_cap);
  if (s.memory_cap > 0) {
    const std::optional<memory::Stats> capped = predict_row(s, settings.warmup + 1);
    if (!capped)
      return refused(row, concat("predicted not to fit: needs ", format_bytes(row.predicted_allocated), " of the ",
                                 format_bytes(s.memory_cap), " memory cap"));
    predicted(*capped);
  }
  if (const std::uint64_t machine = machine_info().memory_bytes; row.predicted_reserved > machine)
    return refused(row, concat("predicted not to fit: needs ", format_bytes(row.predicted_reserved), ", the machine has ",
                               format_bytes(machine)));
  memory::Allocator pool(std::make_shared<memory::HostMemory>("cpu"));
  PoolScope scope(pool);
  std::vector<double> seconds;
  double start = 0, cpu_start = 0, wall_start = 0, cpu_total = 0, wall_total = 0;
  try {
    const memory::Stats stats = run_steps(
        s, settings.warmup + settings.steps, pool,
        [&](std::int64_t i) {
          start = now_seconds();
          if (i == settings.warmup) cpu_start = cpu::compute_cpu_seconds(), wall_start = start;
        },
        [&](std::int64_t i) {
          if (i < settings.warmup) return;
          const double end = now_seconds();
          seconds.push_back(end - start);
          cpu_total = cpu::compute_cpu_seconds() - cpu_start, wall_total = end - wall_start;
        });
    row.allocated = peak(stats, memory::Metric::allocated_bytes);
    row.reserved = peak(stats, memory::Metric::reserved_bytes);
  } catch (const memory::OutOfMemoryError& error) {
    return refused(row, concat("out of memory when it ran: ", error.what()));
  }
  row.step = spread_of(std::move(seconds));
  row.busy = cpu_total / (wall_total * cpu::num_threads());
  return row;
}

}  // namespace

std::vector<std::int64_t> parse_batches(const std::string& text) {
  std::set<std::int64_t> sizes;
  for (const std::string& word : split(text, ',')) {
    const std::vector<std::string> parts = split(word, ':');
    if (parts.size() == 1) {
      sizes.insert(parse_size(word, text));
      continue;
    }
    LIMPID_CHECK(parts.size() == 3, ArgumentError, "a range of sizes is FIRST:LAST:xFACTOR or FIRST:LAST:STEP; got ", word);
    const std::int64_t first = parse_size(parts[0], text), last = parse_size(parts[1], text);
    const bool factor = parts[2].starts_with('x');
    const std::int64_t by = parse_size(factor ? parts[2].substr(1) : parts[2], text);
    LIMPID_CHECK(first <= last, ArgumentError, "a range of sizes goes upwards; got ", word);
    LIMPID_CHECK(!factor || by >= 2, ArgumentError, "a range grows by a factor of at least 2; got ", word);
    for (std::int64_t size = first; size <= last && sizes.size() <= kMostSizes; size = factor ? size * by : size + by)
      sizes.insert(size);
  }
  LIMPID_CHECK(sizes.size() <= kMostSizes, ArgumentError, "at most ", kMostSizes, " sizes; got more in ", text);
  return {sizes.begin(), sizes.end()};
}

std::optional<std::int64_t> find_knee(const std::vector<SweepRow>& rows) {
  double best = 0;
  for (const SweepRow& row : rows) best = std::max(best, row.samples_per_second());
  std::optional<std::int64_t> knee;
  for (const SweepRow& row : rows) {
    if (row.fits && best > 0 && row.samples_per_second() >= kKneeShare * best && (!knee || row.batch < *knee)) knee = row.batch;
  }
  return knee;
}

Sweep sweep(const SweepSettings& settings, const std::function<void(std::int64_t)>& progress) {
  LIMPID_CHECK(!settings.batches.empty(), ArgumentError, "[sweep] there are no batch sizes");
  TrainSettings largest = settings.train;
  largest.batch = *std::max_element(settings.batches.begin(), settings.batches.end());
  check(largest);
  LIMPID_CHECK(
      settings.warmup >= 0 && settings.warmup <= kMostTimings && settings.steps >= 1 && settings.steps <= kMostTimings,
      ArgumentError, "[sweep] 0 to ", kMostTimings, " warm-up steps and 1 to ", kMostTimings, " timed ones, got ",
      settings.warmup, " and ", settings.steps);
  LIMPID_CHECK(settings.train.input.size() == 3 && settings.train.classes >= 1, ArgumentError,
               "[sweep] needs the size of one sample (channels, height, width) and the number of classes");
  if (settings.train.threads > 0) cpu::set_num_threads(static_cast<int>(settings.train.threads));
  Sweep out;
  out.model = settings.train.model;
  out.threads = cpu::num_threads();
  for (std::int64_t size : settings.batches) {
    if (progress) progress(size);
    out.rows.push_back(measure_row(settings, size));
  }
  out.knee = find_knee(out.rows);
  return out;
}

}  // namespace limpid::train
