// Bootstrap of the allocator's interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include <limpid/base/names.h>
#include <limpid/memory/role.h>

namespace limpid::memory {

using StreamId = std::uint64_t;

struct Block {
  void* ptr = nullptr;
  std::size_t size = 0;
  std::size_t requested = 0;
  StreamId stream = 0;
  Role role = Role::other;
  NameId name = 0;
};

class Allocator {
 public:
  Block* allocate(std::size_t bytes, Role role, NameId name = 0, StreamId stream = 0);
  void free(Block* block) noexcept;
  void set_role(Block* block, Role role) noexcept { block->role = role; }
  void set_name(Block* block, NameId name) noexcept { block->name = name; }
  void add_external(std::size_t) {}
  void remove_external(std::size_t) {}
};

Allocator& host_allocator();
Allocator& io_allocator();

}  // namespace limpid::memory
