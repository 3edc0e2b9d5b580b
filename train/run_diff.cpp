#include <limpid/train/run_diff.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/train/ledger.h>
#include <limpid/train/run_folder.h>
#include <limpid/train/run_log.h>
#include <limpid/train/state_json_private.h>

namespace limpid::train {
namespace {

using detail::Json;

// A record as (field, value), nested ones with their path.
using Fields = std::vector<std::pair<std::string, std::string>>;
void flatten(const Json& json, const std::string& path, Fields& out) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) flatten(value, path.empty() ? key : path + "." + key, out);
  } else if (json.is_array()) {
    for (std::size_t i = 0; i < json.size(); i++) flatten(json[i], concat(path, "[", i, "]"), out);
    out.emplace_back(path + ".size", concat(json.size()));
  } else {
    out.emplace_back(path, json.dump());
  }
}

struct Record {
  std::string kind;
  std::int64_t number = 0;
  Fields fields;
};

std::vector<Record> records_of(const std::string& text) {
  parse_ledger(text);  // whole and unchanged
  std::vector<Record> records;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    Json json = detail::parse_object(text.substr(at, end - at));
    Record record;
    record.kind = json["kind"].get<std::string>();
    if (record.kind != "plan") record.number = json[record.kind].get<std::int64_t>();
    json.erase("crc");
    flatten(json, "", record.fields);
    records.push_back(std::move(record));
    at = end + 1;
  }
  return records;
}

const std::string* value_of(const Fields& fields, const std::string& name) {
  for (const auto& [field, value] : fields)
    if (field == name) return &value;
  return nullptr;
}

class Diff {
 public:
  void compare(const Record& a, const Record& b) {
    for (const auto& [field, value] : a.fields) {
      const std::string* other = value_of(b.fields, field);
      if (!other || *other != value) note(a, field, value, other ? *other : "");
    }
    for (const auto& [field, value] : b.fields)
      if (!value_of(a.fields, field)) note(a, field, "", value);
  }
  // A record that only one run has.
  void only(const Record& r, bool in_a) { note(r, "record", in_a ? "there" : "absent", in_a ? "absent" : "there"); }
  std::vector<Difference> take() { return std::move(found_); }

 private:
  void note(const Record& at, const std::string& field, const std::string& a, const std::string& b) {
    const auto [place, is_new] = index_.try_emplace(at.kind + "/" + field, found_.size());
    if (is_new) {
      found_.push_back({at.kind, at.number, field, a, b, 1});
    } else {
      found_[place->second].times++;
    }
  }
  std::vector<Difference> found_;
  std::map<std::string, std::size_t> index_;
};

std::int64_t count(const std::vector<Record>& records, const char* kind) {
  return std::count_if(records.begin(), records.end(), [&](const Record& r) { return r.kind == kind; });
}

}  // namespace

RunDiff diff_ledgers(const std::string& text_a, const std::string& text_b) {
  const std::vector<Record> a = records_of(text_a), b = records_of(text_b);
  RunDiff out;
  out.steps_a = count(a, "step");
  out.steps_b = count(b, "step");
  out.epochs = count(a, "epoch");
  // Steps are matched by their number, so that a run that is longer, or lost a record, does not differ everywhere.
  std::map<std::pair<std::string, std::int64_t>, const Record*> in_b;
  for (const Record& r : b) in_b[{r.kind, r.number}] = &r;
  Diff diff;
  for (const Record& r : a) {
    auto other = in_b.find({r.kind, r.number});
    if (other == in_b.end()) {
      diff.only(r, true);
    } else {
      diff.compare(r, *other->second);
      in_b.erase(other);
    }
  }
  for (const Record& r : b)
    if (in_b.contains({r.kind, r.number})) diff.only(r, false);
  out.differences = diff.take();
  return out;
}

RunDiff diff_runs(const std::string& path_a, const std::string& path_b) {
  std::vector<std::string> going_on;
  auto text_of = [&going_on](const std::string& path) {
    const bool running = RunFolder::holds_run(path) && is_going_on(path);
    std::error_code ignored;
    const std::string file = std::filesystem::is_directory(path, ignored) ? path + "/ledger.jsonl" : path;
    return detail::with_file(file, [&] {
      const std::vector<std::uint8_t> bytes = read_file(file);
      std::string text(bytes.begin(), bytes.end());
      if (running) {
        text.resize(text.rfind('\n') + 1);  // npos + 1 is 0: the line that is being written is left out
        going_on.push_back(path);
      }
      parse_ledger(text);
      return text;
    });
  };
  const std::string text_a = text_of(path_a), text_b = text_of(path_b);
  RunDiff out = diff_ledgers(text_a, text_b);
  for (const std::string& path : going_on) {
    out.notes.push_back(concat(path, " is still running: compared is what it had written by now, ",
                               path == path_a ? out.steps_a : out.steps_b, " steps"));
  }
  if (RunFolder::holds_run(path_a) && RunFolder::holds_run(path_b))
    out.settings = conflicts(RunFolder::settings_of(path_a), RunFolder::settings_of(path_b));
  return out;
}

std::string to_string(const RunDiff& d) {
  std::string out;
  auto place = [](const Difference& x) { return x.record == "plan" ? x.record : concat(x.record, " ", x.number); };
  auto shown = [](const std::string& value) { return value.empty() ? std::string("(absent)") : printable(value); };
  for (const std::string& n : d.notes) out += concat("note: ", printable(n), "\n");
  for (const std::string& s : d.settings) out += concat("setting  ", printable(s), "\n");
  if (d.equal()) {
    return out +
           concat(
               "the ledgers are equal: ", d.steps_a, " steps and ", d.epochs,
               " ends of epochs, the same bits in every field that they record:\n"
               "the plan, samples and their weights, losses, gradient norms, rates, loss scales, batch norm updates, "
               "random numbers, retries.\n"
               "Not in a ledger, so not compared: the weights themselves, times, memory.\n");
  }
  const Difference& first = d.differences[0];
  out += concat("first difference: ", place(first), ", ", printable(first.field), ": ", shown(first.a), " and ",
                shown(first.b), "\n");
  constexpr std::size_t kMost = 20;
  for (std::size_t i = 1; i < std::min(d.differences.size(), kMost + 1); i++) {
    const Difference& x = d.differences[i];
    out += concat("  ", printable(x.field), " from ", place(x), " on, ", x.times,
                  x.times == 1 ? " time: " : " times: ", shown(x.a), " and ", shown(x.b), "\n");
  }
  if (d.differences.size() > kMost + 1) out += concat("  and ", d.differences.size() - kMost - 1, " more fields\n");
  return out;
}

std::string to_json(const RunDiff& d) {
  Json json;
  json["equal"] = d.equal();
  json["steps"] = {d.steps_a, d.steps_b};
  json["epochs"] = d.epochs;
  json["notes"] = d.notes;
  json["settings"] = d.settings;
  json["differences"] = Json::array();
  for (const Difference& x : d.differences) {
    json["differences"].push_back(
        {{"record", x.record}, {"number", x.number}, {"field", x.field}, {"a", x.a}, {"b", x.b}, {"times", x.times}});
  }
  return json.dump();
}

}  // namespace limpid::train
