#include <limpid/train/state_json_private.h>

#include <cmath>
#include <limits>

namespace limpid::train::detail {
namespace {

Json numbers(const std::map<std::string, double>& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = number(value);
  return json;
}

}  // namespace

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const std::string text = json.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  LIMPID_CHECK(text == "inf" || text == "-inf", DataError, "[checkpoint] expected a number, found \"", text, "\"");
  return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

Json to_json(const ModelCard& card) {
  return {
      {"model", card.model}, {"input", card.input.vec()}, {"classes", card.classes}, {"class_names", card.class_names},
      {"data", card.data},   {"mean", card.mean},         {"std", card.std}};
}

ModelCard card_from_json(const Json& json) {
  ModelCard card;
  card.model = json.at("model").get<std::string>();
  card.input = Shape(json.at("input").get<std::vector<std::int64_t>>());
  card.classes = json.at("classes").get<std::int64_t>();
  card.class_names = json.at("class_names").get<std::vector<std::string>>();
  card.data = json.at("data").get<std::string>();
  card.mean = json.at("mean").get<std::vector<double>>();
  card.std = json.at("std").get<std::vector<double>>();
  return card;
}

Json to_json(const RunState& s) {
  Json json;
  json["step"] = s.step;
  json["epoch"] = s.loader.epoch;
  json["position"] = s.loader.position;
  json["loader_seed"] = s.loader.seed;
  json["generator"] = {{"seed", s.generator_seed}, {"position", s.generator_position}};
  json["scheduler"] = numbers(s.scheduler);
  json["epoch_so_far"] = {{"loss_sum", number(s.epoch_loss)},
                          {"correct", s.epoch_correct},
                          {"samples", s.epoch_samples},
                          {"seconds", s.epoch_seconds}};
  json["run_so_far"] = {{"train_seconds", s.train_seconds}, {"samples", s.samples}};
  json["best"] = {{"loss", number(s.best_loss)},
                  {"accuracy", number(s.best_accuracy)},
                  {"epoch", s.best_epoch},
                  {"step", s.best_step}};
  json["log_offsets"] = s.log_offsets;
  return json;
}

RunState state_from_json(const Json& json) {
  RunState s;
  s.step = json.at("step").get<std::int64_t>();
  s.loader.epoch = json.at("epoch").get<std::int64_t>();
  s.loader.position = json.at("position").get<std::int64_t>();
  s.loader.seed = json.at("loader_seed").get<std::uint64_t>();
  s.generator_seed = json.at("generator").at("seed").get<std::uint64_t>();
  s.generator_position = json.at("generator").at("position").get<std::uint64_t>();
  for (const auto& [name, value] : json.at("scheduler").items()) s.scheduler[name] = number(value);
  const Json& epoch = json.at("epoch_so_far");
  s.epoch_loss = number(epoch.at("loss_sum"));
  s.epoch_correct = epoch.at("correct").get<std::int64_t>();
  s.epoch_samples = epoch.at("samples").get<std::int64_t>();
  s.epoch_seconds = epoch.at("seconds").get<double>();
  s.train_seconds = json.at("run_so_far").at("train_seconds").get<double>();
  s.samples = json.at("run_so_far").at("samples").get<std::int64_t>();
  const Json& best = json.at("best");
  s.best_loss = number(best.at("loss"));
  s.best_accuracy = number(best.at("accuracy"));
  s.best_epoch = best.at("epoch").get<std::int64_t>();
  s.best_step = best.at("step").get<std::int64_t>();
  json.at("log_offsets").get_to(s.log_offsets);
  return s;
}

}  // namespace limpid::train::detail
