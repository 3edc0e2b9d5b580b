// Elementwise functions of one operand.
#include <limpid/tensor/cpu/convert.h>
#include <limpid/tensor/cpu/kernels_cpu.h>
#include <limpid/tensor/cpu/math_kernels.h>

namespace limpid::cpu {
namespace {

template <class T>
using Run = void (*)(T* out, const T* x, std::int64_t out_step, std::int64_t x_step, std::int64_t n, compute_t<T> p0,
                     compute_t<T> p1);

template <class Op, class T>
void run(T* out, const T* x, std::int64_t out_step, std::int64_t x_step, std::int64_t n, compute_t<T> p0,
         compute_t<T> p1) {
  using C = compute_t<T>;
  if (out_step == 1 && x_step == 1) {
    if constexpr (kIsNarrow<T>) {
      float wide[kBlock];
      for (std::int64_t begin = 0; begin < n; begin += kBlock) {
        const std::int64_t count = std::min(kBlock, n - begin);
        convert_run(count, x + begin, wide);
        for (std::int64_t i = 0; i < count; i++) wide[i] = Op::forward(wide[i], p0, p1);
        convert_run(count, wide, out + begin);
      }
      return;
    }
    for (std::int64_t i = 0; i < n; i++) out[i] = static_cast<T>(Op::forward(static_cast<C>(x[i]), p0, p1));
    return;
  }
  for (std::int64_t i = 0; i < n; i++) {
    out[i * out_step] = static_cast<T>(Op::forward(static_cast<C>(x[i * x_step]), p0, p1));
  }
}

template <class T, bool kFloatingOnly, class Op>
Run<T> pick_one() {
  if constexpr (kTakes<kFloatingOnly, T>) return &run<Op, T>;
  return nullptr;
}

template <class T>
Run<T> pick(UnaryOp op) {
  switch (op) {
#define V(name, saves, types) \
  case UnaryOp::name: return pick_one<T, kOnly##types, functor::name>();
    LIMPID_UNARY_OPS(V)
#undef V
  }
  return nullptr;
}

// Ops whose cost a element is far above that of the memory traffic.
bool costly(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg:
    case UnaryOp::abs:
    case UnaryOp::sign:
    case UnaryOp::square:
    case UnaryOp::clamp:
    case UnaryOp::relu:
    case UnaryOp::leaky_relu:
    case UnaryOp::add_scalar:
    case UnaryOp::mul_scalar:
    case UnaryOp::rsub_scalar: return false;
    default: return true;
  }
}

template <class T>
void apply(UnaryOp op, Tensor& out, const Tensor& x, UnaryParams params) {
  T* y = out.mutable_data<T>();
  const T* in = x.data<T>();
  std::int64_t n = out.numel();
  bool dense = same_dense(out, x);
  if constexpr (std::is_floating_point_v<T>) {
    if (dense && n >= 64) {
      if (op == UnaryOp::relu) return relu<T>(n, in, y);
      if (op == UnaryOp::mul_scalar) return scale<T>(n, in, static_cast<T>(params.p0), y);
    }
  }
  auto one = pick<T>(op);
  LIMPID_ASSERT(one != nullptr);
  using C = compute_t<T>;
  C p0 = constant<C>(params.p0), p1 = constant<C>(params.p1);
  std::int64_t grain = costly(op) ? kGrainCostly : kGrain;
  if (dense) {
    if (n <= grain) return one(y, in, 1, 1, n, p0, p1);
    return parallel_chunks(n, grain, [&](std::int64_t begin, std::int64_t end) {
      one(y + begin, in + begin, 1, 1, end - begin, p0, p1);
    });
  }
  run_loop(plan_loop<2>(out.shape(), {&out.strides(), &x.strides()}), grain,
           [&](const std::int64_t (&offset)[2], const std::int64_t (&step)[2], std::int64_t count) {
             one(y + offset[0], in + offset[1], step[0], step[1], count, p0, p1);
           });
}

}  // namespace

void unary(UnaryOp op, Tensor& out, const Tensor& x, UnaryParams params) {
  switch (out.dtype()) {
    case DType::float64: return apply<double>(op, out, x, params);
    case DType::float32: return apply<float>(op, out, x, params);
    case DType::float16: return apply<Half>(op, out, x, params);
    case DType::bfloat16: return apply<BFloat16>(op, out, x, params);
    case DType::int64: return apply<std::int64_t>(op, out, x, params);
    case DType::int32: return apply<std::int32_t>(op, out, x, params);
    case DType::uint8: return apply<std::uint8_t>(op, out, x, params);
    case DType::boolean: break;
  }
  LIMPID_THROW(InternalError, "unary kernel called with bool");
}

}  // namespace limpid::cpu
