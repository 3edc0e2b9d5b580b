// Elementwise functions of two operands and their gradients.
#include <limpid/cuda/kernels/elementwise.cuh>
#include <limpid/cuda/kernels/elementwise_engine.cuh>

namespace limpid::cu {
namespace {

template <class Op, int width, class T>
__device__ LIMPID_INLINE void forward_each(Vector<T, width>& y, const Vector<T, width>& a, const Vector<T, width>& b) {
#pragma unroll
  for (int k = 0; k < width; k++)
    y.values[k] = store_number<T>(Op::forward(load_number(a.values[k]), load_number(b.values[k])));
}
template <class Op, bool of_b, int width, class T>
__device__ LIMPID_INLINE void grad_each(Vector<T, width>& out, const Vector<T, width>& a, const Vector<T, width>& b,
                                        const Vector<T, width>& y, const Vector<T, width>& g) {
#pragma unroll
  for (int k = 0; k < width; k++) {
    const compute_t<T> x0 = load_number(a.values[k]), x1 = load_number(b.values[k]), x2 = load_number(y.values[k]);
    const compute_t<T> x3 = load_number(g.values[k]);
    out.values[k] = store_number<T>(of_b ? Op::grad_b(x0, x1, x2, x3) : Op::grad_a(x0, x1, x2, x3));
  }
}

template <class T, class Op>
struct One {  // add and mul, which every network is full of; mul is also its own gradient
  static constexpr int kWidth = kVectorWidth<T>;
  template <int width>
  __device__ void operator()(Vector<T, width>& y, const Vector<T, width>& a, const Vector<T, width>& b) const {
    forward_each<Op>(y, a, b);
  }
};
template <class T>
struct AnyBinary {
  static constexpr int kWidth = kSmallWidth<T>;
  BinaryOp op;
  template <int width>
  __device__ void operator()(Vector<T, width>& y, const Vector<T, width>& a, const Vector<T, width>& b) const {
    switch (op) {
#define V(name, types)                                                                           \
  case BinaryOp::name:                                                                           \
    if constexpr (kernel::kTakes<kernel::kOnly##types, T>) forward_each<functor::name>(y, a, b); \
    break;
      LIMPID_BINARY_OPS(V)
#undef V
    }
  }
};
template <class T>
struct AnyBinaryGrad {
  static constexpr int kWidth = kSmallWidth<T>;
  BinaryOp op;
  bool of_b;
  template <int width>
  __device__ void operator()(Vector<T, width>& out, const Vector<T, width>& a, const Vector<T, width>& b,
                             const Vector<T, width>& y, const Vector<T, width>& g) const {
    switch (op) {
#define V(name, types) \
  case BinaryOp::name: \
    return of_b ? grad_each<functor::name, true>(out, a, b, y, g) : grad_each<functor::name, false>(out, a, b, y, g);
      LIMPID_BINARY_OPS(V)
#undef V
    }
  }
};

bool takes_integers(BinaryOp op) {
  switch (op) {
#define V(name, types) \
  case BinaryOp::name: return !kernel::kOnly##types;
    LIMPID_BINARY_OPS(V)
#undef V
  }
  return false;
}

}  // namespace

cudaError_t binary(BinaryOp op, DType dtype, const Shape& shape, const Output& out, const Input& a, const Input& b,
                   cudaStream_t stream) {
  if (!is_floating(dtype) && !takes_integers(op)) return cudaErrorInvalidValue;
  return dispatch_numbers(dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<compute_t<T>>) {
      if (op == BinaryOp::add) {
        return launch_elementwise(One<T, functor::add>(), shape, stream, typed<T>(out), typed<T>(a), typed<T>(b));
      }
      if (op == BinaryOp::mul) {
        return launch_elementwise(One<T, functor::mul>(), shape, stream, typed<T>(out), typed<T>(a), typed<T>(b));
      }
    }
    return launch_elementwise(AnyBinary<T>{op}, shape, stream, typed<T>(out), typed<T>(a), typed<T>(b));
  });
}

cudaError_t binary_grad(BinaryOp op, bool of_b, DType dtype, const Shape& shape, const Output& out, const Input& a,
                        const Input& b, const Input& y, const Input& grad, cudaStream_t stream) {
  const Input& left = a.data != nullptr ? a : grad;
  const Input& right = b.data != nullptr ? b : grad;
  const Input& result = y.data != nullptr ? y : grad;
  return dispatch_floating(dtype, [&]<class T>() {
    if (op == BinaryOp::mul) {
      return launch_elementwise(One<T, functor::mul>(), shape, stream, typed<T>(out), typed<T>(grad),
                                typed<T>(of_b ? left : right));
    }
    return launch_elementwise(AnyBinaryGrad<T>{op, of_b}, shape, stream, typed<T>(out), typed<T>(left), typed<T>(right),
                              typed<T>(result), typed<T>(grad));
  });
}

}  // namespace limpid::cu
