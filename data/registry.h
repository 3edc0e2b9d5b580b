// Data sets by name: fashion-mnist, mnist, cifar10, folder, synthetic. They are looked for in the given folder or, when
// none is given, in the caller's search paths in order (each with the name appended). The library reads no environment: the command passes
// its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <limpid/data/dataset.h>
#include <limpid/data/folder.h>
#include <limpid/data/transforms.h>

namespace limpid::data {

struct OpenOptions {
  std::string name;
  std::string data_dir = {};                   // itself or data_dir/NAME, nowhere else; empty = search paths
  std::vector<std::string> search_paths = {};  // e.g. /usr/share/datasets
  bool train = true;
  std::string half = {};  // folder: this subfolder ("val") instead of the one that `train` names
  // folder and synthetic. 0 = the data's own (folder), 3x32x32 and 10 classes (synthetic)
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::int64_t classes = 0;
  std::int64_t size = 0;  // synthetic: 0 = 10,000 to train, 2,000 to test
  std::uint64_t seed = 1;
  BrokenImage on_broken = BrokenImage::fatal;
  bool cache = false;
};

struct OpenedDataset {
  DatasetPtr dataset;
  std::string location;              // the folder read, "generated" for synthetic
  std::vector<SkippedFile> skipped;        // broken images left out
  std::vector<std::string> empty_classes;  // folder: classes without an image
};

// ArgumentError for an unknown name (with the known ones); DataError "not found" lists every place tried.
// `folder` takes data_dir/train and data_dir/test (or /val) when they exist, else data_dir itself for training.
OpenedDataset open_dataset(const OpenOptions& options);

std::vector<std::string> dataset_names();
// Where a named file data set lies, without reading it.
std::optional<std::string> find_dataset(const std::string& name, const std::string& data_dir,
                                        const std::vector<std::string>& search_paths, bool train = true);
// Whether a folder data set has this subfolder: "train", "val", "test".
bool has_folder_half(const std::string& data_dir, const std::string& half);
// The class names of a named file data set; empty for folder and synthetic.
std::vector<std::string> known_classes(const std::string& name);
// Published channel statistics of the training half; nothing for folder and synthetic.
std::optional<ChannelStats> known_stats(const std::string& name);

}  // namespace limpid::data
