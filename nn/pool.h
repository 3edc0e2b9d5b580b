// Pooling of images [N,C,H,W] as modules.
#pragma once

#include <limpid/nn/module.h>
#include <limpid/autograd/pair.h>

namespace limpid::nn {

struct MaxPool2dOptions {
  Pair kernel_size = 0;
  Pair stride = 0;  // 0 = kernel_size
  Pair padding = 0;
  Pair dilation = 1;
  bool ceil_mode = false;
};
class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const MaxPool2dOptions& options);
  explicit MaxPool2d(int kernel_size) : MaxPool2d(MaxPool2dOptions{.kernel_size = kernel_size}) {}
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "MaxPool2d"; }
  std::string describe() const override;
  const MaxPool2dOptions& options() const { return options_; }

 private:
  MaxPool2dOptions options_;
};

struct AvgPool2dOptions {
  Pair kernel_size = 0;
  Pair stride = 0;  // 0 = kernel_size
  Pair padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;
};
class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const AvgPool2dOptions& options);
  explicit AvgPool2d(int kernel_size) : AvgPool2d(AvgPool2dOptions{.kernel_size = kernel_size}) {}
  Tensor forward(const Tensor& x) override;
  std::string type_name() const override { return "AvgPool2d"; }
  std::string describe() const override;
  const AvgPool2dOptions& options() const { return options_; }

 private:
  AvgPool2dOptions options_;
};

class AdaptiveAvgPool2d : public Module {
 public:
  explicit AdaptiveAvgPool2d(Pair output_size);
  Tensor forward(const Tensor& x) override { return adaptive_avg_pool2d(x, output_size_); }
  std::string type_name() const override { return "AdaptiveAvgPool2d"; }
  std::string describe() const override;
  Pair output_size() const { return output_size_; }

 private:
  Pair output_size_;
};

}  // namespace limpid::nn
