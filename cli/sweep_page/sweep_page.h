// One offline HTML file about a sweep: the tables, and charts of time, memory and learning over the batch size, or of single
// operations beside their prediction. Nothing is fetched when it is opened; the page's own policy forbids it.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include <limpid/train/size_lab.h>
#include <limpid/train/sweep.h>
#include <limpid/train/sweep_learning.h>

namespace limpid::cli {

// What a sweep found: of a model (with or without learning), or of single operations.
struct SweepResults {
  std::optional<train::Sweep> sweep;
  std::optional<train::Learning> learning;
  std::optional<train::SizeLab> lab;
};

// For `--json`: the sweep with an entry "learning" (null without), or the lab.
nlohmann::ordered_json results_json(const SweepResults& results);
std::string sweep_page(const SweepResults& results);

}  // namespace limpid::cli
