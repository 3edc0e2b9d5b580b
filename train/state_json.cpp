#include <limpid/train/state_json_private.h>

#include <cmath>
#include <limits>

#include <limpid/optim/grad_scaler.h>

namespace limpid::train::detail {
namespace {

// Of a card: far above what fits, so that a damaged one is told from a large one before anything is allocated.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;
constexpr std::int64_t kMaxClasses = 10000;

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

Json roles_json(const RoleBytes& roles) {
  Json json = Json::object();
  for (std::size_t i = 0; i < roles.size(); i++) json[memory::to_string(static_cast<memory::Role>(i))] = roles[i];
  return json;
}

RoleBytes roles_from_json(const Json& json) {
  RoleBytes roles{};
  for (std::size_t i = 0; i < roles.size(); i++) {
    roles[i] = read<std::uint64_t>(json, memory::to_string(static_cast<memory::Role>(i)));
  }
  return roles;
}

void for_each_line(const std::string& text,
                   const std::function<void(const std::string& line, std::int64_t number)>& one) {
  std::size_t at = 0;
  for (std::int64_t line = 1; at < text.size(); line++) {
    const std::size_t end = text.find('\n', at);
    try {
      LIMPID_CHECK(end != std::string::npos, DataError, "the last line has no end: the file was cut");
      one(text.substr(at, end - at), line);
    } catch (const Json::exception&) {
      LIMPID_THROW(DataError, "line ", line, ": an entry has the wrong type");
    } catch (DataError& error) {
      error.add_context(concat("line ", line, ": "));
      throw;
    }
    at = end + 1;
  }
}

std::string read_text(const std::string& path) {
  const std::vector<std::uint8_t> bytes = read_file(path, std::uint64_t{4} << 30);
  return {bytes.begin(), bytes.end()};
}

const Json& entry(const Json& object, const char* key) {
  LIMPID_CHECK(object.is_object() && object.contains(key), DataError, "the entry \"", key, "\" is missing");
  return object[key];
}

void check_format(const Json& json, int format) {
  const auto found = read<std::int64_t>(json, "format");
  LIMPID_CHECK(found == format, DataError, "format is ", found, ", this program reads ", format);
}

void read_value(const Json& json, const std::string& name, bool& out) {
  LIMPID_CHECK(json.is_boolean(), DataError, name, " is ", json.dump(), ", expected true or false");
  out = json.get<bool>();
}

void read_value(const Json& json, const std::string& name, std::int64_t& out) {
  const bool fits = json.is_number_integer() && !(json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX);
  LIMPID_CHECK(fits, DataError, name, " is ", json.dump(), ", expected a whole number");
  out = json.get<std::int64_t>();
}

void read_value(const Json& json, const std::string& name, std::uint64_t& out) {
  const bool fits = json.is_number_unsigned() || (json.is_number_integer() && json.get<std::int64_t>() >= 0);
  LIMPID_CHECK(fits, DataError, name, " is ", json.dump(), ", expected a whole number >= 0");
  out = json.get<std::uint64_t>();
}

void read_value(const Json& json, const std::string& name, double& out) {
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  const bool special = text == "nan" || text == "inf" || text == "-inf";
  LIMPID_CHECK(json.is_number() || special, DataError, name, " is ", json.dump(), ", expected a number");
  if (!special) {
    out = json.get<double>();
  } else if (text == "nan") {
    out = std::numeric_limits<double>::quiet_NaN();
  } else {
    out = text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  }
}

void read_value(const Json& json, const std::string& name, std::string& out) {
  LIMPID_CHECK(json.is_string(), DataError, name, " is ", json.dump(), ", expected a text");
  out = json.get<std::string>();
}

Json parse_object(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  LIMPID_CHECK(json.is_object(), DataError, "not a JSON object");
  return json;
}

Json parse_object_file(const std::string& path, std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  return parse_object({bytes.begin(), bytes.end()});
}

Json to_json(const ModelCard& card) {
  return {
      {"model", card.model}, {"input", card.input.vec()}, {"classes", card.classes}, {"class_names", card.class_names},
      {"data", card.data},   {"mean", card.mean},         {"std", card.std}};
}

ModelCard card_from_json(const Json& json) {
  ModelCard card;
  card.model = read<std::string>(json, "model");
  const auto input = read<std::vector<std::int64_t>>(json, "input");
  card.classes = read<std::int64_t>(json, "classes");
  card.class_names = read<std::vector<std::string>>(json, "class_names");
  card.data = read<std::string>(json, "data");
  card.mean = read<std::vector<double>>(json, "mean");
  card.std = read<std::vector<double>>(json, "std");

  // A model of the user's may have inputs of any rank; ours take images.
  const bool ours = !card.model.empty();
  LIMPID_CHECK(input.size() == 3 || (!ours && input.size() <= static_cast<std::size_t>(kMaxDims)), DataError,
               "input is ", Json(input).dump(), ", expected [channels,height,width]");
  std::int64_t elements = 1;
  for (std::int64_t size : input) {
    LIMPID_CHECK(size >= 1 && !__builtin_mul_overflow(elements, size, &elements) && elements <= kMaxElements, DataError,
                 "input is ", Json(input).dump(), ", expected sizes of at least 1 and at most ", kMaxElements,
                 " elements");
  }
  card.input = Shape(input);
  LIMPID_CHECK(card.classes >= (ours ? 1 : 0) && card.classes <= kMaxClasses, DataError, "classes is ", card.classes,
               ", expected 1..", kMaxClasses);
  LIMPID_CHECK(card.class_names.empty() || card.class_names.size() == static_cast<std::size_t>(card.classes), DataError,
               "class_names has ", card.class_names.size(), " entries, there are ", card.classes, " classes");
  LIMPID_CHECK(card.mean.size() == card.std.size() &&
                   (card.mean.empty() || (!input.empty() && card.mean.size() == static_cast<std::size_t>(input[0]))),
               DataError, "mean has ", card.mean.size(), " and std ", card.std.size(), " entries, input is ",
               Json(input).dump());
  for (std::size_t c = 0; c < card.mean.size(); c++) {
    LIMPID_CHECK(std::isfinite(card.mean[c]) && std::isfinite(card.std[c]) && card.std[c] > 0, DataError, "mean[", c,
                 "] is ", card.mean[c], " and std[", c, "] ", card.std[c], ", expected finite numbers, std > 0");
  }
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
  json["scaler"] = numbers(s.scaler);
  json["epoch_so_far"] = {{"loss_sum", number(s.epoch_loss)},
                          {"correct", s.epoch_correct},
                          {"samples", s.epoch_samples},
                          {"seconds", s.epoch_seconds}};
  json["run_so_far"] = {{"train_seconds", s.train_seconds}, {"samples", s.samples}, {"micro_batch_limit", s.micro_batch_limit}};
  json["best"] = {{"loss", number(s.best_loss)},
                  {"accuracy", number(s.best_accuracy)},
                  {"epoch", s.best_epoch},
                  {"step", s.best_step}};
  json["log_offsets"] = s.log_offsets;
  return json;
}

RunState state_from_json(const Json& json) {
  // A whole number from `least` on. More than 2^53 of anything cannot come from a run.
  auto count = [](const Json& object, const char* key, std::int64_t least = 0) {
    const auto value = read<std::int64_t>(object, key);
    LIMPID_CHECK(value >= least && value <= (std::int64_t{1} << 53), DataError, key, " is ", value,
                 ", expected a number from ", least, " on");
    return value;
  };
  auto seconds = [](const Json& object, const char* key) {
    const auto value = read<double>(object, key);
    LIMPID_CHECK(value >= 0 && std::isfinite(value), DataError, key, " is ", value, ", expected a number >= 0");
    return value;
  };
  RunState s;
  s.step = count(json, "step");
  s.loader.epoch = count(json, "epoch");
  s.loader.position = count(json, "position");
  s.loader.seed = read<std::uint64_t>(json, "loader_seed");
  const Json& generator = entry(json, "generator");
  s.generator_seed = read<std::uint64_t>(generator, "seed");
  read_value(entry(generator, "position"), "generator.position", s.generator_position);
  for (const auto& [name, value] : entry(json, "scheduler").items()) read_value(value, name, s.scheduler[name]);
  for (const auto& [name, value] : entry(json, "scaler").items()) read_value(value, name, s.scaler[name]);
  for (const auto& [name, value] : s.scheduler) {
    LIMPID_CHECK(value >= 0 && std::isfinite(value), DataError, "scheduler.", name, " is ", value,
                 ", expected a finite number >= 0");
  }
  if (!s.scaler.empty()) optim::GradScaler().load_state_dict(s.scaler);  // as strict as when the run goes on
  const Json& epoch = entry(json, "epoch_so_far");
  s.epoch_loss = read<double>(epoch, "loss_sum");
  s.epoch_correct = count(epoch, "correct");
  s.epoch_samples = count(epoch, "samples");
  s.epoch_seconds = seconds(epoch, "seconds");
  const Json& run = entry(json, "run_so_far");
  s.train_seconds = seconds(run, "train_seconds");
  s.samples = count(run, "samples");
  s.micro_batch_limit = count(run, "micro_batch_limit");
  const Json& best = entry(json, "best");
  s.best_loss = read<double>(best, "loss");
  s.best_accuracy = read<double>(best, "accuracy");
  s.best_epoch = count(best, "epoch", -1);
  s.best_step = count(best, "step", -1);
  const Json& offsets = entry(json, "log_offsets");
  LIMPID_CHECK(offsets.is_object(), DataError, "log_offsets is ", offsets.dump(), ", expected an object");
  for (const auto& [name, value] : offsets.items()) read_value(value, "log_offsets." + name, s.log_offsets[name]);
  return s;
}

TrainSettings settings_from_file(const Json& json) {
  TrainSettings settings = settings_from_json(json.dump());
  check(settings);
  return settings;
}

}  // namespace limpid::train::detail
