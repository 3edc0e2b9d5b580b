#include <limpid/train/run_log.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using detail::Json;
using detail::read;

StepRecord step_record(const std::string& line) {
  const Json json = detail::parse_object(line);
  StepRecord r;
  r.step = read<std::int64_t>(json, "step");
  r.epoch = read<std::int64_t>(json, "epoch");
  r.loss = detail::entry(json, "loss").is_null() ? std::numeric_limits<double>::quiet_NaN() : read<double>(json, "loss");
  r.accuracy = read<double>(json, "accuracy");
  r.lr = read<double>(json, "lr");
  r.samples = read<std::int64_t>(json, "samples");
  r.micro_batches = read<std::int64_t>(json, "micro_batches");
  r.retries = read<std::int64_t>(json, "retries");
  r.applied = read<bool>(json, "applied");
  r.scale = read<double>(json, "scale");
  r.seconds = read<double>(json, "seconds");
  r.allocated_bytes = read<std::uint64_t>(json, "allocated_bytes");
  r.reserved_bytes = read<std::uint64_t>(json, "reserved_bytes");
  return r;
}

std::vector<StepRecord> parse_steps(const std::string& text) {
  std::vector<StepRecord> steps;
  detail::for_each_line(text, [&](const std::string& line, std::int64_t number) {
    steps.push_back(step_record(line));
    LIMPID_CHECK(steps.back().step == number - 1, DataError, "step ", steps.back().step, " stands where step ",
                 number - 1, " belongs");
  });
  return steps;
}

std::vector<StepRecord> read_steps(const std::string& path) {
  return detail::with_file(path, [&] { return parse_steps(detail::read_text(path)); });
}

// Steps of a ledger, which must be numbered from 0 on.
std::int64_t steps_in(const Ledger& ledger) {
  const auto steps = static_cast<std::int64_t>(ledger.steps.size());
  for (std::int64_t i = 0; i < steps; i++) {
    const std::int64_t found = ledger.steps[static_cast<std::size_t>(i)].step;
    LIMPID_CHECK(found == i, DataError, "step ", found, " stands where step ", i, " belongs");
  }
  return steps;
}

// What both logs say of a step is the same. The ledger has a CRC, so this finds steps.jsonl changed by hand.
void compare(const std::string& path, const StepRecord& log, const LedgerStep& ledger) {
  auto same = [&](const char* what, double in_log, double in_ledger) {
    LIMPID_CHECK(in_log == in_ledger || (!std::isfinite(in_log) && !std::isfinite(in_ledger)), DataError, path, ": step ",
                 log.step, " has the ", what, " ", in_log, ", ledger.jsonl beside it ", in_ledger,
                 ": they are of two runs, or one was changed");
  };
  same("epoch", static_cast<double>(log.epoch), static_cast<double>(ledger.epoch));
  same("number of samples", static_cast<double>(log.samples), static_cast<double>(ledger.samples));
  same("loss", log.loss, ledger.loss_sum / static_cast<double>(std::max<std::int64_t>(ledger.samples, 1)));
  same("learning rate", log.lr, ledger.lr);
  same("loss scale", log.scale, ledger.scale);
}

}  // namespace

bool is_going_on(const std::string& folder) {
  try {
    RunFolder::lock(folder);
    return false;
  } catch (const ArgumentError&) {
    return true;
  } catch (const IoError&) {  // a folder that cannot be written: nobody trains in it
    return false;
  }
}

void check_logs(const std::string& folder, const LogOffsets& offsets, std::int64_t step) {
  for (const std::string name : {"steps.jsonl", "ledger.jsonl", "monitor.jsonl"}) {
    const std::string path = folder + "/" + name;
    const auto found = offsets.find(name);
    const std::uint64_t offset = found == offsets.end() ? 0 : found->second;
    LineFile::check(path, offset);
    detail::with_file(path, [&] {
      const std::string text = offset > 0 ? detail::read_text(path).substr(0, offset) : std::string();
      LIMPID_CHECK(text.empty() || text.back() == '\n', DataError, "the checkpoint of step ", step,
                   " was written when it had ", offset, " bytes, and there is no end of a line there");
      std::int64_t steps = step;
      if (name == "ledger.jsonl") {
        steps = steps_in(parse_ledger(text));
      } else if (name == "steps.jsonl") {
        steps = static_cast<std::int64_t>(parse_steps(text).size());
      } else {
        detail::for_each_line(text, [](const std::string& line, std::int64_t) { detail::parse_object(line); });
      }
      LIMPID_CHECK(steps == step, DataError, "its first ", offset, " bytes have ", steps,
                   " steps, the checkpoint is of step ", step);
    });
  }
}

RunLog read_run(const std::string& folder) {
  RunLog log;
  log.settings = RunFolder::settings_of(folder);
  log.run_json = detail::read_text(folder + "/run.json");
  const bool going_on = is_going_on(folder);
  // The order in which a step writes them is ledger, steps, monitor; read the other way round, none is behind.
  const std::string monitor = folder + "/monitor.jsonl", steps = folder + "/steps.jsonl";
  std::error_code ignored;
  if (std::filesystem::exists(monitor, ignored)) log.monitor = read_monitor(monitor);
  log.steps = read_steps(steps);
  log.ledger = read_ledger(folder + "/ledger.jsonl");
  if (!log.ledger.plan.quantum) log.ledger.plan.quantum = log.settings.quantum;  // an older ledger: run.json knows
  const std::size_t logged = log.steps.size(), in_ledger = log.ledger.steps.size();
  // A run that was killed between its two lines for a step has one more in the ledger.
  const std::size_t ahead = going_on ? std::numeric_limits<std::size_t>::max() : 1;
  LIMPID_CHECK(in_ledger >= logged && in_ledger - logged <= ahead, DataError, steps, " has ", logged,
               " steps, ledger.jsonl beside it ", in_ledger, ": one of them was cut");
  LIMPID_CHECK(log.monitor.empty() || log.monitor.back().step < static_cast<std::int64_t>(logged), DataError, steps,
               " has ", logged, " steps, monitor.jsonl beside it ends with step ",
               log.monitor.empty() ? -1 : log.monitor.back().step, ": the first was cut");
  log.ledger.steps.resize(logged);
  for (std::size_t i = 0; i < logged; i++) compare(steps, log.steps[i], log.ledger.steps[i]);
  std::erase_if(log.ledger.epochs,
                [&](const LedgerEpoch& e) { return e.steps > static_cast<std::int64_t>(logged); });
  if (going_on) {
    log.notes.push_back(concat("the run was going on when this was read: it was at step ", logged));
  } else if (in_ledger > logged) {
    log.notes.push_back(concat("the run was ended between two records of step ", logged, "; that step is left out"));
  }
  if (log.monitor.empty()) {
    log.notes.push_back("there are no records of the monitor (--monitor 0, or no window was finished): no throughput, no memory");
  }
  return log;
}

}  // namespace limpid::train
