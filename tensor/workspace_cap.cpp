#include <limpid/tensor/workspace_cap.h>

#include <atomic>

namespace limpid {
namespace {
std::atomic<std::size_t> cap{0};
}

void set_workspace_cap(std::size_t bytes) { cap.store(bytes, std::memory_order_relaxed); }
std::size_t workspace_cap() { return cap.load(std::memory_order_relaxed); }

}  // namespace limpid
