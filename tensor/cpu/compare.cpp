// Comparisons: two operands of one dtype, bool out.
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>

namespace limpid::cpu {
namespace {

template <class T>
using Run = void (*)(bool* out, const T* a, const T* b, const std::int64_t (&step)[3], std::int64_t n);

template <class Op, class T>
void run(bool* out, const T* a, const T* b, const std::int64_t (&step)[3], std::int64_t n) {
  using C = compute_t<T>;
  for (std::int64_t i = 0; i < n; i++) {
    out[i * step[0]] = Op::forward(static_cast<C>(a[i * step[1]]), static_cast<C>(b[i * step[2]]));
  }
}

template <class T>
Run<T> pick(CompareOp op) {
  switch (op) {
#define V(name) \
  case CompareOp::name: return &run<functor::name, T>;
    LIMPID_COMPARE_OPS(V)
#undef V
  }
  return nullptr;
}

}  // namespace

void compare(CompareOp op, Tensor& out, const Tensor& a, const Tensor& b) {
  bool* y = out.mutable_data<bool>();
  auto loop = plan_loop<3>(out.shape(), {&out.strides(), &a.strides(), &b.strides()});
  visit_dtype(a.dtype(), [&]<class T>() {
    auto kernel = pick<T>(op);
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    run_loop(loop, kGrain, [&](const std::int64_t (&offset)[3], const std::int64_t (&step)[3], std::int64_t n) {
      kernel(y + offset[0], pa + offset[1], pb + offset[2], step, n);
    });
  });
}

}  // namespace limpid::cpu
