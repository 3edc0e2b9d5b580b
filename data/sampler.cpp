#include <limpid/data/sampler.h>

#include <numeric>
#include <utility>

#include <limpid/base/error.h>
#include <limpid/tensor/random.h>

namespace limpid::data {
namespace {

constexpr std::uint64_t kOrderStream = 0x6f72646572;  // keeps the order's numbers apart from the augmentation's

std::uint64_t bits64(std::uint64_t key, std::uint64_t counter) {
  Philox4 p = philox(key, counter);
  return (std::uint64_t{p.v[1]} << 32) | p.v[0];
}

}  // namespace

std::vector<std::int64_t> SequentialSampler::order(std::int64_t) const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size_));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<std::int64_t> RandomSampler::order(std::int64_t epoch) const {
  return permutation(size_, mix_key(mix_key(seed_, kOrderStream), static_cast<std::uint64_t>(epoch)));
}

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t key) {
  LIMPID_CHECK(size >= 0, ArgumentError, "[permutation] size is ", size);
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t counter = 0;
  for (std::size_t i = order.size(); i > 1; i--) {
    // Multiply-shift with rejection of the biased remainder (Lemire 2019).
    unsigned __int128 product = static_cast<unsigned __int128>(bits64(key, counter++)) * i;
    if (static_cast<std::uint64_t>(product) < i) {
      const std::uint64_t threshold = (0 - static_cast<std::uint64_t>(i)) % i;
      while (static_cast<std::uint64_t>(product) < threshold)
        product = static_cast<unsigned __int128>(bits64(key, counter++)) * i;
    }
    std::swap(order[i - 1], order[static_cast<std::size_t>(product >> 64)]);
  }
  return order;
}

BatchPlan::BatchPlan(std::vector<std::int64_t> order, std::int64_t batch_size, bool drop_last)
    : order_(std::move(order)), batch_size_(batch_size) {
  LIMPID_CHECK(batch_size > 0, ArgumentError, "[batch_plan] batch_size is ", batch_size, ", expected at least 1");
  const auto count = static_cast<std::int64_t>(order_.size());
  batches_ = count / batch_size + (!drop_last && count % batch_size != 0 ? 1 : 0);
}

std::span<const std::int64_t> BatchPlan::indices(std::int64_t batch) const {
  LIMPID_CHECK(batch >= 0 && batch < batches_, IndexError, "[batch_plan] batch ", batch, " of ", batches_);
  const auto first = static_cast<std::size_t>(batch * batch_size_);
  const auto count = std::min(static_cast<std::size_t>(batch_size_), order_.size() - first);
  return std::span(order_).subspan(first, count);
}

std::vector<std::int64_t> BatchPlan::sizes() const {
  std::vector<std::int64_t> sizes;
  for (std::int64_t b = 0; b < batches_; b++) sizes.push_back(static_cast<std::int64_t>(indices(b).size()));
  return sizes;
}

std::vector<std::int64_t> BatchPlan::dropped() const {
  const auto used = std::min(order_.size(), static_cast<std::size_t>(batches_ * batch_size_));
  return {order_.begin() + static_cast<std::ptrdiff_t>(used), order_.end()};
}

}  // namespace limpid::data
