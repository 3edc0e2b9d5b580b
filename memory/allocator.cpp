#include <limpid/memory/allocator.h>

#include <cstdlib>

namespace limpid::memory {

const char* to_string(Role role) {
  static const char* const kNames[] = {"param", "grad", "optimizer", "activation", "saved", "workspace", "io", "temp", "external", "other"};
  return kNames[static_cast<int>(role)];
}

Block* Allocator::allocate(std::size_t bytes, Role role, NameId name, StreamId stream) {
  if (bytes == 0) return nullptr;
  Block* block = new Block{nullptr, (bytes + 511) / 512 * 512, bytes, stream, role, name};
  block->ptr = std::aligned_alloc(512, block->size);
  return block;
}

void Allocator::free(Block* block) noexcept {
  if (!block) return;
  std::free(block->ptr);
  delete block;
}

Allocator& host_allocator() {
  static Allocator* a = new Allocator;
  return *a;
}
Allocator& io_allocator() {
  static Allocator* a = new Allocator;
  return *a;
}

}  // namespace limpid::memory
