// A policy with one best-fit list of free blocks for each stream: the common part of bfc, buddy and rmm_pool. Free
// neighbours of one stream are merged at once. Each of the three adds how it rounds, splits and grows.
#pragma once

#include <memory>
#include <vector>

#include <limpid/memory/free_list.h>
#include <limpid/memory/tiled_policy.h>

namespace limpid::memory {

class ListPolicy : public TiledPolicy {
 public:
  Block* allocate(std::size_t bytes, StreamId stream) override;
  void check() const override;

 protected:
  static constexpr std::size_t kSegmentRounding = std::size_t{2} << 20;

  struct StreamList {
    StreamId stream;
    FreeList blocks;
    std::size_t next_region = kSegmentRounding;  // for bfc
  };

  explicit ListPolicy(const PolicyContext& context) : TiledPolicy(context) {}

  // A new segment's block, in no list, of at least `rounded` bytes. nullptr when the device or the limit says no.
  virtual Block* extend(StreamList& list, std::size_t rounded) = 0;
  virtual bool should_split(const Block& block, std::size_t rounded) const = 0;
  // A block of another stream that may be used after all; before extend().
  virtual Block* steal(StreamList&, std::size_t) { return nullptr; }
  // Cuts a block that is in no list down to what is handed out.
  virtual Block* cut(Block* block, std::size_t rounded);

  void take_back(Block* block) override;
  void remove_free(Block* block) override;
  void release_free() override;
  StreamList& list_of(StreamId stream);
  void insert_free(Block* block);
  void join_own_neighbours(Block* block);  // the free ones of its stream
  Block* take_fit(StreamList& list, std::size_t rounded);
  // Bytes that the device and the limit may still give.
  std::size_t available() const;

  std::vector<std::unique_ptr<StreamList>> lists_;  // ordered by stream
};

}  // namespace limpid::memory
