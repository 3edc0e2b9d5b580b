// Conv2d: cross-correlation of images [N,C,H,W] with learned kernels.
#pragma once

#include <limpid/nn/module.h>
#include <limpid/autograd/pair.h>

namespace limpid::nn {

struct Conv2dOptions {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  Pair kernel_size = 0;
  Pair stride = 1;
  Pair padding = 0;  // zeros on each side
  Pair dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

// x [N, in_channels, H, W] -> [N, out_channels, OH, OW], OH = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
// weight [out, in/groups, kh, kw] and bias [out] start uniform in +-1/sqrt(in/groups * kh * kw), PyTorch's default.
class Conv2d : public Module {
 public:
  explicit Conv2d(const Conv2dOptions& options);
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "Conv2d"; }
  std::string describe() const override;
  const Conv2dOptions& options() const { return options_; }
  void check_input(const Tensor& x) const;        // ShapeError
  limpid::Conv2dOptions call_options() const;     // of conv2d()
  void reset_parameters(Generator& generator = default_generator());

  Tensor weight, bias;

 private:
  Conv2dOptions options_;
};

}  // namespace limpid::nn
