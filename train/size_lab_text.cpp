#include <limpid/train/size_lab.h>

#include <cstdio>
#include <set>

#include <limpid/base/error.h>
#include <limpid/train/sweep_text_private.h>

namespace limpid::train {
namespace {

// The processors of two cards that the seed's claim about 31, 32 and 33 was made for.
constexpr std::int64_t kCards[] = {128, 132};

// One experiment: what it is of, and a line for each size.
std::string table(const SizeExperiment& e) {
  using detail::format;
  const bool samples = e.unit == "sample", cards = e.op == "matmul";
  std::string out = concat(e.shape, ", cost per ", e.unit);
  for (std::size_t i = 0; i < e.added.size(); i++)
    out += concat(i == 0 ? "; besides the sizes asked for: " : " and ", e.added[i]);
  out += "\n";
  out += format("%6s %10s %6s %12s | %7s %9s %9s  %-9s", "size", "ms/call", "+- %",
                samples ? "us/sample" : "ps/mult-add", "against", "predicted", "measured", "verdict");
  for (std::int64_t processors : kCards) out += cards ? format(" | %3lld SM", static_cast<long long>(processors)) : "";
  out += "\n";
  for (const SizeRow& r : e.rows) {
    const bool reference = r.verdict == Verdict::reference;
    const std::string against = reference ? "-" : concat(r.reference);
    out += format("%6lld %10.4f %6.1f %12.4f | %7s %9.3f %9.3f  %-9s", static_cast<long long>(r.size),
                  1e3 * r.seconds.median, 50 * r.seconds.iqr(), r.per_unit * (samples ? 1e6 : 1e12), against.c_str(),
                  r.predicted_ratio, r.ratio.median, to_string(r.verdict));
    for (std::int64_t processors : kCards) out += cards ? format(" | %6.3f", card_cost(r.size, processors)) : "";
    out += "\n";
  }
  return out;
}

}  // namespace

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::agree:
      return "agree";
    case Verdict::disagree:
      return "disagree";
    case Verdict::noisy:
      return "noisy";
    case Verdict::reference:
      break;
  }
  return "reference";
}

std::string to_string(const SizeLab& lab) {
  using detail::format;
  std::string out = concat(lab.threads, lab.threads == 1 ? " thread, " : " threads, ", lab.isa, ", panels of ", lab.panel,
                           " columns; forward, float32\n");
  // The experiments of one operation stand together, under its name.
  std::set<std::string> told;
  for (const SizeExperiment& first : lab.experiments) {
    if (!told.insert(first.op).second) continue;
    out += concat("\n", first.op, "\n", std::string(first.op.size(), '='), "\n");
    bool another = false;
    for (const SizeExperiment& e : lab.experiments) {
      if (e.op != first.op) continue;
      if (another) out += "\n";
      out += table(e);
      another = true;
    }
  }
  out += format(
      "\npredicted: whole panels of %lld columns, tasks over %lld threads; against: the nearest multiple of 16 in the list.\n"
      "agree: measured within %.0f %% of the prediction; noisy: the median is known less exactly than that; +-: half the distance\n"
      "of the quartiles. SM: predicted for a GPU, [n,1024,1024] products in tiles of 128 x 128, 1.000 = full waves; not measured.\n"
      "%lld agree, %lld disagree, %lld noisy\n",
      static_cast<long long>(lab.panel), static_cast<long long>(lab.threads), 100 * kAgree,
      static_cast<long long>(lab.count(Verdict::agree)), static_cast<long long>(lab.count(Verdict::disagree)),
      static_cast<long long>(lab.count(Verdict::noisy)));
  return out;
}

std::string to_json(const SizeLab& lab) {
  using detail::Json;
  Json experiments = Json::array();
  for (const SizeExperiment& e : lab.experiments) {
    Json rows = Json::array();
    for (const SizeRow& r : e.rows) {
      Json row = {{"size", r.size},
                  {"seconds", r.seconds.median},
                  {"iqr_share", r.seconds.iqr()},
                  {"timings", r.seconds.count},
                  {"noisy", r.seconds.noisy()},
                  {"seconds_per_unit", r.per_unit},
                  {"predicted_cost", r.predicted},
                  {"reference", r.reference},
                  {"predicted_ratio", r.predicted_ratio},
                  {"measured_ratio", r.ratio.median},
                  {"measured_ratio_low", r.ratio.low},
                  {"measured_ratio_high", r.ratio.high},
                  {"noise", r.noise()},
                  {"verdict", to_string(r.verdict)}};
      if (e.op == "matmul") {
        for (std::int64_t processors : kCards) row[concat("predicted_", processors, "_processors")] = card_cost(r.size, processors);
      }
      rows.push_back(std::move(row));
    }
    experiments.push_back(
        {{"op", e.op}, {"shape", e.shape}, {"unit", e.unit}, {"added", e.added}, {"rows", std::move(rows)}});
  }
  const Json json = {{"threads", lab.threads},
                     {"isa", lab.isa},
                     {"panel", lab.panel},
                     {"agree_within", kAgree},
                     {"agree", lab.count(Verdict::agree)},
                     {"disagree", lab.count(Verdict::disagree)},
                     {"noisy", lab.count(Verdict::noisy)},
                     {"experiments", std::move(experiments)}};
  return json.dump();
}

}  // namespace limpid::train
