#include <limpid/train/monitor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <limpid/base/format.h>
#include <limpid/memory/allocator.h>
#include <limpid/tensor/cpu/cpu_time.h>
#include <limpid/tensor/cpu/parallel.h>
#include <limpid/train/memory_report.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using detail::Json;
using detail::number;
using detail::read;

// From which on a share is worth a word.
constexpr double kMuch = 0.15;
constexpr double kIdle = 0.7;

Json or_null(const std::optional<double>& value) { return value ? number(*value) : Json(); }

std::optional<double> optional_from(const Json& object, const char* key) {
  if (detail::entry(object, key).is_null()) return std::nullopt;
  return read<double>(object, key);
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

std::string rate(double per_second) {
  char text[32];
  std::snprintf(text, sizeof text, per_second < 10 ? "%.2g" : "%.0f", per_second);
  return text;
}

}  // namespace

MonitorMemory monitor_memory(const memory::Allocator& pool) {
  const memory::Ledger compute = pool.ledger(), io = data_ledger(pool);
  const MemoryReport now = memory_report(compute, io), peak = memory_report(pool);
  return {.roles = now.roles,
          .rounding = now.rounding,
          .allocated = now.allocated,
          .reserved = compute.reserved + io.reserved,
          .peak_roles = peak.roles,
          .peak_allocated = peak.allocated};
}

double MonitorRecord::busy() const {
  const double available = seconds * static_cast<double>(threads);
  return available > 0 ? cpu_seconds / available : 0;
}

std::string to_json(const MonitorRecord& r) {
  const MonitorMemory& m = r.memory;
  const Json json = {{"step", r.step},
                     {"epoch", r.epoch},
                     {"steps", r.steps},
                     {"samples", r.samples},
                     {"seconds", r.seconds},
                     {"samples_per_second", r.samples_per_second()},
                     {"data_wait_seconds", r.data_wait},
                     {"host_to_device_seconds", or_null(r.host_to_device)},
                     {"launch_gap_seconds", or_null(r.launch_gap)},
                     {"compute_seconds", r.compute},
                     {"sync_seconds", or_null(r.sync)},
                     {"rest_seconds", r.rest},
                     {"cpu_seconds", r.cpu_seconds},
                     {"threads", r.threads},
                     {"busy", r.busy()},
                     {"lr", number(r.lr)},
                     {"scale", number(r.scale)},
                     {"memory",
                      {{"roles", detail::roles_json(m.roles)},
                       {"rounding", m.rounding},
                       {"allocated", m.allocated},
                       {"reserved", m.reserved},
                       {"peak_roles", detail::roles_json(m.peak_roles)},
                       {"peak_allocated", m.peak_allocated}}}};
  return json.dump();
}

MonitorRecord monitor_record(const std::string& line) {
  const Json json = detail::parse_object(line);
  MonitorRecord r;
  r.step = read<std::int64_t>(json, "step");
  r.epoch = read<std::int64_t>(json, "epoch");
  r.steps = read<std::int64_t>(json, "steps");
  r.samples = read<std::int64_t>(json, "samples");
  r.seconds = read<double>(json, "seconds");
  r.data_wait = read<double>(json, "data_wait_seconds");
  r.host_to_device = optional_from(json, "host_to_device_seconds");
  r.launch_gap = optional_from(json, "launch_gap_seconds");
  r.compute = read<double>(json, "compute_seconds");
  r.sync = optional_from(json, "sync_seconds");
  r.rest = read<double>(json, "rest_seconds");
  r.cpu_seconds = read<double>(json, "cpu_seconds");
  r.threads = read<std::int64_t>(json, "threads");
  r.lr = read<double>(json, "lr");
  r.scale = read<double>(json, "scale");
  const Json& memory = detail::entry(json, "memory");
  r.memory.roles = detail::roles_from_json(detail::entry(memory, "roles"));
  r.memory.rounding = read<std::uint64_t>(memory, "rounding");
  r.memory.allocated = read<std::uint64_t>(memory, "allocated");
  r.memory.reserved = read<std::uint64_t>(memory, "reserved");
  r.memory.peak_roles = detail::roles_from_json(detail::entry(memory, "peak_roles"));
  r.memory.peak_allocated = read<std::uint64_t>(memory, "peak_allocated");
  return r;
}

std::vector<MonitorRecord> read_monitor(const std::string& path) {
  return detail::with_file(path, [&] {
    std::vector<MonitorRecord> records;
    detail::for_each_line(detail::read_text(path), [&](const std::string& line, std::int64_t) {
      MonitorRecord r = monitor_record(line);
      const std::int64_t before = records.empty() ? -1 : records.back().step;
      LIMPID_CHECK(r.step > before && r.steps >= 1 && r.steps <= r.step - before && r.threads >= 1, DataError,
                   "a window of ", r.steps, " steps that ends with step ", r.step, " after one that ends with step ",
                   before, ", on ", r.threads, " threads");
      records.push_back(std::move(r));
    });
    return records;
  });
}

void MonitorTotals::add(const MonitorRecord& r) {
  steps += r.steps;
  samples += r.samples;
  seconds += r.seconds;
  data_wait += r.data_wait;
  compute += r.compute;
  rest += r.rest;
  cpu_seconds += r.cpu_seconds;
  thread_seconds += r.seconds * static_cast<double>(r.threads);
}

std::optional<Diagnosis> diagnose(const MonitorTotals& t, std::int64_t workers, std::int64_t threads) {
  if (t.steps == 0 || t.seconds <= 0) return std::nullopt;
  Diagnosis d;
  d.data_wait = t.data_wait / t.seconds;
  d.compute = t.compute / t.seconds;
  d.rest = t.rest / t.seconds;
  d.busy = t.thread_seconds > 0 ? t.cpu_seconds / t.thread_seconds : 0;
  d.samples_per_second = static_cast<double>(t.samples) / t.seconds;
  const std::string of_threads = threads == 1 ? "1 thread was" : concat(threads, " threads were");
  // What the rest of the step alone would do, if it took no longer than beside the loader.
  d.without_wait = t.seconds > t.data_wait ? static_cast<double>(t.samples) / (t.seconds - t.data_wait) : 0;
  if (d.data_wait >= kMuch) {
    d.what = "loader";
    d.text = concat("the loader is the limit: ", percent(d.data_wait), " of the time was ",
                    workers == 0 ? "preparing data in the training thread" : "waiting for data", "; without it ",
                    rate(d.without_wait), " samples/s at most, instead of ", rate(d.samples_per_second), "; ",
                    workers == 0 ? "--workers prepare data meanwhile" : concat("more --workers (now ", workers, ") may help"));
  } else if (d.rest >= kMuch) {
    d.what = "records";
    d.text = concat("the records are the limit: ", percent(d.rest),
                    " of the time went into ledger, logs and checks between the steps, ", percent(d.compute),
                    " into computing; a larger --batch has fewer steps");
  } else if (d.busy < kIdle) {
    d.what = "threads";
    d.text = concat("idle threads are the limit: ", percent(d.compute), " of the time was computing, but ", of_threads,
                    " busy ", percent(d.busy),
                    " of the time: other programs took the cores, or the steps are too small for so many threads");
  } else {
    d.what = "computing";
    d.text = concat("computing is the limit: ", percent(d.compute), " of the time, ", of_threads, " busy ",
                    percent(d.busy), ", ", percent(d.data_wait),
                    " was waiting for data; more or faster cores would help");
  }
  return d;
}

std::string to_json(const Diagnosis& d) {
  const Json json = {{"what", d.what},           {"text", d.text}, {"data_wait", d.data_wait},
                     {"compute", d.compute},     {"rest", d.rest}, {"busy", d.busy},
                     {"samples_per_second", d.samples_per_second},
                     {"samples_per_second_without_wait", d.without_wait}};
  return json.dump();
}

MonitorSources monitor_sources(const data::DataLoader& loader, const memory::Allocator& compute) {
  return {.now = [] {
            return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
          },
          .cpu_seconds = cpu::compute_cpu_seconds,
          .data_wait = [&loader] { return loader.wait_seconds(); },
          .threads = [] { return std::int64_t{cpu::num_threads()}; },
          .memory = [&compute] { return monitor_memory(compute); }};
}

void Monitor::go_on() {
  if (every_ == 0) return;
  now_ = sources_.now();
  cpu_ = sources_.cpu_seconds();
  wait_ = sources_.data_wait();
}

void Monitor::pause() {
  if (every_ != 0) collect();
}

// What has passed since the last look goes to the window.
void Monitor::collect() {
  const double now = now_, cpu = cpu_, wait = wait_;
  go_on();
  window_.seconds += now_ - now;
  window_.cpu_seconds += cpu_ - cpu;
  window_.data_wait += wait_ - wait;
}

std::optional<MonitorRecord> Monitor::step_done(const MonitoredStep& step, bool close) {
  if (every_ == 0) return std::nullopt;
  window_.steps++;
  window_.samples += step.samples;
  if ((step.step + 1) % every_ != 0 && !close) return std::nullopt;
  collect();
  MonitorRecord record = std::exchange(window_, {});
  record.step = step.step;
  record.epoch = step.epoch;
  record.lr = step.lr;
  record.scale = step.scale;
  record.rest = std::max(0.0, record.seconds - record.data_wait - record.compute);
  record.threads = sources_.threads();
  record.memory = sources_.memory();
  totals_.add(record);
  return record;
}

}  // namespace limpid::train
