// Elementwise functions of two operands.
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/math_kernels.h>

namespace limpid::cpu {
namespace {

template <class T>
using Run = void (*)(T* out, const T* a, const T* b, const std::int64_t (&step)[3], std::int64_t n);

template <class Op, class T>
T one(T a, T b) {
  using C = compute_t<T>;
  return static_cast<T>(Op::forward(static_cast<C>(a), static_cast<C>(b)));
}

template <class Op, class T>
void run(T* out, const T* a, const T* b, const std::int64_t (&step)[3], std::int64_t n) {
  if (step[0] == 1 && step[1] == 1 && step[2] == 1) {
    if constexpr (kIsNarrow<T>) {
      float wide_a[kBlock], wide_b[kBlock];
      for (std::int64_t begin = 0; begin < n; begin += kBlock) {
        const std::int64_t count = std::min(kBlock, n - begin);
        convert_run(count, a + begin, wide_a);
        convert_run(count, b + begin, wide_b);
        for (std::int64_t i = 0; i < count; i++) wide_a[i] = Op::forward(wide_a[i], wide_b[i]);
        convert_run(count, wide_a, out + begin);
      }
      return;
    }
    for (std::int64_t i = 0; i < n; i++) out[i] = one<Op>(a[i], b[i]);
  } else if (step[0] == 1 && step[1] == 1 && step[2] == 0) {
    T value = *b;
    for (std::int64_t i = 0; i < n; i++) out[i] = one<Op>(a[i], value);
  } else {
    for (std::int64_t i = 0; i < n; i++) out[i * step[0]] = one<Op>(a[i * step[1]], b[i * step[2]]);
  }
}

template <class T, bool kFloatingOnly, class Op>
Run<T> pick_one() {
  if constexpr (kTakes<kFloatingOnly, T>) return &run<Op, T>;
  return nullptr;
}

template <class T>
Run<T> pick(BinaryOp op) {
  switch (op) {
#define V(name, types) \
  case BinaryOp::name: return pick_one<T, kOnly##types, functor::name>();
    LIMPID_BINARY_OPS(V)
#undef V
  }
  return nullptr;
}

template <class T>
void apply(BinaryOp op, Tensor& out, const Tensor& a, const Tensor& b) {
  T* y = out.mutable_data<T>();
  const T* pa = a.data<T>();
  const T* pb = b.data<T>();
  std::int64_t n = out.numel();
  bool dense = same_dense(out, a, b);
  if constexpr (std::is_floating_point_v<T>) {
    if (dense && n >= 64) {
      if (op == BinaryOp::add) return add<T>(n, pa, pb, y);
      if (op == BinaryOp::mul) return mul<T>(n, pa, pb, y);
    }
  }
  auto kernel = pick<T>(op);
  LIMPID_ASSERT(kernel != nullptr);
  std::int64_t grain = op == BinaryOp::pow ? kGrainCostly : kGrain;
  if (dense) {
    const std::int64_t ones[3] = {1, 1, 1};
    if (n <= grain) return kernel(y, pa, pb, ones, n);
    return parallel_chunks(n, grain, [&](std::int64_t begin, std::int64_t end) {
      kernel(y + begin, pa + begin, pb + begin, ones, end - begin);
    });
  }
  run_loop(plan_loop<3>(out.shape(), {&out.strides(), &a.strides(), &b.strides()}), grain,
           [&](const std::int64_t (&offset)[3], const std::int64_t (&step)[3], std::int64_t count) {
             kernel(y + offset[0], pa + offset[1], pb + offset[2], step, count);
           });
}

}  // namespace

void binary(BinaryOp op, Tensor& out, const Tensor& a, const Tensor& b) {
  visit_dtype(out.dtype(), [&]<class T>() { apply<T>(op, out, a, b); });
}

}  // namespace limpid::cpu
