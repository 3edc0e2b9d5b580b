// Looking on while a thread computes: a watcher is told of every result, every copy that autocast makes and every step of
// backward. The AMP ledger (train/amp_ledger.h) is one. Without a watcher an operation pays one test of a pointer.
// A watcher must not call differentiable functions, and must not keep the tensors.
#pragma once

#include <span>
#include <utility>

#include <limpid/tensor/tensor.h>

namespace limpid {

class Node;

class Watcher {
 public:
  virtual ~Watcher() = default;
  // `result` was made of `inputs` (some may be undefined), which were brought to dtype `compute` first where autocast says
  // so. current_scope() names op, layer and micro-batch. The parts of an operation that autocast rules are not told.
  virtual void on_result(const Tensor& result, std::span<const Tensor* const> inputs, DType compute) = 0;
  // For the operation in current_scope(), before its result. `reused`: the copy comes from the cache.
  virtual void on_cast(const Tensor& from, const Tensor& to, bool reused) = 0;
  // current_scope() is that of the node, its micro-batch included.
  virtual void on_backward(const Node& node, std::span<const Tensor> grads, std::span<const Tensor> input_grads) = 0;
};

namespace detail {
inline thread_local Watcher* watcher = nullptr;
}

// The watcher of this thread while the scope lives; null: none.
class WatchScope {
 public:
  explicit WatchScope(Watcher* watcher) : former_(std::exchange(detail::watcher, watcher)) {}
  ~WatchScope() { detail::watcher = former_; }
  WatchScope(const WatchScope&) = delete;
  WatchScope& operator=(const WatchScope&) = delete;

 private:
  Watcher* former_;
};

}  // namespace limpid
