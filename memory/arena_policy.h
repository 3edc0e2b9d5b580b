// RMM's arena_memory_resource: four size classes a doubling, first fit by address, and two levels. A global arena owns
// the memory and serves requests above 1 MiB itself; smaller ones come from the arena of their stream, which borrows
// superblocks of 1 MiB and returns each one as soon as it is empty. Free neighbours merge inside their superblock, or
// inside the global arena.
// It deviates in: classes start at 512 bytes (there 256); the global arena starts empty and grows by segments of at
// least 32 MiB (there half of the device at once, then no growth); a stream is waited for when another one gets its
// memory (there when it returns it); wholly free segments are given back before a request fails.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include <limpid/memory/tiled_policy.h>

namespace limpid::memory {

// Free blocks, found first fit: the first by place among those of at least a class's size.
class FirstFit {
 public:
  // Sizes of classes: 512, 1024, 1536, 2048, then four equal steps a doubling.
  static std::size_t round(std::size_t bytes);     // up to a class's size
  static std::size_t class_of(std::size_t bytes);  // the largest class that is not above

  void insert(Block* block) { classes_[class_of(block->size)].insert(block); }
  bool erase(Block* block) { return classes_[class_of(block->size)].erase(block) == 1; }
  Block* find(std::size_t class_size) const;
  std::size_t size() const;
  std::vector<Block*> blocks() const;

 private:
  struct ByOrder {
    bool operator()(const Block* a, const Block* b) const { return a->order < b->order; }
  };
  std::map<std::size_t, std::set<Block*, ByOrder>> classes_;
};

class ArenaPolicy final : public TiledPolicy {
 public:
  static constexpr std::size_t kSuperblock = std::size_t{1} << 20;
  static constexpr std::size_t kRegion = std::size_t{32} << 20;

  explicit ArenaPolicy(const PolicyContext& context) : TiledPolicy(context) {}
  const char* name() const override { return "arena"; }
  std::size_t round(std::size_t bytes) const override { return FirstFit::round(bytes); }
  Block* allocate(std::size_t bytes, StreamId stream) override;
  void check() const override;

 protected:
  void take_back(Block* block) override;
  void remove_free(Block* block) override;
  void release_free() override;

 private:
  // A stream's superblocks, by the place where they begin.
  using Superblocks = std::map<std::uint64_t, StreamId>;
  static constexpr StreamId kMixed = ~StreamId{0};  // of free memory that several streams have used

  Superblocks::const_iterator superblock_of(const Block* block) const;  // end() when the block is in the global arena
  FirstFit& index_of(const Block* block);
  void insert_free(Block* block);
  Block* take_global(std::size_t bytes, StreamId stream);
  Block* take(std::size_t rounded, StreamId stream);
  bool grow(std::size_t bytes, StreamId stream);

  FirstFit global_;
  std::map<StreamId, FirstFit> arenas_;
  Superblocks superblocks_;
  std::set<StreamId> streams_;  // all that have ever asked
};

std::unique_ptr<Policy> make_arena_policy(const PolicyContext& context);

}  // namespace limpid::memory
