// The report of the equivalence check, for people and for programs.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/train/equivalence.h>

namespace limpid::train {
namespace {

using Json = nlohmann::ordered_json;

// Two digits: 2.5e-16.
std::string brief(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// "4 x 16", or "13 + 13 + 12".
std::string layout(const std::vector<std::int64_t>& sizes) {
  if (std::all_of(sizes.begin(), sizes.end(), [&](std::int64_t s) { return s == sizes[0]; }))
    return concat(sizes.size(), " x ", sizes[0]);
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(sizes.size(), kShown); i++) text += concat(i ? " + " : "", sizes[i]);
  if (sizes.size() > kShown) text += concat(" + ... (", sizes.size(), " micro-batches)");
  return text;
}

std::string line(const GradientDifference& d) {
  return concat("relative difference ", brief(d.relative), ", largest ", brief(d.largest), ", worst ", d.worst, " ",
                brief(d.worst_relative));
}

Json json_of(const GradientDifference& d) {
  return {{"relative", number(d.relative)},
          {"largest", number(d.largest)},
          {"worst", d.worst},
          {"worst_relative", number(d.worst_relative)}};
}

}  // namespace

const char* to_string(Cause cause) {
  switch (cause) {
    case Cause::normaliser: return "normaliser";
    case Cause::batch_norm: return "batch norm";
    case Cause::rng: return "rng";
    case Cause::kinks: return "kinks";
    case Cause::precision: return "precision";
    case Cause::unexplained: return "unexplained";
  }
  return "?";
}

std::string to_string(const EquivalenceReport& r) {
  std::string text = concat("1 x ", r.samples, " against ", layout(r.micro_batches));
  if (r.batch_norm_layers > 0)
    text += concat(", ", r.batch_norm_layers, " batch norm ", r.batch_norm_layers == 1 ? "layer" : "layers", " in mode ",
                   to_string(r.batch_norm));
  text += concat("\nf64  ", line(r.proof), "; bound ", brief(r.proof_bound), "\n");
  if (!r.weights.empty()) {
    const auto [least, most] = std::minmax_element(r.weights.begin(), r.weights.end());
    char weights[96];
    std::snprintf(weights, sizeof weights, "     measured weight of a sample: %.6g/N to %.6g/N", *least, *most);
    text += concat(weights, "; left over ", brief(r.unexplained), "\n");
  }
  if (r.exact_batch_norm)
    text += concat("     under exact batch norm: relative difference ", brief(*r.exact_batch_norm), "\n");
  if (r.measured) {
    std::string dtype = to_string(r.dtype);
    dtype.resize(5, ' ');
    text += concat(dtype, line(*r.measured), "; bound ", brief(r.measured_bound), "\n");
  }
  std::int64_t flipped = 0, all = 0;
  std::string layers;
  for (const Flips& f : r.flips) {
    flipped += f.flipped, all += f.of;
    if (f.flipped > 0) layers += concat(", ", f.layer, " (", to_string(f.kind), ") ", format_count(f.flipped));
  }
  if (all > 0)
    text += concat("     flipped decisions: ", format_count(flipped), " of ", format_count(all), layers, "\n");
  if (r.without_kinks) text += concat("     with the whole batch's decisions: ", line(*r.without_kinks), "\n");
  for (const Finding& f : r.findings) text += concat("cause: ", to_string(f.cause), ", ", brief(f.effect), ": ", f.text, "\n");
  text += r.equal ? "equal within the bounds\n" : "NOT equal\n";
  return text;
}

std::string to_json(const EquivalenceReport& r) {
  Json json = {{"samples", r.samples},
               {"micro_batches", r.micro_batches},
               {"batch_norm", to_string(r.batch_norm)},
               {"batch_norm_layers", r.batch_norm_layers},
               {"equal", r.equal},
               {"proof", json_of(r.proof)},
               {"proof_bound", r.proof_bound},
               {"weights", r.weights},
               {"left_over", number(r.unexplained)},
               {"exact_batch_norm", r.exact_batch_norm ? number(*r.exact_batch_norm) : Json(nullptr)},
               {"dtype", to_string(r.dtype)},
               {"measured", r.measured ? json_of(*r.measured) : Json(nullptr)},
               {"measured_bound", r.measured_bound},
               {"without_kinks", r.without_kinks ? json_of(*r.without_kinks) : Json(nullptr)}};
  json["flips"] = Json::array();
  for (const Flips& f : r.flips)
    json["flips"].push_back({{"layer", f.layer}, {"kind", to_string(f.kind)}, {"flipped", f.flipped}, {"of", f.of}});
  json["causes"] = Json::array();
  for (const Finding& f : r.findings)
    json["causes"].push_back({{"cause", to_string(f.cause)}, {"effect", number(f.effect)}, {"text", f.text}});
  return json.dump();
}

}  // namespace limpid::train
