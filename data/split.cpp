#include <limpid/data/split.h>

#include <algorithm>
#include <cmath>

#include <limpid/base/error.h>
#include <limpid/data/sampler.h>
#include <limpid/tensor/random.h>

namespace limpid::data {
namespace {

constexpr std::uint64_t kSplitStream = 0x73706c6974;
constexpr std::uint64_t kLimitStream = 0x6c696d6974;

}  // namespace

Subset::Subset(DatasetPtr dataset, std::vector<std::int64_t> indices)
    : dataset_(std::move(dataset)), indices_(std::move(indices)) {
  LIMPID_CHECK(dataset_ != nullptr, ArgumentError, "[subset] there is no data set");
  const std::int64_t size = dataset_->size();
  for (std::int64_t index : indices_)
    LIMPID_CHECK(index >= 0 && index < size, IndexError, "[subset] example ", index, " of a data set of ", size);
}

std::int64_t Subset::at(std::int64_t index) const {
  LIMPID_CHECK(index >= 0 && index < size(), IndexError, "[subset] example ", index, " of a subset of ", size());
  return indices_[static_cast<std::size_t>(index)];
}

Example Subset::get(std::int64_t index) const { return dataset_->get(at(index)); }

void Subset::write(std::int64_t index, const ExampleSpec& spec, void* input, void* target) const {
  dataset_->write(at(index), spec, input, target);
}

std::pair<SubsetPtr, SubsetPtr> split(const DatasetPtr& dataset, double validation_fraction, std::uint64_t seed) {
  LIMPID_CHECK(dataset != nullptr, ArgumentError, "[split] there is no data set");
  LIMPID_CHECK(validation_fraction >= 0 && validation_fraction < 1, ArgumentError,
               "[split] the validation fraction is ", validation_fraction, ", expected 0 <= fraction < 1");
  const std::int64_t size = dataset->size();
  const auto held_out = static_cast<std::ptrdiff_t>(std::llround(validation_fraction * static_cast<double>(size)));
  std::vector<std::int64_t> order = permutation(size, mix_key(seed, kSplitStream));
  std::vector<std::int64_t> validation(order.begin(), order.begin() + held_out);
  std::vector<std::int64_t> training(order.begin() + held_out, order.end());
  std::sort(validation.begin(), validation.end());
  std::sort(training.begin(), training.end());
  return {std::make_shared<Subset>(dataset, std::move(training)),
          std::make_shared<Subset>(dataset, std::move(validation))};
}

DatasetPtr limit(const DatasetPtr& dataset, std::int64_t count, std::uint64_t seed) {
  LIMPID_CHECK(dataset != nullptr, ArgumentError, "[limit] there is no data set");
  LIMPID_CHECK(count > 0, ArgumentError, "[limit] the count is ", count, ", expected at least 1");
  if (count >= dataset->size()) return dataset;
  std::vector<std::int64_t> order = permutation(dataset->size(), mix_key(seed, kLimitStream));
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return std::make_shared<Subset>(dataset, std::move(order));
}

}  // namespace limpid::data
