// Raw elementwise, copying, indexing and matrix operations against plain loops in double.
#include "tensor_test.h"

#include <functional>

#include <limpid/tensor/cpu/parallel.h>

using namespace tensor_test;

namespace {

const std::vector<Shape> kShapes{{}, {1}, {7}, {0}, {3, 5}, {2, 0, 3}, {3, 1, 5}, {2, 3, 5, 7}, {130}, {65, 33}};

struct UnaryCase {
  UnaryOp op;
  std::function<double(double, double, double)> f;
  double low, high, p0 = 0, p1 = 0;
  bool integers = false;
};

double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

#define F [](double x, [[maybe_unused]] double p0, [[maybe_unused]] double p1) -> double
const std::vector<UnaryCase> kUnary{
    {UnaryOp::neg, F { return -x; }, -5, 5, 0, 0, true},
    {UnaryOp::abs, F { return std::fabs(x); }, -5, 5, 0, 0, true},
    {UnaryOp::sign, F { return sign_of(x); }, -5, 5, 0, 0, true},
    {UnaryOp::square, F { return x * x; }, -5, 5, 0, 0, true},
    {UnaryOp::sqrt, F { return std::sqrt(x); }, 0.1, 9},
    {UnaryOp::rsqrt, F { return 1 / std::sqrt(x); }, 0.1, 9},
    {UnaryOp::reciprocal, F { return 1 / x; }, 0.2, 9},
    {UnaryOp::exp, F { return std::exp(x); }, -4, 4},
    {UnaryOp::expm1, F { return std::expm1(x); }, -4, 4},
    {UnaryOp::log, F { return std::log(x); }, 1.5, 9},
    {UnaryOp::log1p, F { return std::log1p(x); }, 0.1, 9},
    {UnaryOp::sin, F { return std::sin(x); }, 0.2, 2.5},
    {UnaryOp::cos, F { return std::cos(x); }, -1.2, 1.2},
    {UnaryOp::floor, F { return std::floor(x); }, -5, 5},
    {UnaryOp::ceil, F { return std::ceil(x); }, -5, 5},
    {UnaryOp::round, F { return std::nearbyint(x); }, -5, 5},
    {UnaryOp::clamp, F { return std::min(std::max(x, p0), p1); }, -5, 5, -2, 3, true},
    {UnaryOp::relu, F { return std::max(x, 0.0); }, -5, 5, 0, 0, true},
    {UnaryOp::leaky_relu, F { return x > 0 ? x : p0 * x; }, -5, 5, 0.1},
    {UnaryOp::elu, F { return x > 0 ? x : p0 * (std::exp(x) - 1); }, -5, 5, 1.5},
    {UnaryOp::gelu, F { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }, -3, 3},
    {UnaryOp::gelu_tanh,
     F { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }, -3, 3},
    {UnaryOp::silu, F { return x * sigmoid_of(x); }, -5, 5},
    {UnaryOp::sigmoid, F { return sigmoid_of(x); }, -5, 5},
    {UnaryOp::tanh, F { return std::tanh(x); }, -3, 3},
    {UnaryOp::softplus, F { return std::log(1 + std::exp(x)); }, -5, 5},
    {UnaryOp::add_scalar, F { return x + p0; }, -5, 5, 3, 0, true},
    {UnaryOp::mul_scalar, F { return x * p0; }, -5, 5, 3, 0, true},
    {UnaryOp::rsub_scalar, F { return p0 - x; }, -5, 5, 3, 0, true},
    {UnaryOp::rdiv_scalar, F { return p0 / x; }, 0.5, 5, 3},
    {UnaryOp::pow_scalar, F { return std::pow(x, p0); }, 0.5, 4, 2.5},
};
#undef F

std::string label(const char* op, DType dtype, const Shape& shape, const std::string& layout) {
  return concat(op, " ", dtype, shape, " ", layout);
}

// Values of u8 stay in its range, and wrap where the operation leaves it.
double stored(double v, DType dtype) {
  if (dtype != uint8) return v;
  return static_cast<double>(static_cast<std::uint8_t>(static_cast<std::int64_t>(v)));
}

}  // namespace

TEST_CASE("every unary op has a case, and agrees with double in every dtype, shape and layout") {
  CHECK(kUnary.size() == static_cast<std::size_t>(UnaryOp::pow_scalar) + 1);
  for (const UnaryCase& c : kUnary) {
    for (DType dtype : c.integers ? kNumbers : kFloats) {
      for (const Shape& shape : kShapes) {
        for (const std::string& layout : kLayouts) {
          Tensor x = in_layout(layout, random_numbers(shape.numel(), dtype == uint8 ? 0 : c.low, c.high, 7), shape, dtype);
          Tensor y = raw::unary(c.op, x, {c.p0, c.p1});
          REQUIRE(y.shape() == shape);
          REQUIRE(y.dtype() == dtype);
          if (x.is_dense()) CHECK(y.strides() == x.strides());
          std::vector<double> expected;
          for (double v : values(x)) expected.push_back(stored(c.f(v, c.p0, c.p1), dtype));
          check_close(values(y), expected, tolerance(dtype), tolerance(dtype),
                      label(raw::op_name(c.op), dtype, shape, layout));
        }
      }
    }
  }
}

TEST_CASE("unary gradients: f64 against differences, the other dtypes against f64") {
  for (const UnaryCase& c : kUnary) {
    bool flat = c.op == UnaryOp::floor || c.op == UnaryOp::ceil || c.op == UnaryOp::round;
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 5, 2, 3};
      std::vector<double> numbers = random_numbers(90, c.low, c.high, 11), upstream = random_numbers(90, -1, 1, 12);
      Tensor x = in_layout(layout, numbers, shape, float64), g = in_layout("plain", upstream, shape, float64);
      UnaryParams p{c.p0, c.p1};
      std::vector<double> expected;
      for (std::size_t i = 0; i < numbers.size(); i++) {
        double h = 1e-6, v = numbers[i];
        double slope = flat ? 0 : (c.f(v + h, c.p0, c.p1) - c.f(v - h, c.p0, c.p1)) / (2 * h);
        expected.push_back(slope * upstream[i]);
      }
      Tensor dx = raw::unary_grad(c.op, x, raw::unary(c.op, x, p), g, p);
      check_close(values(dx), expected, 1e-6, 1e-7, label(raw::op_name(c.op), float64, shape, layout));
      for (DType dtype : {float32, float16, bfloat16}) {
        Tensor xn = in_layout(layout, numbers, shape, dtype), gn = in_layout("plain", upstream, shape, dtype);
        Tensor yn = raw::unary(c.op, xn, p);
        Tensor x64 = from(values(xn), shape), g64 = from(values(gn), shape);
        Tensor exact = raw::unary_grad(c.op, x64, from(values(yn), shape), g64, p);
        check_close(values(raw::unary_grad(c.op, xn, yn, gn, p)), values(exact), tolerance(dtype), tolerance(dtype),
                    label(raw::op_name(c.op), dtype, shape, layout));
      }
    }
  }
}

namespace {
struct BinaryCase {
  BinaryOp op;
  double (*f)(double, double);
  bool integers;
};
const std::vector<BinaryCase> kBinary{
    {BinaryOp::add, [](double a, double b) { return a + b; }, true},
    {BinaryOp::sub, [](double a, double b) { return a - b; }, true},
    {BinaryOp::mul, [](double a, double b) { return a * b; }, true},
    {BinaryOp::div, [](double a, double b) { return a / b; }, false},
    {BinaryOp::pow, [](double a, double b) { return std::pow(a, b); }, false},
    {BinaryOp::maximum, [](double a, double b) { return a > b ? a : b; }, true},
    {BinaryOp::minimum, [](double a, double b) { return a < b ? a : b; }, true},
};

// Value of operand `t` at the position `i` of the broadcast shape.
double broadcast_value(const std::vector<double>& v, const Shape& own, const Shape& shape, std::int64_t i) {
  std::int64_t at = 0, step = 1;
  for (int d = shape.size() - 1, e = own.size() - 1; d >= 0; d--, e--) {
    std::int64_t coordinate = i % shape[d];
    i /= shape[d];
    if (e < 0) continue;
    if (own[e] != 1) at += coordinate * step;
    step *= own[e];
  }
  return v[static_cast<std::size_t>(at)];
}
}  // namespace

TEST_CASE("every binary op agrees with double: dtypes, layouts, broadcasting") {
  CHECK(kBinary.size() == static_cast<std::size_t>(BinaryOp::minimum) + 1);
  const std::vector<std::pair<Shape, Shape>> pairs{{{}, {}},         {{1}, {1}},           {{7}, {7}},
                                                   {{3, 5}, {5}},    {{3, 1}, {1, 4}},     {{}, {2, 3}},
                                                   {{2, 0, 3}, {3}}, {{2, 3, 5, 7}, {1, 3, 1, 1}},
                                                   {{2, 3, 5, 7}, {2, 3, 5, 7}}, {{300}, {300}}, {{0}, {1}}};
  for (const BinaryCase& c : kBinary) {
    for (DType dtype : c.integers ? kNumbers : kFloats) {
      for (const auto& [sa, sb] : pairs) {
        for (const std::string& layout : kLayouts) {
          Tensor a = in_layout(layout, random_numbers(sa.numel(), 0.5, 4, 1), sa, dtype);
          Tensor b = in_layout("plain", random_numbers(sb.numel(), 0.5, 4, 2), sb, dtype);
          Shape shape = broadcast_shapes("test", sa, sb);
          std::vector<double> va = values(a), vb = values(b), expected;
          for (std::int64_t i = 0; i < shape.numel(); i++) {
            expected.push_back(stored(c.f(broadcast_value(va, sa, shape, i), broadcast_value(vb, sb, shape, i)), dtype));
          }
          Tensor y = raw::binary(c.op, a, b);
          REQUIRE(y.shape() == shape);
          REQUIRE(y.dtype() == dtype);
          check_close(values(y), expected, tolerance(dtype), tolerance(dtype),
                      label(raw::op_name(c.op), dtype, shape, layout));
        }
      }
    }
  }
}

TEST_CASE("binary gradients agree with differences in both operands") {
  for (const BinaryCase& c : kBinary) {
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 5, 2, 3};
      std::vector<double> na = random_numbers(90, 0.5, 4, 1), nb = random_numbers(90, 0.5, 4, 2),
                          ng = random_numbers(90, -1, 1, 3);
      for (bool of_b : {false, true}) {
        std::vector<double> expected;
        for (std::size_t i = 0; i < 90; i++) {
          double h = 1e-6, da = of_b ? 0 : h, db = of_b ? h : 0;
          expected.push_back(ng[i] * (c.f(na[i] + da, nb[i] + db) - c.f(na[i] - da, nb[i] - db)) / (2 * h));
        }
        Tensor a = in_layout(layout, na, shape, float64), b = in_layout("plain", nb, shape, float64);
        Tensor g = from(ng, shape);
        Tensor dx = raw::binary_grad(c.op, of_b, a, b, raw::binary(c.op, a, b), g);
        check_close(values(dx), expected, 1e-6, 1e-7, label(raw::op_name(c.op), float64, shape, layout));
        for (DType dtype : {float32, float16, bfloat16}) {
          Tensor an = in_layout(layout, na, shape, dtype), bn = in_layout("plain", nb, shape, dtype);
          Tensor gn = from(ng, shape, dtype), yn = raw::binary(c.op, an, bn);
          Tensor exact = raw::binary_grad(c.op, of_b, from(values(an), shape), from(values(bn), shape),
                                          from(values(yn), shape), from(values(gn), shape));
          check_close(values(raw::binary_grad(c.op, of_b, an, bn, yn, gn)), values(exact), tolerance(dtype),
                      tolerance(dtype), label(raw::op_name(c.op), dtype, shape, layout));
        }
      }
    }
  }
  // Broadcast operands are expanded to the gradient's shape.
  Tensor g = from({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor dx = raw::binary_grad(BinaryOp::mul, false, Tensor(), from({2, 3, 4}, {3}), Tensor(), g);
  CHECK(values(dx) == std::vector<double>{2, 6, 12, 8, 15, 24});
}

TEST_CASE("NaN passes through maximum, minimum and relu") {
  double nan = std::nan("");
  for (DType dtype : kFloats) {
    Tensor a = from({nan, 1, 2}, {3}, dtype), b = from({1, nan, 1}, {3}, dtype);
    check_close(values(raw::binary(BinaryOp::maximum, a, b)), {nan, nan, 2}, 0, 0, "maximum");
    check_close(values(raw::binary(BinaryOp::minimum, a, b)), {nan, nan, 1}, 0, 0, "minimum");
    std::vector<double> many(100, -1), expected(100, 0);
    many[3] = many[97] = expected[3] = expected[97] = nan;
    check_close(values(raw::unary(UnaryOp::relu, from(many, {100}, dtype))), expected, 0, 0, "relu");
  }
}

TEST_CASE("comparisons and logic in every dtype") {
  struct Case {
    CompareOp op;
    bool (*f)(double, double);
  };
  const Case cases[] = {{CompareOp::eq, [](double a, double b) { return a == b; }},
                        {CompareOp::ne, [](double a, double b) { return a != b; }},
                        {CompareOp::lt, [](double a, double b) { return a < b; }},
                        {CompareOp::le, [](double a, double b) { return a <= b; }},
                        {CompareOp::gt, [](double a, double b) { return a > b; }},
                        {CompareOp::ge, [](double a, double b) { return a >= b; }},
                        {CompareOp::logical_and, [](double a, double b) { return a != 0 && b != 0; }},
                        {CompareOp::logical_or, [](double a, double b) { return a != 0 || b != 0; }}};
  CHECK(std::size(cases) == static_cast<std::size_t>(CompareOp::logical_or) + 1);
  for (const Case& c : cases) {
    for (DType dtype : kAll) {
      for (const std::string& layout : kLayouts) {
        Shape shape{3, 4, 2, 5};
        Tensor a = in_layout(layout, random_numbers(120, 0, 3, 1), shape, dtype);
        Tensor b = in_layout("plain", random_numbers(5, 0, 3, 2), {5}, dtype);
        if (!is_floating(dtype)) assign(b, {0, 1, 2, 1, 0});
        Tensor y = raw::compare(c.op, a, b);
        CHECK(y.dtype() == boolean);
        std::vector<double> va = values(a), vb = values(b), expected;
        for (std::size_t i = 0; i < 120; i++) expected.push_back(c.f(va[i], vb[i % 5]));
        check_close(values(y), expected, 0, 0, label(raw::op_name(c.op), dtype, shape, layout));
      }
    }
  }
  double nan = std::nan("");
  CHECK(values(raw::compare(CompareOp::eq, from({nan}, {1}), from({nan}, {1})))[0] == 0);
  CHECK(values(raw::compare(CompareOp::ne, from({nan}, {1}), from({nan}, {1})))[0] == 1);
}

TEST_CASE("where chooses, broadcasts and promotes") {
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 4, 2, 5};
      Tensor c = in_layout(layout, random_numbers(120, -1, 1, 4), shape, boolean);
      std::vector<double> chosen = random_numbers(120, -1, 1, 4);
      for (double& v : chosen) v = v > 0;
      assign(c, chosen);
      Tensor a = in_layout("plain", random_numbers(120, 0, 9, 1), shape, dtype);
      Tensor b = in_layout("plain", {1}, {}, dtype);
      std::vector<double> va = values(a), expected;
      for (std::size_t i = 0; i < 120; i++) expected.push_back(chosen[i] != 0 ? va[i] : 1);
      check_close(values(raw::where(c, a, b)), expected, 0, 0, label("where", dtype, shape, layout));
    }
  }
  CHECK(raw::where(from({1}, {1}, boolean), from({1}, {1}, int32), from({1}, {1}, float16)).dtype() == float16);
}

TEST_CASE("copies between all dtypes and layouts") {
  for (DType to : kAll) {
    for (DType from_type : kAll) {
      for (const std::string& layout : kLayouts) {
        for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{0}, Shape{}, Shape{20, 40, 9, 3}}) {
          Tensor x = in_layout(layout, random_numbers(shape.numel(), 0, 4, 3), shape, from_type);
          Tensor y = raw::empty(shape, to, kCpu);
          raw::copy(y, x);
          std::vector<double> expected;
          for (double v : values(x)) {
            expected.push_back(to == boolean ? v != 0 : is_floating(to) ? v : std::trunc(v));
          }
          check_close(values(y), expected, tolerance(to), 0, concat(from_type, " to ", to, shape, " ", layout));
          if (shape.size() != 4) continue;
          Tensor z = in_layout(layout, std::vector<double>(static_cast<std::size_t>(shape.numel()), 0.0), shape, to);
          raw::copy(z, y);
          CHECK(values(z) == values(y));
          Tensor last = raw::contiguous(x, MemoryFormat::channels_last);
          CHECK(values(last) == values(x));
          CHECK(values(raw::contiguous(last)) == values(x));
        }
      }
    }
  }
}

TEST_CASE("out of range casts saturate and NaN becomes 0, without undefined behaviour") {
  Tensor x = from({1e30, -1e30, std::nan(""), 3.9, -3.9}, {5});
  std::vector<std::int64_t> y = raw::cast(x, int64).to_vector<std::int64_t>();
  CHECK(y == std::vector<std::int64_t>{INT64_MAX, INT64_MIN, 0, 3, -3});
}

TEST_CASE("16-bit floats convert exactly, for all bit patterns") {
  for (std::uint32_t bits = 0; bits < 65536; bits++) {
    Half h;
    h.bits = static_cast<std::uint16_t>(bits);
    int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
    double sign = bits >> 15 ? -1 : 1;
    double expected = exponent == 31 ? (mantissa ? std::nan("") : sign * HUGE_VAL)
                      : exponent     ? sign * std::ldexp(1024 + mantissa, exponent - 25)
                                     : sign * std::ldexp(mantissa, -24);
    float f = h;
    if (!close(f, expected, 0, 0)) FAIL_CHECK("half ", bits, " is ", f);
    std::uint16_t back = Half(f).bits;
    bool same = std::isnan(f) ? (back & 0x7c00) == 0x7c00 && (back & 1023) : back == bits;
    if (!same) FAIL_CHECK("half ", bits, " comes back as ", back);
    BFloat16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    float g = b;
    std::uint16_t again = BFloat16(g).bits;
    bool same_b = std::isnan(g) ? (again & 0x7f80) == 0x7f80 && (again & 127) : again == bits;
    if (!same_b) FAIL_CHECK("bfloat16 ", bits, " comes back as ", again);
    // Half way to the next value rounds to the even neighbour, a little more rounds up.
    if (exponent < 30 && !(bits >> 15)) {
      Half next;
      next.bits = static_cast<std::uint16_t>(bits + 1);
      double middle = (expected + static_cast<double>(static_cast<float>(next))) / 2;
      std::uint16_t even = static_cast<std::uint16_t>(bits + (bits & 1));
      if (Half(static_cast<float>(middle)).bits != even) FAIL_CHECK("half way after ", bits);
      if (Half(std::nextafterf(static_cast<float>(middle), 1e9f)).bits != bits + 1) FAIL_CHECK("above half way after ", bits);
    }
  }
  CHECK(Half(65519.0f).bits == 0x7bff);
  CHECK(Half(65520.0f).bits == 0x7c00);
}

TEST_CASE("fill and flip") {
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 4, 2, 5};
      Tensor x = in_layout(layout, random_numbers(120, 0, 100, 1), shape, dtype);
      std::vector<double> v = values(x), expected(120);
      for (std::size_t i = 0; i < 120; i++) {
        std::size_t a = i / 40, b = i / 10 % 4, c = i / 5 % 2, d = i % 5;
        expected[i] = v[(2 - a) * 40 + b * 10 + c * 5 + (4 - d)];
      }
      CHECK(values(raw::flip(x, {0, -1})) == expected);
      raw::fill(x, 1);
      CHECK(values(x) == std::vector<double>(120, 1.0));
    }
  }
}

TEST_CASE("add_scaled adds in place and bumps the version") {
  for (DType dtype : kNumbers) {
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 4, 2, 5};
      Tensor y = in_layout(layout, random_numbers(120, 0, 20, 1), shape, dtype);
      Tensor x = in_layout("plain", random_numbers(120, 0, 20, 2), shape, dtype);
      std::vector<double> vy = values(y), vx = values(x);
      for (std::size_t i = 0; i < 120; i++) vy[i] += 2 * vx[i];
      std::uint32_t version = y.version();
      raw::add_scaled(y, x, 2);
      CHECK(y.version() > version);
      check_close(values(y), vy, tolerance(dtype), 0, label("add_scaled", dtype, shape, layout));
    }
  }
}

TEST_CASE("finiteness") {
  double inf = HUGE_VAL, nan = std::nan("");
  for (DType dtype : kFloats) {
    Tensor x = from({1, inf, -inf, nan, 0}, {5}, dtype);
    CHECK(values(raw::is_finite(x)) == std::vector<double>{1, 0, 0, 0, 1});
    CHECK_FALSE(raw::all_finite(x));
    CHECK(raw::all_finite(raw::narrow(x, 0, 4, 1)));
    CHECK(raw::all_finite(raw::empty({0}, dtype, kCpu)));
    Tensor large = raw::zeros({100000}, dtype, kCpu);
    CHECK(raw::all_finite(large));
    Tensor one = raw::narrow(large, 0, 77777, 1);
    raw::fill(one, nan);
    CHECK_FALSE(raw::all_finite(large));
  }
  CHECK(raw::all_finite(from({1}, {1}, int64)));
}

TEST_CASE("types: promotion as in PyTorch") {
  auto type = [](DType a, const Shape& sa, DType b, const Shape& sb, BinaryOp op = BinaryOp::add) {
    return raw::binary(op, raw::zeros(sa, a, kCpu), raw::zeros(sb, b, kCpu)).dtype();
  };
  CHECK(type(int32, {2}, int64, {2}) == int64);
  CHECK(type(uint8, {2}, int32, {2}) == int32);
  CHECK(type(float16, {2}, bfloat16, {2}) == float32);
  CHECK(type(int64, {2}, float16, {2}) == float16);
  CHECK(type(float32, {2}, float64, {}) == float32);  // a 0-d tensor counts by category
  CHECK(type(int32, {2}, int64, {}) == int32);
  CHECK(type(int32, {2}, float64, {}) == float64);
  CHECK(type(boolean, {2}, uint8, {}) == uint8);
  CHECK(type(int32, {2}, int32, {2}, BinaryOp::div) == float32);
  CHECK(type(boolean, {2}, boolean, {2}, BinaryOp::mul) == boolean);
  CHECK(raw::unary(UnaryOp::exp, raw::zeros({2}, int32, kCpu)).dtype() == float32);
  CHECK(raw::unary(UnaryOp::floor, raw::zeros({2}, int32, kCpu)).dtype() == int32);
  Tensor t = from({1, 0, 1, 0}, {4}, boolean), u = from({1, 1, 0, 0}, {4}, boolean);
  CHECK(values(raw::binary(BinaryOp::add, t, u)) == std::vector<double>{1, 1, 1, 0});
  CHECK(values(raw::binary(BinaryOp::mul, t, u)) == std::vector<double>{1, 0, 0, 0});
  CHECK(values(raw::binary(BinaryOp::maximum, t, u)) == std::vector<double>{1, 1, 1, 0});
  CHECK(values(raw::binary(BinaryOp::minimum, t, u)) == std::vector<double>{1, 0, 0, 0});
}

TEST_CASE("indexing agrees with loops") {
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 4, 2, 5};
      Tensor x = in_layout(layout, random_numbers(120, 0, 100, 1), shape, dtype);
      std::vector<double> v = values(x);
      Tensor index = from({3, 0, 1, 1, 2, 0, 3, 3}, {1, 2, 2, 2}, int64);
      std::vector<double> vi = values(index), expected;
      for (std::size_t i = 0; i < 8; i++) {
        expected.push_back(v[static_cast<std::size_t>(vi[i]) * 10 + i / 2 % 2 * 5 + i % 2]);
      }
      CHECK(values(raw::gather(x, 1, index)) == expected);
      for (int d = 0; d < 4; d++) {
        Tensor picks = from({1, 0, 1}, {3}, int32);
        Tensor y = raw::index_select(x, d, picks);
        std::vector<double> slices;
        Shape s = shape;
        s[d] = 3;
        CHECK(y.shape() == s);
        for (std::int64_t i = 0; i < s.numel(); i++) {
          std::int64_t rest = i, at = 0, step = 1;
          for (int e = 3; e >= 0; e--) {
            std::int64_t coordinate = rest % s[e];
            rest /= s[e];
            if (e == d) coordinate = coordinate % 2 == 0 ? 1 : 0;
            at += coordinate * step;
            step *= shape[e];
          }
          slices.push_back(v[static_cast<std::size_t>(at)]);
        }
        CHECK(values(y) == slices);
      }
    }
  }
  for (DType dtype : kNumbers) {
    Tensor base = from({1, 2, 3, 4, 5, 6}, {2, 3}, dtype), source = from({1, 1, 2, 2, 3, 3}, {2, 3}, dtype);
    Tensor index = from({2, 2, 0, 1, 1, 1}, {2, 3}, int64);
    CHECK(values(raw::scatter_add(base, 1, index, source)) == std::vector<double>{3, 2, 5, 4, 13, 6});
    CHECK(values(raw::scatter_add(base, 0, from({1, 0, 1}, {1, 3}, int64), source)) ==
          std::vector<double>{1, 3, 3, 5, 5, 8});
    CHECK(values(raw::index_add(base, 0, from({1, 1}, {2}, int64), source)) == std::vector<double>{1, 2, 3, 7, 9, 11});
    CHECK(values(raw::index_add(base, 1, from({0, 0, 2}, {3}, int64), source)) ==
          std::vector<double>{3, 2, 5, 9, 5, 9});
    CHECK(values(base) == std::vector<double>{1, 2, 3, 4, 5, 6});
  }
  Tensor hot = raw::one_hot(from({1, 0, 2, 1}, {2, 2}, int64), 3);
  CHECK(hot.shape() == Shape{2, 2, 3});
  CHECK(values(hot) == std::vector<double>{0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0});
  CHECK(raw::one_hot(from({1, 4}, {2}, int64), -1).shape() == Shape{2, 5});
  CHECK(raw::gather(from({5}, {}), 0, from({0}, {}, int64)).item() == 5);
  CHECK(raw::index_select(from({5}, {}), 0, from({0}, {1}, int64)).dim() == 0);
  CHECK(raw::index_select(from({1, 2}, {2}), 0, raw::empty({0}, int64, kCpu)).shape() == Shape{0});
}

TEST_CASE("matrix products agree with loops") {
  struct Case {
    Shape a, b, out;
  };
  const Case cases[] = {{{3, 4}, {4, 5}, {3, 5}},       {{4}, {4}, {}},
                        {{3, 4}, {4}, {3}},             {{4}, {4, 5}, {5}},
                        {{2, 3, 4}, {4, 5}, {2, 3, 5}}, {{2, 3, 4}, {2, 4, 5}, {2, 3, 5}},
                        {{2, 1, 3, 4}, {3, 4, 5}, {2, 3, 3, 5}}, {{65, 33}, {33, 17}, {65, 17}},
                        {{3, 0}, {0, 5}, {3, 5}},       {{0, 4}, {4, 5}, {0, 5}}};
  for (DType dtype : kNumbers) {
    for (const Case& c : cases) {
      for (const std::string& la : kLayouts) {
        for (const std::string& lb : {std::string("plain"), std::string("reversed")}) {
          Tensor a = in_layout(la, random_numbers(c.a.numel(), 0, 3, 1), c.a, dtype);
          Tensor b = in_layout(lb, random_numbers(c.b.numel(), 0, 3, 2), c.b, dtype);
          Tensor y = raw::matmul(a, b);
          REQUIRE(y.shape() == c.out);
          std::int64_t k = c.a.back(), n = c.b.size() == 1 ? 1 : c.b.back(), m = c.a.size() == 1 ? 1 : c.a[c.a.size() - 2];
          std::vector<double> va = values(a), vb = values(b), expected;
          for (std::int64_t i = 0; i < y.numel(); i++) {
            std::int64_t batch = i / (m * n), row = i / n % m, col = i % n, batch_a = batch, batch_b = batch;
            if (c.a.size() == 4) batch_a = batch / 3, batch_b = batch % 3;
            if (c.b.size() <= 2) batch_b = 0;
            double sum = 0;
            for (std::int64_t p = 0; p < k; p++) {
              sum += va[static_cast<std::size_t>((batch_a * m + row) * k + p)] *
                     vb[static_cast<std::size_t>((batch_b * k + p) * n + col)];
            }
            expected.push_back(stored(sum, dtype));
          }
          check_close(values(y), expected, tolerance(dtype), tolerance(dtype), label("matmul", dtype, c.a, la));
        }
      }
    }
  }
  for (DType dtype : kFloats) {
    Tensor x = from(random_numbers(12, -1, 1, 1), {3, 4}, dtype), w = from(random_numbers(20, -1, 1, 2), {5, 4}, dtype);
    Tensor b = from(random_numbers(5, -1, 1, 3), {5}, dtype);
    std::vector<double> vx = values(x), vw = values(w), vb = values(b), expected;
    for (std::size_t i = 0; i < 3; i++) {
      for (std::size_t j = 0; j < 5; j++) {
        double sum = vb[j];
        for (std::size_t p = 0; p < 4; p++) sum += vx[i * 4 + p] * vw[j * 4 + p];
        expected.push_back(sum);
      }
    }
    check_close(values(raw::linear(x, w, b)), expected, tolerance(dtype), tolerance(dtype), "linear");
    CHECK(values(raw::linear(raw::empty({2, 0}, dtype, kCpu), raw::empty({5, 0}, dtype, kCpu), b)).size() == 10);
  }
}

TEST_CASE("outputs keep channels_last") {
  Tensor x = in_layout("last", random_numbers(210, -1, 1, 1), {2, 3, 5, 7}, float32);
  Tensor bias = from({1, 2, 3}, {1, 3, 1, 1}, float32);
  CHECK(raw::unary(UnaryOp::relu, x).is_contiguous(MemoryFormat::channels_last));
  CHECK(raw::binary(BinaryOp::add, x, bias).is_contiguous(MemoryFormat::channels_last));
  CHECK(raw::binary(BinaryOp::mul, bias, x).is_contiguous(MemoryFormat::channels_last));
  CHECK(raw::compare(CompareOp::gt, x, bias).is_contiguous(MemoryFormat::channels_last));
  CHECK(raw::index_select(x, 0, from({1}, {1}, int64)).is_contiguous(MemoryFormat::channels_last));
}

TEST_CASE("elementwise results have the same bits for 1, 2 and 3 threads") {
  int before = cpu::num_threads();
  Tensor x = from(random_numbers(300000, -3, 3, 1), {3, 100000}, float32);
  Tensor row = from(random_numbers(100000, -3, 3, 2), {100000}, float32);
  std::vector<std::vector<double>> results;
  for (int threads : {1, 2, 3}) {
    cpu::set_num_threads(threads);
    results.push_back(values(raw::unary(UnaryOp::gelu, raw::binary(BinaryOp::mul, x, row))));
  }
  cpu::set_num_threads(before);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("errors name the op and both values") {
  Tensor f = raw::zeros({2, 3}, float32, kCpu), b = raw::zeros({2, 3}, boolean, kCpu);
  auto says = [](const std::string& message, const char* part) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  says(message_of<ShapeError>([&] { raw::binary(BinaryOp::add, f, raw::zeros({4}, float32, kCpu)); }),
       "[add] cannot broadcast [2,3] with [4]");
  says(message_of<DTypeError>([&] { raw::binary(BinaryOp::sub, b, b); }), "[sub] does not take bool");
  says(message_of<DTypeError>([&] { raw::unary(UnaryOp::neg, b); }), "[neg] does not take bool, got bool[2,3] cpu");
  says(message_of<ArgumentError>([&] { raw::unary(UnaryOp::exp, Tensor()); }), "[exp] got an undefined tensor");
  says(message_of<DTypeError>([&] { raw::where(f, f, f); }), "[where] condition must be bool, got f32[2,3] cpu");
  says(message_of<ShapeError>([&] { raw::add_scaled(f, raw::zeros({3}, float32, kCpu), 1); }), "[add_scaled] shapes differ");
  says(message_of<ShapeError>([&] { raw::unary_grad(UnaryOp::exp, Tensor(), f, raw::zeros({6}, float32, kCpu)); }),
       "[exp] gradient has shape [6], expected [2,3]");
  says(message_of<DTypeError>([&] { raw::binary_grad(BinaryOp::mul, false, f, f, f, b); }), "[mul] gradient must be floating");
  Tensor index = from({0, 1, 3}, {1, 3}, int64);
  says(message_of<IndexError>([&] { raw::gather(f, 1, index); }), "[gather] index 3 at position [0,2] is outside [0, 3)");
  says(message_of<IndexError>([&] { raw::gather(f, 1, from({-1}, {1, 1}, int64)); }), "index -1 at position [0,0]");
  says(message_of<IndexError>([&] { raw::scatter_add(f, 1, index, raw::zeros({1, 3}, float32, kCpu)); }),
       "[scatter_add] index 3 at position [0,2]");
  says(message_of<IndexError>([&] { raw::index_select(f, 0, from({2}, {1}, int64)); }),
       "[index_select] index 2 at position [0] is outside [0, 2)");
  says(message_of<IndexError>([&] { raw::index_add(f, 0, from({2}, {1}, int64), raw::zeros({1, 3}, float32, kCpu)); }),
       "[index_add] index 2");
  says(message_of<IndexError>([&] { raw::one_hot(from({5}, {1}, int64), 3); }), "[one_hot] index 5 at position [0]");
  says(message_of<ArgumentError>([&] { raw::one_hot(from({5}, {1}, int64), 0); }), "[one_hot] classes must be positive, got 0");
  says(message_of<ArgumentError>([&] { raw::one_hot(raw::empty({0}, int64, kCpu), -1); }), "[one_hot] cannot infer");
  says(message_of<DTypeError>([&] { raw::gather(f, 1, f); }), "[gather] index must be i64 or i32, got f32[2,3] cpu");
  says(message_of<ShapeError>([&] { raw::gather(f, 1, from({0}, {1}, int64)); }), "[gather] index must have the rank");
  says(message_of<ShapeError>([&] { raw::gather(f, 1, raw::zeros({3, 1}, int64, kCpu)); }), "[gather] index [3,1] is larger");
  says(message_of<ShapeError>([&] { raw::scatter_add(f, 1, raw::zeros({2, 3}, int64, kCpu), raw::zeros({1, 3}, float32, kCpu)); }),
       "[scatter_add] index [2,3] is larger");
  says(message_of<DTypeError>([&] { raw::scatter_add(f, 1, raw::zeros({1, 3}, int64, kCpu), raw::zeros({1, 3}, float64, kCpu)); }),
       "[scatter_add] source must have the dtype");
  says(message_of<ShapeError>([&] { raw::index_add(f, 0, from({0}, {1}, int64), f); }), "[index_add] source must be [1,3]");
  says(message_of<ShapeError>([&] { raw::index_select(f, 0, index); }), "[index_select] index must have one dim");
  says(message_of<ShapeError>([&] { raw::matmul(f, f); }), "[matmul] inner sizes differ: f32[2,3] cpu and f32[2,3] cpu");
  says(message_of<ShapeError>([&] { raw::matmul(f, from({1}, {}, float32)); }), "[matmul] operands must have at least one dim");
  says(message_of<DTypeError>([&] { raw::matmul(b, b); }), "[matmul] does not take bool");
  says(message_of<ShapeError>([&] { raw::linear(f, raw::zeros({5, 4}, float32, kCpu), Tensor()); }),
       "[linear] weight expects 4 features, input has 3 (input f32[2,3] cpu)");
  says(message_of<ShapeError>([&] { raw::linear(f, raw::zeros({5, 3}, float32, kCpu), raw::zeros({4}, float32, kCpu)); }),
       "[linear] bias must be [5], got [4]");
  says(message_of<DTypeError>([&] { raw::linear(f, raw::zeros({5, 3}, float64, kCpu), Tensor()); }), "[linear] input and weight");
  says(message_of<DeviceError>([&] { kernels_for(Device{DeviceType::cuda, 1}); }), "cuda:1");
}
