// Reductions against plain loops in double: every op, dtype, layout and choice of dims; the order of summation.
#include "tensor_test.h"

#include <functional>

#include <limpid/tensor/cpu/parallel.h>

using namespace tensor_test;

namespace {

struct Case {
  ReduceOp op;
  const char* name;
  double start;
  double (*join)(double, double);
};
const Case kCases[] = {
    {ReduceOp::sum, "sum", 0, [](double a, double b) { return a + b; }},
    {ReduceOp::prod, "prod", 1, [](double a, double b) { return a * b; }},
    {ReduceOp::max, "max", -HUGE_VAL, [](double a, double b) { return a > b ? a : b; }},
    {ReduceOp::min, "min", HUGE_VAL, [](double a, double b) { return a < b ? a : b; }},
    {ReduceOp::any, "any", 0, [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }},
    {ReduceOp::all, "all", 1, [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }},
    {ReduceOp::sum_squares, "sum_squares", 0, [](double a, double b) { return a + b * b; }},
};

// Folds the reduced dims in logical order; the result in keepdim form.
std::vector<double> naive(const Tensor& x, std::uint32_t mask, double start,
                          const std::function<double(double, double)>& join) {
  Shape kept = x.shape();
  for (int d = 0; d < kept.size(); d++) {
    if (mask >> d & 1u) kept[d] = 1;
  }
  std::vector<double> out(static_cast<std::size_t>(kept.numel()), start), v = values(x);
  for (std::int64_t i = 0; i < x.numel(); i++) {
    std::int64_t rest = i, at = 0, step = 1;
    for (int d = x.dim() - 1; d >= 0; d--) {
      std::int64_t coordinate = rest % x.shape()[d];
      rest /= x.shape()[d];
      if (mask >> d & 1u) continue;
      at += coordinate * step;
      step *= kept[d];
    }
    auto& target = out[static_cast<std::size_t>(at)];
    target = join(target, v[static_cast<std::size_t>(i)]);
  }
  return out;
}

std::vector<std::int64_t> dims_of(std::uint32_t mask) {
  std::vector<std::int64_t> dims;
  for (int d = 0; d < 8; d++) {
    if (mask >> d & 1u) dims.push_back(d);
  }
  return dims;
}

DType result_type(ReduceOp op, DType dtype) {
  if (op == ReduceOp::any || op == ReduceOp::all) return boolean;
  if (op == ReduceOp::max || op == ReduceOp::min || is_floating(dtype)) return dtype;
  return int64;
}

}  // namespace

TEST_CASE("reductions over every choice of dims") {
  CHECK(std::size(kCases) == static_cast<std::size_t>(ReduceOp::sum_squares) + 1);
  for (const Case& c : kCases) {
    for (DType dtype : kAll) {
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{37}, Shape{3, 5}, Shape{2, 3, 5, 7}, Shape{3, 1, 2, 21}}) {
        for (const std::string& layout : kLayouts) {
          double low = c.op == ReduceOp::prod ? 0.9 : 0, high = c.op == ReduceOp::prod ? 1.1 : 3;
          Tensor x = in_layout(layout, random_numbers(shape.numel(), low, high, 5), shape, dtype);
          for (std::uint32_t mask = 0; mask < 1u << shape.size(); mask++) {
            std::uint32_t used = mask == 0 ? (1u << shape.size()) - 1 : mask;  // no dims: all of them
            Tensor kept = raw::reduce(c.op, c.name, x, dims_of(mask), true);
            Tensor flat = raw::reduce(c.op, c.name, x, dims_of(mask), false);
            REQUIRE(kept.dim() == shape.size());
            REQUIRE(kept.dtype() == result_type(c.op, dtype));
            std::string what = concat(c.name, " ", dtype, shape, " ", layout, " mask ", used);
            std::vector<double> expected = naive(x, used, c.start, c.join);
            check_close(values(kept), expected, tolerance(dtype), tolerance(dtype), what);
            CHECK(values(flat) == values(kept));
            for (int d = 0, e = 0; d < shape.size(); d++) {
              if (used >> d & 1u) {
                CHECK(kept.shape()[d] == 1);
              } else {
                CHECK(flat.shape()[e++] == shape[d]);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("long reductions: full, rows, columns, images in both formats") {
  for (DType dtype : {float64, float32, float16, int64, uint8}) {
    struct Long {
      Shape shape;
      std::uint32_t mask;
    };
    for (const Long& l : {Long{{300001}, 1}, Long{{3, 70001}, 2}, Long{{70001, 3}, 1}, Long{{5000, 70}, 1}, Long{{70, 5000}, 2},
                          Long{{4, 6, 65, 64}, 12}, Long{{4, 6, 65, 64}, 13}, Long{{9000, 4}, 1}, Long{{40, 300, 20}, 2}}) {
      for (const std::string& layout : kLayouts) {
        Tensor x = in_layout(layout, random_numbers(l.shape.numel(), 0, 2, 5), l.shape, dtype);
        for (const Case& c : {kCases[0], kCases[2], kCases[3]}) {
          Tensor y = raw::reduce(c.op, c.name, x, dims_of(l.mask), true);
          if (dtype == float16 && c.op == ReduceOp::sum) continue;  // beyond the range of f16
          check_close(values(y), naive(x, l.mask, c.start, c.join), dtype == float32 ? 1e-6 : tolerance(dtype), 0,
                      concat(c.name, " ", dtype, l.shape, " ", layout, " mask ", l.mask));
        }
      }
    }
  }
}

TEST_CASE("a float32 sum keeps double precision inside") {
  Tensor x = raw::empty({10000000}, float32, kCpu);
  raw::fill(x, 0.1);
  double expected = 1e7 * static_cast<double>(0.1f);
  CHECK(std::fabs(raw::reduce(ReduceOp::sum, "sum", x, {}, false).item() - expected) <= expected * 6e-8);
  CHECK(raw::mean(x, {}, false).item() == static_cast<double>(0.1f));
  Tensor h = raw::empty({100000}, float16, kCpu);  // the sum would overflow, the mean must not
  raw::fill(h, 100);
  CHECK(raw::mean(h, {}, false).item() == 100);
}

TEST_CASE("mean over dims, in every floating dtype") {
  for (DType dtype : kFloats) {
    for (const std::string& layout : kLayouts) {
      Tensor x = in_layout(layout, random_numbers(210, -2, 2, 5), {2, 3, 5, 7}, dtype);
      std::vector<double> expected = naive(x, 12, 0, [](double a, double b) { return a + b; });
      for (double& v : expected) v /= 35;
      check_close(values(raw::mean(x, {2, 3}, false)), expected, tolerance(dtype), tolerance(dtype), layout);
      CHECK(raw::mean(x, {2, -1}, true).shape() == Shape{2, 3, 1, 1});
    }
  }
  CHECK(std::isnan(raw::mean(raw::empty({0}, float32, kCpu), {}, false).item()));
  CHECK_THROWS_AS(raw::mean(raw::zeros({2}, int64, kCpu), {}, false), DTypeError);
}

TEST_CASE("NaN and infinities in max, min and their indices") {
  double nan = std::nan(""), inf = HUGE_VAL;
  for (DType dtype : kFloats) {
    for (std::int64_t length : {5, 40, 40000}) {
      for (std::int64_t at : {std::int64_t{0}, length / 2, length - 1}) {
        std::vector<double> numbers(static_cast<std::size_t>(length), 1.0);
        numbers[static_cast<std::size_t>(at)] = nan;
        Tensor x = from(numbers, {length}, dtype);
        CHECK(std::isnan(raw::reduce(ReduceOp::max, "max", x, {}, false).item()));
        CHECK(std::isnan(raw::reduce(ReduceOp::min, "min", x, {}, false).item()));
        CHECK(raw::arg_reduce(true, x, {}, false).item_int() == at);
        CHECK(raw::arg_reduce(false, x, {}, false).item_int() == at);
        CHECK(raw::reduce(ReduceOp::any, "any", x, {}, false).item() == 1);
        Tensor column = raw::reshape(x, {length, 1});
        CHECK(std::isnan(raw::reduce(ReduceOp::max, "max", raw::contiguous(raw::expand("test", column, {length, 3})), {0}, false)
                             .to_vector<double>()[2]));
      }
    }
    Tensor x = from({-inf, -inf}, {2}, dtype);
    CHECK(raw::reduce(ReduceOp::max, "max", x, {}, false).item() == -inf);
  }
}

TEST_CASE("argmax and argmin return the first of equals") {
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      Shape shape{3, 4, 2, 5};
      Tensor x = in_layout(layout, random_numbers(120, 0, 3, 5), shape, dtype);
      if (!is_floating(dtype)) CHECK(raw::arg_reduce(true, x, 1, false).dtype() == int64);
      std::vector<double> v = values(x);
      for (bool maximum : {true, false}) {
        for (int dim = 0; dim < 4; dim++) {
          Tensor y = raw::arg_reduce(maximum, x, dim, true);
          std::vector<double> got = values(y), expected;
          std::int64_t step = 1;
          for (int d = dim + 1; d < 4; d++) step *= shape[d];
          for (std::int64_t i = 0; i < y.numel(); i++) {
            std::int64_t base = i / step * step * shape[dim] + i % step, best = 0;
            for (std::int64_t j = 1; j < shape[dim]; j++) {
              double a = v[static_cast<std::size_t>(base + j * step)], b = v[static_cast<std::size_t>(base + best * step)];
              if (maximum ? a > b : a < b) best = j;
            }
            expected.push_back(static_cast<double>(best));
          }
          CHECK(got == expected);
          CHECK(values(raw::arg_reduce(maximum, x, dim, false)) == expected);
        }
      }
      CHECK(raw::arg_reduce(true, x, {}, true).shape() == Shape{1, 1, 1, 1});
    }
  }
  CHECK(raw::arg_reduce(true, from({3}, {}), 0, false).item_int() == 0);
}

TEST_CASE("sum_to undoes broadcasting") {
  Tensor x = from({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(raw::sum_to(x, {2, 3}).is_same(x));
  CHECK(values(raw::sum_to(x, {3})) == std::vector<double>{5, 7, 9});
  CHECK(values(raw::sum_to(x, {2, 1})) == std::vector<double>{6, 15});
  CHECK(values(raw::sum_to(x, {1, 3})) == std::vector<double>{5, 7, 9});
  CHECK(raw::sum_to(x, {}).item() == 21);
  CHECK_THROWS_AS(raw::sum_to(x, {2}), ShapeError);
  CHECK_THROWS_AS(raw::sum_to(x, {1, 2, 3}), ShapeError);
}

TEST_CASE("expanded inputs and empty inputs") {
  Tensor x = raw::expand("test", from({1, 2}, {2, 1}), {2, 50});
  CHECK(values(raw::reduce(ReduceOp::sum, "sum", x, {1}, false)) == std::vector<double>{50, 100});
  CHECK(values(raw::reduce(ReduceOp::sum, "sum", x, {0}, false)) == std::vector<double>(50, 3.0));
  for (DType dtype : kAll) {
    Tensor none = raw::empty({2, 0, 3}, dtype, kCpu);
    CHECK(raw::reduce(ReduceOp::sum, "sum", none, {}, false).item() == 0);
    CHECK(raw::reduce(ReduceOp::prod, "prod", none, {}, false).item() == 1);
    CHECK(raw::reduce(ReduceOp::any, "any", none, {}, false).item() == 0);
    CHECK(raw::reduce(ReduceOp::all, "all", none, {}, false).item() == 1);
    CHECK(values(raw::reduce(ReduceOp::sum, "sum", none, {1}, false)) == std::vector<double>(6, 0.0));
    CHECK(raw::reduce(ReduceOp::max, "max", none, {0}, false).shape() == Shape{0, 3});
    CHECK(raw::arg_reduce(true, none, 0, false).shape() == Shape{0, 3});
    CHECK_THROWS_AS(raw::reduce(ReduceOp::max, "max", none, {1}, false), ShapeError);
    CHECK_THROWS_AS(raw::arg_reduce(true, none, 1, false), ShapeError);
    CHECK_THROWS_AS(raw::arg_reduce(true, none, {}, false), ShapeError);
  }
}

TEST_CASE("the same bits for 1, 2 and 3 threads") {
  int before = cpu::num_threads();
  for (DType dtype : {float64, float32, bfloat16}) {
    Tensor x = from(random_numbers(1 << 20, -1, 1, 3), {64, 128, 128}, dtype);
    std::vector<std::vector<double>> results;
    for (int threads : {1, 2, 3}) {
      cpu::set_num_threads(threads);
      std::vector<double> all;
      for (const std::vector<std::int64_t>& dims : std::vector<std::vector<std::int64_t>>{{}, {0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}}) {
        for (double v : values(raw::reduce(ReduceOp::sum, "sum", x, dims, false))) all.push_back(v);
        for (double v : values(raw::reduce(ReduceOp::sum_squares, "sum_squares", x, dims, false))) all.push_back(v);
      }
      results.push_back(all);
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
  }
  cpu::set_num_threads(before);
}

TEST_CASE("errors of reductions") {
  Tensor x = raw::zeros({2, 3}, float32, kCpu);
  CHECK(message_of<IndexError>([&] { raw::reduce(ReduceOp::sum, "sum", x, {2}, false); }) == "[sum] dim 2 is out of range for rank 2");
  CHECK(message_of<ArgumentError>([&] { raw::reduce(ReduceOp::sum, "sum", x, {1, -1}, false); }) == "[sum] dim 1 is given twice");
  CHECK_THROWS_AS(raw::reduce(ReduceOp::sum, "sum", Tensor(), {}, false), ArgumentError);
  CHECK_THROWS_AS(raw::arg_reduce(true, x, 5, false), IndexError);
}
