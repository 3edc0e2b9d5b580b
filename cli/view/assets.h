// The parts of the page that do not change, embedded by cmake/embed_text.cmake.
#pragma once

#include <string_view>

namespace limpid::cli::assets {

extern const std::string_view kTemplate;
extern const std::string_view kStyle;
extern const std::string_view kScript;   // all scripts of this folder, in order
extern const std::string_view kChartLicence;
extern const std::string_view kChartJs;  // Chart.js, from the system's package

}  // namespace limpid::cli::assets
