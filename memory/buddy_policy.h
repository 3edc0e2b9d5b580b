// The binary buddy allocator: requests are rounded up to a power of two, the smallest free block that fits is halved
// until it has that size, and a freed block merges with its buddy (offset XOR size inside its segment) as long as that
// is free. Regions are powers of two, at least 32 MiB, or smaller when the device has no more. It mimics no product:
// it is the textbook scheme, for comparison. Each stream has regions of its own.
#pragma once

#include <limpid/memory/list_policy.h>

namespace limpid::memory {

class BuddyPolicy final : public ListPolicy {
 public:
  static constexpr std::size_t kRegion = std::size_t{32} << 20;

  explicit BuddyPolicy(const PolicyContext& context) : ListPolicy(context) {}
  const char* name() const override { return "buddy"; }
  std::size_t round(std::size_t bytes) const override;
  void check() const override;

 protected:
  Block* extend(StreamList& list, std::size_t rounded) override;
  bool should_split(const Block& block, std::size_t rounded) const override { return block.size > rounded; }
  Block* cut(Block* block, std::size_t rounded) override;
  void take_back(Block* block) override;
};

std::unique_ptr<Policy> make_buddy_policy(const PolicyContext& context);

}  // namespace limpid::memory
