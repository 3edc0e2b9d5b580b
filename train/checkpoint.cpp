#include <limpid/train/checkpoint.h>

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/tensor/safetensors.h>
#include <limpid/train/state_json_private.h>
#include <limpid/version.h>

namespace limpid::train {
namespace {

namespace fs = std::filesystem;
using detail::Json;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kUnfinished = ".unfinished-";
constexpr const char* kCardKey = "limpid";  // metadata key of the model card

using Digests = std::map<std::string, FileDigest>;

Json to_json(const Digests& digests) {
  Json json = Json::object();
  for (const auto& [name, d] : digests) json[name] = {{"bytes", d.bytes}, {"crc32", d.crc32}};
  return json;
}

Digests digests_from_json(const Json& json) {
  Digests out;
  for (const auto& [name, d] : json.items()) {
    out[name] = {d.at("bytes").get<std::uint64_t>(), d.at("crc32").get<std::uint32_t>()};
  }
  return out;
}

Json parse_file(const std::string& path) {
  std::vector<std::uint8_t> bytes = read_file(path, std::uint64_t{64} << 20);
  Json json = Json::parse(bytes.begin(), bytes.end(), nullptr, false);
  LIMPID_CHECK(json.is_object(), DataError, "[checkpoint] ", path, " is not a JSON object");
  return json;
}

// Runs `read` and turns a missing or mistyped entry into an error that names the file.
template <class Read>
auto read_entries(const std::string& path, Read&& read) {
  try {
    return read();
  } catch (const Json::exception& e) {
    LIMPID_THROW(DataError, "[checkpoint] ", path, " is damaged: ", e.what());
  }
}

void verify(const std::string& folder, const Digests& digests, const std::string& witness) {
  for (const auto& [name, expected] : digests) {
    const std::string path = folder + "/" + name;
    std::error_code ignored;
    LIMPID_CHECK(fs::is_regular_file(path, ignored), DataError, "[checkpoint] ", path, " is missing; ", witness,
                 " lists it");
    const FileDigest found = digest_file(path);
    LIMPID_CHECK(found.bytes == expected.bytes, DataError, "[checkpoint] ", path, " has ", found.bytes, " bytes, ",
                 witness, " says ", expected.bytes);
    LIMPID_CHECK(found.crc32 == expected.crc32, DataError, "[checkpoint] ", path, " is damaged: its CRC-32 is ",
                 found.crc32, ", ", witness, " says ", expected.crc32);
  }
}

struct Pointer {
  std::string name;  // of the folder
  Digests files;
};

Pointer read_pointer(const std::string& path) {
  const Json json = parse_file(path);
  return read_entries(path, [&] {
    Pointer pointer{json.at("checkpoint").get<std::string>(), digests_from_json(json.at("files"))};
    LIMPID_CHECK(!pointer.name.empty() && pointer.name.find('/') == std::string::npos && pointer.name[0] != '.',
                 DataError, "[checkpoint] ", path, " names the folder \"", pointer.name, "\"");
    return pointer;
  });
}

Checkpoint read_folder(const std::string& folder) {
  const std::string path = folder + "/" + kState;
  const Json json = parse_file(path);
  Checkpoint out;
  out.folder = folder;
  read_entries(path, [&] {
    // state.json vouches for the tensors, so that a folder that was copied alone can still be checked.
    verify(folder, digests_from_json(json.at("files")), kState);
    out.card = detail::card_from_json(json.at("card"));
    out.state = detail::state_from_json(json.at("state"));
    out.settings = settings_from_json(json.at("settings").dump());
    for (const auto& [name, value] : json.at("optimizer").items()) out.optimizer.scalars[name] = detail::number(value);
    return 0;
  });
  out.model = load_safetensors(folder + "/" + kModel);
  out.optimizer.tensors = load_safetensors(folder + "/" + kOptimizer);
  return out;
}

std::string step_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%08lld", static_cast<long long>(step));
  return text;
}

}  // namespace

FileDigest digest_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  LIMPID_CHECK(file.is_open(), IoError, "cannot open ", path, ": ", std::strerror(errno));
  std::vector<char> buffer(std::size_t{1} << 20);
  FileDigest digest;
  uLong crc = ::crc32(0, nullptr, 0);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(buffer.data()), static_cast<uInt>(file.gcount()));
    digest.bytes += static_cast<std::uint64_t>(file.gcount());
  }
  LIMPID_CHECK(!file.bad(), IoError, "cannot read ", path);
  digest.crc32 = static_cast<std::uint32_t>(crc);
  return digest;
}

CheckpointStore::CheckpointStore(std::string folder, std::int64_t keep) : folder_(std::move(folder)), keep_(keep) {}

bool CheckpointStore::has(const std::string& pointer) const {
  std::error_code ignored;
  return fs::is_regular_file(folder_ + "/" + pointer, ignored);
}

std::string CheckpointStore::folder_of(const std::string& pointer) const {
  return folder_ + "/" + read_pointer(folder_ + "/" + pointer).name;
}

Checkpoint CheckpointStore::load(const std::string& pointer) const {
  const std::string path = folder_ + "/" + pointer;
  LIMPID_CHECK(has(pointer), DataError, "[checkpoint] ", path, " does not exist");
  const Pointer target = read_pointer(path);
  const std::string folder = folder_ + "/" + target.name;
  verify(folder, target.files, path);
  return read_folder(folder);
}

std::string CheckpointStore::save(const nn::Module& model, const optim::Optimizer& optimizer, const RunState& state,
                                  const ModelCard& card, const TrainSettings& settings, bool best) {
  std::error_code problem;
  fs::create_directories(folder_, problem);
  LIMPID_CHECK(!problem, IoError, "cannot make the folder ", folder_, ": ", problem.message());
  if (!cleaned_) {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename().string().rfind(kUnfinished, 0) == 0) fs::remove_all(entry.path(), problem);
    }
    cleaned_ = true;
  }

  // A folder that a pointer names is never touched: the same step written twice gets a name of its own.
  std::vector<std::string> named;
  for (const char* pointer : {"last", "best"}) {
    if (has(pointer)) named.push_back(read_pointer(folder_ + "/" + pointer).name);
  }
  std::string name = step_name(state.step);
  for (int again = 2; std::find(named.begin(), named.end(), name) != named.end(); again++) {
    name = step_name(state.step) + "-" + std::to_string(again);
  }
  const std::string unfinished = folder_ + "/" + kUnfinished + name;
  const std::string finished = folder_ + "/" + name;
  fs::remove_all(unfinished, problem);
  fs::remove_all(finished, problem);

  Digests digests;
  try {
    fs::create_directory(unfinished, problem);
    LIMPID_CHECK(!problem, IoError, "cannot make the folder ", unfinished, ": ", problem.message());
    const Json card_json = detail::to_json(card);
    save_safetensors(unfinished + "/" + kModel, model.state_dict(), {{"format", "pt"}, {kCardKey, card_json.dump()}});
    const optim::OptimizerState optimizer_state = optimizer.state_dict();
    save_safetensors(unfinished + "/" + kOptimizer, optimizer_state.tensors, {{"optimizer", optimizer.name()}});
    for (const char* file : {kModel, kOptimizer}) digests[file] = digest_file(unfinished + "/" + file);
    Json json;
    json["format"] = 1;
    json["limpid"] = LIMPID_VERSION;
    json["card"] = card_json;
    json["state"] = detail::to_json(state);
    json["settings"] = Json::parse(to_json(settings));
    json["optimizer"] = Json::object();
    for (const auto& [key, value] : optimizer_state.scalars) json["optimizer"][key] = detail::number(value);
    json["files"] = to_json(digests);
    write_file_atomically(unfinished + "/" + kState, json.dump(2) + "\n");
    digests[kState] = digest_file(unfinished + "/" + kState);
    sync_directory(unfinished);
    LIMPID_CHECK(::rename(unfinished.c_str(), finished.c_str()) == 0, IoError, "cannot rename ", unfinished, ": ",
                 std::strerror(errno));
  } catch (...) {
    fs::remove_all(unfinished, problem);  // room for the next try on a full disk
    throw;
  }
  sync_directory(folder_);
  Json pointer;
  pointer["checkpoint"] = name;
  pointer["step"] = state.step;
  pointer["log_offsets"] = state.log_offsets;
  pointer["files"] = to_json(digests);
  // `best` first: a kill in between leaves `last` on the former checkpoint, from where this one is made again.
  if (best) write_file_atomically(folder_ + "/best", pointer.dump(2) + "\n");
  write_file_atomically(folder_ + "/last", pointer.dump(2) + "\n");
  remove_old();
  return finished;
}

void CheckpointStore::remove_old() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> folders;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(folder_, problem)) {
    if (entry.is_directory(problem)) folders.emplace_back(entry.last_write_time(problem), entry.path());
  }
  std::sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) { return a > b; });
  std::vector<std::string> named;
  for (const char* pointer : {"last", "best"}) {
    if (has(pointer)) named.push_back(read_pointer(folder_ + "/" + pointer).name);
  }
  std::int64_t kept = 0;
  for (const auto& [time, path] : folders) {
    if (kept++ < keep_ || std::find(named.begin(), named.end(), path.filename().string()) != named.end()) continue;
    fs::remove_all(path, problem);  // a leftover does no harm
  }
}

Checkpoint open_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (fs::exists(path + "/ckpt/last", ignored)) return CheckpointStore(path + "/ckpt").load();
    if (fs::exists(path + "/last", ignored)) return CheckpointStore(path).load();
    LIMPID_CHECK(fs::exists(path + "/" + kState, ignored), DataError, "[checkpoint] ", path,
                 " is neither a run folder (no ckpt/last) nor a checkpoint (no ", kState, ")");
    return read_folder(path);
  }
  LIMPID_CHECK(fs::exists(path, ignored), DataError, "[checkpoint] ", path, " does not exist");
  const fs::path file(path);
  if (file.filename() == "last" || file.filename() == "best") {
    const std::string parent = file.has_parent_path() ? file.parent_path().string() : ".";
    return CheckpointStore(parent).load(file.filename().string());
  }
  Checkpoint out;
  std::map<std::string, std::string> metadata;
  out.model = load_safetensors(path, &metadata);
  if (auto card = metadata.find(kCardKey); card != metadata.end()) {
    out.card = read_entries(path, [&] { return detail::card_from_json(Json::parse(card->second)); });
  }
  return out;
}

void load_weights(nn::Module& model, const nn::StateDict& weights, const std::string& source) {
  auto list = [](const std::vector<std::string>& keys) {
    std::string out;
    for (std::size_t i = 0; i < keys.size() && i < 8; i++) out += (i ? ", " : "") + keys[i];
    if (keys.size() > 8) out += concat(", and ", keys.size() - 8, " more");
    return keys.empty() ? std::string("none") : out;
  };
  // The shapes are checked here, before the first value changes.
  std::vector<std::string> missing, unexpected;
  const nn::StateDict own = model.state_dict();
  for (const auto& [key, tensor] : own) {
    auto found = weights.find(key);
    if (found == weights.end()) {
      missing.push_back(key);
      continue;
    }
    LIMPID_CHECK(found->second.shape() == tensor.shape(), DataError, "[weights] ", source, ": ", key, " has shape ",
                 found->second.shape(), ", the model expects ", tensor.shape());
  }
  for (const auto& [key, tensor] : weights) {
    if (!own.contains(key)) unexpected.push_back(key);
  }
  LIMPID_CHECK(missing.empty() && unexpected.empty(), DataError, "[weights] ", source,
               " does not fit the model; missing: ", list(missing), "; unexpected: ", list(unexpected));
  model.load_state_dict(weights, true);
}

}  // namespace limpid::train
