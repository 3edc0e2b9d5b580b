#include "sweep_page.h"

#include <limpid/base/error.h>
#include <limpid/version.h>

#include "report/report_assets.h"
#include "sweep_assets.h"
#include "view/assets.h"
#include "view/page_text.h"

namespace limpid::cli {

using Json = nlohmann::ordered_json;

Json results_json(const SweepResults& results) {
  if (results.lab) return Json::parse(train::to_json(*results.lab));
  Json json = Json::parse(train::to_json(*results.sweep));
  json["learning"] = results.learning ? Json::parse(train::to_json(*results.learning)) : Json();
  return json;
}

std::string sweep_page(const SweepResults& results) {
  const std::string title = results.lab ? std::string("Sizes of single operations") : concat("Batch sizes of ", results.sweep->model);
  Json json = {{"version", LIMPID_VERSION}, {"title", title}, {"sweep", nullptr}, {"learning", nullptr}, {"lab", nullptr}};
  json[results.lab ? "lab" : "sweep"] = results_json(results);
  if (results.learning) json["learning"] = json["sweep"]["learning"];
  const std::string data = dump_for_script(json), plain_title = escape_html(title);
  return fill_template(sweep_assets::kTemplate, {{"window", plain_title},
                                                 {"title", plain_title},
                                                 {"style", report_assets::kStyle},
                                                 {"licence", assets::kChartLicence},
                                                 {"chart", assets::kChartJs},
                                                 {"script", sweep_assets::kScript},
                                                 {"data", data}});
}

}  // namespace limpid::cli
