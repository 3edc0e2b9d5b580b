#include <limpid/data/sampler.h>

#include <algorithm>
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

std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, std::int64_t micro_batch, std::int64_t quantum) {
  LIMPID_CHECK(samples > 0 && micro_batch > 0, ArgumentError, "[micro_batch_sizes] ", samples,
               " samples in micro-batches of ", micro_batch, ": both must be at least 1");
  LIMPID_CHECK(quantum > 0 && (quantum == 1 || micro_batch % quantum == 0), ArgumentError,
               "[micro_batch_sizes] micro-batches of ", micro_batch, " are no multiple of the quantum ", quantum);
  if (quantum > 1) {  // whole quanta are dealt out; the last one may be short
    const std::int64_t quanta = (samples + quantum - 1) / quantum;
    std::vector<std::int64_t> sizes = micro_batch_sizes(quanta, micro_batch / quantum);
    for (std::int64_t& size : sizes) size *= quantum;
    sizes.back() -= quanta * quantum - samples;
    return sizes;
  }
  const std::int64_t count = samples / micro_batch + (samples % micro_batch != 0 ? 1 : 0);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(count), samples / count);
  for (std::int64_t i = 0; i < samples % count; i++) sizes[static_cast<std::size_t>(i)]++;
  return sizes;
}

BatchPlan::BatchPlan(std::vector<std::int64_t> order, std::int64_t batch_size, bool drop_last, std::int64_t micro_batch,
                     std::int64_t quantum)
    : order_(std::move(order)) {
  LIMPID_CHECK(batch_size > 0, ArgumentError, "[batch_plan] batch_size is ", batch_size, ", expected at least 1");
  LIMPID_CHECK(micro_batch >= 0 && micro_batch <= batch_size, ArgumentError, "[batch_plan] micro_batch is ", micro_batch,
               ", expected 0 to batch_size, ", batch_size);
  const auto count = static_cast<std::int64_t>(order_.size());
  steps_ = count / batch_size + (!drop_last && count % batch_size != 0 ? 1 : 0);
  for (std::int64_t step = 0; step < steps_; step++) {
    const std::int64_t first = step * batch_size, samples = std::min(batch_size, count - first);
    const std::vector<std::int64_t> sizes = micro_batch > 0 ? micro_batch_sizes(samples, micro_batch, quantum)
                                                            : std::vector<std::int64_t>{samples};
    BatchPlace place{.effective = step,
                     .effective_size = samples,
                     .micro = 0,
                     .micros = static_cast<std::int64_t>(sizes.size()),
                     .offset = 0};
    for (std::int64_t size : sizes) {
      batches_.push_back({place, static_cast<std::size_t>(first + place.offset), static_cast<std::size_t>(size)});
      place.micro++;
      place.offset += size;
    }
  }
}

const BatchPlan::Entry& BatchPlan::entry(std::int64_t batch) const {
  LIMPID_CHECK(batch >= 0 && batch < size(), IndexError, "[batch_plan] batch ", batch, " of ", size());
  return batches_[static_cast<std::size_t>(batch)];
}

std::span<const std::int64_t> BatchPlan::indices(std::int64_t batch) const {
  const Entry& e = entry(batch);
  return std::span(order_).subspan(e.first, e.count);
}

const BatchPlace& BatchPlan::place(std::int64_t batch) const { return entry(batch).place; }

std::int64_t BatchPlan::step_at(std::int64_t position) const {
  return position == size() ? steps_ : place(position).effective;
}

std::vector<std::int64_t> BatchPlan::sizes() const {
  std::vector<std::int64_t> sizes;
  for (const Entry& e : batches_) sizes.push_back(static_cast<std::int64_t>(e.count));
  return sizes;
}

std::vector<std::int64_t> BatchPlan::step_sizes() const {
  std::vector<std::int64_t> sizes;
  for (const Entry& e : batches_)
    if (e.place.micro == 0) sizes.push_back(e.place.effective_size);
  return sizes;
}

std::vector<std::int64_t> BatchPlan::dropped() const {
  const std::size_t used = batches_.empty() ? 0 : batches_.back().first + batches_.back().count;
  return {order_.begin() + static_cast<std::ptrdiff_t>(used), order_.end()};
}

}  // namespace limpid::data
