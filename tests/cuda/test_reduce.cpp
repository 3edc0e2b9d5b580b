// Reductions against the CPU's kernel table: every op and dtype, every set of dims, layouts, splits, odd lengths.
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/kernels/reduce.cuh>
#include <tensor_test.h>

#include "device_tensor.h"

using namespace limpid;
using namespace limpid::cudasim;
using namespace tensor_test;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max,        ReduceOp::min,
                             ReduceOp::any, ReduceOp::all,  ReduceOp::sum_squares};

DType out_dtype(ReduceOp op, DType dtype) {
  if (op == ReduceOp::any || op == ReduceOp::all) return boolean;
  if (op == ReduceOp::max || op == ReduceOp::min) return dtype;
  return is_floating(dtype) ? dtype : int64;
}

Shape kept(Shape shape, std::uint32_t mask) {
  for (int d = 0; d < shape.size(); d++) {
    if (mask >> d & 1u) shape[d] = 1;
  }
  return shape;
}

// The device's result, with a workspace of exactly the size that was asked for.
std::vector<double> reduced(ReduceOp op, const Tensor& x, DType dtype, std::uint32_t mask) {
  Tensor like = raw::empty(kept(x.shape(), mask), dtype, kCpu);
  DeviceTensor in(x), out(like, false);
  DeviceBuffer<unsigned char> workspace(cu::reduce_workspace_bytes(x.shape(), x.strides(), mask));
  CHECK(cu::reduce(op, x.shape(), dtype, out, x.dtype(), in, mask, workspace.data(), nullptr) == cudaSuccess);
  CHECK(out.intact());
  CHECK(workspace.intact());
  return values(out.read());
}

void check_reduce(ReduceOp op, const Tensor& x, DType dtype, std::uint32_t mask, const std::string& what) {
  Tensor want = raw::empty(kept(x.shape(), mask), dtype, kCpu);
  cpu_kernels().reduce(op, want, x, mask);
  const double t = std::max(tolerance(x.dtype() == float32 ? float32 : dtype), 0.0);
  check_close(reduced(op, x, dtype, mask), values(want), t, t, what);
}

}  // namespace

TEST_CASE("every op, dtype, layout and set of dims") {
  const Shape shape{3, 4, 5, 6};
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      const Tensor x = in_layout(layout, random_numbers(360, 0, 2.2, 1), shape, dtype);
      for (std::uint32_t mask : {0u, 1u, 2u, 4u, 8u, 5u, 12u, 13u, 15u}) {
        for (ReduceOp op : kOps) {
          if (op == ReduceOp::prod && mask > 8 && is_floating(dtype)) continue;  // 0.3^360: nothing left to compare
          check_reduce(op, x, out_dtype(op, dtype), mask,
                       "op " + std::to_string(int(op)) + " " + to_string(dtype) + " " + layout + " mask " +
                           std::to_string(mask));
        }
        if (is_floating(dtype)) check_reduce(ReduceOp::sum, x, float64, mask, "unrounded sum of " + to_string(dtype));
      }
    }
  }
  CHECK(finding() == "");
}

TEST_CASE(
    "long reductions, split over blocks: rows and columns, odd lengths, unaligned; the same bits in every order") {
  struct Case {
    Shape shape;
    std::uint32_t mask;
  };
  for (const Case& c : std::vector<Case>{
           {{20011}, 1}, {{3, 9001}, 2}, {{9001, 3}, 1}, {{5000, 40}, 1}, {{2, 4096}, 2}, {{2, 70, 33}, 5}}) {
    for (DType dtype : {float32, bfloat16, float64, int32}) {
      const std::int64_t n = c.shape.numel();
      Tensor all = from(random_numbers(n + 1, -1, 1, 2), {n + 1}, dtype);
      for (std::int64_t skip : {0, 1}) {
        const Tensor x = raw::as_strided(all, c.shape, strides_for(c.shape), skip);
        const DType out = out_dtype(ReduceOp::sum, dtype);
        std::vector<std::vector<double>> results;
        for_each_order(
            [&] {
              results.push_back(reduced(ReduceOp::sum, x, out, c.mask));
              CHECK(results.back() == results.front());
            },
            0);
        Tensor want = raw::empty(kept(c.shape, c.mask), out, kCpu);
        cpu_kernels().reduce(ReduceOp::sum, want, x, c.mask);
        check_close(results[0], values(want), tolerance(out), 3e-4, to_string(c.shape));
        check_reduce(ReduceOp::max, x, dtype, c.mask, "max of " + to_string(c.shape));
      }
    }
  }
  const Tensor many = from(random_numbers(1030 * 130, -1, 1, 3), {1030, 130}, float32);  // more outputs than blocks
  check_reduce(ReduceOp::sum, many, float32, 2, "many rows");
  check_reduce(ReduceOp::max, many, float32, 2, "many rows");
  CHECK(cu::reduce_workspace_bytes({20011}, {1}, 1) == 8 * 4);
  CHECK(cu::reduce_workspace_bytes({3, 4}, {4, 1}, 2) == 0);
}

TEST_CASE("NaN wins a maximum and a minimum; infinities; nothing to reduce") {
  std::vector<double> numbers(300, -INFINITY);
  check_reduce(ReduceOp::max, from(numbers, {300}), float64, 1, "all -inf");
  numbers[200] = NAN;
  for (ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
    CHECK(std::isnan(reduced(op, from(numbers, {300}, float32), float32, 1)[0]));
  }
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::any, ReduceOp::all}) {
    const Tensor x = raw::empty({2, 0, 3}, float32, kCpu);
    check_reduce(op, x, out_dtype(op, float32), 2, "an empty dim");
    const auto before = counters().launches;
    CHECK(reduced(op, x, out_dtype(op, float32), 1).empty());
    CHECK(counters().launches == before);
  }
}

TEST_CASE("place of the largest and the smallest: the first of equals, the first NaN, every dtype and dim") {
  for (DType dtype : kAll) {
    for (const std::string& layout : kLayouts) {
      const Shape shape{3, 4, 5, 70};
      std::vector<double> numbers = random_numbers(shape.numel(), 0, 5, 3);
      for (double& v : numbers) v = std::floor(v);  // many equals
      if (is_floating(dtype)) numbers[71] = numbers[73] = NAN;
      const Tensor x = in_layout(layout, numbers, shape, dtype);
      DeviceTensor in(x);
      for (int dim = 0; dim < 4; dim++) {
        for (bool maximum : {true, false}) {
          Tensor want = raw::empty(kept(shape, 1u << dim), int64, kCpu);
          cpu_kernels().arg_reduce(maximum, want, x, dim);
          DeviceTensor out(want, false);
          CHECK(cu::arg_reduce(maximum, shape, out, dtype, in, dim, nullptr) == cudaSuccess);
          check_close(values(out.read()), values(want), 0, 0, "place in " + to_string(dtype) + " " + layout);
          CHECK(out.intact());
        }
      }
    }
  }
  const Tensor x = from(random_numbers(5000, -1, 1, 4), {5000}, float32);
  Tensor want = raw::empty({1}, int64, kCpu);
  cpu_kernels().arg_reduce(true, want, x, 0);
  for_each_order([&] {
    DeviceTensor in(x), out(want, false);
    CHECK(cu::arg_reduce(true, {5000}, out, float32, in, 0, nullptr) == cudaSuccess);
    CHECK(values(out.read()) == values(want));
  });
}
