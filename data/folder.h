// A folder of folders: each subfolder is a class (sorted by name), its .jpg, .jpeg and .png files are the examples.
// The files stay on disk and are decoded by the loader's threads; a cache of decoded bytes can be asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <limpid/data/dataset.h>
#include <limpid/data/image.h>

namespace limpid::data {

// The image files (.jpg, .jpeg, .png, whatever the case) in a folder, sorted by name; hidden ones do not count.
std::vector<std::string> image_files(const std::string& folder);

enum class BrokenImage : std::uint8_t {
  fatal,  // a DataError with the path when the image is read
  skip,   // all images are decoded once at construction, broken ones are left out and listed in skipped()
};

struct FolderOptions {
  std::int64_t height = 0;  // images are resized to height x width; 0 = as the first image, others must be equal
  std::int64_t width = 0;
  int channels = 3;  // 3 or 1
  BrokenImage on_broken = BrokenImage::fatal;
  bool cache = false;  // keeps decoded bytes in memory after the first use
};

struct SkippedFile {
  std::string path;
  std::string reason;
};

class FolderDataset final : public Dataset {
 public:
  // DataError when there is no class folder or no image.
  explicit FolderDataset(const std::string& root, const FolderOptions& options = {});
  ~FolderDataset() override;
  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  Example get(std::int64_t index) const override;
  ExampleSpec spec() const override;
  void write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const override;
  std::int64_t num_classes() const override { return static_cast<std::int64_t>(names_.size()); }
  std::vector<std::string> class_names() const override { return names_; }
  // Classes without an image, broken ones left out not counted.
  std::vector<std::string> empty_classes() const;
  const std::string& path(std::int64_t index) const;
  // Broken images that were left out (BrokenImage::skip), and the count of files that are no images by their name.
  const std::vector<SkippedFile>& skipped() const { return skipped_; }
  std::int64_t ignored() const { return ignored_; }

 private:
  struct File {
    std::string path;
    std::int64_t label;
  };
  using Pixels = std::shared_ptr<const Image>;
  Pixels load(std::int64_t index) const;
  void check_size(const Image& image, const std::string& path) const;

  FolderOptions options_;
  bool resize_ = false;
  std::vector<File> files_;
  std::vector<std::string> names_;
  std::vector<SkippedFile> skipped_;
  std::int64_t ignored_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<Pixels> cache_;
};

}  // namespace limpid::data
