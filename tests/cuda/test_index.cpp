// Indexed reads and writes against the CPU's kernel table, and the record of a bad index.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/kernels/index.cuh>
#include <limpid/cuda/kernels/index_error.cuh>
#include <tensor_test.h>

#include "device_tensor.h"

using namespace limpid;
using namespace limpid::cudasim;
using namespace tensor_test;

namespace {

std::vector<double> random_indices(std::int64_t n, std::int64_t bound, unsigned seed) {
  std::vector<double> out = random_numbers(n, 0, static_cast<double>(bound), seed);
  for (double& v : out) v = std::floor(v);
  return out;
}

// The strides of an index that counts along `dim` alone.
Strides along(int dim, int rank, std::int64_t step) {
  Strides strides = Strides::filled(rank, 0);
  strides[dim] = step;
  return strides;
}

}  // namespace

TEST_CASE("gather and scatter_add in every dtype, layout and dim") {
  const Shape shape{3, 4, 5, 6}, index_shape{2, 3, 4, 5};
  for_each_order(
      [&] {
        for (DType dtype : kAll) {
          for (const std::string& layout : kLayouts) {
            const Tensor x = in_layout(layout, random_numbers(360, 0, 9, 1), shape, dtype);
            for (int dim = 0; dim < 4; dim++) {
              const std::string what = to_string(dtype) + " " + layout + " dim " + std::to_string(dim);
              const Tensor index = in_layout(layout, random_indices(120, shape[dim], 2), index_shape, int64);
              Tensor want = raw::empty(index_shape, dtype, kCpu);
              cpu_kernels().gather(want, x, dim, index);
              DeviceTensor in(x), at(index), out(want, false);
              CHECK(cu::gather(dtype, index_shape, out, in, dim, shape[dim], at, nullptr) == cudaSuccess);
              check_close(values(out.read()), values(want), 0, 0, "gather " + what);
              CHECK(out.intact());
              if (dtype == boolean) continue;
              const Tensor source = in_layout(layout, random_numbers(120, 0, 3, 3), index_shape, dtype);
              Tensor sum = raw::clone(x);
              DeviceTensor target(sum), from(source);
              cpu_kernels().scatter_add(sum, dim, index, source);
              CHECK(cu::scatter_add(dtype, index_shape, target, dim, shape[dim], at, from, nullptr) == cudaSuccess);
              check_close(values(target.read()), values(sum), 0, 0,
                          "scatter_add " + what);  // the same order, the same bits
              CHECK(target.intact());
            }
          }
        }
      },
      0);
}

TEST_CASE("index_select and index_add: rows by groups and odd ones, many hits on one place") {
  for_each_order([] {
    for (DType dtype : {float32, bfloat16, float64, int32}) {
      for (std::int64_t columns : {1, 7, 16, 40}) {
        for (const auto& [dim, count] : {std::pair<int, std::int64_t>{0, 50}, {0, 1}, {1, 50}}) {
          const Shape shape{9, columns};
          Shape picked = shape;
          picked[dim] = count;
          // Rows of 64, of which the first columns count: their starts are aligned, their lengths are not.
          const Tensor x = raw::narrow(from(random_numbers(9 * 64, -2, 2, 1), {9, 64}, dtype), 1, 0, columns);
          const Tensor index = from(random_indices(count, shape[dim], 2), {count}, int64);
          const std::string what = to_string(dtype) + " " + to_string(shape) + " dim " + std::to_string(dim);
          Tensor want = raw::empty(picked, dtype, kCpu);
          cpu_kernels().index_select(want, x, dim, index);
          DeviceTensor in(x), at(index), out(want, false);
          const cu::Input spread{at.data(), along(dim, 2, 1)};
          CHECK(cu::gather(dtype, picked, out, in, dim, shape[dim], spread, nullptr) == cudaSuccess);
          check_close(values(out.read()), values(want), 0, 0, "index_select " + what);
          const Tensor source = from(random_numbers(picked.numel(), -1, 1, 3), picked, dtype);
          Tensor sum = raw::clone(x);
          DeviceTensor target(sum), added(source);
          cpu_kernels().index_add(sum, dim, index, source);
          CHECK(cu::scatter_add(dtype, picked, target, dim, shape[dim], spread, added, nullptr) == cudaSuccess);
          check_close(values(target.read()), values(sum), 0, 0, "index_add " + what);
          CHECK((out.intact() && target.intact()));
        }
      }
    }
  });
}

TEST_CASE("one_hot in every dtype and layout") {
  for (DType dtype : kAll) {
    for (const std::string& layout : {std::string("plain"), std::string("reversed")}) {
      const Tensor index = in_layout(layout, random_indices(6, 5, 4), {2, 3}, int64);
      Tensor want = in_layout(layout, std::vector<double>(30), {2, 3, 5}, dtype);
      cpu_kernels().one_hot(want, index);
      DeviceTensor at(index), out(want, false);
      CHECK(cu::one_hot(dtype, {2, 3, 5}, out, at, nullptr) == cudaSuccess);
      check_close(values(out.read()), values(want), 0, 0, "one_hot " + to_string(dtype));
      CHECK(out.intact());
    }
  }
  CHECK(finding() == "");
}

TEST_CASE("the first bad index is recorded and stays; bad ones are skipped") {
  for_each_order([] {
    DeviceBuffer<cu::IndexErrorRecord> record{cu::IndexErrorRecord()};
    const Shape shape{30, 20};
    std::vector<double> numbers = random_indices(600, 7, 5);
    auto check = [&](cu::IndexOp op, std::int64_t bound, std::int64_t ignored) {
      const Tensor index = in_layout("reversed", numbers, shape, int64);
      DeviceTensor at(index);
      CHECK(cu::check_indices(record.data(), op, shape, at, bound, ignored, nullptr) == cudaSuccess);
      return record[0];
    };
    CHECK(check(cu::IndexOp::gather, 7, 0).found == 0);
    numbers[77] = -100;
    CHECK(check(cu::IndexOp::labels, 7, -100).found == 0);
    numbers[412] = 7, numbers[413] = -3, numbers[599] = 9;
    const cu::IndexErrorRecord bad = check(cu::IndexOp::one_hot, 7, -100);
    CHECK(bad.found == 1);
    CHECK(bad.op == cu::IndexOp::one_hot);
    CHECK(bad.position == 412);
    CHECK(bad.value == 7);
    CHECK(bad.bound == 7);
    CHECK(bad.rank == 2);
    CHECK((bad.shape[0] == 30 && bad.shape[1] == 20));
    CHECK(bad.blocks_done == 0);
    const cu::IndexErrorRecord later = check(cu::IndexOp::gather, 2, 0);
    CHECK((later.position == 412 && later.op == cu::IndexOp::one_hot && later.value == 7));
    record.assign({cu::IndexErrorRecord()});
    CHECK(check(cu::IndexOp::index_add, 7, 0).position == 77);
    CHECK(record[0].value == -100);
    CHECK(record.intact());

    const Tensor x = from({1, 2, 3}, {3}, float32), index = from({1, -1, 3, 2}, {4}, int64);
    DeviceTensor in(x), at(index), out(from({9, 9, 9, 9}, {4}, float32)), target(x),
        ones(from({1, 1, 1, 1}, {4}, float32));
    CHECK(cu::gather(float32, {4}, out, in, 0, 3, at, nullptr) == cudaSuccess);
    CHECK(values(out.read()) == std::vector<double>{2, 0, 0, 3});
    CHECK(cu::scatter_add(float32, {4}, target, 0, 3, at, ones, nullptr) == cudaSuccess);
    CHECK(values(target.read()) == std::vector<double>{1, 3, 4});
    CHECK((out.intact() && target.intact()));
  });
}

TEST_CASE("nothing to index queues nothing") {
  const auto before = counters().launches;
  const Shape empty{0, 4};
  const cu::Output nothing{nullptr, strides_for(empty)};
  CHECK(cu::gather(float32, empty, nothing, nothing, 0, 3, nothing, nullptr) == cudaSuccess);
  CHECK(cu::scatter_add(float32, empty, nothing, 0, 3, nothing, nothing, nullptr) == cudaSuccess);
  CHECK(cu::one_hot(int64, empty, nothing, nothing, nullptr) == cudaSuccess);
  CHECK(cu::check_indices(nullptr, cu::IndexOp::gather, empty, nothing, 3, 0, nullptr) == cudaSuccess);
  CHECK(counters().launches == before);
}
