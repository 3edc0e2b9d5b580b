// Elementwise mathematics, written once for every backend: forward and gradient of each operation as plain functions of
// the accumulate type (float for 16-bit storage). No other include than <cmath>; std:: maths only, since ::exp(float)
// would be the double version.
//
// A unary functor has forward(x, p) and grad(x, y, g, p): the gradient with respect to x, given the output y.
// A binary functor has forward(a, b), grad_a(a, b, y, g), grad_b(a, b, y, g). p = {p0, p1} are the op's constants.
#pragma once

#include <cmath>
#include <cstdint>

#include <limpid/base/macros.h>

namespace limpid {

struct UnaryParams {
  double p0 = 0;
  double p1 = 0;
};

// One row an op: name, what its gradient reads (X input, Y output, N neither), dtypes (F floating, A any number).
#define LIMPID_UNARY_OPS(V)                                                                                       \
  V(neg, N, A) V(abs, X, A) V(sign, N, A) V(square, X, A) V(sqrt, Y, F) V(rsqrt, Y, F) V(reciprocal, Y, F)        \
  V(exp, Y, F) V(expm1, Y, F) V(log, X, F) V(log1p, X, F) V(sin, X, F) V(cos, X, F) V(floor, N, F) V(ceil, N, F)  \
  V(round, N, F) V(clamp, X, A) V(relu, Y, A) V(leaky_relu, X, F) V(elu, X, F) V(gelu, X, F) V(gelu_tanh, X, F)   \
  V(silu, X, F) V(sigmoid, Y, F) V(tanh, Y, F) V(softplus, X, F) V(add_scalar, N, A) V(mul_scalar, N, A)          \
  V(rsub_scalar, N, A) V(rdiv_scalar, Y, F) V(pow_scalar, X, F)
#define LIMPID_BINARY_OPS(V)                                                                              \
  V(add, A) V(sub, A) V(mul, A) V(div, F) V(pow, F) V(maximum, A) V(minimum, A)
// Results are bool; no gradient.
#define LIMPID_COMPARE_OPS(V) V(eq) V(ne) V(lt) V(le) V(gt) V(ge) V(logical_and) V(logical_or)

enum class UnaryOp : std::uint8_t {
#define V(name, saves, types) name,
  LIMPID_UNARY_OPS(V)
#undef V
};
enum class BinaryOp : std::uint8_t {
#define V(name, types) name,
  LIMPID_BINARY_OPS(V)
#undef V
};
enum class CompareOp : std::uint8_t {
#define V(name) name,
  LIMPID_COMPARE_OPS(V)
#undef V
};

namespace functor {

// Shorthand for the bodies below. P0/P1 are the op's constants in the accumulate type.
#define LIMPID_UNARY(name, FORWARD, GRAD)                                                   \
  struct name {                                                                             \
    template <class T>                                                                      \
    static LIMPID_HD inline T forward(T x, [[maybe_unused]] T p0, [[maybe_unused]] T p1) {  \
      return FORWARD;                                                                       \
    }                                                                                       \
    template <class T>                                                                      \
    static LIMPID_HD inline T grad([[maybe_unused]] T x, [[maybe_unused]] T y, T g,         \
                                   [[maybe_unused]] T p0, [[maybe_unused]] T p1) {          \
      return GRAD;                                                                          \
    }                                                                                       \
  };
LIMPID_UNARY(neg, -x, -g)
LIMPID_UNARY(abs, x < T(0) ? -x : x, x > T(0) ? g : x < T(0) ? -g : g * T(0))
LIMPID_UNARY(sign, x > T(0) ? T(1) : x < T(0) ? T(-1) : x * T(0), g * T(0))
LIMPID_UNARY(square, x* x, T(2) * x * g)
LIMPID_UNARY(sqrt, std::sqrt(x), g / (T(2) * y))
LIMPID_UNARY(rsqrt, T(1) / std::sqrt(x), T(-0.5) * g * y * y * y)
LIMPID_UNARY(reciprocal, T(1) / x, -g * y * y)
LIMPID_UNARY(exp, std::exp(x), g* y)
LIMPID_UNARY(expm1, std::expm1(x), g*(y + T(1)))
LIMPID_UNARY(log, std::log(x), g / x)
LIMPID_UNARY(log1p, std::log1p(x), g / (T(1) + x))
LIMPID_UNARY(sin, std::sin(x), g* std::cos(x))
LIMPID_UNARY(cos, std::cos(x), -g * std::sin(x))
LIMPID_UNARY(floor, std::floor(x), g* T(0))
LIMPID_UNARY(ceil, std::ceil(x), g* T(0))
LIMPID_UNARY(round, std::nearbyint(x), g* T(0))
LIMPID_UNARY(clamp, x < p0 ? p0 : x > p1 ? p1 : x, (x >= p0 && x <= p1) ? g : T(0))
LIMPID_UNARY(relu, x <= T(0) ? T(0) : x, y <= T(0) ? T(0) : g)  // NaN passes through; gradient 0 at 0
LIMPID_UNARY(leaky_relu, x > T(0) ? x : x * p0, x > T(0) ? g : g * p0)
LIMPID_UNARY(elu, x > T(0) ? x : p0 * std::expm1(x), x > T(0) ? g : g * p0 * std::exp(x))
// Phi(x) = (1 + erf(x / sqrt 2)) / 2;  d(x Phi) = Phi + x phi, phi = exp(-x^2/2) / sqrt(2 pi)
LIMPID_UNARY(gelu, T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752440))),
             g*(T(0.5) * (T(1) + std::erf(x * T(0.70710678118654752440))) +
                x * T(0.39894228040143267794) * std::exp(T(-0.5) * x * x)))
struct gelu_tanh {  // 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3)
  template <class T>
  static LIMPID_HD inline T forward(T x, T, T) {
    T u = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + std::tanh(u));
  }
  template <class T>
  static LIMPID_HD inline T grad(T x, T, T g, T, T) {
    T u = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    T t = std::tanh(u);
    T du = T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
    return g * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * du);
  }
};
struct sigmoid {  // the branch keeps exp from overflowing
  template <class T>
  static LIMPID_HD inline T forward(T x, T = T(0), T = T(0)) {
    if (x >= T(0)) return T(1) / (T(1) + std::exp(-x));
    T e = std::exp(x);
    return e / (T(1) + e);
  }
  template <class T>
  static LIMPID_HD inline T grad(T, T y, T g, T, T) {
    return g * y * (T(1) - y);
  }
};
struct silu {  // x s, s = sigmoid(x);  d = s (1 + x (1 - s))
  template <class T>
  static LIMPID_HD inline T forward(T x, T, T) {
    return x * sigmoid::forward(x);
  }
  template <class T>
  static LIMPID_HD inline T grad(T x, T, T g, T, T) {
    T s = sigmoid::forward(x);
    return g * s * (T(1) + x * (T(1) - s));
  }
};
LIMPID_UNARY(tanh, std::tanh(x), g*(T(1) - y * y))
// log(1 + e^x) = max(x, 0) + log1p(e^-|x|)
LIMPID_UNARY(softplus, (x > T(0) ? x : T(0)) + std::log1p(std::exp(x > T(0) ? -x : x)), g* sigmoid::forward(x))
LIMPID_UNARY(add_scalar, x + p0, g)
LIMPID_UNARY(mul_scalar, x* p0, g* p0)
LIMPID_UNARY(rsub_scalar, p0 - x, -g)
LIMPID_UNARY(rdiv_scalar, p0 / x, -g * y * y / p0)
LIMPID_UNARY(pow_scalar, std::pow(x, p0), p0 == T(0) ? g * T(0) : g * p0 * std::pow(x, p0 - T(1)))
#undef LIMPID_UNARY

#define LIMPID_BINARY(name, FORWARD, GRAD_A, GRAD_B)                                                                \
  struct name {                                                                                                     \
    template <class T>                                                                                              \
    static LIMPID_HD inline T forward(T a, T b) {                                                                   \
      return FORWARD;                                                                                               \
    }                                                                                                               \
    template <class T>                                                                                              \
    static LIMPID_HD inline T grad_a([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T y, T g) {       \
      return GRAD_A;                                                                                                \
    }                                                                                                               \
    template <class T>                                                                                              \
    static LIMPID_HD inline T grad_b([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T y, T g) {       \
      return GRAD_B;                                                                                                \
    }                                                                                                               \
  };
LIMPID_BINARY(add, a + b, g, g)
LIMPID_BINARY(sub, a - b, g, -g)
LIMPID_BINARY(mul, a* b, g* b, g* a)
LIMPID_BINARY(div, a / b, g / b, -g * a / (b * b))
LIMPID_BINARY(pow, std::pow(a, b), b == T(0) ? g * T(0) : g * b * std::pow(a, b - T(1)),
              (a == T(0) && b >= T(0)) ? g * T(0) : g * y * std::log(a))
// NaN of either operand wins; equal operands share the gradient in halves.
LIMPID_BINARY(maximum, (a > b || a != a) ? a : b, a == b ? g * T(0.5) : a > b ? g : T(0),
              a == b ? g * T(0.5) : a > b ? T(0) : g)
LIMPID_BINARY(minimum, (a < b || a != a) ? a : b, a == b ? g * T(0.5) : a < b ? g : T(0),
              a == b ? g * T(0.5) : a < b ? T(0) : g)
#undef LIMPID_BINARY

#define LIMPID_COMPARE(name, RESULT)                                   \
  struct name {                                                        \
    template <class T>                                                 \
    static LIMPID_HD inline bool forward(T a, T b) {                   \
      return RESULT;                                                   \
    }                                                                  \
  };
LIMPID_COMPARE(eq, a == b)
LIMPID_COMPARE(ne, a != b)
LIMPID_COMPARE(lt, a < b)
LIMPID_COMPARE(le, a <= b)
LIMPID_COMPARE(gt, a > b)
LIMPID_COMPARE(ge, a >= b)
LIMPID_COMPARE(logical_and, (a != T(0)) && (b != T(0)))
LIMPID_COMPARE(logical_or, (a != T(0)) || (b != T(0)))
#undef LIMPID_COMPARE

}  // namespace functor
}  // namespace limpid
