#include <limpid/train/ledger.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include <zlib.h>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/tensor/random.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using detail::Json;
using detail::number;
using detail::read;

std::string hex(std::uint64_t value, int digits) {
  char text[20];
  std::snprintf(text, sizeof text, "%0*" PRIx64, digits, value);
  return text;
}

std::uint64_t from_hex(const std::string& text, const char* key) {
  std::uint64_t value = 0;
  int used = 0;
  LIMPID_CHECK(!text.empty() && text.size() <= 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos &&
                   std::sscanf(text.c_str(), "%" SCNx64 "%n", &value, &used) == 1 &&
                   used == static_cast<int>(text.size()),
               DataError, key, " is ", text, ", expected a hexadecimal number");
  return value;
}

std::uint32_t crc_of(const std::string& text) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

// {"a":1} -> {"a":1,"crc":"89abcdef"}; the CRC is that of {"a":1}.
std::string with_crc(const Json& json) {
  std::string line = json.dump();
  const std::string crc = hex(crc_of(line), 8);
  line.pop_back();
  return line + ",\"crc\":\"" + crc + "\"}";
}

// Numbers out of all reason are a damaged file, not a reason to fill the memory.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 31, kMostSteps = std::int64_t{1} << 53;

constexpr std::size_t kCrcLength = sizeof(",\"crc\":\"89abcdef\"}") - 1;

void check_crc(const std::string& line) {
  LIMPID_CHECK(line.size() > kCrcLength && line.compare(line.size() - kCrcLength, 8, ",\"crc\":\"") == 0, DataError,
               "the line does not end in its CRC: it was cut or changed");
  const std::string text = line.substr(0, line.size() - kCrcLength) + "}";
  const std::string written = line.substr(line.size() - 10, 8), found = hex(crc_of(text), 8);
  LIMPID_CHECK(written == found, DataError, "the line was changed: its CRC is ", written, ", its text gives ", found);
}

Json to_json(const MicroBatchRecord& m) {
  return {{"samples", m.samples},
          {"loss_sum", number(m.loss_sum)},
          {"weight", {number(m.weight_min), number(m.weight_max)}}};
}

Json to_json(const OomRetry& r) {
  return {{"micro_batch", r.micro_batch},
          {"next_micro_batch", r.next_micro_batch},
          {"requested", r.requested},
          {"where", r.where},
          {"released_segments", r.released_segments},
          {"released_bytes", r.released_bytes}};
}

MicroBatchRecord micro_from(const Json& json) {
  MicroBatchRecord m;
  m.samples = read<std::int64_t>(json, "samples");
  m.loss_sum = read<double>(json, "loss_sum");
  const auto weight = read<std::vector<double>>(json, "weight");
  LIMPID_CHECK(weight.size() == 2, DataError, "weight has ", weight.size(), " numbers, expected 2");
  m.weight_min = weight[0];
  m.weight_max = weight[1];
  return m;
}

OomRetry retry_from(const Json& json) {
  return {.micro_batch = read<std::int64_t>(json, "micro_batch"),
          .next_micro_batch = read<std::int64_t>(json, "next_micro_batch"),
          .requested = read<std::uint64_t>(json, "requested"),
          .where = read<std::string>(json, "where"),
          .released_segments = read<std::int64_t>(json, "released_segments"),
          .released_bytes = read<std::uint64_t>(json, "released_bytes")};
}

template <class T, class Read>
std::vector<T> list_from(const Json& object, const char* key, Read&& one) {
  const Json& json = detail::entry(object, key);
  LIMPID_CHECK(json.is_array(), DataError, key, " is ", json.dump(), ", expected a list");
  std::vector<T> out;
  for (const Json& item : json) out.push_back(one(item));
  return out;
}

LedgerPlan plan_from(const Json& json) {
  const auto version = read<std::int64_t>(json, "version");
  LIMPID_CHECK(version == kLedgerVersion, DataError, "the ledger has version ", version, ", this program reads ",
               kLedgerVersion);
  LedgerPlan plan;
  plan.samples = read<std::int64_t>(json, "samples");
  plan.effective_batch = read<std::int64_t>(json, "effective_batch");
  plan.micro_batch = read<std::int64_t>(json, "micro_batch");
  plan.quantum.reset();
  if (json.contains("quantum")) plan.quantum = read<std::int64_t>(json, "quantum");
  plan.drop_last = read<bool>(json, "drop_last");
  plan.shuffled = read<bool>(json, "shuffled");
  plan.seed = read<std::uint64_t>(json, "seed");
  plan.lr_policy = read<std::string>(json, "lr_policy");
  plan.kernels = read<std::string>(json, "kernels");
  LIMPID_CHECK(plan.samples >= 1 && plan.samples <= kMostSamples, DataError, "samples is ", plan.samples,
               ", expected 1 to ", kMostSamples);
  LIMPID_CHECK(plan.effective_batch >= 1 && plan.micro_batch >= 1 && plan.micro_batch <= plan.effective_batch,
               DataError, "effective_batch is ", plan.effective_batch, " and micro_batch ", plan.micro_batch,
               ", expected 1 <= micro_batch <= effective_batch");
  const std::int64_t quantum = plan.quantum.value_or(0);
  LIMPID_CHECK(quantum >= 0 && quantum <= plan.effective_batch, DataError, "quantum is ", quantum,
               ", expected 0 to the effective_batch ", plan.effective_batch);
  return plan;
}

LedgerStep step_from(const Json& json) {
  LedgerStep s;
  s.step = read<std::int64_t>(json, "step");
  s.epoch = read<std::int64_t>(json, "epoch");
  s.samples = read<std::int64_t>(json, "samples");
  s.ids_hash = from_hex(read<std::string>(json, "ids_hash"), "ids_hash");
  if (json.contains("ids")) s.ids = read<std::vector<std::int64_t>>(json, "ids");
  s.micro_batches = list_from<MicroBatchRecord>(json, "micro_batches", micro_from);
  s.count = read<double>(json, "count");
  s.loss_sum = read<double>(json, "loss_sum");
  s.applied = read<bool>(json, "applied");
  s.skipped = read<std::string>(json, "skipped");
  s.precision = read<std::string>(json, "precision");
  s.scale = read<double>(json, "scale");
  s.found_inf = read<std::string>(json, "found_inf");
  s.found_inf_micro = read<std::int64_t>(json, "found_inf_micro");
  if (!detail::entry(json, "grad_norm").is_null()) s.grad_norm = read<double>(json, "grad_norm");
  s.clip_coefficient = read<double>(json, "clip_coefficient");
  s.lr = read<double>(json, "lr");
  s.schedule_position = read<std::int64_t>(json, "schedule_position");
  s.weight_decay_factor = read<double>(json, "weight_decay_factor");
  s.bn_updates = read<std::int64_t>(json, "bn_updates");
  const Json& rng = detail::entry(json, "rng");
  s.rng_seed = read<std::uint64_t>(rng, "seed");
  s.rng_step = read<std::uint64_t>(rng, "step");
  s.retries = list_from<OomRetry>(json, "oom_retries", retry_from);
  if (auto ratios = json.find("trust_ratios"); ratios != json.end()) {
    LIMPID_CHECK(ratios->is_object(), DataError, "trust_ratios is ", ratios->dump(), ", expected an object");
    for (const auto& [name, ratio] : ratios->items()) {
      s.trust_ratios.emplace_back(name, 0);
      detail::read_value(ratio, concat("trust_ratios.", name), s.trust_ratios.back().second);
    }
  }
  LIMPID_CHECK(s.step >= 0 && s.step <= kMostSteps && s.epoch >= 0 && s.epoch <= kMostSteps && s.samples >= 1 &&
                   s.samples <= kMostSamples,
               DataError, "step ", s.step, ", epoch ", s.epoch, " and samples ", s.samples,
               ": expected numbers from 0, 0 and 1 to ", kMostSteps, ", ", kMostSteps, " and ", kMostSamples);
  return s;
}

LedgerEpoch epoch_from(const Json& json) {
  LedgerEpoch e;
  e.epoch = read<std::int64_t>(json, "epoch");
  e.steps = read<std::int64_t>(json, "step");
  e.dropped = read<std::vector<std::int64_t>>(json, "dropped");
  LIMPID_CHECK(e.epoch >= 0 && e.epoch <= kMostSteps && e.steps >= 0 && e.steps <= kMostSteps, DataError, "epoch ",
               e.epoch, " and step ", e.steps, ": expected numbers from 0 to ", kMostSteps);
  auto optional = [&](const char* key, std::optional<double>& value) {
    if (json.contains(key) && !json[key].is_null()) value = read<double>(json, key);
  };
  optional("train_loss", e.train_loss);
  optional("train_accuracy", e.train_accuracy);
  optional("validation_loss", e.validation_loss);
  optional("validation_accuracy", e.validation_accuracy);
  return e;
}

void parse_line(const std::string& line, bool first, Ledger& ledger) {
  check_crc(line);
  const Json json = detail::parse_object(line);
  const auto kind = read<std::string>(json, "kind");
  LIMPID_CHECK(first == (kind == "plan"), DataError, "the record is a \"", kind,
               first ? "\", the first one must be the \"plan\"" : "\" in the middle of the file");
  if (kind == "plan") {
    ledger.plan = plan_from(json);
  } else if (kind == "step") {
    ledger.steps.push_back(step_from(json));
  } else if (kind == "epoch") {
    ledger.epochs.push_back(epoch_from(json));
  } else {
    LIMPID_THROW(DataError, "the record is a \"", kind, "\", expected plan, step or epoch");
  }
}

// The check makes the order of an epoch, of as many numbers as the plan has samples. What is more than any small data
// set must be in the steps.
void check_backed(const Ledger& ledger) {
  constexpr std::int64_t kSmall = std::int64_t{1} << 22, kMostAtOnce = std::int64_t{1} << 16;
  if (ledger.plan.samples <= kSmall) return;
  std::int64_t backed = 0, steps = 0;
  for (const LedgerStep& s : ledger.steps) {
    steps++;
    for (const MicroBatchRecord& m : s.micro_batches)
      backed = std::min(backed + std::clamp<std::int64_t>(m.samples, 0, kMostAtOnce), kMostSamples);
  }
  LIMPID_CHECK(ledger.plan.samples <= backed, DataError, "the plan has ", ledger.plan.samples, " samples, the ", steps,
               " steps of the ledger show ", backed, " at most: the order of an epoch cannot be checked");
}

}  // namespace

std::uint64_t hash_of(std::span<const std::int64_t> ids) {
  std::uint64_t hash = 0;
  for (std::int64_t id : ids) hash = mix_key(hash, static_cast<std::uint64_t>(id));
  return hash;
}

std::string ledger_line(const LedgerPlan& p) {
  Json json = {{"kind", "plan"},
               {"version", kLedgerVersion},
               {"samples", p.samples},
               {"effective_batch", p.effective_batch},
               {"micro_batch", p.micro_batch}};
  if (p.quantum) json["quantum"] = *p.quantum;
  json["drop_last"] = p.drop_last;
  json["shuffled"] = p.shuffled;
  json["seed"] = p.seed;
  json["lr_policy"] = p.lr_policy;
  json["kernels"] = p.kernels;
  return with_crc(json);
}

std::string ledger_line(const LedgerStep& s) {
  Json json = {{"kind", "step"},
               {"step", s.step},
               {"epoch", s.epoch},
               {"samples", s.samples},
               {"ids_hash", hex(s.ids_hash, 16)}};
  if (!s.ids.empty()) json["ids"] = s.ids;
  json["micro_batches"] = Json::array();
  for (const MicroBatchRecord& m : s.micro_batches) json["micro_batches"].push_back(to_json(m));
  json["count"] = s.count;
  json["loss_sum"] = number(s.loss_sum);
  json["applied"] = s.applied;
  json["skipped"] = s.skipped;
  json["precision"] = s.precision;
  json["scale"] = number(s.scale);
  json["found_inf"] = s.found_inf;
  json["found_inf_micro"] = s.found_inf_micro;
  json["grad_norm"] = s.grad_norm ? number(*s.grad_norm) : Json();
  json["clip_coefficient"] = number(s.clip_coefficient);
  json["lr"] = number(s.lr);
  json["schedule_position"] = s.schedule_position;
  json["weight_decay_factor"] = number(s.weight_decay_factor);
  json["bn_updates"] = s.bn_updates;
  json["rng"] = {{"seed", s.rng_seed}, {"step", s.rng_step}};
  json["oom_retries"] = Json::array();
  for (const OomRetry& r : s.retries) json["oom_retries"].push_back(to_json(r));
  for (const auto& [name, ratio] : s.trust_ratios) json["trust_ratios"][name] = number(ratio);
  return with_crc(json);
}

std::string ledger_line(const LedgerEpoch& e, const std::string& memory) {
  Json json = {{"kind", "epoch"}, {"epoch", e.epoch}, {"step", e.steps}, {"dropped", e.dropped}};
  if (!memory.empty()) json.update(detail::parse_object(memory));
  return with_crc(json);
}

Ledger parse_ledger(const std::string& text) {
  Ledger ledger;
  detail::for_each_line(text, [&](const std::string& line, std::int64_t number) { parse_line(line, number == 1, ledger); });
  LIMPID_CHECK(ledger.plan.samples > 0, DataError, "the ledger is empty");
  check_backed(ledger);
  return ledger;
}

Ledger read_ledger(const std::string& path) {
  return detail::with_file(path, [&] { return parse_ledger(detail::read_text(path)); });
}

}  // namespace limpid::train
