// Comparisons, selection, scaled addition, finiteness.
#include <limpid/cuda/kernels/elementwise.cuh>
#include <limpid/cuda/kernels/elementwise_engine.cuh>

namespace limpid::cu {
namespace {

template <class T>
struct Compare {
  static constexpr int kWidth = kSmallWidth<T>;
  CompareOp op;
  template <class Op, int width>
  static __device__ LIMPID_INLINE void each(Vector<bool, width>& y, const Vector<T, width>& a,
                                            const Vector<T, width>& b) {
#pragma unroll
    for (int k = 0; k < width; k++) y.values[k] = Op::forward(load_number(a.values[k]), load_number(b.values[k]));
  }
  template <int width>
  __device__ void operator()(Vector<bool, width>& y, const Vector<T, width>& a, const Vector<T, width>& b) const {
    switch (op) {
#define V(name) \
  case CompareOp::name: return each<functor::name>(y, a, b);
      LIMPID_COMPARE_OPS(V)
#undef V
    }
  }
};

template <class Bits>
struct Where {
  static constexpr int kWidth = kVectorWidth<Bits>;
  template <int width>
  __device__ void operator()(Vector<Bits, width>& y, const Vector<bool, width>& c, const Vector<Bits, width>& a,
                             const Vector<Bits, width>& b) const {
#pragma unroll
    for (int k = 0; k < width; k++) y.values[k] = c.values[k] ? a.values[k] : b.values[k];
  }
};

template <class T>
struct AddScaled {
  static constexpr int kWidth = kVectorWidth<T>;
  compute_t<T> alpha;
  template <int width>
  __device__ void operator()(Vector<T, width>& y, const Vector<T, width>& former, const Vector<T, width>& x) const {
#pragma unroll
    for (int k = 0; k < width; k++) {
      y.values[k] = store_number<T>(load_number(former.values[k]) + alpha * load_number(x.values[k]));
    }
  }
};

template <class T>
struct IsFinite {
  static constexpr int kWidth = kVectorWidth<T>;
  template <int width>
  __device__ void operator()(Vector<bool, width>& y, const Vector<T, width>& x) const {
#pragma unroll
    for (int k = 0; k < width; k++) {
      const compute_t<T> value = load_number(x.values[k]);
      y.values[k] = value - value == compute_t<T>(0);  // infinity and NaN give NaN
    }
  }
};

}  // namespace

cudaError_t compare(CompareOp op, DType dtype, const Shape& shape, const Output& out, const Input& a, const Input& b,
                    cudaStream_t stream) {
  return dispatch_all(dtype, [&]<class T>() {
    return launch_elementwise(Compare<T>{op}, shape, stream, typed<bool>(out), typed<T>(a), typed<T>(b));
  });
}

cudaError_t where(DType dtype, const Shape& shape, const Output& out, const Input& condition, const Input& a,
                  const Input& b, cudaStream_t stream) {
  return dispatch_size(dtype, [&]<class Bits>() {
    return launch_elementwise(Where<Bits>(), shape, stream, typed<Bits>(out), typed<bool>(condition), typed<Bits>(a),
                              typed<Bits>(b));
  });
}

cudaError_t add_scaled(DType dtype, const Shape& shape, const Output& out, const Input& x, double alpha,
                       cudaStream_t stream) {
  return dispatch_all(dtype, [&]<class T>() {
    const AddScaled<T> scaled{kernel::constant<compute_t<T>>(alpha)};
    return launch_elementwise(scaled, shape, stream, typed<T>(out), typed<T>(Input(out)), typed<T>(x));
  });
}

cudaError_t is_finite(DType dtype, const Shape& shape, const Output& out, const Input& x, cudaStream_t stream) {
  if (!is_floating(dtype)) return fill(DType::boolean, shape, out, true, stream);
  return dispatch_floating(dtype, [&]<class T>() {
    return launch_elementwise(IsFinite<T>(), shape, stream, typed<bool>(out), typed<T>(x));
  });
}

}  // namespace limpid::cu
