// The whole CUDA kernel table (cuda/adapters_table.cpp): no entry is missing, and the operations of neural networks
// give the CPU's numbers on cuda:0 of the fake runtime, kernels on its lazy streams.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <limpid/cuda/kernel_table.h>
#include <limpid/cuda/runtime.h>
#include <limpid/tensor/raw_nn.h>
#include <tensor_test.h>

#include "both_devices.h"

using namespace limpid;
using namespace tensor_test;

namespace {

Tensor random_on(Device device, const Shape& shape, DType dtype, std::uint64_t seed) {
  return raw::to_device(from(random_numbers(shape.numel(), -1, 1, seed), shape, dtype), device);
}
Tensor image_on(Device device, const Shape& shape, DType dtype, std::uint64_t seed) {
  return raw::packed(random_on(device, shape, dtype, seed));
}

}  // namespace

TEST_CASE("the table is whole") {
  const Kernels& table = *cu::cuda_kernels();
  CHECK(std::string(table.device) == "cuda");
#define LIMPID_CHECK_ENTRY(name) CHECK_MESSAGE(bool(table.name), #name);
  LIMPID_KERNEL_ENTRIES(LIMPID_CHECK_ENTRY, LIMPID_CHECK_ENTRY)
#undef LIMPID_CHECK_ENTRY
}

TEST_CASE("matrix products") {
  for (DType dtype : {float32, float64, float16, bfloat16}) {
    same_on_both("matmul", tolerance(dtype) * 10, [&](Device device) {
      const Tensor a = random_on(device, {2, 5, 700}, dtype, 1), b = random_on(device, {700, 6}, dtype, 2);
      const Tensor x = random_on(device, {4, 9}, dtype, 3), w = random_on(device, {7, 9}, dtype, 4),
                   bias = random_on(device, {7}, dtype, 5);
      return std::vector<Tensor>{raw::matmul(a, b), raw::matmul(raw::transpose(b, 0, 1), raw::transpose(a, 1, 2)),
                                 raw::linear(x, w, bias)};
    });
  }
}

TEST_CASE("convolution, its gradients, and pooling") {
  for (DType dtype : {float32, float64, float16}) {
    same_on_both("conv2d", tolerance(dtype) * 4, [&](Device device) {
      std::vector<Tensor> out;
      for (std::int64_t groups : {1, 2, 4}) {
        const Conv2dDesc d{.dtype = dtype,
                           .n = 2,
                           .c = 4,
                           .h = 9,
                           .w = 8,
                           .k = 8,
                           .r = 3,
                           .s = 3,
                           .stride_h = 2,
                           .stride_w = 1,
                           .pad_h = 1,
                           .pad_w = 1,
                           .groups = groups};
        const Tensor x = image_on(device, {2, 4, 9, 8}, dtype, 1), bias = random_on(device, {8}, dtype, 3);
        const Tensor w = random_on(device, {8, 4 / groups, 3, 3}, dtype, 2);
        const Tensor dy = image_on(device, {2, 8, d.oh(), d.ow()}, dtype, 4);
        for (const Tensor& t : {raw::conv2d(d, x, w, bias), raw::conv2d_backward_input(d, dy, w),
                                raw::conv2d_backward_weight(d, x, dy), raw::conv2d_backward_bias(d, dy)}) {
          out.push_back(t);
        }
      }
      return out;
    });
    same_on_both("pooling", tolerance(dtype), [&](Device device) {
      const Kernels& kernels = kernels_for(device);
      const Pool2dDesc d{.n = 2,
                         .c = 5,
                         .h = 6,
                         .w = 7,
                         .oh = 3,
                         .ow = 4,
                         .kernel_h = 2,
                         .kernel_w = 2,
                         .stride_h = 2,
                         .stride_w = 2,
                         .pad_h = 0,
                         .pad_w = 1};
      const Tensor x = image_on(device, {2, 5, 6, 7}, dtype, 5), dy = image_on(device, {2, 5, 3, 4}, dtype, 6);
      const auto image = [&](const Shape& shape, DType type) {
        return raw::empty(shape, type, device, MemoryFormat::channels_last);
      };
      const Shape small{2, 5, 3, 4}, large{2, 5, 6, 7};
      Tensor y = image(small, dtype), at = image(small, int32), dx = image(large, dtype);
      Tensor mean = image(small, dtype), dmean = image(large, dtype), adaptive = image(small, dtype),
             dadaptive = image(large, dtype);
      kernels.max_pool2d(d, y, at, x);
      kernels.max_pool2d_backward(d, dx, dy, at);
      kernels.avg_pool2d(d, mean, x);
      kernels.avg_pool2d_backward(d, dmean, dy);
      kernels.adaptive_avg_pool2d(d, adaptive, x);
      kernels.adaptive_avg_pool2d_backward(d, dadaptive, dy);
      return std::vector<Tensor>{y, at, dx, mean, dmean, adaptive, dadaptive};
    });
  }
}

TEST_CASE("norms") {
  for (DType dtype : {float32, float64, bfloat16}) {
    same_on_both("batch_norm", tolerance(dtype) * 4, [&](Device device) {
      const Tensor x = random_on(device, {300, 6}, dtype, 1), dy = random_on(device, {300, 6}, dtype, 2);
      const Tensor w = random_on(device, {6}, dtype == bfloat16 ? float32 : dtype, 3),
                   b = random_on(device, {6}, w.dtype(), 4);
      const raw::BatchStatistics s = raw::batch_norm_statistics(x, 1e-5);
      const Tensor sums = raw::batch_norm_backward_reduce(x, dy, s.mean, s.invstd);
      return std::vector<Tensor>{s.mean, s.var, raw::batch_norm_apply(x, s.mean, s.invstd, w, b), sums,
                                 raw::batch_norm_backward_apply(x, dy, s.mean, s.invstd, w, sums, s.count)};
    });
    same_on_both("row_norm", tolerance(dtype) * 4, [&](Device device) {
      const Kernels& kernels = kernels_for(device);
      const Tensor x = random_on(device, {6, 12}, dtype, 5), dy = random_on(device, {6, 12}, dtype, 6),
                   w = random_on(device, {6}, dtype, 7), b = random_on(device, {6}, dtype, 8);
      Tensor y = raw::empty({6, 12}, dtype, device), dx = raw::empty({6, 12}, dtype, device);
      Tensor mean = raw::empty({6}, float64, device), invstd = raw::empty({6}, float64, device);
      Tensor dw = raw::empty({6}, dtype, device), db = raw::empty({6}, dtype, device);
      kernels.row_norm(y, mean, invstd, x, w, b, 4, 2, 1e-5);  // group norm: 2 groups of 3 channels of 4 pixels
      kernels.row_norm_backward(dx, dw, db, dy, x, mean, invstd, w, 4, 2);
      return std::vector<Tensor>{y, mean, invstd, dx, dw, db};
    });
  }
}

TEST_CASE("softmax and cross-entropy; a label that is no class is reported when somebody waits") {
  const auto loss_of = [](Device device, DType dtype, std::int64_t last_label) {
    const Kernels& kernels = kernels_for(device);
    const LossDesc d{.rows = 5, .classes = 10, .label_smoothing = 0.1};
    const Tensor x = random_on(device, {5, 10}, dtype, 1),
                 scale = random_on(device, {5}, dtype == float64 ? float64 : float32, 2);
    const Tensor labels = raw::to_device(from({1, 0, -100, 9, double(last_label)}, {5}, int64), device);
    Tensor losses = raw::empty({5}, scale.dtype(), device), weights = raw::empty({5}, scale.dtype(), device),
           lse = raw::empty({5}, scale.dtype(), device), dx = raw::empty({5, 10}, dtype, device);
    kernels.cross_entropy(d, losses, weights, lse, x, labels, Tensor());
    kernels.cross_entropy_backward(d, dx, scale, x, labels, Tensor(), lse);
    return std::vector<Tensor>{losses, weights, lse, dx};
  };
  for (DType dtype : {float32, float64, float16}) {
    same_on_both("cross_entropy", tolerance(dtype), [&](Device device) { return loss_of(device, dtype, 3); });
    same_on_both("softmax", tolerance(dtype), [&](Device device) {
      const Tensor x = random_on(device, {4, 3, 7}, dtype, 3), dy = random_on(device, {4, 3, 7}, dtype, 4);
      const Tensor y = raw::softmax(x, 1, false), z = raw::softmax(x, 2, true);
      return std::vector<Tensor>{y, z, raw::softmax_backward(dy, y, 1, false), raw::softmax_backward(dy, z, 2, true)};
    });
  }
  fake::reset({.seed = 3});
  const fake::LaunchScope launches;
  const std::vector<Tensor> bad = loss_of(kGpu, float32, 10);
  CHECK_THROWS_AS(values(raw::to_device(bad[0], kCpu)), IndexError);
}
