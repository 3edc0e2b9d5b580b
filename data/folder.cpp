#include <limpid/data/folder.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <limpid/base/error.h>
#include <limpid/base/format.h>
#include <limpid/tensor/creation.h>

namespace limpid::data {
namespace {

namespace fs = std::filesystem;

bool is_image_name(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

// Sorted by name, so that classes and examples do not depend on the file system.
std::vector<fs::path> sorted_entries(const fs::path& dir) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  LIMPID_CHECK(!error, IoError, "cannot list ", dir.string(), ": ", error.message());
  std::sort(entries.begin(), entries.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return entries;
}

bool hidden(const fs::path& path) { return path.filename().native().starts_with("."); }

bool is_image(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && is_image_name(path) && !hidden(path);
}

}  // namespace

std::vector<std::string> image_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const fs::path& file : sorted_entries(folder))
    if (is_image(file)) out.push_back(file.string());
  return out;
}

FolderDataset::FolderDataset(const std::string& root, const FolderOptions& options) : options_(options) {
  LIMPID_CHECK(options.channels == 1 || options.channels == 3, ArgumentError, "[folder] channels is ", options.channels,
               ", expected 1 or 3");
  LIMPID_CHECK(options.height >= 0 && options.width >= 0 && (options.height == 0) == (options.width == 0) &&
                   options.height <= 65535 && options.width <= 65535,
               ArgumentError, "[folder] the image size is ", options.height, "x", options.width,
               "; expected both 1..65535, or both 0 for the images' own");
  std::error_code ignored_error;
  LIMPID_CHECK(fs::is_directory(root, ignored_error), DataError, "[folder] ", root, " is not a folder");
  for (const fs::path& folder : sorted_entries(root)) {
    if (hidden(folder)) continue;
    if (!fs::is_directory(folder, ignored_error)) {
      ignored_++;
      continue;
    }
    const auto label = static_cast<std::int64_t>(names_.size());
    names_.push_back(folder.filename().string());
    LIMPID_CHECK(is_utf8(names_.back()), DataError, "[folder] the name of the class folder ", folder.string(),
                 " is not UTF-8, which the class names in checkpoints are: rename it");
    for (const fs::path& file : sorted_entries(folder)) {
      if (!is_image(file)) {
        ignored_++;
        continue;
      }
      files_.push_back({file.string(), label});
    }
  }
  LIMPID_CHECK(!names_.empty(), DataError, "[folder] ", root, " has no class folder; expected ", root,
               "/CLASS/IMAGE.jpg");
  LIMPID_CHECK(!files_.empty(), DataError, "[folder] the ", names_.size(), " class folders of ", root,
               " hold no .jpg, .jpeg or .png file");
  resize_ = options_.height > 0;
  if (options_.cache) cache_.resize(files_.size());
  if (options_.on_broken == BrokenImage::skip) {
    // Decoded once to the last pixel, so that nothing breaks in the middle of the training.
    std::vector<File> good;
    std::vector<Pixels> pixels;
    for (std::size_t i = 0; i < files_.size(); i++) {
      try {
        auto image = std::make_shared<const Image>(decode_image(files_[i].path, {.channels = options_.channels}));
        check_size(*image, files_[i].path);
        if (options_.height == 0) options_.height = image->height, options_.width = image->width;
        if (options_.cache) pixels.push_back(std::move(image));
        good.push_back(files_[i]);
      } catch (const Error& error) {
        skipped_.push_back({files_[i].path, error.message()});
      }
    }
    files_ = std::move(good);
    cache_ = std::move(pixels);
    LIMPID_CHECK(!files_.empty(), DataError, "[folder] all ", skipped_.size(), " images of ", root,
                 " are broken; the first: ", skipped_[0].reason);
  } else if (!resize_) {
    const Image first = decode_image(files_[0].path, {.channels = options_.channels});
    options_.height = first.height, options_.width = first.width;
  }
}

FolderDataset::~FolderDataset() = default;

std::vector<std::string> FolderDataset::empty_classes() const {
  std::vector<bool> seen(names_.size());
  for (const File& file : files_) seen[static_cast<std::size_t>(file.label)] = true;
  std::vector<std::string> out;
  for (std::size_t c = 0; c < names_.size(); c++)
    if (!seen[c]) out.push_back(names_[c]);
  return out;
}

void FolderDataset::check_size(const Image& image, const std::string& file) const {
  if (resize_ || options_.height == 0) return;
  LIMPID_CHECK(image.height == options_.height && image.width == options_.width, DataError, "[folder] ", file, " is ",
               image.height, "x", image.width, " (height x width), the first image is ", options_.height, "x",
               options_.width, "; ask for a size to have them resized");
}

FolderDataset::Pixels FolderDataset::load(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  if (options_.cache) {
    std::lock_guard lock(mutex_);
    if (cache_[i]) return cache_[i];
  }
  auto image = std::make_shared<const Image>(decode_image(files_[i].path, {.channels = options_.channels}));
  if (options_.cache) {
    std::lock_guard lock(mutex_);
    cache_[i] = image;
  }
  return image;
}

const std::string& FolderDataset::path(std::int64_t index) const {
  LIMPID_CHECK(index >= 0 && index < size(), IndexError, "[folder] example ", index, " of a data set of ", size());
  return files_[static_cast<std::size_t>(index)].path;
}

ExampleSpec FolderDataset::spec() const {
  return {{options_.channels, options_.height, options_.width}, DType::float32, {}, DType::int64};
}

void FolderDataset::write(std::int64_t index, const ExampleSpec&, void* input, void* target) const {
  const std::string& file = path(index);
  Pixels image = load(index);
  check_size(*image, file);
  resize_to_planes(*image, options_.height, options_.width, static_cast<float*>(input));
  std::memcpy(target, &files_[static_cast<std::size_t>(index)].label, sizeof(std::int64_t));
}

Example FolderDataset::get(std::int64_t index) const {
  Example example{empty(spec().input_shape, {.role = memory::Role::io}), 0, {}};
  write(index, spec(), example.input.raw_mutable_data(), &example.label);
  return example;
}

}  // namespace limpid::data
