// limpid bench: how fast training steps and small operations are here, and whether they became slower.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/nn/fuse.h>
#include <limpid/nn/models/models.h>
#include <limpid/optim/adam.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/storage.h>
#include <limpid/train/machine.h>
#include <limpid/train/spread.h>
#include <limpid/version.h>

#include "commands.h"
#include "common.h"
#include "progress.h"

namespace limpid::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::vector<std::string> rows = {"mlp:64", "lenet:32", "lenet:128", "resnet20:32"};
  std::string output, baseline;
  double factor = 1.25;
  std::int64_t threads = 0, repeats = 15;
  bool fuse = true, json = false, quiet = false;
};

struct Row {
  std::string model;
  std::int64_t batch;
};
Row parse_row(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::int64_t batch = 0;
  if (colon != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, batch);
    if (error != std::errc() || rest != end) batch = 0;
  }
  LIMPID_CHECK(colon != std::string::npos && batch >= 1 && batch <= 65536, ArgumentError,
               "--rows are MODEL:BATCH with a batch of 1 to 65536, e.g. lenet:128, got ", text);
  return {text.substr(0, colon), batch};
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

long minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Training steps (forward, cross-entropy, backward, fused Adam) on random data. ms.
Json measure_step(const Row& row, const BenchOptions& o) {
  const Shape input(parse_input(usual_input(row.model)));
  const std::shared_ptr<nn::Module> model = nn::make_model(row.model, {.input = input, .classes = 10});
  if (o.fuse) nn::fuse(*model);
  optim::Adam adam(model->parameters(), {.lr = 1e-6});
  Shape shape = input;
  shape.insert(0, row.batch);
  const Tensor x = randn(shape, {.role = memory::Role::io});
  const Tensor y = randint(0, 10, {row.batch}, {.dtype = int64, .role = memory::Role::io});
  auto step = [&] {
    adam.zero_grad();
    cross_entropy((*model)(x), y).backward();
    adam.step();
  };
  step();
  const auto second = Clock::now();
  step();
  // A repeat has enough steps to last 20 ms.
  const auto steps = static_cast<int>(std::clamp(0.02 / std::max(seconds_since(second), 1e-6), 1.0, 10000.0));
  memory::host_allocator().reset_peak_stats();
  const long faults = minor_faults();
  std::vector<double> times;
  for (std::int64_t repeat = 0; repeat < o.repeats; repeat++) {
    const auto start = Clock::now();
    for (int i = 0; i < steps; i++) step();
    times.push_back(1e3 * seconds_since(start) / steps);
  }
  const train::Spread t = train::spread_of(times);
  return {{"name", concat(row.model, ":", row.batch)},
          {"unit", "ms"},
          {"median", t.median},
          {"low", t.low},
          {"high", t.high},
          {"samples_per_second", 1e3 * static_cast<double>(row.batch) / t.median},
          {"peak_live_bytes", memory::host_allocator().ledger_at_peak().live_total},
          {"steps", steps * o.repeats},
          {"minor_faults", minor_faults() - faults}};
}

// One small operation, ns.
template <class F>
Json measure_small(const char* name, std::int64_t repeats, int operations, F&& f) {
  f();
  std::vector<double> times;
  for (std::int64_t repeat = 0; repeat < repeats; repeat++) {
    const auto start = Clock::now();
    f();
    times.push_back(1e9 * seconds_since(start) / operations);
  }
  const train::Spread t = train::spread_of(times);
  return {{"name", name}, {"unit", "ns"}, {"median", t.median}, {"low", t.low}, {"high", t.high}};
}

Json small_operations(std::int64_t repeats) {
  Json out = Json::array();
  const Tensor a = ones({1}), b = ones({1}), g = ones({1}, {.requires_grad = true});
  const Tensor x = ones({1, 128}), w = ones({10, 128}), bias = ones({10});
  {
    const NoGradGuard no_grad;
    out.push_back(measure_small("add of 1 element", repeats, 20000, [&] {
      for (int i = 0; i < 20000; i++) Tensor c = add(a, b);
    }));
    out.push_back(measure_small("linear 1x128 -> 10", repeats, 10000, [&] {
      for (int i = 0; i < 10000; i++) Tensor c = linear(x, w, bias);
    }));
  }
  out.push_back(measure_small("add of 1 element, recorded", repeats, 20000, [&] {
    for (int i = 0; i < 20000; i++) Tensor c = add(g, b);
  }));
  out.push_back(measure_small("add in a chain, forward and backward", repeats, 5000, [&] {
    for (int i = 0; i < 50; i++) {
      Tensor c = g;
      for (int k = 0; k < 100; k++) c = add(c, b);
      c.backward();
    }
  }));
  memory::Allocator& pool = memory::host_allocator();
  out.push_back(measure_small("allocate and free, cached", repeats, 20000, [&] {
    for (int i = 0; i < 20000; i++) pool.free(pool.allocate(4096, memory::Role::temp));
  }));
  return out;
}

Json read_baseline(const std::string& path) {
  constexpr std::uint64_t kMostBytes = 1 << 20;
  const std::vector<std::uint8_t> bytes = read_file(path, kMostBytes);
  const Json json = Json::parse(bytes.begin(), bytes.end(), nullptr, false);
  bool good = json.is_object() && json.value("kind", Json()) == "limpid bench" && json.contains("rows") &&
              json["rows"].is_array();
  for (std::size_t i = 0; good && i < json["rows"].size(); i++) {
    const Json& row = json["rows"][i];
    good = row.is_object() && row.contains("name") && row["name"].is_string() && row.contains("median") &&
           row["median"].is_number() && row["median"].get<double>() > 0 && row.contains("unit") &&
           row["unit"].is_string();
  }
  LIMPID_CHECK(good, DataError, "[bench] ", path, " is no result of limpid bench -o");
  return json;
}

// What must agree for a comparison to mean something.
void warn_of_other_machine(const Json& now, const Json& then) {
  for (const char* key : {"cpu", "kernels", "threads", "fuse"}) {
    if (now.value(key, Json()) == then.value(key, Json())) continue;
    std::fprintf(stderr, "limpid: warning: the baseline has %s %s, this run %s: the ratios compare two things\n", key,
                 then.value(key, Json()).dump().c_str(), now.value(key, Json()).dump().c_str());
  }
}

int run(const BenchOptions& o) {
  LIMPID_CHECK(o.repeats >= 5 && o.repeats <= 10000, ArgumentError, "--repeats is 5 to 10000, got ", o.repeats);
  LIMPID_CHECK(std::isfinite(o.factor) && o.factor > 1, ArgumentError, "--factor must be above 1, got ", o.factor);
  LIMPID_CHECK(o.threads >= 0 && o.threads <= 1024, ArgumentError, "--threads is 0 (all cores) to 1024, got ",
               o.threads);
  std::vector<Row> rows;
  for (const std::string& text : o.rows) {
    rows.push_back(parse_row(text));
    const dry::Run checked;  // before any work: is there such a model?
    nn::make_model(rows.back().model, {.input = Shape(parse_input(usual_input(rows.back().model))), .classes = 10});
  }
  std::optional<Json> baseline;
  if (!o.baseline.empty()) baseline = read_baseline(o.baseline);
  if (!o.output.empty())
    refuse_overwriting("--out", o.output, o.baseline.empty() ? std::vector<std::string>() : std::vector{o.baseline});
  if (o.threads > 0) cpu::set_num_threads(static_cast<int>(o.threads));

  const train::MachineInfo machine = train::machine_info();
  Json result = {{"kind", "limpid bench"}, {"version", LIMPID_VERSION},     {"cpu", machine.cpu},
                 {"kernels", machine.isa}, {"threads", cpu::num_threads()}, {"fuse", o.fuse},
                 {"rows", Json::array()}};
  Progress progress(o.quiet);
  for (const Row& row : rows) {
    progress.message(concat("training steps: ", row.model, ", batch ", row.batch));
    result["rows"].push_back(measure_step(row, o));
  }
  progress.message("small operations");
  for (Json& row : small_operations(o.repeats)) result["rows"].push_back(std::move(row));

  std::FILE* text = o.json ? stderr : stdout;
  if (baseline) warn_of_other_machine(result, *baseline);
  std::fprintf(text, "%-38s %12s %22s %14s %12s%s\n", "", "median", "middle half", "peak live", "new pages",
               baseline ? "   now / then" : "");
  bool slower = false;
  for (Json& row : result["rows"]) {
    std::string memory = "", faults = "", ratio = "";
    if (row.contains("peak_live_bytes")) {
      memory = format_bytes(row["peak_live_bytes"].get<std::uint64_t>());
      faults = std::to_string(row["minor_faults"].get<long>());
    }
    for (const Json& then : baseline ? (*baseline)["rows"] : Json::array()) {
      if (then["name"] != row["name"] || then["unit"] != row["unit"]) continue;
      const double times = row["median"].get<double>() / then["median"].get<double>();
      row["ratio"] = times;
      const bool bad = times > o.factor;
      slower = slower || bad;
      char cell[32];
      std::snprintf(cell, sizeof cell, "%13.2f%s", times, bad ? "  slower" : "");
      ratio = cell;
    }
    char middle[64];
    std::snprintf(middle, sizeof middle, "%.3f - %.3f", row["low"].get<double>(), row["high"].get<double>());
    std::fprintf(text, "%-38s %9.3f %s %22s %14s %12s%s\n", row["name"].get<std::string>().c_str(),
                 row["median"].get<double>(), row["unit"].get<std::string>().c_str(), middle, memory.c_str(),
                 faults.c_str(), ratio.c_str());
  }
  if (baseline && slower) std::fprintf(text, "slower than %.2f times the baseline\n", o.factor);
  if (!o.output.empty()) write_file_atomically(o.output, result.dump(1) + "\n");
  if (o.json) print_json(result);
  return slower ? kFailedCheck : kOk;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("bench", "Times of training steps and small operations; against a baseline");
  auto o = std::make_shared<BenchOptions>();
  sub->add_option("--rows", o->rows, "Training steps as MODEL:BATCH, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  add_integer(*sub, "--threads", o->threads, "Compute threads; 0: all cores")->capture_default_str();
  add_integer(*sub, "--repeats", o->repeats, "Timed repeats of a row, of 20 ms or one step at least")
      ->capture_default_str();
  add_fuse(*sub, o->fuse);
  sub->add_option("-o,--out", o->output, "Write the result to this file, to compare with later");
  sub->add_option("--compare", o->baseline,
                  "A result of -o: print now / then, exit code 1 when a row is slower than --factor times");
  add_real(*sub, "--factor", o->factor, "What counts as slower")->capture_default_str();
  sub->add_flag("--quiet", o->quiet, "No progress on stderr");
  sub->add_flag("--json", o->json, "Last line on stdout: one JSON object");
  sub->footer(
      "Examples:\n"
      "  limpid bench -o before.json\n"
      "  limpid bench --compare before.json --factor 1.1\n"
      "New pages are the system's minor page faults during the timed steps: a step that runs in its own cache has next "
      "to\n"
      "none. Other programs on the machine make every figure worse: compare medians of a quiet machine.");
  sub->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace limpid::cli
