// Two policies whose memory is pages of 2 MiB that move: a request that no free block can serve gets a fresh virtual
// range, filled first with the whole pages of free blocks, largest first, then with new ones. Everything else (best
// fit, splitting, merging, waiting for streams) is the native policy.
//
// `stitch` mimics GMLake (arXiv 2401.08156): requests above 1 MiB are made of pages; one of at least the setting
// stitch_limit is stitched together from free blocks of its stream. GMLake maps a page at several addresses and keeps
// the views; here a page has one address and moves, so that every segment stays tiled. That gives the same reserved
// bytes; GMLake saves the unmapping, we may split what was stitched. GMLake's stitch_limit is 512 MiB; ours, 2 MiB,
// suits small models.
//
// `async` is an ideal stream-ordered pool, the limit of what cudaMallocAsync can do: every request is served so, small
// ones from slabs of one page, and a page of another stream serves as soon as that stream is idle. The driver's real
// policy is not published. Pages stay until memory is short, as with PyTorch's release threshold.
#pragma once

#include <limpid/memory/native_policy.h>

namespace limpid::memory {

class PagedPolicy final : public NativePolicy {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  struct Kind {
    const char* name;
    std::size_t least;  // requests below are not stitched
    bool every_pool;    // small requests and other streams take part
  };

  PagedPolicy(const PolicyContext& context, const Kind& kind);
  std::size_t round(std::size_t bytes) const override;

 protected:
  Block* take_new(PoolKind kind, StreamId stream, std::size_t rounded) override;
  bool should_split(const Block& block, std::size_t rounded) const override;
  void release_free() override;

 private:
  Block* new_range(PoolKind kind, StreamId stream, std::size_t bytes);
  void unmap_free_pages(PoolKind kind, StreamId stream, std::size_t bytes);
  bool is_idle(StreamId stream);

  Kind kind_;
};

std::unique_ptr<Policy> make_stitch_policy(const PolicyContext& context);
std::unique_ptr<Policy> make_async_policy(const PolicyContext& context);

}  // namespace limpid::memory
