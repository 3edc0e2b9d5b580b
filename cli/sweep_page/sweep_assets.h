// The parts of the sweep's page that do not change, embedded by cmake/embed_text.cmake. Chart.js is that of view/assets.h,
// the style that of report/report_assets.h.
#pragma once

#include <string_view>

namespace limpid::cli::sweep_assets {

extern const std::string_view kTemplate;
extern const std::string_view kScript;  // the report's small parts and charts, then sweep.js

}  // namespace limpid::cli::sweep_assets
