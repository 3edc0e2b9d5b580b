#include <limpid/data/cifar10.h>

#include <cstring>
#include <filesystem>

#include <limpid/base/error.h>
#include <limpid/base/file.h>

namespace limpid::data {
namespace {

constexpr std::size_t kPixels = 3 * 32 * 32;
constexpr std::size_t kRecord = 1 + kPixels;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;  // a file

std::vector<std::string> file_names(bool train) {
  if (!train) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

// The paths in `dir` or in the folder that the archive unpacks to; empty when one is missing.
std::vector<std::string> find_files(const std::string& dir, bool train) {
  for (const auto& base : {std::filesystem::path(dir), std::filesystem::path(dir) / "cifar-10-batches-bin"}) {
    std::vector<std::string> paths;
    for (const std::string& name : file_names(train)) {
      std::error_code ignored;
      if (std::filesystem::is_regular_file(base / name, ignored)) paths.push_back((base / name).string());
    }
    if (paths.size() == file_names(train).size()) return paths;
  }
  return {};
}

}  // namespace

std::vector<std::string> cifar10_classes() {
  return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
}

std::shared_ptr<ImageArrayDataset> cifar10_files(const std::vector<std::string>& paths) {
  LIMPID_CHECK(!paths.empty(), ArgumentError, "[cifar10] there are no files");
  std::vector<std::vector<std::uint8_t>> files;
  std::size_t records = 0;
  for (const std::string& path : paths) {
    files.push_back(read_file(path, kMaxBytes));
    const std::size_t bytes = files.back().size();
    LIMPID_CHECK(bytes > 0 && bytes % kRecord == 0, DataError, "[cifar10] ", path, " has ", bytes,
                 " bytes, not a whole number of records of ", kRecord);
    records += bytes / kRecord;
  }
  Tensor images = empty_io({static_cast<std::int64_t>(records), 3, 32, 32}, DType::uint8, "dataset");
  std::uint8_t* out = images.mutable_data<std::uint8_t>();
  std::vector<std::uint8_t> labels;
  labels.reserve(records);
  for (std::size_t f = 0; f < files.size(); f++) {
    for (std::size_t r = 0; r < files[f].size() / kRecord; r++) {
      const std::uint8_t* record = files[f].data() + r * kRecord;
      LIMPID_CHECK(record[0] < 10, DataError, "[cifar10] ", paths[f], ": record ", r, " has class ",
                   static_cast<int>(record[0]), ", expected 0..9");
      labels.push_back(record[0]);
      std::memcpy(out, record + 1, kPixels);
      out += kPixels;
    }
    files[f] = {};
  }
  return std::make_shared<ImageArrayDataset>(std::move(images), std::move(labels), cifar10_classes(), paths[0]);
}

bool has_cifar10(const std::string& dir, bool train) { return !find_files(dir, train).empty(); }

std::shared_ptr<ImageArrayDataset> cifar10(const std::string& dir, bool train) {
  std::vector<std::string> paths = find_files(dir, train);
  LIMPID_CHECK(!paths.empty(), DataError, "[cifar10] ", dir, " does not have ",
               train ? "data_batch_1.bin .. data_batch_5.bin" : "test_batch.bin");
  return cifar10_files(paths);
}

}  // namespace limpid::data
