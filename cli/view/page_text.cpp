#include "page_text.h"

namespace limpid::cli {

std::string dump_for_script(const nlohmann::ordered_json& json) {
  const std::string text = json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string escape_html(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string fill_template(std::string_view text, const std::map<std::string_view, std::string_view>& values) {
  std::string page;
  for (std::size_t at; (at = text.find("{{")) != std::string_view::npos;) {
    const std::size_t end = text.find("}}", at);
    page.append(text.substr(0, at));
    page.append(values.at(text.substr(at + 2, end - at - 2)));
    text.remove_prefix(end + 2);
  }
  page.append(text);
  return page;
}

}  // namespace limpid::cli
