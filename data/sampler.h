// The order of the examples in an epoch, and its cut into batches. An order is a pure function of (seed, epoch): a
// sampler holds no position, so that a loader resumes from three numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace limpid::data {

class Sampler {
 public:
  virtual ~Sampler() = default;
  // Indices in the order of that epoch. A sampler may repeat or leave out examples.
  virtual std::vector<std::int64_t> order(std::int64_t epoch) const = 0;
};

class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size) : size_(size) {}
  std::vector<std::int64_t> order(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
};

// A new permutation every epoch.
class RandomSampler final : public Sampler {
 public:
  RandomSampler(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}
  std::vector<std::int64_t> order(std::int64_t epoch) const override;

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

// 0..size-1 shuffled by Fisher and Yates; the numbers come from counters, unbiased.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t key);

// The batches of one epoch. The last one is short, or dropped and listed.
class BatchPlan {
 public:
  BatchPlan() = default;
  BatchPlan(std::vector<std::int64_t> order, std::int64_t batch_size, bool drop_last);
  std::int64_t size() const { return batches_; }
  std::span<const std::int64_t> indices(std::int64_t batch) const;
  std::vector<std::int64_t> sizes() const;
  std::vector<std::int64_t> dropped() const;  // indices that no batch has

 private:
  std::vector<std::int64_t> order_;
  std::int64_t batch_size_ = 1;
  std::int64_t batches_ = 0;
};

}  // namespace limpid::data
