// RMM's pool_memory_resource: best fit, always split, free neighbours merge. A stream that finds nothing of its own
// takes a free block of another stream, after that stream's work is done; then all their blocks; only then the pool
// grows, by as much as it has already, or by half of what is left under a limit, and by half of that each time the
// device refuses. It deviates in: rounding to 512 bytes (there 256); it starts empty (there with a size the caller
// gives); the host waits for the other stream (there the taking stream waits on the device); it gives wholly free
// segments back before a request fails and in empty_cache() (there never).
#pragma once

#include <limpid/memory/list_policy.h>

namespace limpid::memory {

class RmmPoolPolicy final : public ListPolicy {
 public:
  explicit RmmPoolPolicy(const PolicyContext& context) : ListPolicy(context) {}
  const char* name() const override { return "rmm_pool"; }
  std::size_t round(std::size_t bytes) const override { return ceil_to(bytes, kMinBlock); }

 protected:
  Block* extend(StreamList& list, std::size_t rounded) override;
  bool should_split(const Block& block, std::size_t rounded) const override { return block.size > rounded; }
  Block* steal(StreamList& list, std::size_t rounded) override;
  void release_free() override;
};

std::unique_ptr<Policy> make_rmm_pool_policy(const PolicyContext& context);

}  // namespace limpid::memory
