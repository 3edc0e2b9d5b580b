// The page of `limpid mem view` as text: nothing in a name gets out of its place, and the data come out as they went
// in.
#include <zlib.h>

#include <cstring>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limpid/memory/trace_file.h>

#include "command.h"
#include "view/page.h"
#include "view/traces.h"

using namespace limpid;
using namespace limpid::memory;
using limpid_test::limpid_command;
using limpid_test::TraceBuilder;

namespace {

using Json = nlohmann::json;

std::size_t count(const std::string& text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
  return n;
}

// The text between an opening tag and the end of its element.
std::string element(const std::string& page, const std::string& open) {
  const std::size_t at = page.find(open);
  REQUIRE(at != std::string::npos);
  const std::size_t from = at + open.size();
  return page.substr(from, page.find("</script>", from) - from);
}

Json meta_of(const std::string& page) {
  return Json::parse(element(page, "<script type=\"application/json\" id=\"meta\">"));
}

std::string data_of(const std::string& page, std::size_t bytes) {
  const std::string text = element(page, "<script type=\"text/plain\" id=\"data\">");
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  REQUIRE(text.size() % 4 == 0);
  std::string packed;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    int padding = 0;
    for (std::size_t k = 0; k < 4; k++) {
      padding += text[i + k] == '=';
      const std::size_t digit = text[i + k] == '=' ? 0 : digits.find(text[i + k]);
      REQUIRE(digit != std::string::npos);
      group = group << 6 | static_cast<std::uint32_t>(digit);
    }
    for (int k = 0; k < 3 - padding; k++) packed.push_back(static_cast<char>(group >> (16 - 8 * k) & 255));
  }
  std::string out(bytes, '\0');
  uLongf size = bytes;
  REQUIRE(uncompress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(packed.data()),
                     static_cast<uLong>(packed.size())) == Z_OK);
  REQUIRE(size == bytes);
  return out;
}

template <class T>
std::vector<T> array_of(const Json& array, const std::string& data) {
  std::vector<T> out(array.at("count").get<std::size_t>());
  REQUIRE(array.at("at").get<std::size_t>() + out.size() * sizeof(T) <= data.size());
  if (!out.empty()) std::memcpy(out.data(), data.data() + array.at("at").get<std::size_t>(), out.size() * sizeof(T));
  return out;
}

std::string page_of(const TraceLog& log, const std::string& title = "a title") {
  const Placement placement = place(log, {});
  return cli::view_page(title, {{title, &log, &placement}});
}

}  // namespace

TEST_CASE("names stay inside the data") {
  const std::string plain = page_of(TraceLog{});
  TraceBuilder b;
  b.scope.module = b.name("</script><script>alert(1)</script>");
  b.scope.op = b.name("<!-- {{meta}} {{data}}");
  b.alloc(1000, Role::param, "\xff\xfe broken \xe2\x82\xac </SCRIPT>");
  const std::string page = page_of(b.log, "<b>\"title\" & more</b></title><script>");
  CHECK(count(page, "</script>") == count(plain, "</script>"));
  CHECK(count(page, "<script") == count(plain, "<script"));
  CHECK(count(page, "</SCRIPT>") == 0);
  CHECK(count(page, "<b>") == 0);
  CHECK(count(page, "&lt;b&gt;&quot;title&quot; &amp; more&lt;/b&gt;") == 2);
  const Json names = meta_of(page).at("runs").at(0).at("names");
  CHECK(names.at(0) == "");
  CHECK(names.at(1) == "\xef\xbf\xbd\xef\xbf\xbd broken \xe2\x82\xac </SCRIPT>");
  CHECK(names.at(2) == "<!-- {{meta}} {{data}}");
  CHECK(names.at(3) == "</script><script>alert(1)</script>");
}

TEST_CASE("the page asks for nothing from outside") {
  const std::string page = page_of(TraceLog{});
  CHECK(count(page, "default-src 'none'") == 1);
  CHECK(count(page, " src=") == 0);
  CHECK(count(page, "@import") == 0);
  CHECK(count(page, "url(") == 0);
  CHECK(count(page, "Chart.js v") == 1);
}

TEST_CASE("an empty trace has a page") {
  const std::string page = page_of(TraceLog{});
  const Json run = meta_of(page).at("runs").at(0);
  CHECK(run.at("events") == 0);
  CHECK(run.at("arrays").at("begin").at("count") == 0);
  data_of(page, meta_of(page).at("bytes"));
}

TEST_CASE("the arrays are the placement's") {
  const TraceLog log = limpid_test::training_loop(5000, 16);
  const Placement p = place(log, {});
  const std::string page = cli::view_page("t", {{"one", &log, &p}, {"two", &log, &p}});
  const Json meta = meta_of(page);
  const std::string data = data_of(page, meta.at("bytes"));
  REQUIRE(meta.at("runs").size() == 2);
  for (const Json& run : meta.at("runs")) {
    const Json& arrays = run.at("arrays");
    const auto begin = array_of<std::uint32_t>(arrays.at("begin"), data);
    const auto life = array_of<std::uint32_t>(arrays.at("life"), data);
    const auto before = array_of<std::uint32_t>(arrays.at("before"), data);
    const auto after = array_of<std::uint32_t>(arrays.at("after"), data);
    const auto kind = array_of<std::uint32_t>(arrays.at("kind"), data);
    const auto offset = array_of<double>(arrays.at("offset"), data);
    const auto requested = array_of<double>(arrays.at("kind_requested"), data);
    const auto largest = array_of<double>(arrays.at("largest_free"), data);
    REQUIRE(begin.size() == p.blocks.size());
    std::uint32_t t = 0;
    bool same = true;
    for (std::size_t i = 0; i < begin.size(); i++) {
      const PlacedBlock& b = p.blocks[i];
      t += begin[i];
      same = same && t == b.begin && t + life[i] == b.end && t - before[i] == b.born && b.end + after[i] == b.died;
      same = same && kind[i] == b.kind && offset[i] == static_cast<double>(b.offset);
      same = same && requested[kind[i]] == static_cast<double>(p.kinds[b.kind].requested);
    }
    CHECK(same);
    CHECK(std::equal(largest.begin(), largest.end(), p.largest_free.begin(), p.largest_free.end()));
    CHECK(run.at("peak").at("live") == p.peak.live_total);
    CHECK(run.at("peak_event") == p.peak_event);
  }
}

TEST_CASE("the command: a page, figures, errors") {
  limpid_test::TempFolder folder;
  const std::string trace = folder / "a.jsonl", page = folder / "page.html";
  TraceBuilder b;
  b.alloc(3 << 20, Role::param, "weight");
  write_trace(trace, b.log);
  const auto made = limpid_command({"mem", "view", trace, "--policy", "native,nosplit", "-o", page, "--json"});
  CHECK(made.code == 0);
  CHECK(made.json().at("runs").size() == 2);
  CHECK(made.json().at("bytes") == std::filesystem::file_size(page));
  CHECK(limpid_command({"mem", "view", folder / "none"}).code == 4);
  CHECK(limpid_command({"mem", "view", trace, "-o", folder / "no/such/page.html"}).code == 4);
  CHECK(limpid_command({"mem", "view", trace, "--policy", "no-such-policy"}).code == 2);
  CHECK(limpid_command({"mem", "view", trace, "--capacity", "lots"}).code == 2);
  CHECK(limpid_command({"mem", "view", trace, trace, trace, "--policy", "native,nosplit"}).code == 2);
  const auto broken = folder / "broken";
  std::ofstream(broken) << "not a trace at all";
  CHECK(limpid_command({"mem", "view", broken}).code == 4);
}
