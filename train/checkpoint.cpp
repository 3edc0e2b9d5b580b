#include <limpid/train/checkpoint.h>

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/tensor/safetensors.h>
#include <limpid/train/run_files_private.h>
#include <limpid/train/state_json_private.h>
#include <limpid/version.h>

namespace limpid::train {
namespace {

namespace fs = std::filesystem;
using detail::Json;

using detail::kModelFile;
using detail::kOptimizerFile;
using detail::kStateFile;

constexpr const char* kCardKey = "limpid";  // metadata key of the model card
constexpr int kFormat = 2;                  // of state.json
constexpr std::uint64_t kMaxJson = std::uint64_t{64} << 20;

using Digests = std::map<std::string, FileDigest>;

Json to_json(const Digests& digests) {
  Json json = Json::object();
  for (const auto& [name, d] : digests) json[name] = {{"bytes", d.bytes}, {"crc32", d.crc32}};
  return json;
}

// Of exactly these files: a name from a file never becomes a path.
Digests digests_from_json(const Json& json, std::initializer_list<const char*> files) {
  Digests out;
  for (const char* name : files) {
    const Json& digest = detail::entry(json, name);
    const auto crc = detail::read<std::uint64_t>(digest, "crc32");
    LIMPID_CHECK(crc <= UINT32_MAX, DataError, "crc32 of ", name, " is ", crc);
    out[name] = {detail::read<std::uint64_t>(digest, "bytes"), static_cast<std::uint32_t>(crc)};
  }
  LIMPID_CHECK(json.size() == files.size(), DataError, "files has ", json.size(), " entries, expected ", files.size());
  return out;
}

void verify(const std::string& folder, const Digests& digests, const std::string& witness) {
  for (const auto& [name, expected] : digests) {
    const std::string path = folder + "/" + name;
    std::error_code ignored;
    LIMPID_CHECK(fs::exists(path, ignored), DataError, "[checkpoint] ", path, " is missing; ", witness, " lists it");
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
  return detail::with_file(path, [&] {
    const Json json = detail::parse_object_file(path, kMaxJson);
    Pointer pointer{detail::read<std::string>(json, "checkpoint"),
                    digests_from_json(detail::entry(json, "files"), {kModelFile, kOptimizerFile, kStateFile})};
    LIMPID_CHECK(!pointer.name.empty() && pointer.name.find('/') == std::string::npos && pointer.name[0] != '.',
                 DataError, "checkpoint is \"", pointer.name, "\", expected the name of a folder beside it");
    return pointer;
  });
}

Checkpoint read_folder(const std::string& folder, bool weights_only) {
  const std::string path = folder + "/" + kStateFile;
  Checkpoint out;
  out.folder = folder;
  const Digests files = detail::with_file(path, [&] {
    const Json json = detail::parse_object_file(path, kMaxJson);
    detail::check_format(json, kFormat);
    out.card = detail::card_from_json(detail::entry(json, "card"));
    out.state = detail::state_from_json(detail::entry(json, "state"));
    out.settings = detail::settings_from_file(detail::entry(json, "settings"));
    for (const auto& [name, value] : detail::entry(json, "optimizer").items())
      detail::read_value(value, name, out.optimizer.scalars[name]);
    return digests_from_json(detail::entry(json, "files"), {kModelFile, kOptimizerFile});
  });
  // state.json vouches for the tensors, so that a folder that was copied alone can still be checked.
  verify(folder, files, kStateFile);
  out.model = load_safetensors(folder + "/" + kModelFile, nullptr, memory::Role::param);
  if (!weights_only) {
    out.optimizer.tensors = load_safetensors(folder + "/" + kOptimizerFile, nullptr, memory::Role::optimizer);
  }
  return out;
}

std::string step_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%08lld", static_cast<long long>(step));
  return text;
}

}  // namespace

FileDigest digest_file(const std::string& path) {
  InputFile file(path);
  std::vector<char> buffer(std::size_t{1} << 20);
  FileDigest digest;
  uLong crc = ::crc32(0, nullptr, 0);
  while (digest.bytes < file.size()) {
    const std::size_t n = std::min<std::uint64_t>(buffer.size(), file.size() - digest.bytes);
    file.read(buffer.data(), n);
    crc = ::crc32(crc, reinterpret_cast<const Bytef*>(buffer.data()), static_cast<uInt>(n));
    digest.bytes += n;
  }
  digest.crc32 = static_cast<std::uint32_t>(crc);
  return digest;
}

CheckpointStore::CheckpointStore(std::string folder, std::int64_t keep) : folder_(std::move(folder)), keep_(keep) {}

bool CheckpointStore::has(const std::string& pointer) const {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(folder_ + "/" + pointer, ignored));
}

std::string CheckpointStore::folder_of(const std::string& pointer) const {
  return folder_ + "/" + read_pointer(folder_ + "/" + pointer).name;
}

Checkpoint CheckpointStore::load(const std::string& pointer, bool weights_only) const {
  const std::string path = folder_ + "/" + pointer;
  LIMPID_CHECK(has(pointer), DataError, "[checkpoint] ", path, " does not exist");
  const Pointer target = read_pointer(path);
  const std::string folder = folder_ + "/" + target.name;
  verify(folder, target.files, path);
  return read_folder(folder, weights_only);
}

std::optional<Checkpoint> CheckpointStore::load_to_resume() const {
  const std::string last = has("last") ? read_pointer(folder_ + "/last").name : "";
  if (has("best")) {
    try {
      const Pointer best = read_pointer(folder_ + "/best");
      // The last one is looked at below: without it there is nothing to go on from.
      if (best.name != last) verify(folder_ + "/" + best.name, best.files, folder_ + "/best");
    } catch (Error& error) {
      error.add_context("[resume] the best checkpoint cannot be kept; remove " + folder_ + "/best to go on without it: ");
      throw;
    }
  }
  if (has("last")) {
    try {
      return load("last");
    } catch (const memory::OutOfMemoryError&) {
      throw;
    } catch (Error& error) {
      const std::string best = has("best") ? read_pointer(folder_ + "/best").name : "";
      error.add_context(concat("[resume] the last checkpoint ", folder_, "/", last, " is damaged",
                               best.empty()   ? std::string()
                               : best == last ? ", and it is the best one too"
                                              : concat(" (the best one is whole: to go on from it: cp ", folder_,
                                                       "/best ", folder_, "/last)"),
                               ": "));
      throw;
    }
  }
  const std::vector<std::string> found = detail::checkpoints_in(folder_);
  if (found.empty()) return std::nullopt;
  // A kill between the first checkpoint and its pointer leaves one whole checkpoint.
  if (found.size() == 1) return read_folder(folder_ + "/" + found[0], false);
  std::string list;
  for (const std::string& name : found) list += (list.empty() ? "" : ", ") + name;
  LIMPID_THROW(DataError, "[resume] ", folder_, "/last is missing, there are the checkpoints ", list,
               has("best") ? concat("; to go on from the best: cp ", folder_, "/best ", folder_, "/last") : "");
}

std::string CheckpointStore::save(const nn::Module& model, const optim::Optimizer& optimizer, const RunState& state,
                                  const ModelCard& card, const TrainSettings& settings, bool best) {
  std::error_code problem;
  fs::create_directories(folder_, problem);
  LIMPID_CHECK(!problem, IoError, "cannot make the folder ", folder_, ": ", problem.message());
  if (!cleaned_) detail::remove_unfinished(folder_);
  cleaned_ = true;

  // A folder that a pointer names is never touched, nor one with a user's files in it: the same step written twice gets
  // a name of its own.
  std::vector<std::string> named;
  for (const char* pointer : {"last", "best"}) {
    if (has(pointer)) named.push_back(read_pointer(folder_ + "/" + pointer).name);
  }
  auto taken = [&](const std::string& name) {
    if (std::find(named.begin(), named.end(), name) != named.end()) return true;
    for (const std::string& path : {folder_ + "/" + name, folder_ + "/" + detail::kUnfinished + name}) {
      std::error_code ignored;
      detail::remove_checkpoint(path);
      if (fs::exists(fs::symlink_status(path, ignored))) return true;
    }
    return false;
  };
  std::string name = step_name(state.step);
  for (int again = 2; taken(name); again++) name = step_name(state.step) + "-" + std::to_string(again);
  const std::string unfinished = folder_ + "/" + detail::kUnfinished + name;
  const std::string finished = folder_ + "/" + name;

  Digests digests;
  try {
    fs::create_directory(unfinished, problem);
    LIMPID_CHECK(!problem, IoError, "cannot make the folder ", unfinished, ": ", problem.message());
    const Json card_json = detail::to_json(card);
    save_safetensors(unfinished + "/" + kModelFile, model.state_dict(), {{"format", "pt"}, {kCardKey, card_json.dump()}});
    const optim::OptimizerState optimizer_state = optimizer.state_dict();
    save_safetensors(unfinished + "/" + kOptimizerFile, optimizer_state.tensors, {{"optimizer", optimizer.name()}});
    for (const char* file : {kModelFile, kOptimizerFile}) digests[file] = digest_file(unfinished + "/" + file);
    Json json;
    json["format"] = kFormat;
    json["limpid"] = LIMPID_VERSION;
    json["card"] = card_json;
    json["state"] = detail::to_json(state);
    json["settings"] = Json::parse(to_json(settings));
    json["optimizer"] = Json::object();
    for (const auto& [key, value] : optimizer_state.scalars) json["optimizer"][key] = detail::number(value);
    json["files"] = to_json(digests);
    write_file_atomically(unfinished + "/" + kStateFile, json.dump(2) + "\n");
    digests[kStateFile] = digest_file(unfinished + "/" + kStateFile);
    sync_directory(unfinished);
    LIMPID_CHECK(::rename(unfinished.c_str(), finished.c_str()) == 0, IoError, "cannot rename ", unfinished, ": ",
                 std::strerror(errno));
  } catch (...) {
    detail::remove_checkpoint(unfinished);  // room for the next try on a full disk
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
  for (const std::string& name : detail::checkpoints_in(folder_)) {
    const fs::path path = folder_ + "/" + name;
    folders.emplace_back(fs::last_write_time(path, problem), path);
  }
  std::sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) { return a > b; });
  std::vector<std::string> named;
  for (const char* pointer : {"last", "best"}) {
    if (has(pointer)) named.push_back(read_pointer(folder_ + "/" + pointer).name);
  }
  std::int64_t kept = 0;
  for (const auto& [time, path] : folders) {
    if (kept++ < keep_ || std::find(named.begin(), named.end(), path.filename().string()) != named.end()) continue;
    detail::remove_checkpoint(path.string());
  }
}

Checkpoint open_checkpoint(const std::string& path, bool best) {
  const std::string pointer = best ? "best" : "last";
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const std::string& folder : {path + "/ckpt", path}) {
      const CheckpointStore store(folder);
      if (store.has(pointer)) return store.load(pointer, true);
      LIMPID_CHECK(!best || !store.has("last"), DataError, "[checkpoint] ", folder,
                   " has no best checkpoint: the run had no validation samples");
    }
    LIMPID_CHECK(fs::exists(path + "/" + kStateFile, ignored), DataError, "[checkpoint] ", path,
                 " is neither a run folder (no ckpt/", pointer, ") nor a checkpoint (no ", kStateFile, ")");
    LIMPID_CHECK(!best, ArgumentError, "[checkpoint] ", path, " is one checkpoint: only a run folder has a best one");
    return read_folder(path, true);
  }
  LIMPID_CHECK(fs::exists(path, ignored), DataError, "[checkpoint] ", path, " does not exist");
  LIMPID_CHECK(!best, ArgumentError, "[checkpoint] ", path, " is one checkpoint: only a run folder has a best one");
  const fs::path file(path);
  if (file.filename() == "last" || file.filename() == "best") {
    const std::string parent = file.has_parent_path() ? file.parent_path().string() : ".";
    return CheckpointStore(parent).load(file.filename().string(), true);
  }
  Checkpoint out;
  std::map<std::string, std::string> metadata;
  out.model = load_safetensors(path, &metadata, memory::Role::param);
  if (auto card = metadata.find(kCardKey); card != metadata.end()) {
    out.card = detail::with_file(path, [&] { return detail::card_from_json(detail::parse_object(card->second)); });
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
