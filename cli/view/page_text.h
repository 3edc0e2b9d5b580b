// Text into HTML: what the pages that the command makes have in common.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace limpid::cli {

// Inside <script> the text must not hold "</script" or "<!--"; bytes that are no UTF-8 are replaced.
std::string dump_for_script(const nlohmann::ordered_json& json);
std::string escape_html(const std::string& text);
// "{{name}}" becomes the value of that name.
std::string fill_template(std::string_view text, const std::map<std::string_view, std::string_view>& values);

}  // namespace limpid::cli
