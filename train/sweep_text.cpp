#include <limpid/train/sweep.h>

#include <limpid/base/format.h>
#include <limpid/train/sweep_text_private.h>

namespace limpid::train {

using detail::format;

std::string to_string(const Sweep& s) {
  std::string out = concat(s.model, ", ", s.threads, s.threads == 1 ? " thread" : " threads", "; times are medians, +- is half the distance of the quartiles\n");
  out += "batch   step ms   +- %   samples/s   ms/sample   busy %   peak allocated (dry)       peak reserved (dry)\n";
  for (const SweepRow& r : s.rows) {
    if (!r.fits) {
      out += concat(format("%5lld   ", static_cast<long long>(r.batch)), r.why, "\n");
      continue;
    }
    auto bytes = [](std::uint64_t measured, std::uint64_t predicted) {
      return format_bytes(measured) + (measured == predicted ? " (equal)" : " (" + format_bytes(predicted) + ")");
    };
    out += format("%5lld  %8.3f  %5.1f  %10.1f  %10.4f  %7.0f   %-25s  %-20s%s%s\n", static_cast<long long>(r.batch), 1e3 * r.step.median,
                  50 * r.step.iqr(), r.samples_per_second(), 1e3 * r.seconds_per_sample(), 100 * r.busy,
                  bytes(r.allocated, r.predicted_allocated).c_str(), bytes(r.reserved, r.predicted_reserved).c_str(),
                  s.knee == r.batch ? " <- knee" : "", r.step.noisy() ? " noisy" : "");
  }
  if (s.knee) {
    out += format("knee: batch %lld, the smallest with at least %.0f %% of the best samples/s\n", static_cast<long long>(*s.knee),
                  100 * kKneeShare);
  }
  out += format("noisy: the quartiles are more than %.0f %% of the median apart; busy: CPU time of the compute threads / (threads x time)\n",
                100 * kNoisy);
  return out;
}

std::string to_json(const Sweep& s) {
  using detail::Json;
  Json rows = Json::array();
  for (const SweepRow& r : s.rows) {
    if (!r.fits) {
      rows.push_back({{"batch", r.batch},
                      {"fits", false},
                      {"why", r.why},
                      {"predicted_allocated_bytes", r.predicted_allocated},
                      {"predicted_reserved_bytes", r.predicted_reserved}});
      continue;
    }
    rows.push_back({{"batch", r.batch},
                    {"fits", true},
                    {"timed_steps", r.step.count},
                    {"step_seconds", r.step.median},
                    {"step_seconds_low", r.step.low},
                    {"step_seconds_high", r.step.high},
                    {"iqr_share", r.step.iqr()},
                    {"noisy", r.step.noisy()},
                    {"samples_per_second", r.samples_per_second()},
                    {"seconds_per_sample", r.seconds_per_sample()},
                    {"busy", r.busy},
                    {"peak_allocated_bytes", r.allocated},
                    {"peak_reserved_bytes", r.reserved},
                    {"predicted_allocated_bytes", r.predicted_allocated},
                    {"predicted_reserved_bytes", r.predicted_reserved}});
  }
  const Json json = {{"model", s.model},
                     {"threads", s.threads},
                     {"knee", s.knee ? Json(*s.knee) : Json()},
                     {"knee_share", kKneeShare},
                     {"rows", rows}};
  return json.dump();
}

std::string to_csv(const Sweep& s) {
  std::string out =
      "batch,fits,step_seconds,step_seconds_low,step_seconds_high,noisy,samples_per_second,seconds_per_sample,busy,"
      "peak_allocated_bytes,peak_reserved_bytes,predicted_allocated_bytes,predicted_reserved_bytes,knee\n";
  for (const SweepRow& r : s.rows) {
    if (!r.fits) {
      out += concat(r.batch, ",0,,,,,,,,,,", r.predicted_allocated, ",", r.predicted_reserved, ",0\n");
      continue;
    }
    out += concat(r.batch, ",1,") +
           format("%.9g,%.9g,%.9g,%d,%.9g,%.9g,%.6g,", r.step.median, r.step.low, r.step.high, r.step.noisy() ? 1 : 0,
                  r.samples_per_second(), r.seconds_per_sample(), r.busy) +
           concat(r.allocated, ",", r.reserved, ",", r.predicted_allocated, ",", r.predicted_reserved, ",",
                  s.knee == r.batch ? 1 : 0, "\n");
  }
  return out;
}

}  // namespace limpid::train
