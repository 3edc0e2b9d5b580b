// Elementwise kernels and copies against the CPU's kernel table: every op and dtype, dense, strided, broadcast and
// unaligned operands.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/kernels/elementwise.cuh>
#include <tensor_test.h>

#include "device_tensor.h"

using namespace limpid;
using namespace limpid::cudasim;
using namespace tensor_test;

namespace {

struct OpRange {
  double low, high;
};
// Where an op is defined and its float and double results are comparable.
OpRange range_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::sqrt:
    case UnaryOp::rsqrt:
    case UnaryOp::reciprocal:
    case UnaryOp::log:
    case UnaryOp::log1p:
    case UnaryOp::rdiv_scalar:
    case UnaryOp::pow_scalar: return {0.3, 3};
    default: return {-3, 3};
  }
}
UnaryParams params_of(UnaryOp op) { return op == UnaryOp::clamp ? UnaryParams{-1, 2} : UnaryParams{2, 0}; }

std::vector<UnaryOp> unary_ops(bool integers) {
  std::vector<UnaryOp> ops;
#define V(name, saves, types) \
  if (!integers || #types[0] == 'A') ops.push_back(UnaryOp::name);
  LIMPID_UNARY_OPS(V)
#undef V
  return ops;
}
std::vector<BinaryOp> binary_ops(bool integers) {
  std::vector<BinaryOp> ops;
#define V(name, types) \
  if (!integers || #types[0] == 'A') ops.push_back(BinaryOp::name);
  LIMPID_BINARY_OPS(V)
#undef V
  return ops;
}

Tensor numbers(const std::string& layout, const Shape& shape, DType dtype, double low, double high, unsigned seed) {
  return in_layout(layout, random_numbers(shape.numel(), low, high, seed), shape, dtype);
}

void check_same(const DeviceTensor& got, const Tensor& want, const std::string& what) {
  const double t = 2 * tolerance(want.dtype());
  check_close(values(got.read()), values(want), t, t, what);
  CHECK_MESSAGE(got.intact(), what);
}

const std::vector<Shape> kShapes{{2, 3, 4, 5}, {1, 1, 1, 129}};

}  // namespace

TEST_CASE("every unary op and its gradient, in every dtype and layout") {
  for (DType dtype : kNumbers) {
    for (UnaryOp op : unary_ops(!is_floating(dtype))) {
      for (const std::string& layout : kLayouts) {
        const Shape& shape = kShapes[layout == "plain"];
        const OpRange range = dtype == uint8 ? OpRange{0, 9} : range_of(op);
        const std::string what = std::string(raw::op_name(op)) + " " + to_string(dtype) + " " + layout;
        const Tensor x = numbers(layout, shape, dtype, range.low, range.high, 1);
        Tensor want = numbers("plain", shape, dtype, 0, 0, 1);
        cpu_kernels().unary(op, want, x, params_of(op));
        DeviceTensor in(x), out(want, false);
        CHECK(cu::unary(op, dtype, shape, out, in, params_of(op), nullptr) == cudaSuccess);
        check_same(out, want, what);
        if (!is_floating(dtype)) continue;
        const Tensor g = numbers("plain", shape, dtype, -1, 1, 2);
        Tensor want_grad = numbers(layout, shape, dtype, 0, 0, 1);
        cpu_kernels().unary_grad(op, want_grad, x, want, g, params_of(op));
        DeviceTensor y(want), grad(g), out_grad(want_grad, false);
        // What the op does not read is not there.
        const raw::Reads reads = raw::grad_reads(op);
        CHECK(cu::unary_grad(op, dtype, shape, out_grad, reads == raw::Reads::input ? in : cu::Input(),
                             reads == raw::Reads::output ? y : cu::Input(), grad, params_of(op),
                             nullptr) == cudaSuccess);
        check_same(out_grad, want_grad, "gradient of " + what);
      }
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("every binary op and its gradients, in every dtype and layout, with broadcast operands") {
  for (DType dtype : kNumbers) {
    for (BinaryOp op : binary_ops(!is_floating(dtype))) {
      for (const std::string& layout : kLayouts) {
        const Shape& shape = kShapes[layout == "plain"];
        const std::string what = std::string(raw::op_name(op)) + " " + to_string(dtype) + " " + layout;
        const Tensor a = numbers(layout, shape, dtype, 0.5, 3, 1);
        // One value a row: a step of 0 along the last dim.
        const Tensor column = numbers("plain", {shape[0], shape[1], shape[2], 1}, dtype, 0.5, 3, 2);
        const Tensor b =
            layout == "last" ? raw::expand("test", column, shape) : numbers("plain", shape, dtype, 0.5, 3, 2);
        Tensor want = numbers("plain", shape, dtype, 0, 0, 1);
        cpu_kernels().binary(op, want, a, b);
        DeviceTensor left(a), right(b), out(want, false);
        CHECK(cu::binary(op, dtype, shape, out, left, right, nullptr) == cudaSuccess);
        check_same(out, want, what);
        if (!is_floating(dtype)) continue;
        const Tensor g = numbers("plain", shape, dtype, -1, 1, 3);
        DeviceTensor y(want), grad(g);
        for (bool of_b : {false, true}) {
          Tensor want_grad = numbers("plain", shape, dtype, 0, 0, 1);
          cpu_kernels().binary_grad(op, of_b, want_grad, a, b, want, g);
          DeviceTensor out_grad(want_grad, false);
          CHECK(cu::binary_grad(op, of_b, dtype, shape, out_grad, left, right, y, grad, nullptr) == cudaSuccess);
          check_same(out_grad, want_grad, std::string("gradient of ") + what + (of_b ? ", b" : ", a"));
        }
      }
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("operands that a group of 16 bytes does not fit: unaligned, odd rows, one value for all") {
  for_each_order([] {
    for (DType dtype : kFloats) {
      for (std::int64_t n : {1, 7, 8, 31, 64, 1003}) {
        for (std::int64_t skip : {0, 1, 3}) {
          const Tensor all = numbers("plain", {n + skip}, dtype, -2, 2, 5),
                       other = numbers("plain", {n}, dtype, -2, 2, 6);
          const Tensor x = raw::narrow(all, 0, skip, n);
          const Tensor one = raw::expand("test", numbers("plain", {1}, dtype, 1, 2, 7), {n});
          Tensor sum = numbers("plain", {n}, dtype, 0, 0, 1), relu = sum,
                 product = numbers("plain", {n}, dtype, 0, 0, 1);
          relu = numbers("plain", {n}, dtype, 0, 0, 1);
          cpu_kernels().binary(BinaryOp::add, sum, x, other);
          cpu_kernels().binary(BinaryOp::mul, product, x, one);
          cpu_kernels().unary(UnaryOp::relu, relu, x, {});
          DeviceTensor in(x), b(other), c(one), added(sum, false), multiplied(product, false), rectified(relu, false);
          CHECK(cu::binary(BinaryOp::add, dtype, {n}, added, in, b, nullptr) == cudaSuccess);
          CHECK(cu::binary(BinaryOp::mul, dtype, {n}, multiplied, in, c, nullptr) == cudaSuccess);
          CHECK(cu::unary(UnaryOp::relu, dtype, {n}, rectified, in, {}, nullptr) == cudaSuccess);
          check_same(added, sum, "add");
          check_same(multiplied, product, "mul");
          check_same(rectified, relu, "relu");
        }
      }
      // Rows of 6 in a matrix of 8 columns, and a bias of 8 for rows of 8.
      const Tensor wide = numbers("plain", {5, 8}, dtype, -2, 2, 8), bias = numbers("plain", {8}, dtype, -2, 2, 9);
      const Tensor x = raw::narrow(wide, 1, 1, 6), row = raw::expand("test", raw::narrow(bias, 0, 1, 6), {5, 6});
      Tensor want = numbers("plain", {5, 6}, dtype, 0, 0, 1), biased = numbers("plain", {5, 8}, dtype, 0, 0, 1);
      cpu_kernels().binary(BinaryOp::add, want, x, row);
      cpu_kernels().binary(BinaryOp::add, biased, wide, raw::expand("test", bias, {5, 8}));
      DeviceTensor in(x), r(row), out(want, false), w(wide), b(raw::expand("test", bias, {5, 8})), out8(biased, false);
      CHECK(cu::binary(BinaryOp::add, dtype, {5, 6}, out, in, r, nullptr) == cudaSuccess);
      CHECK(cu::binary(BinaryOp::add, dtype, {5, 8}, out8, w, b, nullptr) == cudaSuccess);
      check_same(out, want, "narrowed rows");
      check_same(out8, biased, "bias");
    }
  });
}

TEST_CASE("comparisons, selection, scaled addition and finiteness in every dtype") {
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      const Shape shape{2, 3, 4, 5};
      const std::string what = to_string(dtype) + " " + layout;
      const Tensor a = numbers(layout, shape, dtype, 0, 3, 1);
      Tensor b = numbers("plain", shape, dtype, 0, 3, 2);
      b = raw::clone(b);
      cpu_kernels().copy(b, a);
      if (dtype != boolean)
        cpu_kernels().add_scaled(b, numbers("plain", shape, dtype, -1, 2, 3), 1);  // some stay equal
      DeviceTensor left(a), right(b);
#define V(name)                                                                                  \
  {                                                                                              \
    Tensor want = numbers("plain", shape, boolean, 0, 0, 1);                                     \
    cpu_kernels().compare(CompareOp::name, want, a, b);                                          \
    DeviceTensor out(want, false);                                                               \
    CHECK(cu::compare(CompareOp::name, dtype, shape, out, left, right, nullptr) == cudaSuccess); \
    check_same(out, want, #name " " + what);                                                     \
  }
      LIMPID_COMPARE_OPS(V)
#undef V
      const Tensor condition = numbers(layout, shape, boolean, -1, 1, 4);
      Tensor flags = numbers("plain", shape, boolean, 0, 0, 1), want = numbers("plain", shape, dtype, 0, 0, 1);
      Tensor cond = numbers(layout, shape, boolean, 0, 0, 1);
      std::vector<double> pattern;
      for (int i = 0; i < 120; i++) pattern.push_back(i % 3 == 0);
      assign(cond, pattern);
      cpu_kernels().where(want, cond, a, b);
      DeviceTensor c(cond), out(want, false);
      CHECK(cu::where(dtype, shape, out, c, left, right, nullptr) == cudaSuccess);
      check_same(out, want, "where " + what);
      if (dtype != boolean) {
        Tensor sum = raw::clone(b);
        DeviceTensor target(sum);
        cpu_kernels().add_scaled(sum, a, 2);
        CHECK(cu::add_scaled(dtype, shape, target, left, 2, nullptr) == cudaSuccess);
        check_same(target, sum, "add_scaled " + what);
      }
      std::vector<double> odd(120, 1);
      if (is_floating(dtype)) odd[3] = INFINITY, odd[50] = -INFINITY, odd[51] = NAN;
      const Tensor strange = in_layout(layout, odd, shape, dtype);
      cpu_kernels().is_finite(flags, strange);
      DeviceTensor s(strange), finite(flags, false);
      CHECK(cu::is_finite(dtype, shape, finite, s, nullptr) == cudaSuccess);
      check_same(finite, flags, "is_finite " + what);
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("copies between all dtypes; numbers outside of the target; NaN and infinity") {
  const std::vector<double> real{0,     -0.0, 1,   -1,    0.5,   2.5,      255,       300, -7.9,
                                 65504, 1e5,  3e9, -1e19, 1e300, INFINITY, -INFINITY, NAN};
  const std::vector<double> whole{
      0, 1, -1, 255, 256, 65535, -70000, 2147483647, -2147483648.0, 16777217, 4611686018427387905.0};
  for (DType from : kAll) {
    const std::vector<double>& list = is_floating(from) ? real : whole;
    const auto n = static_cast<std::int64_t>(list.size());
    for (DType to : kAll) {
      for (std::int64_t step : {1, 2}) {
        Tensor x = raw::empty({n * step}, from, kCpu);
        x = raw::as_strided(x, {n}, {step}, 0);
        assign(x, list);
        Tensor want = raw::empty({n}, to, kCpu);
        cpu_kernels().copy(want, x);
        DeviceTensor in(x), out(want, false);
        CHECK(cu::copy({n}, to, out, from, in, nullptr) == cudaSuccess);
        check_close(values(out.read()), values(want), 0, 0, to_string(from) + " to " + to_string(to));
        CHECK(out.intact());
      }
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("copies between layouts, large enough for tiles; flips; fills") {
  for_each_order([] {
    for (DType dtype : {float32, bfloat16, uint8, int64}) {
      const Shape shape{2, 35, 6, 7};
      const Tensor x = numbers("plain", shape, dtype, 0, 200, 3);
      for (const std::string& layout : kLayouts) {
        Tensor want = numbers(layout, shape, dtype, 0, 0, 1);
        cpu_kernels().copy(want, x);
        DeviceTensor in(x), out(want, false);
        CHECK(cu::copy(shape, dtype, out, dtype, in, nullptr) == cudaSuccess);
        check_same(out, want, "copy to " + layout);
        Tensor back = numbers("plain", shape, dtype, 0, 0, 1);
        DeviceTensor again(back, false);
        CHECK(cu::copy(shape, dtype, again, dtype, out, nullptr) == cudaSuccess);
        check_same(again, x, "copy from " + layout);
      }
    }
  });
  {  // more tiles than blocks
    const Shape shape{1100, 5, 2, 3};
    const Tensor x = numbers("plain", shape, float32, -1, 1, 3);
    Tensor want = numbers("last", shape, float32, 0, 0, 1);
    cpu_kernels().copy(want, x);
    DeviceTensor in(x), out(want, false);
    CHECK(cu::copy(shape, float32, out, float32, in, nullptr) == cudaSuccess);
    check_same(out, want, "many tiles");
  }
  for (DType dtype : kAll) {
    const Shape shape{3, 4, 5};
    const Tensor x = numbers("reversed", shape, dtype, 0, 100, 4);
    DeviceTensor in(x);
    for (std::uint32_t mask = 0; mask < 8; mask++) {
      Tensor want = raw::empty(shape, dtype, kCpu);
      cpu_kernels().flip(want, x, mask);
      DeviceTensor out(want, false);
      CHECK(cu::flip(dtype, shape, out, in, mask, nullptr) == cudaSuccess);
      check_same(out, want, "flip " + to_string(dtype));
    }
    for (const Scalar& value : {Scalar(true), Scalar(7), Scalar(2.5), Scalar(-1e300)}) {
      for (const std::string& layout : kLayouts) {
        Tensor want = numbers(layout, shape, dtype, 0, 0, 1);
        cpu_kernels().fill(want, value);
        DeviceTensor out(numbers(layout, shape, dtype, 0, 0, 1));
        CHECK(cu::fill(dtype, shape, out, value, nullptr) == cudaSuccess);
        check_close(values(out.read()), values(want), 0, 0, "fill " + to_string(dtype));
        CHECK(out.intact());
      }
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("empty shapes queue nothing; dtypes that an op does not take are refused") {
  const Shape empty{0, 3};
  const Strides strides = strides_for(empty);
  const cu::Output out{nullptr, strides};
  const auto before = counters().launches;
  CHECK(cu::unary(UnaryOp::relu, float32, empty, out, out, {}, nullptr) == cudaSuccess);
  CHECK(cu::copy(empty, float32, out, int64, out, nullptr) == cudaSuccess);
  CHECK(cu::flip(float32, empty, out, out, 1, nullptr) == cudaSuccess);
  CHECK(cu::fill(float32, empty, out, 1, nullptr) == cudaSuccess);
  CHECK(counters().launches == before);
  DeviceTensor x(from({1, 2}, {2}, int64));
  CHECK(cu::unary(UnaryOp::exp, int64, {2}, x, x, {}, nullptr) == cudaErrorInvalidValue);
  CHECK(cu::binary(BinaryOp::div, int32, {2}, x, x, x, nullptr) == cudaErrorInvalidValue);
  CHECK(cu::unary(UnaryOp::neg, boolean, {2}, x, x, {}, nullptr) == cudaErrorInvalidValue);
  CHECK(cu::unary_grad(UnaryOp::neg, int64, {2}, x, x, x, x, {}, nullptr) == cudaErrorInvalidValue);
}
