// TensorFlow's BFC allocator (best fit with coalescing) with allow_growth: regions that double from 2 MiB, a block is
// split only when it is at least twice the request or the rest is at least 128 MiB, free neighbours merge at once. When
// the device refuses a region, smaller ones are tried, once in a life. TensorFlow searches its bins of 256 * 2^b bytes
// upward, each ordered by size: that finds the smallest block that fits, and so does one ordered list.
// It deviates in: rounding to 512 bytes (there 256); each stream has regions of its own (there one stream); wholly free
// regions are given back before a request fails (there garbage_collection, off by default); no wait of up to 10 s.
#pragma once

#include <limpid/memory/list_policy.h>

namespace limpid::memory {

class BfcPolicy final : public ListPolicy {
 public:
  static constexpr std::size_t kMaxSlack = std::size_t{128} << 20;

  explicit BfcPolicy(const PolicyContext& context) : ListPolicy(context) {}
  const char* name() const override { return "bfc"; }
  std::size_t round(std::size_t bytes) const override { return ceil_to(bytes, kMinBlock); }

 protected:
  Block* extend(StreamList& list, std::size_t rounded) override;
  bool should_split(const Block& block, std::size_t rounded) const override {
    return block.size >= 2 * rounded || block.size - rounded >= kMaxSlack;
  }

 private:
  bool backed_off_ = false;
};

std::unique_ptr<Policy> make_bfc_policy(const PolicyContext& context);

}  // namespace limpid::memory
