// Fibers: stacks that take turns on one OS thread. Each emulated CUDA thread that has to wait keeps its place on one.
//
// A switch costs about 15 instructions on x86-64; elsewhere it goes through <ucontext.h>, which is 5 to 7 times slower.
// AddressSanitizer is told about every switch. Not for use from several OS threads at once.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace limpid::cudasim {

class Fiber {
 public:
  using Entry = void (*)();
  // The stack that the caller runs on now.
  Fiber();
  // A new stack with a guard page below it. `entry` starts at the first switch and must never return.
  Fiber(std::size_t stack_bytes, Entry entry);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on with `to`, and returns when something switches back here.
  void switch_to(Fiber& to);
  // The same for a fiber that is never resumed.
  void leave_for(Fiber& to);
  // First call of every `entry`: ends the switch that started it.
  static void entered();

  const char* stack_low() const { return stack_low_; }
  std::size_t stack_bytes() const { return stack_bytes_; }

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
  char* stack_low_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  bool owned_ = false;
};

}  // namespace limpid::cudasim
