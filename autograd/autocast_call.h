// How a differentiable function obeys autocast: its first line is LIMPID_AUTOCAST(name, arguments...). Under autocast the
// arguments are cast by the table's rule and the function is called again, with autocast off for what it is made of.
// Private to autograd/.
#pragma once

#include <span>
#include <tuple>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/watch.h>
#include <limpid/base/scope.h>

namespace limpid {

enum class AutocastOp : std::uint8_t {
#define V(name, rule) name,
  LIMPID_AUTOCAST_TABLE(V)
#undef V
};

class AutocastCall {
 public:
  // `arguments`: null where an argument is no tensor.
  AutocastCall(AutocastOp op, std::span<const Tensor* const> arguments);
  ~AutocastCall() { detail::watcher = watcher_; }
  AutocastCall(const AutocastCall&) = delete;
  AutocastCall& operator=(const AutocastCall&) = delete;

  Tensor cast(const Tensor& argument);
  template <class T>
  const T& cast(const T& argument) {
    return argument;
  }
  Tensor done(Tensor result);

 private:
  AutocastOptions options_;
  AutocastRule rule_;
  DType target_ = DType::float32;
  std::span<const Tensor* const> arguments_;
  OpScope scope_;
  AutocastPause pause_;
  Watcher* watcher_;  // not told of the parts
};

inline const Tensor* tensor_or_null(const Tensor& t) { return &t; }
template <class T>
const Tensor* tensor_or_null(const T&) {
  return nullptr;
}

template <class F, class... Args>
Tensor autocast_call(AutocastOp op, F function, const Args&... args) {
  const Tensor* tensors[] = {tensor_or_null(args)...};
  AutocastCall call(op, tensors);
  std::tuple<decltype(call.cast(args))...> cast{call.cast(args)...};  // in order: so are the allocations
  return call.done(std::apply(function, cast));
}

#define LIMPID_AUTOCAST(op, ...)               \
  if (LIMPID_UNLIKELY(autocast_enabled())) \
  return autocast_call(AutocastOp::op, [](const auto&... args) { return op(args...); }, __VA_ARGS__)

}  // namespace limpid
