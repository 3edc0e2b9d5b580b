// A bound on the workspace of one call of a kernel. The plan functions (kernels.h) keep to it: they cut the work into
// smaller pieces, give scratch to fewer threads, or choose another algorithm. Where even the smallest plan needs more,
// they throw an ArgumentError with both figures. It holds for dry devices as well, which plan with the same functions.
#pragma once

#include <cstddef>

namespace limpid {

// 0 = no cap. Of the whole process; plans that were made before keep what they have.
void set_workspace_cap(std::size_t bytes);
std::size_t workspace_cap();

// For plan functions. ArgumentError when the smallest plan of `op` is above the cap.
void check_workspace_cap(const char* op, std::size_t smallest);

class WorkspaceCapScope {
 public:
  explicit WorkspaceCapScope(std::size_t bytes) : former_(workspace_cap()) { set_workspace_cap(bytes); }
  ~WorkspaceCapScope() { set_workspace_cap(former_); }
  WorkspaceCapScope(const WorkspaceCapScope&) = delete;
  WorkspaceCapScope& operator=(const WorkspaceCapScope&) = delete;

 private:
  std::size_t former_;
};

}  // namespace limpid
