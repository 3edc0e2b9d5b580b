// Elementwise functions of one operand and their gradients.
#include <limpid/cuda/kernels/elementwise.cuh>
#include <limpid/cuda/kernels/elementwise_engine.cuh>

namespace limpid::cu {
namespace {

template <class Op, int width, class T>
__device__ LIMPID_INLINE void forward_each(Vector<T, width>& y, const Vector<T, width>& x, compute_t<T> p0,
                                           compute_t<T> p1) {
#pragma unroll
  for (int k = 0; k < width; k++) y.values[k] = store_number<T>(Op::forward(load_number(x.values[k]), p0, p1));
}
template <class Op, int width, class T>
__device__ LIMPID_INLINE void grad_each(Vector<T, width>& out, const Vector<T, width>& x, const Vector<T, width>& y,
                                        const Vector<T, width>& g, compute_t<T> p0, compute_t<T> p1) {
#pragma unroll
  for (int k = 0; k < width; k++) {
    out.values[k] =
        store_number<T>(Op::grad(load_number(x.values[k]), load_number(y.values[k]), load_number(g.values[k]), p0, p1));
  }
}

template <class T>
struct Relu {
  static constexpr int kWidth = kVectorWidth<T>;
  template <int width>
  __device__ void operator()(Vector<T, width>& y, const Vector<T, width>& x) const {
    forward_each<functor::relu>(y, x, 0, 0);
  }
};
template <class T>
struct ReluGrad {  // reads y and g alone
  static constexpr int kWidth = kVectorWidth<T>;
  template <int width>
  __device__ void operator()(Vector<T, width>& out, const Vector<T, width>& y, const Vector<T, width>& g) const {
    grad_each<functor::relu>(out, y, y, g, 0, 0);
  }
};

// Any of the ops, chosen at run time: one kernel a dtype. The choice is the same for all threads and outside of the
// elements' loop; the loads and stores of an element cost more.
template <class T>
struct AnyUnary {
  static constexpr int kWidth = kSmallWidth<T>;
  UnaryOp op;
  compute_t<T> p0, p1;
  template <int width>
  __device__ void operator()(Vector<T, width>& y, const Vector<T, width>& x) const {
    switch (op) {
#define V(name, saves, types)                                                                         \
  case UnaryOp::name:                                                                                 \
    if constexpr (kernel::kTakes<kernel::kOnly##types, T>) forward_each<functor::name>(y, x, p0, p1); \
    break;
      LIMPID_UNARY_OPS(V)
#undef V
    }
  }
};
template <class T>
struct AnyUnaryGrad {
  static constexpr int kWidth = kSmallWidth<T>;
  UnaryOp op;
  compute_t<T> p0, p1;
  template <int width>
  __device__ void operator()(Vector<T, width>& out, const Vector<T, width>& x, const Vector<T, width>& y,
                             const Vector<T, width>& g) const {
    switch (op) {
#define V(name, saves, types) \
  case UnaryOp::name: return grad_each<functor::name>(out, x, y, g, p0, p1);
      LIMPID_UNARY_OPS(V)
#undef V
    }
  }
};

bool takes_integers(UnaryOp op) {
  switch (op) {
#define V(name, saves, types) \
  case UnaryOp::name: return !kernel::kOnly##types;
    LIMPID_UNARY_OPS(V)
#undef V
  }
  return false;
}

}  // namespace

cudaError_t unary(UnaryOp op, DType dtype, const Shape& shape, const Output& out, const Input& x, UnaryParams params,
                  cudaStream_t stream) {
  if (!is_floating(dtype) && !takes_integers(op)) return cudaErrorInvalidValue;
  return dispatch_numbers(dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<compute_t<T>>) {
      if (op == UnaryOp::relu) return launch_elementwise(Relu<T>(), shape, stream, typed<T>(out), typed<T>(x));
    }
    const AnyUnary<T> any{op, kernel::constant<compute_t<T>>(params.p0), kernel::constant<compute_t<T>>(params.p1)};
    return launch_elementwise(any, shape, stream, typed<T>(out), typed<T>(x));
  });
}

cudaError_t unary_grad(UnaryOp op, DType dtype, const Shape& shape, const Output& out, const Input& x, const Input& y,
                       const Input& grad, UnaryParams params, cudaStream_t stream) {
  const Input& input = x.data != nullptr ? x : grad;
  const Input& result = y.data != nullptr ? y : grad;
  return dispatch_floating(dtype, [&]<class T>() {
    if (op == UnaryOp::relu) {
      return launch_elementwise(ReluGrad<T>(), shape, stream, typed<T>(out), typed<T>(result), typed<T>(grad));
    }
    const AnyUnaryGrad<T> any{op, kernel::constant<compute_t<T>>(params.p0), kernel::constant<compute_t<T>>(params.p1)};
    return launch_elementwise(any, shape, stream, typed<T>(out), typed<T>(input), typed<T>(result), typed<T>(grad));
  });
}

}  // namespace limpid::cu
