#include <limpid/data/registry.h>

#include <filesystem>

#include <limpid/base/error.h>
#include <limpid/data/cifar10.h>
#include <limpid/data/idx.h>
#include <limpid/data/synthetic.h>

namespace limpid::data {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out.empty() ? "nowhere" : out;
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

void check_name(const std::string& name) {
  for (const std::string& known : dataset_names())
    if (known == name) return;
  LIMPID_THROW(ArgumentError, "[open_dataset] unknown data set \"", name, "\"; known are ", joined(dataset_names()));
}

// In order of trial. A given folder may be the data's own or hold it by name, and is the only place: other data than
// asked for would be used without a word. A search path holds many data sets, so MNIST's files (named as
// Fashion-MNIST's) are looked for under the name only.
std::vector<std::string> places(const std::string& name, const std::string& data_dir,
                                const std::vector<std::string>& search_paths) {
  std::vector<std::string> out;
  if (!data_dir.empty()) {
    out.push_back(data_dir);
    out.push_back((fs::path(data_dir) / name).string());
    return out;
  }
  for (const std::string& path : search_paths)
    if (!path.empty()) out.push_back((fs::path(path) / name).string());
  return out;
}

bool has_data(const std::string& name, const std::string& dir, bool train) {
  return name == "cifar10" ? has_cifar10(dir, train) : has_idx_pair(dir, train);
}

// The half of a folder data set: ROOT/train, ROOT/test or ROOT/val where they exist, else ROOT to train.
std::string folder_half(const std::string& root, bool train) {
  auto half = [&](const char* name) { return (fs::path(root) / name).string(); };
  if (train) {
    if (is_folder(half("train"))) return half("train");
    LIMPID_CHECK(!is_folder(half("test")) && !is_folder(half("val")), DataError, "[open_dataset] ", root,
                 " has a test or val folder but no train folder");
    return root;
  }
  for (const char* name : {"test", "val"})
    if (is_folder(half(name))) return half(name);
  LIMPID_THROW(DataError, "[open_dataset] ", root, " has neither a test nor a val folder");
}

OpenedDataset open_folder(const OpenOptions& options) {
  LIMPID_CHECK(!options.data_dir.empty(), ArgumentError, "[open_dataset] folder needs a data folder");
  LIMPID_CHECK(is_folder(options.data_dir), DataError, "[open_dataset] ", options.data_dir, " is not a folder");
  const std::string dir = options.half.empty() ? folder_half(options.data_dir, options.train)
                                               : (fs::path(options.data_dir) / options.half).string();
  FolderOptions folder{.height = options.height,
                       .width = options.width,
                       .channels = options.channels ? static_cast<int>(options.channels) : 3,
                       .on_broken = options.on_broken,
                       .cache = options.cache};
  auto dataset = std::make_shared<FolderDataset>(dir, folder);
  return {dataset, dir, dataset->skipped(), dataset->empty_classes()};
}

OpenedDataset open_synthetic(const OpenOptions& options) {
  LIMPID_CHECK(options.data_dir.empty(), ArgumentError, "[open_dataset] synthetic is generated: a data folder (",
               options.data_dir, ") has no meaning");
  SyntheticOptions synthetic;
  synthetic.size = options.size ? options.size : (options.train ? 10000 : 2000);
  if (options.channels) synthetic.channels = options.channels;
  if (options.height) synthetic.height = options.height;
  if (options.width) synthetic.width = options.width;
  if (options.classes) synthetic.classes = options.classes;
  synthetic.seed = options.seed;
  synthetic.train = options.train;
  return {std::make_shared<SyntheticDataset>(synthetic), "generated", {}, {}};
}

}  // namespace

std::vector<std::string> dataset_names() { return {"fashion-mnist", "mnist", "cifar10", "folder", "synthetic"}; }

std::optional<std::string> find_dataset(const std::string& name, const std::string& data_dir,
                                        const std::vector<std::string>& search_paths, bool train) {
  check_name(name);
  if (name == "folder" || name == "synthetic") return std::nullopt;
  for (const std::string& place : places(name, data_dir, search_paths))
    if (has_data(name, place, train)) return place;
  return std::nullopt;
}

OpenedDataset open_dataset(const OpenOptions& options) {
  check_name(options.name);
  if (options.name == "folder") return open_folder(options);
  if (options.name == "synthetic") return open_synthetic(options);
  std::optional<std::string> dir = find_dataset(options.name, options.data_dir, options.search_paths, options.train);
  LIMPID_CHECK(dir.has_value(), DataError, "[open_dataset] the ", options.train ? "training" : "test", " files of ",
               options.name, " were not found; tried ",
               joined(places(options.name, options.data_dir, options.search_paths)));
  if (options.name == "cifar10") return {cifar10(*dir, options.train), *dir, {}, {}};
  if (options.name == "mnist") return {mnist(*dir, options.train), *dir, {}, {}};
  return {fashion_mnist(*dir, options.train), *dir, {}, {}};
}

bool has_folder_half(const std::string& data_dir, const std::string& half) {
  return is_folder((fs::path(data_dir) / half).string());
}

std::vector<std::string> known_classes(const std::string& name) {
  check_name(name);
  if (name == "fashion-mnist") return fashion_mnist_classes();
  if (name == "mnist") return mnist_classes();
  if (name == "cifar10") return cifar10_classes();
  return {};
}

std::optional<ChannelStats> known_stats(const std::string& name) {
  check_name(name);
  if (name == "fashion-mnist") return ChannelStats{{0.2860}, {0.3530}};
  if (name == "mnist") return ChannelStats{{0.1307}, {0.3081}};
  if (name == "cifar10") return ChannelStats{{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};
  return std::nullopt;
}

}  // namespace limpid::data
