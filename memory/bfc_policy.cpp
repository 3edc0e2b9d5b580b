#include <limpid/memory/bfc_policy.h>

#include <algorithm>

namespace limpid::memory {

Block* BfcPolicy::extend(StreamList& list, std::size_t rounded) {
  std::size_t room = available();
  std::size_t least = ceil_to(rounded, kSegmentRounding);
  if (least > room) return nullptr;
  bool grown = false;
  for (; list.next_region < rounded; list.next_region *= 2) grown = true;
  std::size_t bytes = std::min(list.next_region, room);
  Block* block = reserve_segment(PoolKind::large, list.stream, bytes);
  if (!block && !backed_off_) {
    backed_off_ = true;
    while (!block && bytes > least) {
      // nine tenths, but at least one page less
      bytes = std::max(least, std::min(bytes / 10 * 9 / kSegmentRounding * kSegmentRounding, bytes - kSegmentRounding));
      block = reserve_segment(PoolKind::large, list.stream, bytes);
    }
  }
  // A cache that is emptied again and again doubles it each time; at some point it would wrap around to 0.
  if (block && !grown && list.next_region < kMostBytes / 2) list.next_region *= 2;
  return block;
}

std::unique_ptr<Policy> make_bfc_policy(const PolicyContext& context) { return std::make_unique<BfcPolicy>(context); }

}  // namespace limpid::memory
