// Gradients of elementwise functions of two operands, in the broadcast shape.
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/loop.h>
#include <limpid/tensor/cpu/math_kernels.h>

namespace limpid::cpu {
namespace {

template <class T>
struct Operands {
  T* out;
  const T* a;
  const T* b;
  const T* y;
  const T* g;
};

template <class T>
using Run = void (*)(const Operands<T>& at, const std::int64_t (&step)[5], std::int64_t n);

template <class Op, bool kOfB, class T>
T one(T a, T b, T y, T g) {
  using C = compute_t<T>;
  C ca = static_cast<C>(a), cb = static_cast<C>(b), cy = static_cast<C>(y), cg = static_cast<C>(g);
  if constexpr (kOfB) {
    return static_cast<T>(Op::grad_b(ca, cb, cy, cg));
  } else {
    return static_cast<T>(Op::grad_a(ca, cb, cy, cg));
  }
}

template <class Op, bool kOfB, class T>
void run(const Operands<T>& at, const std::int64_t (&step)[5], std::int64_t n) {
  if (step[0] == 1 && step[1] == 1 && step[2] == 1 && step[3] == 1 && step[4] == 1) {
    for (std::int64_t i = 0; i < n; i++) at.out[i] = one<Op, kOfB>(at.a[i], at.b[i], at.y[i], at.g[i]);
    return;
  }
  for (std::int64_t i = 0; i < n; i++) {
    at.out[i * step[0]] =
        one<Op, kOfB>(at.a[i * step[1]], at.b[i * step[2]], at.y[i * step[3]], at.g[i * step[4]]);
  }
}

template <class T>
Run<T> pick(BinaryOp op, bool of_b) {
  switch (op) {
#define V(name, types) \
  case BinaryOp::name: return of_b ? &run<functor::name, true, T> : &run<functor::name, false, T>;
    LIMPID_BINARY_OPS(V)
#undef V
  }
  return nullptr;
}

template <class T>
void apply(BinaryOp op, bool of_b, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& g) {
  Operands<T> base{out.mutable_data<T>(), a.data<T>(), b.data<T>(), y.data<T>(), g.data<T>()};
  std::int64_t n = out.numel();
  bool dense = same_dense(out, a, b, y, g);
  if constexpr (std::is_floating_point_v<T>) {
    if (dense && n >= 64 && op == BinaryOp::mul) return mul<T>(n, base.g, of_b ? base.a : base.b, base.out);
  }
  auto kernel = pick<T>(op, of_b);
  auto loop = plan_loop<5>(out.shape(), {&out.strides(), &a.strides(), &b.strides(), &y.strides(), &g.strides()});
  if (dense) {
    loop.rank = 1;
    loop.extent[0] = n;
    for (auto& stride : loop.stride) stride[0] = 1;
  }
  run_loop(loop, op == BinaryOp::pow ? kGrainCostly : kGrain,
           [&](const std::int64_t (&offset)[5], const std::int64_t (&step)[5], std::int64_t count) {
             kernel({base.out + offset[0], base.a + offset[1], base.b + offset[2], base.y + offset[3],
                     base.g + offset[4]},
                    step, count);
           });
}

}  // namespace

void binary_grad(BinaryOp op, bool of_b, Tensor& out, const Tensor& a, const Tensor& b, const Tensor& y,
                 const Tensor& grad) {
  // Operands that the op does not read may be missing; the gradient stands in for them.
  const Tensor& left = a.defined() ? a : grad;
  const Tensor& right = b.defined() ? b : grad;
  const Tensor& result = y.defined() ? y : grad;
  visit_floating(out.dtype(), "binary_grad",
                 [&]<class T>() { apply<T>(op, of_b, out, left, right, result, grad); });
}

}  // namespace limpid::cpu
