// Matrix products of the CUDA backend against plain loops in double.
#include <algorithm>
#include <vector>

#include <cudasim/orders.h>
#include <limpid/cuda/kernels/gemm.cuh>

#include "numbers.h"

using namespace limpid;
using namespace limpid::cudasim;

namespace {

struct Options {
  cu::GemmTile tile = cu::GemmTile::small;
  std::int64_t splits = 1;
  bool a_transposed = false, b_transposed = false, bias = false, accumulate = false;
  std::int64_t offset = 0;  // elements by which the operands miss their alignment
  std::int64_t gap = 0;     // unused elements after each row: strides that are no sizes
};

// The plan with a given tile and number of splits: shapes that would get it by themselves are too large for an
// emulator.
cu::GemmPlan forced_plan(const MatmulDesc& d, const Options& o) {
  cu::GemmPlan plan;
  plan.tile = o.tile;
  const std::int64_t unit = cu::panel_depth(d.dtype);
  plan.split_depth = std::max(unit, (d.k / o.splits + unit - 1) / unit * unit);
  plan.splits = std::max<std::int64_t>((d.k + plan.split_depth - 1) / plan.split_depth, 1);
  const std::size_t number = d.dtype == DType::float64 ? 8 : 4;
  plan.workspace_bytes = plan.splits > 1 ? static_cast<std::size_t>(plan.splits * d.batch * d.m * d.n) * number : 0;
  return plan;
}

template <class T>
void check_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, const Options& o) {
  INFO("gemm ", to_string(dtype_of<T>), " batch ", batch, " m ", m, " n ", n, " k ", k, ", transposed ", o.a_transposed,
       o.b_transposed, ", offset ", o.offset, ", splits ", o.splits);
  MatmulDesc d{.dtype = dtype_of<T>, .batch = batch, .m = m, .n = n, .k = k};
  const std::int64_t a_pitch = (o.a_transposed ? m : k) + o.gap, b_pitch = (o.b_transposed ? k : n) + o.gap;
  d.a_row = o.a_transposed ? 1 : a_pitch, d.a_col = o.a_transposed ? a_pitch : 1;
  d.b_row = o.b_transposed ? 1 : b_pitch, d.b_col = o.b_transposed ? b_pitch : 1;
  d.a_batch = a_pitch * (o.a_transposed ? k : m);
  d.b_batch = batch > 1 ? 0 : b_pitch * (o.b_transposed ? n : k);  // shared by all batches
  const std::vector<T> a = random_numbers<T>(o.offset + d.a_batch * batch, 1), bias = random_numbers<T>(n, 3),
                       old = random_numbers<T>(batch * m * n, 4),
                       b = random_numbers<T>(o.offset + b_pitch * (o.b_transposed ? n : k), 2);
  DeviceBuffer<T> left(a), right(b), offsets(bias), out(static_cast<std::size_t>(batch * m * n));
  if (o.accumulate) out.assign(old);
  const cu::GemmPlan plan = forced_plan(d, o);
  DeviceBuffer<char> workspace(plan.workspace_bytes);
  REQUIRE(cu::gemm(d, plan, out.data(), left.data() + o.offset, right.data() + o.offset,
                   o.bias ? offsets.data() : nullptr, workspace.data(), o.accumulate, nullptr) == cudaSuccess);
  std::vector<double> want;
  for (std::int64_t i = 0; i < batch * m * n; i++) {
    const std::int64_t column = i % n, row = i / n % m, z = i / n / m;
    double sum =
        (o.bias ? as_double(bias[std::size_t(column)]) : 0) + (o.accumulate ? as_double(old[std::size_t(i)]) : 0);
    for (std::int64_t l = 0; l < k; l++) {
      sum += as_double(a[std::size_t(o.offset + z * d.a_batch + row * d.a_row + l * d.a_col)]) *
             as_double(b[std::size_t(o.offset + z * d.b_batch + l * d.b_row + column * d.b_col)]);
    }
    want.push_back(sum);
  }
  check_numbers(out, want, std::is_integral_v<T> ? 0.0 : rounding<T>(double(k)));
  CHECK(workspace.intact());
}

template <class T>
void check_forms() {
  for (bool a_transposed : {false, true}) {
    for (bool b_transposed : {false, true}) {
      Options o{.a_transposed = a_transposed, .b_transposed = b_transposed};
      check_gemm<T>(1, 8, 8, 8, o);  // vectors
      o.bias = true;
      check_gemm<T>(2, 67, 33, 19, o);  // borders in every direction, a shared operand
      o.gap = 3, o.offset = 1, o.accumulate = true;
      check_gemm<T>(1, 5, 40, 24, o);  // unaligned
    }
  }
}

}  // namespace

TEST_CASE("gemm: transposed, batched, padded and unaligned operands, bias, accumulation") {
  for_each_order([] {
    check_forms<float>();
    check_forms<double>();
    check_forms<Half>();
    check_forms<BFloat16>();
  });
}

TEST_CASE("gemm: the wide tile") {
  check_gemm<float>(1, 130, 68, 36, {.tile = cu::GemmTile::wide, .bias = true});
  check_gemm<float>(1, 129, 65, 17, {.tile = cu::GemmTile::wide, .a_transposed = true, .b_transposed = true});
  check_gemm<double>(1, 130, 70, 18, {.tile = cu::GemmTile::wide, .b_transposed = true});
  check_gemm<Half>(1, 136, 72, 40, {.tile = cu::GemmTile::wide});
  check_gemm<BFloat16>(1, 33, 70, 24, {.tile = cu::GemmTile::wide, .a_transposed = true});
}

TEST_CASE("gemm: parts of k, added in order, give the same bits in every order of blocks") {
  std::vector<std::vector<float>> results;
  const std::vector<float> a = random_numbers<float>(20 * 200, 5), b = random_numbers<float>(200 * 12, 6);
  const MatmulDesc d{.dtype = float32, .m = 20, .n = 12, .k = 200, .a_row = 200, .a_col = 1, .b_row = 12, .b_col = 1};
  for_each_order([&] {
    check_gemm<float>(2, 20, 12, 200, {.splits = 4, .bias = true, .accumulate = true});
    check_gemm<double>(1, 9, 3, 100, {.splits = 3, .a_transposed = true});
    check_gemm<Half>(1, 9, 5, 90, {.splits = 5, .bias = true});
    const cu::GemmPlan plan = forced_plan(d, {.splits = 4});
    DeviceBuffer<float> left(a), right(b), out(20 * 12);
    DeviceBuffer<char> workspace(plan.workspace_bytes);
    CHECK(cu::gemm(d, plan, out.data(), left.data(), right.data(), nullptr, workspace.data(), false, nullptr) ==
          cudaSuccess);
    results.push_back(out.values());
  });
  CHECK(std::all_of(results.begin(), results.end(), [&](const auto& r) { return r == results[0]; }));
}

TEST_CASE("gemm: integers, bool, and empty products") {
  for_each_order([] {
    check_gemm<std::int64_t>(2, 5, 7, 11, {.bias = true});
    check_gemm<std::int32_t>(1, 5, 7, 11, {.a_transposed = true, .accumulate = true});
    check_gemm<std::uint8_t>(1, 3, 2, 1, {.b_transposed = true});
    check_gemm<float>(1, 3, 4, 0, {.bias = true});  // no k: the bias
    check_gemm<float>(1, 0, 4, 3, {});
  });
  const MatmulDesc d{.dtype = boolean, .m = 1, .n = 1, .k = 1};
  CHECK(cu::gemm(d, {}, nullptr, nullptr, nullptr, nullptr, nullptr, false, nullptr) == cudaErrorInvalidValue);
}
