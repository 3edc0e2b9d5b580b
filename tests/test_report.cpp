// The page of `limpid report` as text and the command that makes it. tests/view/report.py opens pages in a browser.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "command.h"
#include "report/report_page.h"

using namespace limpid;
using limpid_test::limpid_command;
using limpid_test::TempFolder;
using limpid_test::text_of;

namespace {

using Json = nlohmann::json;

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; }

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
  return n;
}

Json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t from = page.find(open) + open.size();
  REQUIRE(from > open.size());
  return Json::parse(page.substr(from, page.find("</script>", from) - from));
}

// A run of 3 effective batches of 8 (3 + 3 + 2), the last one of 4 with a sample that weighs four times too much.
train::RunLog small_log() {
  train::RunLog log;
  log.run_json = R"({"limpid": "0", "created": "today", "settings": {}, "machine": {}})";
  log.settings.epochs = 1;
  log.ledger.plan = {.samples = 20, .effective_batch = 8, .micro_batch = 3, .drop_last = false, .shuffled = true, .seed = 5};
  const data::BatchPlan plan(data::RandomSampler(20, 5).order(0), 8, false);
  for (std::int64_t step = 0; step < 3; step++) {
    const auto ids = plan.indices(step);
    const auto n = static_cast<double>(ids.size());
    train::LedgerStep s;
    s.step = s.schedule_position = step;
    s.samples = static_cast<std::int64_t>(ids.size());
    s.ids_hash = train::hash_of(ids);
    s.count = n;
    s.loss_sum = n;
    for (std::int64_t size : data::micro_batch_sizes(s.samples, 3)) {
      s.micro_batches.push_back({.samples = size, .loss_sum = static_cast<double>(size), .weight_min = 1 / n, .weight_max = 1 / n});
    }
    log.steps.push_back({.step = step, .samples = s.samples, .loss = 1});
    log.ledger.steps.push_back(s);
  }
  log.ledger.steps[2].micro_batches[1].weight_max = 1;
  return log;
}

}  // namespace

TEST_CASE("the page has every effective batch with its samples, parts and weights, and says what is wrong") {
  train::RunLog log = small_log();
  Json data = data_of(cli::report_page("t", log));
  const Json& list = data.at("batches").at("list");
  REQUIRE(list.size() == 3);
  CHECK(data.at("batches").at("total") == 3);
  std::vector<int> seen(20);
  for (const Json& batch : list) {
    CHECK(batch.at("listed") == false);
    for (const Json& id : batch.at("ids")) seen.at(id)++;
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  CHECK(list[0].at("parts").size() == 3);
  CHECK(list[0].at("parts")[0] == Json::array({3, 1.0, 1.0, 1.0}));
  CHECK(list[2].at("parts")[1] == Json::array({2, 1.0, 4.0, 1.0}));
  CHECK(!list[0].contains("marks"));
  REQUIRE(list[2].at("marks").size() == 1);
  CHECK(list[2].at("marks")[0] == data.at("check").at("violations")[0]);
  CHECK(data.at("check").at("ok") == false);
  CHECK(data.at("check").at("largest_weight_error") == 3);
  CHECK(count(data.at("check").at("violations")[0].get<std::string>(), "4 times too much") == 1);
  CHECK(data.at("plan").at("steps") == 3);
  CHECK(data.at("plan").at("micro_batches") == Json::array({3, 3, 2}));
  CHECK(data.at("plan").at("tail_micro_batches") == Json::array({2, 2}));

  // A quantum cuts the tail at its multiples.
  train::RunLog pieces = small_log();
  pieces.ledger.plan = {.samples = 22, .effective_batch = 8, .micro_batch = 4, .quantum = 4, .shuffled = false};
  const Json cut = data_of(cli::report_page("t", pieces)).at("plan");
  CHECK(cut.at("micro_batches") == Json::array({4, 4}));
  CHECK(cut.at("tail_micro_batches") == Json::array({4, 2}));
  pieces.ledger.plan.quantum = 0;
  CHECK(data_of(cli::report_page("t", pieces)).at("plan").at("tail_micro_batches") == Json::array({3, 3}));

  // Other samples than the seed's: their ids are not made up.
  log.ledger.steps[1].ids_hash++;
  data = data_of(cli::report_page("t", log));
  CHECK(!data.at("batches").at("list")[1].contains("ids"));
  CHECK(data.at("check").at("violations").size() == 2);
  log.ledger.steps[1].ids = {7, 7, 7, 7, 7, 7, 7, 7};
  CHECK(data_of(cli::report_page("t", log)).at("batches").at("list")[1].at("ids")[0] == 7);
}

TEST_CASE("warnings and notes: divergence, small batch norm, a rate of another batch, skips, retries, an unfinished run") {
  train::RunLog log = small_log();
  log.settings.epochs = 2;
  log.settings.batch = 8;
  log.settings.reference_batch = 32;
  log.steps[1].loss = NAN;
  train::LedgerStep& s = log.ledger.steps[1];
  s.bn_updates = 3;
  s.applied = false;
  s.skipped = "because";
  s.retries.push_back({.micro_batch = 8, .next_micro_batch = 4, .requested = 1024, .where = "conv1"});
  const Json data = data_of(cli::report_page("t", log));
  const std::string warnings = data.at("warnings").dump(), notes = data.at("notes").dump();
  CHECK(count(warnings, "the training has diverged") == 1);
  CHECK(count(warnings, "batch norm had micro-batches of 2 samples") == 1);
  CHECK(count(warnings, "belongs to a batch of 32") == 1);
  CHECK(count(warnings, "the effective batch is") == 1);
  log.ledger.plan.effective_batch = 64;
  CHECK(count(data_of(cli::report_page("t", log)).at("warnings").dump(),
              "the effective batch is 64, the training set has 20 samples") == 1);
  CHECK(count(notes, "has made 3 of 6 steps") == 1);
  CHECK(count(notes, "step 1 was skipped: because") == 1);
  const std::string marks = data.at("batches").at("list")[1].at("marks").dump();
  CHECK(count(marks, "ran out of memory at conv1 (1.00 KiB)") == 1);
  CHECK(count(marks, "skipped: because") == 1);
  CHECK(data.at("steps").at("loss").at("mean")[1].is_null());
}

TEST_CASE("a long run is thinned out: means with the extremes, sums of times, marked steps kept") {
  train::RunLog log;
  log.run_json = small_log().run_json;
  log.ledger.plan = {.samples = 5000, .effective_batch = 1, .micro_batch = 1, .shuffled = false};
  for (std::int64_t step = 0; step < 5000; step++) {
    train::LedgerStep s;
    s.step = s.schedule_position = step;
    s.samples = 1;
    s.count = 1;
    s.micro_batches = {{.samples = 1, .weight_min = 1, .weight_max = step == 4321 ? 2.0 : 1.0}};
    log.ledger.steps.push_back(s);
    log.steps.push_back({.step = step, .samples = 1, .loss = static_cast<double>(step % 5)});
    log.monitor.push_back({.step = step, .steps = 1, .samples = 10, .seconds = 1 + static_cast<double>(step % 5)});
  }
  const Json data = data_of(cli::report_page("t", log));
  const Json& steps = data.at("steps");
  CHECK(steps.at("group") == 5);
  CHECK(steps.at("last").size() == 1000);
  CHECK(steps.at("first")[1] == 5);
  CHECK(steps.at("last")[1] == 9);
  CHECK(steps.at("loss").at("mean")[7] == 2);
  CHECK(steps.at("loss").at("low")[7] == 0);
  CHECK(steps.at("loss").at("high")[7] == 4);
  CHECK(data.at("monitor").at("samples_per_second")[7] == doctest::Approx(50.0 / 15));
  const Json& batches = data.at("batches");
  CHECK(batches.at("every") == 3);
  CHECK(batches.at("list").size() == 1667 + 1);
  CHECK(std::count_if(batches.at("list").begin(), batches.at("list").end(), [](const Json& b) { return b.at("step") == 4321; }) == 1);
}

TEST_CASE("names stay inside the data, and nothing comes from outside") {
  train::RunLog log = small_log();
  const std::string plain = cli::report_page("t", log);
  log.ledger.steps[1].applied = false;
  log.ledger.steps[1].skipped = "</script><script>alert(1)</script> {{data}} <!-- \xff";
  const std::string page = cli::report_page("<b>\"title\" & more</b></title><script>", log);
  CHECK(count(page, "<script") == count(plain, "<script"));
  CHECK(count(page, "</script>") == count(plain, "</script>"));
  CHECK(count(page, "<b>") == 0);
  CHECK(count(page, "&lt;b&gt;&quot;title&quot; &amp; more&lt;/b&gt;") == 2);
  CHECK(count(data_of(page).at("notes").dump(), "</script><script>alert(1)</script> {{data}} <!--") == 1);
  CHECK(count(page, "default-src 'none'") == 1);
  CHECK(count(page, " src=") == 0);
  CHECK(count(page, "@import") == 0);
  CHECK(count(page, "url(") == 0);
  CHECK(count(page, "Chart.js v") == 1);
}

TEST_CASE("the command: train writes the page, report writes it again or elsewhere, bad runs are data errors") {
  TempFolder folder;
  const std::string run = folder / "run", page = run + "/report.html";
  const auto trained = limpid_command({"train", "--data", "synthetic", "--input", "3x8x8", "--classes", "4", "--limit", "40", "--model",
                                       "seed", "--epochs", "1", "--batch", "16", "--threads", "1", "--quiet", "--out", run});
  REQUIRE_MESSAGE(trained.code == 0, trained.err);
  REQUIRE(data_of(text_of(page)).at("batches").at("total") == 3);
  std::filesystem::remove(page);
  const auto made = limpid_command({"report", run, "--json"});
  CHECK(made.code == 0);
  CHECK(made.json() == Json({{"out", page}, {"bytes", std::filesystem::file_size(page)}}));
  const auto elsewhere = limpid_command({"report", run + "/", "-o", folder / "a.html"});
  CHECK(elsewhere.code == 0);
  CHECK(count(elsewhere.out, "wrote " + (folder / "a.html")) == 1);
  CHECK(text_of(folder / "a.html") == text_of(page));
  CHECK(count(text_of(page), "<title>run") == 1);

  CHECK(limpid_command({"report"}).code == 2);
  CHECK(limpid_command({"report", run, "--no-such-option"}).code == 2);
  CHECK(limpid_command({"report", folder / "none"}).code == 4);
  CHECK(limpid_command({"report", run, "-o", folder / "no/such/page.html"}).code == 4);
  const std::string whole = text_of(page), steps = text_of(run + "/steps.jsonl");
  write(run + "/steps.jsonl", steps.substr(0, steps.size() - 20));
  const auto cut = limpid_command({"report", run});
  CHECK(cut.code == 4);
  CHECK_MESSAGE(count(cut.err, "steps.jsonl: line 3: the last line has no end: the file was cut") == 1, cut.err);
  CHECK(text_of(page) == whole);
}
