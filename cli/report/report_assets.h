// The parts of the report that do not change, embedded by cmake/embed_text.cmake. Chart.js is that of view/assets.h.
#pragma once

#include <string_view>

namespace limpid::cli::report_assets {

extern const std::string_view kTemplate;
extern const std::string_view kStyle;
extern const std::string_view kScript;  // all scripts of this folder, in order

}  // namespace limpid::cli::report_assets
