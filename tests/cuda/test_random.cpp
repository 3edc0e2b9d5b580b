// Random numbers against the CPU's kernel table: the same bits, in every layout and from every offset.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/kernels/random.cuh>
#include <tensor_test.h>

#include "device_tensor.h"

using namespace limpid;
using namespace limpid::cudasim;
using namespace tensor_test;

TEST_CASE("uniform and normal numbers, dropout: the CPU's bits") {
  for_each_order(
      [] {
        for (DType dtype : kFloats) {
          for (const std::string& layout : kLayouts) {
            for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{2, 2, 4, 4}, Shape{1, 1, 1, 1}}) {
              const std::string what = to_string(dtype) + " " + layout + " " + to_string(shape);
              const std::vector<double> zeros(static_cast<std::size_t>(shape.numel()));
              for (std::uint64_t first : {std::uint64_t(0), (std::uint64_t(1) << 40) + 3}) {
                Tensor want = in_layout(layout, zeros, shape, dtype);
                DeviceTensor out(want, false), bell(want, false);
                cpu_kernels().uniform(want, 77, first);
                CHECK(cu::uniform(dtype, shape, out, 77, first, nullptr) == cudaSuccess);
                check_close(values(out.read()), values(want), 0, 0, "uniform " + what);
                cpu_kernels().normal(want, 78, first);
                CHECK(cu::normal(dtype, shape, bell, 78, first, nullptr) == cudaSuccess);
                check_close(values(bell.read()), values(want), 0, 0, "normal " + what);
                CHECK((out.intact() && bell.intact()));
              }
              const Tensor x = in_layout(layout, random_numbers(shape.numel(), 1, 2, 5), shape, dtype);
              DeviceTensor in(x);
              for (double p : {0.0, 0.3, 1.0}) {
                for (std::int64_t offset : {0, 1, 3}) {
                  Tensor want = in_layout("plain", zeros, shape, dtype);
                  DeviceTensor out(want, false);
                  cpu_kernels().dropout(want, x, p, 1234567890123, offset);
                  CHECK(cu::dropout(dtype, shape, out, in, p, 1234567890123, offset, nullptr) == cudaSuccess);
                  check_close(values(out.read()), values(want), 0, 0, "dropout " + what + " p " + std::to_string(p));
                  CHECK(out.intact());
                }
              }
            }
          }
        }
      },
      0);
}

TEST_CASE("an unaligned target, and nothing to fill") {
  for (DType dtype : kFloats) {
    const Tensor all = from(std::vector<double>(22), {22}, dtype);
    Tensor want = raw::narrow(all, 0, 1, 21);
    DeviceTensor out(want);
    cpu_kernels().uniform(want, 5, 6);
    CHECK(cu::uniform(dtype, {21}, out, 5, 6, nullptr) == cudaSuccess);
    CHECK(values(out.read()) == values(want));
    CHECK(out.intact());
  }
  const auto before = counters().launches;
  const cu::Output nothing{nullptr, strides_for({0})};
  CHECK(cu::normal(float32, {0}, nothing, 1, 2, nullptr) == cudaSuccess);
  CHECK(cu::dropout(float32, {0}, nothing, nothing, 0.5, 1, 0, nullptr) == cudaSuccess);
  CHECK(counters().launches == before);
  CHECK(cu::uniform(int64, {1}, nothing, 1, 2, nullptr) == cudaErrorInvalidValue);
  CHECK(finding() == "");
}
