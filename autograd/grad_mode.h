// Whether operations are recorded: a flag per thread.
#pragma once

namespace limpid {

namespace detail {
inline thread_local bool grad_enabled = true;
}
inline bool grad_enabled() { return detail::grad_enabled; }

class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : former_(detail::grad_enabled) { detail::grad_enabled = enabled; }
  ~GradModeGuard() { detail::grad_enabled = former_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool former_;
};

// Nothing is recorded while it lives.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

}  // namespace limpid
