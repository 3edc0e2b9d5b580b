// Generated labelled images: each class has a smooth pattern of its own, an example is that pattern, moved a little, at
// a random contrast, with noise. Learnable by small models, made on the fly, the same for the same seed. No files.
#pragma once

#include <cstdint>

#include <limpid/data/dataset.h>

namespace limpid::data {

struct SyntheticOptions {
  std::int64_t size = 1000;
  std::int64_t channels = 3;
  std::int64_t height = 32;
  std::int64_t width = 32;
  std::int64_t classes = 10;
  double noise = 0.25;     // standard deviation, in units of the pixel range
  std::uint64_t seed = 1;  // patterns and examples
  bool train = true;       // the two halves share the patterns and differ in every example
};

class SyntheticDataset final : public Dataset {
 public:
  explicit SyntheticDataset(const SyntheticOptions& options = {});
  std::int64_t size() const override { return options_.size; }
  Example get(std::int64_t index) const override;
  ExampleSpec spec() const override;
  void write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const override;
  std::int64_t num_classes() const override { return options_.classes; }
  std::vector<std::string> class_names() const override;

 private:
  SyntheticOptions options_;
  std::vector<float> patterns_;  // [classes, channels, height, width]
};

}  // namespace limpid::data
