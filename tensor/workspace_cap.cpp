#include <limpid/tensor/workspace_cap.h>

#include <atomic>

#include <limpid/base/error.h>

namespace limpid {
namespace {
std::atomic<std::size_t> cap{0};
}

void set_workspace_cap(std::size_t bytes) { cap.store(bytes, std::memory_order_relaxed); }
std::size_t workspace_cap() { return cap.load(std::memory_order_relaxed); }

void check_workspace_cap(const char* op, std::size_t smallest) {
  const std::size_t most = workspace_cap();
  LIMPID_CHECK(most == 0 || smallest <= most, ArgumentError, "[", op, "] the smallest plan has a workspace of ",
               smallest, " bytes, the workspace cap is ", most);
}

}  // namespace limpid
