// A debugging mode: every result of a forward function and every gradient is checked, and the first non-finite value
// throws NonFiniteError, which names the op, the layer, the phase and the element. Off by default; it reads every tensor.
#pragma once

#include <atomic>

#include <limpid/base/error.h>
#include <limpid/base/scope.h>
#include <limpid/tensor/tensor.h>

namespace limpid {

class NonFiniteError : public Error {
 public:
  NonFiniteError(std::string message, Scope scope) : Error(std::move(message)), scope_(scope) {}
  const Scope& scope() const { return scope_; }  // op, module, phase, step, micro-batch

 private:
  Scope scope_;
};

namespace detail {
inline std::atomic<bool> check_finite_on{false};
}
inline void set_check_finite(bool on) { detail::check_finite_on = on; }
inline bool check_finite_enabled() { return detail::check_finite_on.load(std::memory_order_relaxed); }

// Throws when `x` (floating) holds a non-finite value. `what` and `index` say which tensor of the op it is.
void check_finite(const Tensor& x, const char* what, int index);

}  // namespace limpid
