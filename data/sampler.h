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

// A batch's place in its effective batch: the samples of one optimizer step, which may be cut into several batches.
struct BatchPlace {
  std::int64_t effective = 0;       // number of the effective batch in the epoch
  std::int64_t effective_size = 0;  // its samples
  std::int64_t micro = 0;           // number of this batch in it
  std::int64_t micros = 1;          // batches that it is cut into
  std::int64_t offset = 0;          // index of this batch's first sample in it
};

// The sizes of the micro-batches that `samples` are cut into: as few as possible of at most `micro_batch`, as equal as
// possible, the larger ones first. 100 by 32 are 4 of 25, not three of 32 and a rest of 4: the peak is lower, and no
// micro-batch is tiny. With a quantum, a divisor of micro_batch, all but the last are multiples of it: 100 by 32 in quanta
// of 8 are 32, 24, 24 and 20. ArgumentError unless all are positive.
std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, std::int64_t micro_batch, std::int64_t quantum = 1);

// The batches of one epoch: the order in effective batches of `batch_size` samples, the last one short, or dropped and
// listed; each cut into micro-batches of at most `micro_batch` samples (0: not cut), at multiples of `quantum`.
class BatchPlan {
 public:
  BatchPlan() = default;
  BatchPlan(std::vector<std::int64_t> order, std::int64_t batch_size, bool drop_last, std::int64_t micro_batch = 0,
            std::int64_t quantum = 1);
  std::int64_t size() const { return static_cast<std::int64_t>(batches_.size()); }  // micro-batches
  std::int64_t steps() const { return steps_; }                                     // effective batches
  std::span<const std::int64_t> indices(std::int64_t batch) const;
  const BatchPlace& place(std::int64_t batch) const;
  // Of the batch at `position`, or steps() behind the last one.
  std::int64_t step_at(std::int64_t position) const;
  std::vector<std::int64_t> sizes() const;      // of the micro-batches
  std::vector<std::int64_t> step_sizes() const; // of the effective batches
  std::vector<std::int64_t> dropped() const;    // indices that no batch has

 private:
  struct Entry {
    BatchPlace place;
    std::size_t first = 0, count = 0;  // in order_
  };
  const Entry& entry(std::int64_t batch) const;
  std::vector<std::int64_t> order_;
  std::vector<Entry> batches_;
  std::int64_t steps_ = 0;
};

}  // namespace limpid::data
