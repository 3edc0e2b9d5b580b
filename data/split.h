// Parts of a data set: a subset by indices, a seeded split into training and validation, a seeded sample of n.
// A part keeps the data set alive. Indices are in ascending order; the same seed gives the same part everywhere.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <limpid/data/dataset.h>

namespace limpid::data {

class Subset final : public Dataset {
 public:
  // IndexError for an index outside the data set.
  Subset(DatasetPtr dataset, std::vector<std::int64_t> indices);
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Example get(std::int64_t index) const override;
  ExampleSpec spec() const override { return dataset_->spec(); }
  void write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const override;
  std::int64_t num_classes() const override { return dataset_->num_classes(); }
  std::vector<std::string> class_names() const override { return dataset_->class_names(); }
  const std::vector<std::int64_t>& indices() const { return indices_; }

 private:
  std::int64_t at(std::int64_t index) const;
  DatasetPtr dataset_;
  std::vector<std::int64_t> indices_;
};
using SubsetPtr = std::shared_ptr<const Subset>;

// (training, validation): validation gets round(fraction * size) examples, chosen at random. 0 <= fraction < 1.
std::pair<SubsetPtr, SubsetPtr> split(const DatasetPtr& dataset, double validation_fraction, std::uint64_t seed);
// `count` examples chosen at random (all when there are fewer).
DatasetPtr limit(const DatasetPtr& dataset, std::int64_t count, std::uint64_t seed);

}  // namespace limpid::data
