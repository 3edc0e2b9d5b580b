// Gradients of elementwise functions of one operand.
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/math_kernels.h>

namespace limpid::cpu {
namespace {

template <class T>
struct Operands {
  T* out;
  const T* x;
  const T* y;
  const T* g;
};

template <class T>
using Run = void (*)(const Operands<T>& at, const std::int64_t (&step)[4], std::int64_t n, compute_t<T> p0,
                     compute_t<T> p1);

template <class Op, class T>
void run(const Operands<T>& at, const std::int64_t (&step)[4], std::int64_t n, compute_t<T> p0, compute_t<T> p1) {
  using C = compute_t<T>;
  if (step[0] == 1 && step[1] == 1 && step[2] == 1 && step[3] == 1) {
    if constexpr (kIsNarrow<T>) {
      float x[kBlock], y[kBlock], g[kBlock];
      for (std::int64_t begin = 0; begin < n; begin += kBlock) {
        const std::int64_t count = std::min(kBlock, n - begin);
        convert_run(count, at.x + begin, x);
        convert_run(count, at.y + begin, y);
        convert_run(count, at.g + begin, g);
        for (std::int64_t i = 0; i < count; i++) g[i] = Op::grad(x[i], y[i], g[i], p0, p1);
        convert_run(count, g, at.out + begin);
      }
      return;
    }
    for (std::int64_t i = 0; i < n; i++) {
      at.out[i] = static_cast<T>(
          Op::grad(static_cast<C>(at.x[i]), static_cast<C>(at.y[i]), static_cast<C>(at.g[i]), p0, p1));
    }
    return;
  }
  for (std::int64_t i = 0; i < n; i++) {
    at.out[i * step[0]] = static_cast<T>(Op::grad(static_cast<C>(at.x[i * step[1]]), static_cast<C>(at.y[i * step[2]]),
                                                  static_cast<C>(at.g[i * step[3]]), p0, p1));
  }
}

template <class T>
Run<T> pick(UnaryOp op) {
  switch (op) {
#define V(name, saves, types) \
  case UnaryOp::name: return &run<functor::name, T>;
    LIMPID_UNARY_OPS(V)
#undef V
  }
  return nullptr;
}

template <class T>
void apply(UnaryOp op, Tensor& out, const Tensor& x, const Tensor& y, const Tensor& g, UnaryParams params) {
  Operands<T> base{out.mutable_data<T>(), x.data<T>(), y.data<T>(), g.data<T>()};
  std::int64_t n = out.numel();
  bool dense = same_dense(out, x, y, g);
  if constexpr (std::is_floating_point_v<T>) {
    if (dense && n >= 64) {
      if (op == UnaryOp::relu) return relu_backward<T>(n, base.y, base.g, base.out);
      if (op == UnaryOp::mul_scalar) return scale<T>(n, base.g, static_cast<T>(params.p0), base.out);
    }
  }
  auto one = pick<T>(op);
  using C = compute_t<T>;
  C p0 = constant<C>(params.p0), p1 = constant<C>(params.p1);
  auto loop = plan_loop<4>(out.shape(), {&out.strides(), &x.strides(), &y.strides(), &g.strides()});
  if (dense) {
    loop.rank = 1;
    loop.extent[0] = n;
    for (auto& stride : loop.stride) stride[0] = 1;
  }
  run_loop(loop, kGrainCostly * 2,
           [&](const std::int64_t (&offset)[4], const std::int64_t (&step)[4], std::int64_t count) {
             one({base.out + offset[0], base.x + offset[1], base.y + offset[2], base.g + offset[3]}, step, count, p0,
                 p1);
           });
}

}  // namespace

void unary_grad(UnaryOp op, Tensor& out, const Tensor& x, const Tensor& y, const Tensor& grad, UnaryParams params) {
  // An operand that the op does not read may be missing; the gradient stands in for it.
  const Tensor& in = x.defined() ? x : grad;
  const Tensor& result = y.defined() ? y : grad;
  visit_floating(out.dtype(), "unary_grad", [&]<class T>() { apply<T>(op, out, in, result, grad, params); });
}

}  // namespace limpid::cpu
