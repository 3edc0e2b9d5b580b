#include <cudasim/fiber.h>

#include <cstdint>
#include <new>

#include <pthread.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves the registers that a called function must keep, exchanges the stacks, takes the other side's registers back.
extern "C" void limpid_cudasim_switch(void** save, void* load);
asm(R"(
.text
.globl limpid_cudasim_switch
.type limpid_cudasim_switch,@function
limpid_cudasim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size limpid_cudasim_switch,.-limpid_cudasim_switch
)");
#endif

namespace limpid::cudasim {
namespace {
constexpr std::size_t kGuardBytes = 4096;

void announce_switch([[maybe_unused]] void** save, [[maybe_unused]] const void* low, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(save, low, bytes);
#endif
}
void switch_done([[maybe_unused]] void* saved) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(saved, nullptr, nullptr);
#endif
}
}  // namespace

Fiber::Fiber() {
  pthread_attr_t attributes;
  void* low = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &stack_bytes_);
  pthread_attr_destroy(&attributes);
  stack_low_ = static_cast<char*>(low);
}

Fiber::Fiber(std::size_t stack_bytes, Entry entry) : stack_bytes_(stack_bytes), owned_(true) {
  void* memory = mmap(nullptr, stack_bytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack_low_ = static_cast<char*>(memory) + kGuardBytes;
#if defined(__x86_64__)
  auto** top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack_low_) + stack_bytes) & ~std::uintptr_t(15));
  *--top = nullptr;  // where entry would return to; also keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int saved_register = 0; saved_register < 6; saved_register++) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_low_;
  context_.uc_stack.ss_size = stack_bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#endif
}

Fiber::~Fiber() {
  if (!owned_) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_low_, stack_bytes_);  // frames that were left without returning
#endif
  munmap(stack_low_ - kGuardBytes, stack_bytes_ + kGuardBytes);
}

void Fiber::switch_to(Fiber& to) {
  announce_switch(&fake_stack_, to.stack_low_, to.stack_bytes_);
#if defined(__x86_64__)
  limpid_cudasim_switch(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&context_, &to.context_);
#endif
  switch_done(fake_stack_);
}

void Fiber::leave_for(Fiber& to) {
  announce_switch(nullptr, to.stack_low_, to.stack_bytes_);
#if defined(__x86_64__)
  limpid_cudasim_switch(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&context_, &to.context_);
#endif
}

void Fiber::entered() { switch_done(nullptr); }

}  // namespace limpid::cudasim
