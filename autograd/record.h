// Helpers of the function files: interned op names, the common node shapes, and who is told of results. Private to
// autograd/.
#pragma once

#include <span>
#include <type_traits>

#include <limpid/autograd/autocast_call.h>
#include <limpid/autograd/check_finite.h>
#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/node.h>
#include <limpid/autograd/watch.h>
#include <limpid/tensor/raw.h>

namespace limpid {

// The id of an op name, interned once a call site.
#define LIMPID_OP(text)                                \
  ([]() -> ::limpid::NameId {                          \
    static const ::limpid::NameId id = ::limpid::intern(text); \
    return id;                                         \
  }())

// Wraps the result of a forward function: the finite check and the watcher see it when they are on.
inline Tensor checked(Tensor result, std::span<const Tensor* const> inputs) {
  if (LIMPID_UNLIKELY(check_finite_enabled())) check_finite(result, "output", 0);
  if (LIMPID_UNLIKELY(detail::watcher != nullptr)) detail::watcher->on_result(result, inputs, result.dtype());
  return result;
}
template <class... Inputs>
requires(std::is_same_v<Inputs, Tensor>&&...) Tensor checked(Tensor result, const Inputs&... inputs) {
  const Tensor* all[] = {&inputs...};
  return checked(std::move(result), std::span<const Tensor* const>(all));
}

// Node for an op with one tensor input and one output that keeps nothing but constants: `grad_of(grad)` is its rule.
// F is a small struct with `Tensor operator()(const Tensor& grad) const`.
template <class F>
class SimpleNode final : public Node {
 public:
  SimpleNode(NameId name, F rule) : Node(name), rule_(std::move(rule)) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (grads[0].defined()) input_grads[0] = rule_(grads[0]);
  }

 private:
  F rule_;
};

// Records `output = op(input)` with a rule that needs the incoming gradient only.
template <class F>
Tensor record_simple(NameId name, const Tensor& input, Tensor output, F rule) {
  if (any_requires_grad({&input})) {
    auto node = make_ref<SimpleNode<F>>(name, std::move(rule));
    node->add_input(input);
    node->add_output(output);
  }
  return checked(std::move(output), input);
}

}  // namespace limpid
